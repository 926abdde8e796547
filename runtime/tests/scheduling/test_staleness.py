"""The staleness bound, and the scheduler that keeps it: simulated without Ray, with kills and changing limits."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlhf_runtime.scheduling.ledger import Dispatch, Ledger
from rlhf_runtime.scheduling.next_batch import Limits, drop_stale, next_batch, waits_for_weights
from rlhf_runtime.scheduling.staleness import Policy, may_admit, may_start, staleness


@pytest.mark.parametrize(
    ("situation", "policy", "episode", "maker", "trainer", "bound", "expected"),
    [
        ("on-policy, the current episode", "Wait", 4, 4, 4, 0, True),
        ("on-policy, the next episode must wait", "Wait", 5, 4, 4, 0, False),
        ("one behind is allowed", "Wait", 5, 4, 4, 1, True),
        ("a maker that missed a sync has used its budget", "Wait", 5, 3, 4, 1, False),
        ("with drops the next episode may start", "DropAndRefill", 5, 4, 4, 0, True),
        ("with drops nothing starts that is too stale already", "DropAndRefill", 5, 3, 4, 0, False),
    ],
)
def test_what_a_maker_may_start(
    situation: str, policy: Policy, episode: int, maker: int, trainer: int, bound: int, expected: bool
) -> None:
    found = may_start(policy, episode=episode, maker_version=maker, trainer_version=trainer, max_staleness=bound)
    assert found == expected, situation


def test_staleness_is_checked_against_the_oldest_token() -> None:
    assert staleness(7, 5) == 2
    assert may_admit(trainer_version=7, oldest_version=5, max_staleness=2)
    assert not may_admit(trainer_version=7, oldest_version=5, max_staleness=1)


def test_a_sample_from_the_future_is_our_own_error() -> None:
    with pytest.raises(AssertionError, match="a sample of version 8 met a trainer of version 7"):
        staleness(7, 8)


def test_after_a_resume_no_more_is_started_than_the_bound_allows() -> None:
    # AReaL#1388: version restored, counters not, gave 416 groups instead of 16.
    ledger = Ledger(prompts_per_episode=8, first_episode=50)
    limits = Limits(policy="Wait", max_staleness=1, episodes=1000, capacity=1000, batch=1000)
    assert len(next_batch(ledger, limits, maker_version=50, trainer_version=50)) == 16


def test_a_full_buffer_is_not_a_wait_for_weights() -> None:
    ledger = Ledger(prompts_per_episode=2, first_episode=0)
    limits = Limits(policy="Wait", max_staleness=0, episodes=9, capacity=2, batch=2)
    dispatches = [ledger.dispatch(cursor, "a") for cursor in (0, 1)]
    assert not waits_for_weights(ledger, limits, maker_version=0, trainer_version=0)
    for dispatch in dispatches:
        ledger.complete(dispatch, 0)
    ledger.train(0)
    assert waits_for_weights(ledger, limits, maker_version=0, trainer_version=1)
    assert not waits_for_weights(ledger, limits, maker_version=1, trainer_version=1)


def test_nothing_is_started_beyond_the_last_episode() -> None:
    ledger = Ledger(prompts_per_episode=2, first_episode=2)
    limits = Limits(policy="DropAndRefill", max_staleness=5, episodes=3, capacity=50, batch=50)
    assert next_batch(ledger, limits, maker_version=2, trainer_version=2) == [4, 5]


@dataclass
class Maker:
    name: str
    version: int
    batch: list[tuple[Dispatch, int]] = field(default_factory=list)
    """In progress, with the version that samples it."""


def simulate(seed: int) -> None:
    """One run as the coordinator would drive it, in a random order of events; asserts the invariants at each step."""
    chance = random.Random(seed)
    prompts, episodes = chance.randint(1, 4), chance.randint(1, 6)
    first = chance.choice([0, 0, 7])
    policy: Policy = chance.choice(["Wait", "DropAndRefill"])
    bound = chance.randint(0, 3)
    capacity = chance.randint(prompts, 4 * prompts)
    batch = chance.randint(1, 2 * prompts)
    makers = [Maker(f"maker-{i}", first) for i in range(chance.randint(1, 3))]
    ledger = Ledger(prompts_per_episode=prompts, first_episode=first)
    trained: list[int] = []
    version = published = first
    training: int | None = None
    last = first + episodes
    for _ in range(20_000):
        limits = Limits(policy=policy, max_staleness=bound, episodes=last, capacity=capacity, batch=batch)
        assert ledger.occupied <= capacity
        if ledger.episode == last:
            break
        events = ["deliver"] * 4 + ["start"] * 6 + ["train"] * 3 + ["finish"] * 3 + ["publish"] * 3 + ["sync"] * 3
        event = chance.choice([*events, "kill", "settings"])
        maker = chance.choice(makers)
        if event == "start" and not maker.batch:
            cursors = next_batch(ledger, limits, maker_version=maker.version, trainer_version=version)
            assert len(cursors) <= batch
            maker.batch = [(ledger.dispatch(cursor, maker.name), maker.version) for cursor in cursors]
        elif event == "deliver":
            for dispatch, oldest in maker.batch:
                if may_admit(trainer_version=version, oldest_version=oldest, max_staleness=bound):
                    ledger.complete(dispatch, oldest)
                else:
                    ledger.drop(dispatch, "stale")
            maker.batch = []
        elif event == "train" and training is None and published == version:
            drop_stale(ledger, trainer_version=version, max_staleness=bound)
            if ledger.is_ready(ledger.episode):
                training = ledger.episode
                assert training == version
                for _, oldest in ledger.ready(training):
                    assert staleness(version, oldest) <= bound
        elif event == "finish" and training is not None:
            trained.extend(ledger.cursors_of(training))
            ledger.train(training)
            version, training = version + 1, None
        elif event == "publish":
            published = version
        elif event == "sync" and not maker.batch:
            maker.version = published
        elif event == "kill" and chance.random() < 0.2:
            for dispatch in ledger.in_flight_of(maker.name):
                ledger.drop(dispatch, "lost")
            makers[makers.index(maker)] = Maker(f"{maker.name}'", published)
        elif event == "settings" and training is None and chance.random() < 0.1:
            bound = chance.randint(0, 3)
    assert trained == list(range(first * prompts, last * prompts)), f"stuck at episode {ledger.episode} of {last}"


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_every_run_trains_each_prompt_once_within_the_bound_and_never_gets_stuck(seed: int) -> None:
    simulate(seed)
