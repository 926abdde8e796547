"""What a person reads of a run while it is at work."""

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console
from rlhf_api.run import Report, Wait
from rlhf_api.status import EpisodeReport, ReportCursor
from rlhf_cli.running.progress import Progress, advanced, episode_line, news, remaining, sparkline
from rlhf_cli.running.screen import LiveScreen, PlainScreen, rendered, screen_for

START = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
MakeEpisode = Callable[..., EpisodeReport]


def progress(episodes: Sequence[EpisodeReport] = ()) -> Progress:
    return Progress(name="tiny", planned=8, started=START, activity="starting", episodes=tuple(episodes))


def report(state: str = "Running", attempt: int = 1, **changes: Any) -> Report:
    values: dict[str, Any] = {
        "attempt": attempt,
        "incarnation": 1,
        "revision": 1,
        "appliedGeneration": 1,
        "state": state,
        "makers": {"desired": 2, "ready": 1},
        "trainers": {"desired": 1, "ready": 1},
        "ledger": {},
        "policyVersion": 0,
        "repairs": {},
        "resumedFrom": 0,
        "lastProgress": START,
    }
    return Report.model_validate({**values, **changes})


def test_episodes_come_in_and_move_the_cursor(make_episode: MakeEpisode) -> None:
    seen = advanced(progress(), report(episodes=[make_episode(1), make_episode(2)]))
    assert (seen.done, seen.cursor, seen.activity) == (2, ReportCursor(attempt=1, seq=2), "training")
    assert advanced(seen, report(episodes=[make_episode(2)])).done == 2


def test_an_attempt_that_resumes_earlier_supersedes_episodes(make_episode: MakeEpisode) -> None:
    before = progress([make_episode(n) for n in (1, 2, 3)])
    starting = advanced(before, report("Starting", attempt=2))
    assert starting.done == 3, "until it runs, an attempt has not said what it resumes from"
    again = make_episode(3, attempt=2, seq=1, reward=0.9)
    running = advanced(starting, report(attempt=2, resumedFrom=2, episodes=[again]))
    assert [(e.attempt, e.episode) for e in running.episodes] == [(1, 1), (1, 2), (2, 3)]
    assert running.cursor == ReportCursor(attempt=2, seq=1)


def test_what_an_attempt_trained_whose_own_reports_were_missed_counts(make_episode: MakeEpisode) -> None:
    before = progress([make_episode(n) for n in (1, 2, 3)])
    missed = [make_episode(n, attempt=2, seq=n - 1) for n in (2, 3)]
    seen = advanced(before, report("Starting", attempt=3, episodes=missed))
    assert [(e.attempt, e.episode) for e in seen.episodes] == [(1, 1), (2, 2), (2, 3)], "as in the journal"


def test_the_line_of_an_episode_is_the_same_for_every_episode(make_episode: MakeEpisode) -> None:
    assert episode_line(make_episode(3), 8) == (
        "episode 3/8 reward 0.0300 score - kl 0.00300 staleness 0.50 (max 1) tokens/s 32 seconds 2.00"
    )
    assert " score 0.7500 " in episode_line(make_episode(3, score=0.75), 8)


def test_news_are_what_happened_between_two_states(make_episode: MakeEpisode) -> None:
    start = progress()
    running = advanced(start, report(resumedFrom=4, initialScore=0.25))
    assert list(news(start, running)) == [
        "attempt 1: running, resumed after episode 4",
        "score of the starting policy 0.2500",
    ]
    repaired = advanced(running, report(initialScore=0.25, repairs={"makers": 1}, episodes=[make_episode(1)]))
    assert list(news(running, repaired)) == [
        "attempt 1: makers replaced so far: 1",
        episode_line(make_episode(1), 8),
    ]
    failure = {"reason": "TrainerLost", "message": "rank 0 is gone", "permanent": False}
    failed = advanced(repaired, report("Failed", initialScore=0.25, repairs={"makers": 1}, failure=failure))
    assert list(news(repaired, failed)) == ["attempt 1: TrainerLost: rank 0 is gone"]
    assert list(news(failed, failed)) == []


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        pytest.param([], "", id="nothing"),
        pytest.param([1.0, 1.0], "▁▁", id="flat"),
        pytest.param([0.0, 1.0], "▁█", id="rising"),
        pytest.param([0.0, 0.0, 1.0, 1.0, 0.5, 0.5], "▁█▅", id="neighbours share a character"),
    ],
)
def test_sparkline(values: list[float], drawn: str) -> None:
    assert sparkline(values, 3) == drawn


def test_the_time_left_is_by_the_last_episodes_pace(make_episode: MakeEpisode) -> None:
    assert remaining(progress()) is None
    slow_start = [make_episode(1, seconds=100.0)]
    assert remaining(progress(slow_start)) == timedelta(seconds=700)
    assert remaining(progress([make_episode(n, seconds=3.0) for n in (1, 2, 3, 4, 5)])) == timedelta(seconds=9)


def drawn(state: Progress, now: datetime) -> str:
    console = Console(file=io.StringIO(), width=110, force_terminal=True, color_system=None)
    console.print(rendered(state, now))
    file: Any = console.file
    return str(file.getvalue())


def test_the_live_picture_has_the_last_episodes_and_what_is_waited_for(make_episode: MakeEpisode) -> None:
    episodes = [make_episode(n, score=0.5 if n == 30 else None) for n in range(1, 31)]
    wait = Wait(
        reason="PartitionUnderfilled",
        owner="trainers",
        message="8 of 16 samples",
        since=START,
        deadline=START + timedelta(seconds=60),
    )
    state = replace(progress(episodes), planned=50, report=report(waits=[wait.to_dict()]), activity="training")
    text = drawn(state, START + timedelta(seconds=5))
    assert "30/50 episodes" in text
    assert "0:05" in text
    assert "about 0:40 left" in text
    assert "0.010 → 0.300" in text
    rows = [line.split()[0] for line in text.splitlines() if line.split() and line.split()[0].isdigit()]
    assert rows == [str(n) for n in range(16, 31)]
    assert "makers 1/2" in text
    assert "trainers: PartitionUnderfilled 0:05" in text
    assert "PartitionUnderfilled" not in drawn(state, START), "a wait of an instant is the rhythm of an episode"


def test_off_a_terminal_there_are_plain_lines_only(make_episode: MakeEpisode) -> None:
    out = io.StringIO()
    screen = screen_for(Console(file=out))
    assert isinstance(screen, PlainScreen)
    screen.show(progress())
    screen.show(advanced(progress(), report(episodes=[make_episode(1)])))
    screen.say("[bold]said[/bold]")
    screen.close()
    assert "\x1b" not in out.getvalue()
    assert out.getvalue().splitlines() == [
        "attempt 1: running",
        episode_line(make_episode(1), 8),
        "[bold]said[/bold]",
    ]


def test_on_a_terminal_it_is_live_and_leaves_the_last_picture(make_episode: MakeEpisode) -> None:
    out = io.StringIO()
    screen = screen_for(Console(file=out, force_terminal=True, width=110))
    assert isinstance(screen, LiveScreen)
    screen.show(progress([make_episode(1), make_episode(2)]))
    screen.close()
    assert "2/8 episodes" in out.getvalue()
    assert out.getvalue().count("\x1b[?25l") == out.getvalue().count("\x1b[?25h"), "the cursor is shown again"
