"""Which groups were really trained, as the trainers say: ``attempts/N/trained/episode-000012.json``.

The ledger promises that every planned prompt is trained once, in a whole group; this is the record to check it by.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rlhf_runtime.experience.messages import TrainedGroup
from rlhf_runtime.storage.journal import history
from rlhf_runtime.storage.run_directory import AttemptDirectory, RunDirectory

#: Episodes of an attempt whose record is kept, the newest.
KEPT_EPISODES = 1000

_NAME = re.compile(r"^episode-\d{6,}\.json$")


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """A group of the run's series: its episode from 1, its prompt's cursor, its samples."""

    episode: int
    prompt: int
    samples: int


def write_trained_groups(
    directory: RunDirectory, attempt: AttemptDirectory, episode: int, groups: Sequence[TrainedGroup]
) -> None:
    """Record an episode (from 1), and remove the record of long ago. Raises OSError."""
    folder = attempt.path / "trained"
    directory.write(folder / _name(episode), json.dumps([asdict(group) for group in groups]).encode())
    for name in [name for name in directory.names(folder) if _NAME.match(name)][:-KEPT_EPISODES]:
        directory.delete(folder / name)


def trained_groups(directory: RunDirectory) -> list[RecordedGroup]:
    """The groups of every episode that counts, over all attempts. Raises FileNotFoundError for one long ago."""
    return [
        RecordedGroup(report.episode, group["prompt"], group["samples"])
        for report in history(directory)
        for group in json.loads(
            directory.read(directory.attempt(report.attempt).path / "trained" / _name(report.episode))
        )
    ]


def _name(episode: int) -> str:
    return f"episode-{episode:06d}.json"
