"""What a person sees of a local run: a live table on a terminal, one plain line per event elsewhere."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rlhf_cli.escaped import escaped
from rlhf_cli.running.progress import Progress, long_waits, news, remaining, sparkline

#: Rows of the live table.
ROWS = 15


class Screen(Protocol):
    """Where a run's progress is shown."""

    def show(self, progress: Progress) -> None:
        """Take the newest state in."""
        ...

    def say(self, line: str) -> None:
        """A sentence that stays to be read."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was; what was shown last stays."""
        ...


def screen_for(console: Console) -> Screen:
    """A live screen on a terminal, plain lines anywhere else."""
    return LiveScreen(console) if console.is_terminal else PlainScreen(console)


class PlainScreen:
    """One line per event, without colours or control characters: for files, pipes and CI."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: Progress | None = None
        self._waits: set[tuple[str, datetime]] = set()

    def show(self, progress: Progress) -> None:
        if self._shown is not None:
            for line in news(self._shown, progress):
                self.say(line)
        for wait in long_waits(progress, datetime.now(UTC), seconds=30):
            if (wait.reason, wait.since) not in self._waits:
                self.say(f"waiting: {wait.owner}: {wait.reason}: {wait.message}")
        self._waits = {(w.reason, w.since) for w in long_waits(progress, datetime.now(UTC), seconds=30)}
        self._shown = progress

    def say(self, line: str) -> None:
        self._console.file.write(escaped(line).rstrip("\n") + "\n")
        self._console.file.flush()

    def close(self) -> None:
        return


class LiveScreen:
    """A progress bar, the last episodes as a table, and what the run waits for; four times a second."""

    def __init__(self, console: Console, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        self._progress: Progress | None = None
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._render, transient=False)
        self._live.start()

    def show(self, progress: Progress) -> None:
        self._progress = progress

    def say(self, line: str) -> None:
        self._live.console.print(escaped(line), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        return "" if self._progress is None else rendered(self._progress, self._now())


def rendered(progress: Progress, now: datetime) -> RenderableType:
    """The live picture of a run."""
    parts: list[RenderableType] = [_bar(progress, now)]
    if progress.episodes:
        rewards = [e.reward for e in progress.episodes]
        parts.append(Text(f"reward  {sparkline(rewards, 48)}  {rewards[0]:.3f} → {rewards[-1]:.3f}", style="cyan"))
        parts += ["", _table(progress), ""]
    parts.append(_state(progress, now))
    return Group(*parts)


def _bar(progress: Progress, now: datetime) -> Table:
    grid = Table.grid(padding=(0, 2))
    left = remaining(progress)
    grid.add_row(
        Text(progress.name, style="bold"),
        ProgressBar(
            total=max(1, progress.planned),
            completed=progress.done,
            width=36,
            complete_style="cyan",
            finished_style="green",
        ),
        f"{progress.done}/{progress.planned} episodes",
        Text(_clock(now - progress.started), style="dim"),
        Text(f"about {_clock(left)} left" if left else "", style="dim"),
    )
    return grid


def _table(progress: Progress) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0), pad_edge=False)
    for heading in ("Episode", "Reward", "Score", "KL", "Staleness", "Tokens/s", "Seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for e in progress.episodes[-ROWS:]:
        table.add_row(
            str(e.episode),
            f"{e.reward:.4f}",
            "" if e.score is None else Text(f"{e.score:.4f}", style="bold green"),
            f"{e.kl:.5f}",
            f"{e.staleness_mean:.2f} (max {e.staleness_max})",
            f"{e.tokens_per_second:,.0f}",
            f"{e.seconds:.2f}",
        )
    return table


def _state(progress: Progress, now: datetime) -> Text:
    """Attempt and activity, repairs, and the waits that have lasted a second."""
    text = Text(no_wrap=True, overflow="ellipsis")
    report = progress.report
    text.append(progress.activity if report is None else f"attempt {report.attempt}: {progress.activity}", style="dim")
    if report is not None:
        text.append(f"  makers {report.makers.ready}/{report.makers.desired}", style="dim")
        text.append(f"  trainers {report.trainers.ready}/{report.trainers.desired}", style="dim")
        if report.repairs.makers:
            text.append(f"  replaced {report.repairs.makers}", style="yellow")
    for wait in long_waits(progress, now, seconds=1):
        text.append(f"  {wait.owner}: {wait.reason} {_clock(now - wait.since)}", style="yellow")
    return text


def _clock(duration: timedelta) -> str:
    seconds = max(0, int(duration.total_seconds()))
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours}:{minutes:02d}:{seconds % 60:02d}" if hours else f"{minutes}:{seconds % 60:02d}"
