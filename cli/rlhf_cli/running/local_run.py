"""Which run a command means, and where it is: chosen from the folders that are there, locked while it runs."""

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_api.job import RLHFJob
from rlhf_api.run import RunConfig, run_config, run_directory
from rlhf_runtime.storage.run_directory import RunDirectory

from rlhf_cli.exits import BadInput
from rlhf_cli.reading.run_folder import RunFolder
from rlhf_cli.running.local_job import LocalJob, local_uid, localize
from rlhf_cli.validation import config_map
from rlhf_cli.validation.config_map import ConfigMap, load_config_map
from rlhf_cli.validation.manifest import ManifestError, read_manifest
from rlhf_cli.validation.verdict import InvalidObject, doubles, is_job, load_job


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    """A job and the folder that its run has on this machine."""

    local: LocalJob
    storage: Path
    folder: RunFolder

    @property
    def directory(self) -> RunDirectory:
        return self.folder.directory

    def config(self, attempt: int) -> RunConfig:
        """The config of an attempt, by the derivation that the operator uses."""
        return run_config(self.local.job, str(self.storage), attempt=attempt, incarnation=1)

    def next_attempt(self) -> int:
        """One more than any attempt that has begun: each writes its own directory."""
        return max(self.directory.attempts(), default=0) + 1

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The variables of everything the run starts: the shell's, the job's over them, the job's code in front."""
        variables = {**inherited, **self.local.environment}
        # The job's own PYTHONPATH adds to the shell's: by the latter this very command may have been found.
        paths = [*self._code(), self.local.environment.get("PYTHONPATH", ""), inherited.get("PYTHONPATH", "")]
        if any(paths):
            variables["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
        return variables

    def _code(self) -> list[str]:
        if self.local.code_path is not None:
            return [self.local.code_path]
        if not self.local.code_files:
            return []
        # Named by content, so that a changed function does not run under an attempt that began with another.
        digest = hashlib.sha256()
        for name, content in sorted(self.local.code_files.items()):
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        folder = self.directory.path / "code" / digest.hexdigest()[:12]
        for name, content in self.local.code_files.items():
            self.directory.write(folder / name, content)
        return [str(folder)]


def read_jobs(files: Sequence[Path]) -> tuple[list[RLHFJob], list[ConfigMap]]:
    """All RLHFJobs of the files, validated and defaulted, and all ConfigMaps. Raises BadInput."""
    try:
        documents = [document for file in files for document in read_manifest(file)]
        of_jobs = [document for document in documents if is_job(document)]
        of_config_maps = [document for document in documents if document.kind == config_map.KIND]
        jobs = [load_job(document) for document in of_jobs]
        config_maps = [load_config_map(document) for document in of_config_maps]
    except ManifestError as error:
        raise BadInput(str(error)) from error
    except InvalidObject as error:
        raise BadInput(*map(str, error.problems)) from error
    if again := doubles([*of_jobs, *of_config_maps]):
        raise BadInput(*map(str, again))
    return jobs, config_maps


def the_job(jobs: Sequence[RLHFJob], name: str | None) -> RLHFJob:
    """The job to run: the only one, or the one of that name. Raises BadInput."""
    chosen = [job for job in jobs if name in (None, job.name)]
    if len(chosen) == 1:
        return chosen[0]
    found = ", ".join(f"{job.namespace}/{job.name}" for job in jobs) or "none"
    if name is None and jobs:
        raise BadInput(f"the files hold {len(jobs)} RLHFJobs, give one with --name: {found}")
    raise BadInput(
        f"expected one RLHFJob{f' named {name!r}' if name else ''}, found {len(chosen)}; in the files: {found}"
    )


def choose_run(job: RLHFJob, config_maps: Sequence[ConfigMap], storage: Path, *, fresh: bool) -> LocalRun:
    """The run of this job below `storage`: the newest there is, or the next one with `fresh`.

    Raises BadInput for references that only a cluster resolves, and for a spec that is not the begun run's.
    """
    storage = storage.resolve()
    if storage.exists() and not storage.is_dir():
        raise BadInput(f"--storage: {storage} is no folder")
    number = 0
    while _folder(job, storage, number + (0 if fresh else 1)).exists():
        number += 1
    uid = local_uid(job.namespace, job.name, number)
    run = LocalRun(
        local=localize(job, config_maps, storage, uid),
        storage=storage,
        folder=RunFolder(_folder(job, storage, number)),
    )
    if run.local.code_path is not None and not Path(run.local.code_path).is_dir():
        raise BadInput(f"spec.runtime.code.path: there is no folder {run.local.code_path} on this machine")
    _check_same_spec(run)
    return run


def _folder(job: RLHFJob, storage: Path, number: int) -> Path:
    content = job.to_dict()
    content["metadata"] = {**content["metadata"], "uid": local_uid(job.namespace, job.name, number)}
    return Path(run_directory(str(storage), RLHFJob.model_validate(content)))


def _check_same_spec(run: LocalRun) -> None:
    """A spec is immutable here too: two halves of one run with different settings would be neither run."""
    begun = run.folder.config()
    if begun is None:
        return
    from rlhf_cli.reading.report import flattened

    of_attempt = {"attempt", "incarnation", "generation"}
    before = {k: v for k, v in flattened(begun.to_dict()) if k not in of_attempt}
    now = {k: v for k, v in flattened(run.config(begun.attempt).to_dict()) if k not in of_attempt}
    changed = [
        f"{key}: {before.get(key, 'absent')} → {now.get(key, 'absent')}"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    ]
    if changed:
        raise BadInput(
            f"{run.folder.path} holds a run with another spec ({'; '.join(changed)}); "
            "give the job another name, take the spec back, or begin a new run with --fresh"
        )


@contextlib.contextmanager
def locked(run: LocalRun) -> Iterator[None]:
    """Held while the run is at work. Raises BadInput when another command is, or when the folder takes no file."""
    path = run.folder.path / "run.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--storage: cannot write in {path.parent}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise BadInput(
                f"{run.folder.path}: another rlhfjob run is at work there (process {holder}); "
                "wait for it, stop it, or begin a run of its own with --fresh"
            ) from error
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield
