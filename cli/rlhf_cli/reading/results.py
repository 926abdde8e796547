"""What a run leaves for people: the plot and the report, written from its folder, beside its model."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from rlhf_api.run import Report
from rlhf_api.status import EpisodeReport
from rlhf_runtime.storage.attempt_result import read_result
from rlhf_runtime.storage.checkpoints import Checkpoints

from rlhf_cli.reading.installed import installed_versions
from rlhf_cli.reading.run_folder import RunFolder
from rlhf_cli.reading.run_record import RunRecord
from rlhf_cli.reading.samples import Sample, read_samples, telling

#: Samples of each of the report's episodes.
_SAMPLES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What there is to look at after a run, as far as it came."""

    model: Path | None
    checkpoint: Path | None
    plot: Path | None
    report: Path | None
    samples: Sequence[Sample]
    """A few of the last episode, for the terminal."""


def write_results(run: RunFolder) -> Results:
    """Write plot and report of a run that has begun; nothing where no episode was trained."""
    last = last_report(run)
    episodes = run.episodes()
    model, checkpoint = Path(last.final_model) if last and last.final_model else None, newest_checkpoint(run)
    if not episodes:
        return Results(model=model, checkpoint=checkpoint, plot=None, report=None, samples=())
    from rlhf_cli.reading.plot import write_plot
    from rlhf_cli.reading.report import html

    plot, report = run.path / "plot.png", run.path / "report.html"
    paths = {"trained model": model, "newest checkpoint": checkpoint, "run folder": run.path, "plot": plot}
    record = _record(run, last, episodes, {name: str(path) for name, path in paths.items() if path is not None})
    write_plot(record, plot)
    run.directory.write(run.directory.path / report.name, html(record).encode())
    shown = [s for s in record.samples if s.episode == episodes[-1].episode]
    return Results(model=model, checkpoint=checkpoint, plot=plot, report=report, samples=telling(shown, 3))


def newest_checkpoint(run: RunFolder) -> Path | None:
    """What the next attempt would resume from. By what is in the folder: a report may have come before the last one."""
    config = run.config()
    if config is None:
        return None
    newest = Checkpoints(run.directory, config.attempt, config.checkpoint_keep).newest()
    return newest[0] if newest is not None else None


def last_report(run: RunFolder) -> Report | None:
    """The last report of the newest attempt that ended; None before one has."""
    directory = run.directory
    for attempt in reversed(directory.attempts()):
        result = read_result(directory, attempt)
        if result is not None:
            return result.report
    return None


def _record(
    run: RunFolder, last: Report | None, episodes: Sequence[EpisodeReport], results: dict[str, str]
) -> RunRecord:
    config = run.config()
    if config is None:
        raise ValueError(f"{run.path}: found episodes and no attempt's config.json")
    return RunRecord(
        config=config,
        outcome=outcome(last, episodes, config.episodes),
        succeeded=last is not None and last.state == "Succeeded",
        episodes=episodes,
        initial_score=last.initial_score if last is not None else None,
        samples=_chosen_samples(run, episodes),
        results=results,
        versions=installed_versions(),
    )


def outcome(last: Report | None, episodes: Sequence[EpisodeReport], planned: int) -> str:
    """How a run ended, in one sentence."""
    trained = episodes[-1].episode if episodes else 0
    took = timedelta(seconds=round(sum(e.seconds for e in episodes)))
    if last is not None and last.state == "Succeeded":
        return f"Succeeded: {trained} of {planned} episodes in {took}"
    why = f": {last.failure.reason}: {last.failure.message}" if last is not None and last.failure is not None else ""
    return f"Ended after {trained} of {planned} episodes{why}"


def _chosen_samples(run: RunFolder, episodes: Sequence[EpisodeReport]) -> list[Sample]:
    """Samples of the first, the middle and the last episode that has some: what was learnt can be read there."""
    directory = run.directory
    kept = [e for e in episodes if read_samples(directory, e)]
    chosen = sorted({0, len(kept) // 2, len(kept) - 1}) if kept else []
    return [s for i in chosen for s in telling(read_samples(directory, kept[i]), _SAMPLES)]
