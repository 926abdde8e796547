"""Sample rollouts of a run, as the makers' completions were trained: read back for people."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_api.status import EpisodeReport
from rlhf_runtime.storage.run_directory import RunDirectory

from rlhf_cli.exits import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One trained completion. `versions` are the oldest and newest policy version among its tokens."""

    episode: int
    prompt: str
    completion: str
    reward: float
    advantage: float
    versions: tuple[int, int]


def read_samples(directory: RunDirectory, report: EpisodeReport) -> list[Sample]:
    """The kept samples of the episode, [] where none were kept.

    Raises BadInput with file and line for a row that is not one.
    """
    path = _path(directory, report)
    return list(_rows(path, report.episode)) if path.exists() else []


def with_samples(directory: RunDirectory, reports: Sequence[EpisodeReport]) -> list[int]:
    """Which of the episodes have samples."""
    return [report.episode for report in reports if _path(directory, report).exists()]


def _path(directory: RunDirectory, report: EpisodeReport) -> Path:
    return directory.attempt(report.attempt).samples / f"episode-{report.episode:06d}.jsonl"


def _rows(path: Path, episode: int) -> Iterator[Sample]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                yield _sample(row, episode)
            except (ValueError, KeyError, TypeError) as error:
                raise BadInput(
                    f"{path}:{number}: expected a JSON object with prompt, completion, reward, advantage and "
                    f"versions, found {line.strip()[:80]!r} ({error})"
                ) from error


def _sample(row: dict[str, Any], episode: int) -> Sample:
    versions = [int(v) for v in row["versions"]]
    return Sample(
        episode=episode,
        prompt=str(row["prompt"]),
        completion=str(row["completion"]),
        reward=float(row["reward"]),
        advantage=float(row["advantage"]),
        versions=(min(versions), max(versions)),
    )


def telling(samples: Sequence[Sample], most: int) -> list[Sample]:
    """At most `most` samples worth reading: of different prompts first, with the best and the worst among them."""
    ranked = sorted(samples, key=lambda s: s.reward)
    chosen: list[Sample] = []
    # From both ends inwards, so that a few samples show what is rewarded and what is not.
    order = [ranked[i // 2] if i % 2 else ranked[-1 - i // 2] for i in range(len(ranked))]
    seen: set[str] = set()
    for sample in order:
        if sample.prompt not in seen and len(chosen) < most:
            seen.add(sample.prompt)
            chosen.append(sample)
    chosen.extend([s for s in order if s not in chosen][: most - len(chosen)])
    return chosen
