"""The ledger keeps its sum under every schedule, and refuses what would lose a group or count it twice."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlhf_runtime.scheduling.ledger import Dispatch, Ledger, LedgerError


def assert_sum(ledger: Ledger) -> None:
    t = ledger.totals
    assert t.dispatched == t.trained + t.buffered + t.in_flight + t.dropped_stale + t.dropped_lost


def filled(*cursors: int, prompts_per_episode: int = 2) -> tuple[Ledger, list[Dispatch]]:
    """A ledger with these first cursors in flight."""
    ledger = Ledger(prompts_per_episode=prompts_per_episode, first_episode=0)
    return ledger, [ledger.dispatch(cursor, "maker-0") for cursor in cursors]


def test_a_dropped_group_is_the_next_to_be_sampled() -> None:
    ledger, (first, second, _) = filled(0, 1, 2)
    ledger.complete(second, 0)
    ledger.drop(second, "stale")
    ledger.drop(first, "lost")
    assert ledger.next_cursors(4) == [0, 1, 3, 4]
    assert (ledger.totals.dropped_stale, ledger.totals.dropped_lost, ledger.totals.in_flight) == (1, 1, 1)


def test_what_an_earlier_try_delivers_late_is_told_apart_from_the_new_try() -> None:
    ledger, (early, _) = filled(0, 1)
    ledger.drop(early, "lost")
    again = ledger.dispatch(0, "maker-1")
    assert not ledger.is_in_flight(early)
    assert ledger.is_in_flight(again)
    with pytest.raises(LedgerError, match=r"prompt 0, try 1: not in flight \(try 3 is\)"):
        ledger.complete(early, 0)
    assert_sum(ledger)


def test_a_group_that_arrives_twice_is_refused() -> None:
    ledger, (first,) = filled(0)
    ledger.complete(first, 0)
    with pytest.raises(LedgerError, match="no try of it is"):
        ledger.complete(first, 0)


def test_an_episode_with_a_group_missing_is_not_trained() -> None:
    ledger, (first, _) = filled(0, 1)
    ledger.complete(first, 0)
    with pytest.raises(LedgerError, match="1 of 2 groups are not buffered, the first of prompt 1"):
        ledger.train(0)


def test_an_episode_is_not_trained_twice_nor_out_of_order() -> None:
    ledger, dispatches = filled(0, 1, 2, 3)
    for dispatch in dispatches:
        ledger.complete(dispatch, 0)
    with pytest.raises(LedgerError, match="training of episode 1: expected 0"):
        ledger.train(1)
    ledger.train(0)
    with pytest.raises(LedgerError, match="training of episode 0: expected 1"):
        ledger.train(0)


def test_a_later_prompt_is_not_dispatched_before_an_open_earlier_one() -> None:
    ledger, (first, _) = filled(0, 1)
    ledger.drop(first, "lost")
    with pytest.raises(LedgerError, match="dispatch of prompt 2: expected the lowest one that is open, 0"):
        ledger.dispatch(2, "maker-0")


def test_a_resumed_ledger_starts_at_its_episode_with_empty_counters() -> None:
    ledger = Ledger(prompts_per_episode=8, first_episode=50)
    assert ledger.next_cursors(2) == [400, 401]
    assert ledger.totals.trained == 0
    assert ledger.episode == 50


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_sum_holds_and_every_group_is_trained_once_under_any_schedule(seed: int) -> None:
    chance = random.Random(seed)
    prompts, episodes = chance.randint(1, 5), chance.randint(1, 4)
    ledger = Ledger(prompts_per_episode=prompts, first_episode=0)
    given_up: list[Dispatch] = []
    trained: list[int] = []
    for _ in range(10_000):
        assert_sum(ledger)
        if ledger.episode == episodes:
            break
        step = chance.choice(["dispatch", "complete", "lose", "stale", "late", "train", "train"])
        if step == "dispatch" and ledger.occupied < 3 * prompts:
            ledger.dispatch(ledger.next_cursors(1)[0], chance.choice(["a", "b"]))
        elif step in ("complete", "lose"):
            flying = ledger.in_flight_of("a") + ledger.in_flight_of("b")
            if flying and step == "complete":
                ledger.complete(chance.choice(flying), 0)
            elif flying and chance.random() < 0.5:
                given_up.append(chance.choice(flying))
                ledger.drop(given_up[-1], "lost")
        elif step == "stale" and chance.random() < 0.3:
            for dispatch, _version in ledger.buffered():
                given_up.append(dispatch)
                ledger.drop(dispatch, "stale")
        elif step == "late" and given_up:
            late = chance.choice(given_up)
            assert not ledger.is_in_flight(late)
            with pytest.raises(LedgerError):
                ledger.complete(late, 0)
        elif step == "train" and ledger.is_ready(ledger.episode):
            trained.extend(ledger.cursors_of(ledger.episode))
            ledger.train(ledger.episode)
    assert trained == list(range(episodes * prompts))
