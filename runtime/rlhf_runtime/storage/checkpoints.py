"""Checkpoints: complete or not there. What a failed attempt resumes from, and the trained model.

::

    attempts/00001/checkpoints/episode-000010/   model and tokenizer as transformers loads them
                                                 critic/         the critic, the same way (PPO)
                                                 reference/      the reference, where it is refreshed
                                                 training.pt     optimisers and their step count
                                                 state.json      where the run stood
                                                 manifest.json   names, sizes, digests of all the others; written last
    model/                                       the trained models, the same way, without training.pt

A trainer writes into a folder whose name says that it is unfinished; the coordinator adds the rest and renames it.
On resume the highest attempt's newest checkpoint whose manifest holds wins; any other is passed over with a reason.
"""

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from rlhf_api.schema import ApiModel, first_error

from rlhf_runtime.storage.run_directory import RunDirectory

log = logging.getLogger(__name__)

TRAINING_STATE = "training.pt"
_STATE = "state.json"
_MANIFEST = "manifest.json"
_NAME = re.compile(r"^episode-(\d{6,})$")
#: Names with this prefix do not count, see `run_directory.py`.
_UNFINISHED = ".unfinished-"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of an unfinished checkpoint: path from its folder, bytes, and blake2b digest."""

    name: str
    size: int
    digest: str


class RunState(ApiModel):
    """Where a run stood after `episode` trained episodes: all that a resumed attempt needs beside the tensors.

    The policy version and the cursor of the next prompt follow from it, and are there for people and as a check.
    What was buffered or in flight is not kept: the same prompts are sampled again.
    """

    attempt: int
    episode: int
    policy_version: int
    prompt_cursor: int
    optimizer_steps: int
    score: float | None = None
    initial_score: float | None = None
    best_score: float | None = None
    best_checkpoint: str | None = None


class _File(ApiModel):
    name: str
    size: int
    digest: str


class _Manifest(ApiModel):
    """Of a checkpoint or of the trained model; being there says that all the files are."""

    episode: int
    files: list[_File]


class Checkpoints:
    """The checkpoints of one run, as attempt `attempt` sees and writes them."""

    def __init__(self, directory: RunDirectory, attempt: int, keep: int) -> None:
        self._directory = directory
        self._attempt = attempt
        self._keep = keep

    @property
    def model(self) -> Path:
        """Folder of the trained model."""
        return self._directory.path / "model"

    def folder(self, episode: int) -> Path:
        """Where the complete checkpoint of this episode is, or will be."""
        return self._folder / _name(episode)

    def unfinished(self, episode: int) -> Path:
        """A folder for a trainer to write a checkpoint into; what an earlier try left there is gone."""
        return _cleared(self._folder / f"{_UNFINISHED}{_name(episode)}")

    def unfinished_model(self) -> Path:
        return _cleared(self._directory.path / f"{_UNFINISHED}model")

    def complete(self, unfinished: Path, files: Sequence[StagedFile], state: RunState) -> Path:
        """Make a written checkpoint count. Returns its folder."""
        _write(unfinished / _STATE, state.to_json(indent=1).encode())
        return self._seal(unfinished, self._folder / _name(state.episode), state.episode, files)

    def complete_model(self, unfinished: Path, files: Sequence[StagedFile], episode: int) -> Path:
        """Make a written model the trained model of the run. Returns its folder."""
        return self._seal(unfinished, self.model, episode, files)

    def discard(self, unfinished: Path) -> None:
        """Remove a checkpoint that turned out not to be wanted."""
        shutil.rmtree(unfinished)

    def finished(self, episodes: int) -> bool:
        """Whether the trained model is there, after at least so many episodes."""
        if not self.model.is_dir():
            return False
        problem = _problem(self.model, episodes)
        if problem:
            log.warning("trained model at %s does not count: %s", self.model, problem)
        return problem is None

    def newest(self) -> tuple[Path, RunState] | None:
        """The checkpoint to resume from; None when there is none that is whole."""
        for folder, episode in self._newest_first():
            problem = _problem(folder, episode)
            if problem is None:
                try:
                    return folder, RunState.read_json((folder / _STATE).read_bytes())
                except ValidationError as error:
                    problem = f"its {_STATE} is not valid: {first_error(error)}"
            log.warning("checkpoint %s is passed over: %s", folder, problem)
        return None

    def prune(self, best: str | None) -> list[Path]:
        """Remove all but the newest `keep` and the best. Of this attempt and earlier ones: later ones are not ours."""
        removed = []
        for folder, _ in list(self._newest_first())[self._keep :]:
            if str(folder) == best:
                continue
            # Renamed first: a folder half removed must not look like a checkpoint.
            doomed = folder.with_name(f"{_UNFINISHED}removed-{folder.name}")
            folder.rename(_cleared(doomed))
            shutil.rmtree(doomed)
            removed.append(folder)
        return removed

    @property
    def _folder(self) -> Path:
        return self._directory.attempt(self._attempt).checkpoints

    def _newest_first(self) -> Iterator[tuple[Path, int]]:
        for attempt in sorted(self._directory.attempts(), reverse=True):
            if attempt > self._attempt:
                continue
            folder = self._directory.attempt(attempt).checkpoints
            names = [match for name in self._directory.names(folder) if (match := _NAME.match(name))]
            for match in sorted(names, key=lambda match: int(match[1]), reverse=True):
                yield folder / match[0], int(match[1])

    def _seal(self, unfinished: Path, final: Path, episode: int, files: Sequence[StagedFile]) -> Path:
        own = [_described(unfinished, unfinished / _STATE)] if (unfinished / _STATE).exists() else []
        manifest = _Manifest(
            episode=episode, files=[_File(name=f.name, size=f.size, digest=f.digest) for f in [*files, *own]]
        )
        _write(unfinished / _MANIFEST, manifest.to_json(indent=1).encode())
        problem = _problem(unfinished, episode, digests=False)
        if problem:
            raise OSError(f"checkpoint {unfinished}: {problem}")
        # The folder's own entries, the manifest's among them, before the rename by which it counts.
        _flush(unfinished)
        if final.exists():
            # Left by a crash between this rename and the end, or not whole: this one takes its place.
            shutil.rmtree(final)
        unfinished.rename(final)
        _flush(final.parent)
        return final


def staged_files(folder: Path) -> list[StagedFile]:
    """All files of a folder, and of the folders in it, made durable."""
    paths = sorted(folder.rglob("*"))
    for path in (*paths, folder):
        _flush(path)
    return [_described(folder, path) for path in paths if path.is_file()]


def _described(folder: Path, path: Path) -> StagedFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    return StagedFile(str(path.relative_to(folder)), path.stat().st_size, digest)


def _problem(folder: Path, episode: int, *, digests: bool = True) -> str | None:
    """Why this folder does not count; None if it does. A checkpoint of a later episode than asked for counts."""
    try:
        manifest = _Manifest.read_json((folder / _MANIFEST).read_bytes())
    except FileNotFoundError:
        return f"it has no {_MANIFEST}, so it was never completed"
    except ValidationError as error:
        return f"its {_MANIFEST} is not valid: {first_error(error)}"
    if manifest.episode < episode:
        return f"it is of episode {manifest.episode}, expected {episode}"
    return next(_file_problems(folder, manifest.files, digests=digests), None)


def _file_problems(folder: Path, files: Iterable[_File], *, digests: bool) -> Iterator[str]:
    for file in files:
        path = folder / file.name
        if not path.is_file():
            yield f"{file.name} is missing"
        elif path.stat().st_size != file.size:
            yield f"{file.name} has {path.stat().st_size} bytes, expected {file.size}"
        elif digests and (found := _described(folder, path).digest) != file.digest:
            yield f"{file.name} has digest {found}, expected {file.digest}"


def _name(episode: int) -> str:
    return f"episode-{episode:06d}"


def _cleared(folder: Path) -> Path:
    if folder.exists():
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    _flush(path)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
