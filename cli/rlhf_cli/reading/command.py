"""`rlhfjob history` and `rlhfjob samples`: what a run did, from its folder or from the cluster."""

import csv
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rlhf_api.status import EpisodeReport

from rlhf_cli.escaped import escaped
from rlhf_cli.exits import BadInput
from rlhf_cli.reading.run_folder import the_run
from rlhf_cli.reading.run_record import parts_of_the_reward, reward_names
from rlhf_cli.reading.samples import Sample, read_samples, with_samples

Format = Literal["table", "json", "csv"]

_COLUMNS = ("episode", "attempt", "version", "reward", "score", "KL", "staleness", "tokens/s", "seconds")


def show_history(name: str | None, storage: Path | None, namespace: str | None, output: Format) -> None:
    """Print the episodes of a run. Raises BadInput, Unavailable."""
    episodes: Sequence[EpisodeReport]
    if storage is not None:
        episodes = the_run(storage, name, namespace).episodes()
    elif name is not None:
        episodes = _from_cluster(name, namespace)
    else:
        raise BadInput("give the NAME of a job in the cluster, or --storage with a run folder or storage path")
    sys.stdout.write(formatted(episodes, output))


def formatted(episodes: Sequence[EpisodeReport], output: Format) -> str:
    """The episodes as text; csv and json hold every field, by the API's own names (csv: `rewards.NAME`)."""
    if output == "json":
        return json.dumps([e.to_dict() for e in episodes], indent=2) + "\n"
    if output == "csv":
        return _csv(episodes)
    return _table(episodes)


def show_samples(path: Path, episode: int | None, most: int, output: Literal["text", "json"]) -> None:
    """Print sample rollouts of one episode, the last that has some unless told. Raises BadInput."""
    run = the_run(path)
    episodes = run.episodes()
    wanted = [e for e in episodes if episode in (None, e.episode)]
    if not wanted:
        trained = f"1 to {episodes[-1].episode}" if episodes else "none"
        raise BadInput(f"{run.path}: episode {episode} was not trained; episodes there: {trained}")
    for report in reversed(wanted):
        if samples := read_samples(run.directory, report):
            sys.stdout.write(samples_text(samples[:most]) if output == "text" else _samples_json(samples[:most]))
            return
    kept = with_samples(run.directory, episodes)
    if episode is None or not kept:
        raise BadInput(f"{run.path}: no samples were kept of any episode")
    listed = f"{'..., ' if len(kept) > 8 else ''}{', '.join(map(str, kept[-8:]))}"
    raise BadInput(f"{run.path}: no samples were kept of episode {episode}; they were of {listed}")


def samples_text(samples: Sequence[Sample]) -> str:
    """Samples for reading: a line of facts, the prompt, the completion."""
    return "".join(
        f"episode {s.episode}  reward {s.reward:.4g}  advantage {s.advantage:+.3f}  "
        f"version {s.versions[0] if s.versions[0] == s.versions[1] else f'{s.versions[0]} to {s.versions[1]}'}\n"
        f"{_indented('prompt', s.prompt)}{_indented('completion', s.completion)}\n"
        for s in samples
    )


def _indented(label: str, text: str) -> str:
    return f"  {label:<11}" + ("\n" + " " * 13).join(escaped(text).split("\n")) + "\n"


def _samples_json(samples: Sequence[Sample]) -> str:
    return json.dumps([asdict(s) for s in samples], indent=2, ensure_ascii=False) + "\n"


def _from_cluster(name: str, namespace: str | None) -> Sequence[EpisodeReport]:
    from rlhf_cli.reading.cluster import read_job

    job = read_job(name, namespace)
    held, trained = len(job.status.episodes), job.status.episode
    if trained > held:
        sys.stderr.write(
            f"The object holds the last {held} of {trained} episodes; "
            "all are in the checkpoint storage: rlhfjob history --storage PATH\n"
        )
    return job.status.episodes


def _csv(episodes: Sequence[EpisodeReport]) -> str:
    fields = [field.alias or name for name, field in EpisodeReport.model_fields.items() if name != "rewards"]
    text = io.StringIO()
    writer = csv.DictWriter(
        text, [*fields, *map(_csv_name, reward_names(episodes))], restval="", lineterminator="\n", extrasaction="ignore"
    )
    writer.writeheader()
    writer.writerows(e.to_dict() | {_csv_name(name): mean for name, mean in e.rewards.items()} for e in episodes)
    return text.getvalue()


def _csv_name(reward: str) -> str:
    return f"rewards.{reward}"


def _table(episodes: Sequence[EpisodeReport]) -> str:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    each = parts_of_the_reward(episodes)
    for heading in (*_COLUMNS, *map(escaped, each)):
        table.add_column(heading, justify="right", no_wrap=True)
    for e in episodes:
        table.add_row(*_row(e), *(f"{e.rewards[name]:.4f}" if name in e.rewards else "" for name in each))
    # As wide as it has to be: a name that is cut is no name.
    console = Console(file=io.StringIO(), width=120 + sum(len(name) + 16 for name in each))
    console.print(table)
    file: Any = console.file
    return "".join(line.rstrip() + "\n" for line in file.getvalue().splitlines())


def _row(e: EpisodeReport) -> tuple[str, ...]:
    return (
        str(e.episode),
        str(e.attempt),
        str(e.policy_version),
        f"{e.reward:.4f}",
        "" if e.score is None else f"{e.score:.4f}",
        f"{e.kl:.5f}",
        f"{e.staleness_mean:.2f} (max {e.staleness_max})",
        f"{e.tokens_per_second:.0f}",
        f"{e.seconds:.2f}",
    )
