"""The state of a local run as its reports tell it, and what a person reads of it. Pure: no terminal, no clock."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rlhf_api.run import Report, Wait
from rlhf_api.series import series, unread
from rlhf_api.status import EpisodeReport, ReportCursor

_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A run so far."""

    name: str
    planned: int
    """Episodes wanted."""
    started: datetime
    """When this command began."""
    activity: str
    """What is going on, a few words."""
    episodes: tuple[EpisodeReport, ...] = ()
    """Those that count, oldest first."""
    report: Report | None = None
    """The newest report of the current attempt."""

    @property
    def done(self) -> int:
        return self.episodes[-1].episode if self.episodes else 0

    @property
    def cursor(self) -> ReportCursor:
        """Of the last episode read."""
        return self.episodes[-1].cursor if self.episodes else ReportCursor()


def advanced(progress: Progress, report: Report) -> Progress:
    """With a report taken in: an attempt that resumed earlier than the last one ended supersedes episodes."""
    # Until it runs, an attempt has not said what it resumes from.
    resumed_from = {report.attempt: report.resumed_from} if report.state == "Running" else {}
    episodes = series([*progress.episodes, *unread(progress.cursor, report.episodes)], resumed_from)
    activity = {"Starting": "starting", "Running": "training", "Succeeded": "succeeded", "Failed": "failed"}
    return replace(progress, episodes=tuple(episodes), report=report, activity=activity[report.state])


def remaining(progress: Progress) -> timedelta | None:
    """Time to the end at the pace of the last ten episodes; None before the first."""
    recent = progress.episodes[-10:]
    if not recent:
        return None
    pace = sum(e.seconds for e in recent) / len(recent)
    return timedelta(seconds=round(pace * max(0, progress.planned - progress.done)))


def sparkline(values: Sequence[float], width: int) -> str:
    """The series in at most `width` characters, lowest to highest block."""
    size = max(1, -(-len(values) // width))
    means = [sum(values[i : i + size]) / len(values[i : i + size]) for i in range(0, len(values), size)]
    if not means:
        return ""
    low, high = min(means), max(means)
    return "".join(_BLOCKS[round((v - low) / (high - low) * 7) if high > low else 0] for v in means)


def episode_line(episode: EpisodeReport, planned: int) -> str:
    """One plain line for an episode, `name value` pairs in a fixed order, for logs and `grep`."""
    score = "-" if episode.score is None else f"{episode.score:.4f}"
    return (
        f"episode {episode.episode}/{planned} reward {episode.reward:.4f} score {score} kl {episode.kl:.5f} "
        f"staleness {episode.staleness_mean:.2f} (max {episode.staleness_max}) "
        f"tokens/s {episode.tokens_per_second:.0f} seconds {episode.seconds:.2f}"
    )


def news(before: Progress, after: Progress) -> Iterator[str]:
    """Plain lines for what happened between two states of a run."""
    old, new = before.report, after.report
    if new is not None and (old is None or (old.attempt, old.state) != (new.attempt, new.state)):
        if new.state == "Running":
            resumed = f", resumed after episode {new.resumed_from}" if new.resumed_from else ""
            yield f"attempt {new.attempt}: running{resumed}"
        elif new.failure is not None:
            yield f"attempt {new.attempt}: {new.failure.reason}: {new.failure.message}"
    if new is not None and new.initial_score is not None and (old is None or old.initial_score is None):
        yield f"score of the starting policy {new.initial_score:.4f}"
    if new is not None and new.repairs.makers > (old.repairs.makers if old and old.attempt == new.attempt else 0):
        yield f"attempt {new.attempt}: makers replaced so far: {new.repairs.makers}"
    known = {(e.attempt, e.episode) for e in before.episodes}
    for episode in after.episodes:
        if (episode.attempt, episode.episode) not in known:
            yield episode_line(episode, after.planned)


def long_waits(progress: Progress, now: datetime, seconds: float) -> list[Wait]:
    """Waits that have lasted longer than `seconds`: shorter ones are the normal rhythm of an episode."""
    if progress.report is None:
        return []
    return [w for w in progress.report.waits if (now - w.since).total_seconds() >= seconds]
