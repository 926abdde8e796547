"""Which episodes count, of those that several attempts have trained."""

from collections.abc import Iterable

import pytest
from rlhf_api.series import last_kept, series, unread
from rlhf_api.status import EpisodeReport, ReportCursor


def trained(attempt: int, resumed_from: int, count: int) -> list[EpisodeReport]:
    zero = dict.fromkeys(EpisodeReport.model_fields, 0) | {"rewards": {}, "time": "2026-01-02T03:04:05Z"}
    return [
        EpisodeReport.model_validate({**zero, "attempt": attempt, "seq": seq, "episode": resumed_from + seq})
        for seq in range(1, count + 1)
    ]


def numbers(episodes: Iterable[EpisodeReport]) -> list[tuple[int, int]]:
    return [(entry.attempt, entry.episode) for entry in episodes]


FIRST, SECOND, THIRD = trained(1, 0, 5), trained(2, 3, 3), trained(3, 4, 1)


@pytest.mark.parametrize(
    ("episodes", "resumed_from", "expected"),
    [
        pytest.param([], {}, [], id="nothing"),
        pytest.param(FIRST, {}, [(1, n) for n in range(1, 6)], id="one attempt"),
        pytest.param(
            [*FIRST, *SECOND, *THIRD],
            {},
            [(1, 1), (1, 2), (1, 3), (2, 4), (3, 5)],
            id="each attempt ends where a later one begins",
        ),
        pytest.param([*FIRST, *SECOND[1:]], {}, [(1, 1), (1, 2), (1, 3), (2, 5), (2, 6)], id="a first episode missed"),
        pytest.param([*FIRST, *SECOND], {3: 0}, [], id="a later attempt that begins again and has trained nothing"),
        pytest.param([*FIRST, *THIRD], {2: 2}, [(1, 1), (1, 2), (3, 5)], id="an attempt in between, none of it given"),
    ],
)
def test_series(episodes: list[EpisodeReport], resumed_from: dict[int, int], expected: list[tuple[int, int]]) -> None:
    assert numbers(series(episodes, resumed_from)) == expected


def test_an_attempt_that_no_later_one_resumed_before_counts_whole() -> None:
    assert last_kept(2, {1: 0, 2: 3}) is None
    assert last_kept(1, {1: 0, 2: 3, 3: 4}) == 3


def test_unread_is_what_comes_after_the_cursor_in_the_journal_s_order() -> None:
    assert numbers(unread(ReportCursor(attempt=1, seq=4), [*FIRST, *SECOND])) == [(1, 5), (2, 4), (2, 5), (2, 6)]
    assert unread(SECOND[-1].cursor, [*FIRST, *SECOND]) == []
