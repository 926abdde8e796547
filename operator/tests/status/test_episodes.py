"""Episodes of the journal folded into status: each once, and what a resumed attempt replaces is dropped."""

from typing import Any

from hypothesis import given as drawn
from hypothesis import strategies as st
from rlhf_api.status import EpisodeReport, RLHFJobStatus
from rlhf_operator.status.episodes import fold

G = Any


def first_attempt(given: G, last: int) -> RLHFJobStatus:
    return fold(RLHFJobStatus(), given.report(), [given.episode(number) for number in range(1, last + 1)])


def numbers(status: RLHFJobStatus) -> list[tuple[int, int]]:
    return [(entry.attempt, entry.episode) for entry in status.episodes]


def test_episodes_received_again_change_nothing(given: G) -> None:
    status = first_attempt(given, 3)
    assert fold(status, given.report(), [given.episode(2), given.episode(3)]) is status


def test_the_last_ten_are_kept_and_the_best_of_all_is_remembered(given: G) -> None:
    entries = [given.episode(1, reward=5.0, score=0.9), *(given.episode(number) for number in range(2, 15))]
    status = RLHFJobStatus()
    for entry in entries:
        status = fold(status, given.report(), [entry])
    assert numbers(status) == [(1, number) for number in range(5, 15)]
    assert status.reward is not None
    assert status.score is not None
    assert (status.reward.last, status.reward.best) == (1.4, 5.0)
    assert (status.score.last, status.score.best) == (0.9, 0.9), "the last score is of the last evaluated episode"


def test_a_resumed_attempt_replaces_what_it_does_not_build_on_before_it_trained_anything(given: G) -> None:
    status = fold(first_attempt(given, 7), given.report(attempt=2, resumed_from=4), [])
    assert (status.episode, numbers(status)[-1]) == (4, (1, 4))
    assert status.reward is not None
    assert (status.reward.last, status.reward.best) == (0.4, 0.4), "the best was replaced too"
    again = fold(status, given.report(attempt=2, resumed_from=4), [given.episode(5, attempt=2, seq=1, reward=0.2)])
    assert (again.episode, numbers(again)[-2:]) == (5, [(1, 4), (2, 5)])
    assert (again.reports.attempt, again.reports.seq) == (2, 1)


def test_a_starting_attempt_has_not_said_yet_what_it_builds_on(given: G) -> None:
    status = first_attempt(given, 7)
    assert fold(status, given.report("Starting", attempt=2, resumed_from=0), []) == status


def test_an_attempt_that_finds_the_job_finished_replaces_nothing(given: G) -> None:
    status = first_attempt(given, 7)
    assert fold(status, given.report("Succeeded", attempt=2, resumed_from=0), []) == status


def test_a_later_attempt_replaces_earlier_episodes_even_if_its_reports_were_missed(given: G) -> None:
    entries = [given.episode(number, attempt=3, seq=number - 2) for number in (3, 4)]
    status = fold(first_attempt(given, 7), None, entries)
    assert numbers(status) == [(1, 1), (1, 2), (3, 3), (3, 4)]
    assert status.episode == 4


def test_an_attempt_that_resumes_from_nothing_starts_at_zero(given: G) -> None:
    status = fold(first_attempt(given, 3), given.report(attempt=2, resumed_from=0), [])
    assert (status.episode, status.episodes, status.reward, status.kl, status.staleness) == (0, [], None, None, None)


def entry(attempt: int, seq: int, number: int) -> EpisodeReport:
    zero = dict.fromkeys(EpisodeReport.model_fields, 0)
    known = {"attempt": attempt, "seq": seq, "episode": number, "time": "2026-01-02T03:04:05Z"}
    return EpisodeReport.model_validate({**zero, "score": None, "rewards": {"exact": 0.5}, **known})


@st.composite
def journals(draw: st.DrawFn) -> list[EpisodeReport]:
    """What a reader receives of attempts that each resume somewhere and train on."""
    entries: list[EpisodeReport] = []
    reached = 0
    for attempt in range(1, draw(st.integers(1, 4)) + 1):
        start = draw(st.integers(0, reached))
        count = draw(st.integers(0, 8))
        entries += [entry(attempt, seq, start + seq) for seq in range(1, count + 1)]
        reached = start + count if count else reached
    return entries


@drawn(journal=journals(), data=st.data())
def test_however_the_journal_is_cut_into_reports_nothing_is_lost_or_counted_twice(
    journal: list[EpisodeReport], data: st.DataObject
) -> None:
    whole = fold(RLHFJobStatus(), None, journal)
    status, position = RLHFJobStatus(), 0
    while position < len(journal):
        size = data.draw(st.integers(1, 5))
        # Every report may repeat what came before it: the cursor decides.
        status = fold(status, None, journal[max(0, position - 2) : position + size])
        position += size
    # A rollback beyond the kept ten leaves fewer; what is left is the newest.
    assert numbers(whole)[-len(numbers(status)) :] == numbers(status)
    assert (status.episode, status.reports) == (whole.episode, whole.reports)
    assert [number for _, number in numbers(whole)] == sorted({number for _, number in numbers(whole)})
