"""Run folders on this machine: finding them, and reading back what a run wrote into one."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from rlhf_api.run import RunConfig
from rlhf_api.schema import first_error
from rlhf_api.status import EpisodeReport
from rlhf_runtime.storage.journal import history
from rlhf_runtime.storage.run_directory import DamagedFile, RunDirectory

from rlhf_cli.exits import BadInput


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One job's folder below a storage root: ``<root>/<namespace>/<name>-<8 characters of its uid>``."""

    path: Path

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(self.path.resolve())

    @property
    def namespace(self) -> str:
        return self.path.resolve().parent.name

    @property
    def name(self) -> str:
        return self.path.name[:-9]

    def config(self) -> RunConfig | None:
        """The newest attempt's config; None when no attempt has begun. Raises BadInput for a damaged one."""
        directory = self.directory
        for attempt in reversed(directory.attempts()):
            path = directory.attempt(attempt).config
            try:
                return RunConfig.read_json(directory.read(path))
            except FileNotFoundError:
                continue  # claimed by a folder, and then nothing was written: the attempt never began
            except ValidationError as error:
                raise BadInput(f"{path}: not a RunConfig of this version: {first_error(error)}") from error
        return None

    def episodes(self) -> list[EpisodeReport]:
        """The episodes that count, oldest first; none superseded by a rollback. Raises BadInput for damage."""
        try:
            return history(self.directory)
        except DamagedFile as error:
            raise BadInput(str(error)) from error


def find_runs(path: Path, name: str | None = None, namespace: str | None = None) -> list[RunFolder]:
    """The run folders at `path`: itself, or those below it when it is a storage root; by time, oldest first.

    Raises BadInput when there is no such folder.
    """
    if not path.is_dir():
        raise BadInput(f"{path}: there is no such folder; expected a run folder, or the storage that runs are in")
    if (path / "attempts").is_dir():
        return [RunFolder(path)]
    folders = [p.parent for p in path.glob("*/*/attempts") if p.is_dir()]
    runs = [RunFolder(p) for p in sorted(folders, key=lambda p: (p / "attempts").stat().st_mtime)]
    return [r for r in runs if name in (None, r.name) and namespace in (None, r.namespace)]


def the_run(path: Path, name: str | None = None, namespace: str | None = None) -> RunFolder:
    """The one run at `path`. Raises BadInput when there is none, or when several are there to choose from."""
    runs = find_runs(path, name, namespace)
    if len(runs) == 1:
        return runs[0]
    if not runs:
        wanted = f" of a job {name!r}" if name else ""
        raise BadInput(
            f"{path}: found no run{wanted}; expected <storage>/<namespace>/<name>-<uid>/attempts below it, "
            "or the folder that holds attempts itself"
        )
    listed = "\n  ".join(str(r.path) for r in runs)
    raise BadInput(f"{path}: found {len(runs)} runs, give one of them:\n  {listed}")
