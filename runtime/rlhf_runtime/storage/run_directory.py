"""One job's own folder in the shared storage: the only module that knows how it is laid out.

::

    <run_directory>/attempts/00001/config.json       the attempt's RunConfig
                                   journal/           see journal.py
                                   checkpoints/       the coordinator's
                                   samples/           the coordinator's
                                   result.json        how it ended; written once, last

Whole files are written and none is ever appended to, so that an object store can take the place of the
folder. A file is there completely or not at all: it is written under a temporary name, flushed, and renamed.
"""

import errno
import os
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from rlhf_api.conditions import Reason

from rlhf_runtime.failures import RunFailure

#: Longest that one pod may take to see what another has written, seconds; NFS clients cache folders for a while.
PROBE_SECONDS = 10.0

_TEMPORARY = ".unfinished-"
_ATTEMPT = re.compile(r"^\d{5,}$")
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


class DamagedFile(ValueError):
    """A file of the run is not what was written; the message names it."""


@dataclass(frozen=True, slots=True)
class AttemptDirectory:
    """The folder of one attempt. Its parts are paths, for libraries that write files of their own."""

    path: Path

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def result(self) -> Path:
        return self.path / "result.json"


class RunDirectory:
    """A job's folder. Every file of it is written through here, and only inside it.

    Raises ValueError for a path that is not absolute, or that climbs with "..".
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_absolute() or ".." in self.path.parts:
            raise ValueError(f"run directory {str(path)!r}: expected an absolute path without '..'")

    def __repr__(self) -> str:
        return f"RunDirectory({str(self.path)!r})"

    def attempt(self, number: int) -> AttemptDirectory:
        """The folder of attempt ``number`` (from 1), which need not exist."""
        if number < 1:
            raise ValueError(f"attempt {number}: expected 1 or more")
        return AttemptDirectory(self.path / "attempts" / f"{number:05d}")

    def attempts(self) -> list[int]:
        """Numbers of the attempts that have a folder, rising."""
        return sorted(int(name) for name in self.names(self.path / "attempts") if _ATTEMPT.match(name))

    def names(self, folder: Path) -> list[str]:
        """Names in a folder of this directory, sorted; none if there is no folder.

        Hidden ones are left out: unfinished files, and what file systems put beside open ones.
        """
        try:
            found = os.listdir(self._inside(folder))
        except FileNotFoundError:
            return []
        return sorted(name for name in found if not name.startswith("."))

    def read(self, path: Path) -> bytes:
        """A whole file. Raises FileNotFoundError."""
        return self._inside(path).read_bytes()

    def write(self, path: Path, content: bytes) -> None:
        """Put a whole file in place, durably; a file of that name is replaced."""
        self._inside(path).parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f"{_TEMPORARY}{path.name}-{secrets.token_hex(6)}"
        try:
            with open(temporary, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        _flush_folder(path.parent)

    def claim(self, number: int) -> AttemptDirectory:
        """Make the folder of an attempt, durably. Raises FileExistsError if it is there: of two supervisors one wins.

        A folder and not a file, because making one is exclusive on every shared file system, where hard links
        and locks are not to be had on some.
        """
        attempt = self.attempt(number)
        self._inside(attempt.path).parent.mkdir(parents=True, exist_ok=True)
        attempt.path.mkdir()
        _flush_folder(attempt.path.parent)
        return attempt

    def delete(self, path: Path) -> None:
        """Remove a file; it is no error if it is gone."""
        self._inside(path).unlink(missing_ok=True)

    def write_probe(self) -> str:
        """Write a small new file and return its token, which the other pods give to ``read_probe``.

        Raises RunFailure StorageReadOnly (permanent), or StorageFailed if the storage is full or broken.
        """
        token = secrets.token_hex(16)
        try:
            self.write(self._probe(token), token.encode())
        except OSError as error:
            raise storage_failure(error, f"cannot write in {self.path}") from error
        return token

    def read_probe(self, token: str, reader: str, seconds: float = PROBE_SECONDS) -> None:
        """Check in another process that it sees the file of ``write_probe``; ``reader`` names its pod.

        Raises RunFailure StorageNotShared (permanent) if the file is not there after ``seconds``.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = self.read(self._probe(token)).decode()
                break
            except FileNotFoundError as error:
                if time.monotonic() >= deadline:
                    raise RunFailure(
                        Reason.STORAGE_NOT_SHARED,
                        f"{reader} does not see the file that the head wrote in {self.path} {seconds:g} s ago: "
                        "checkpoint.storage must be one file system, mounted into every pod of the job "
                        "(a ReadWriteMany claim when pods are on several nodes)",
                        permanent=True,
                    ) from error
                time.sleep(0.2)
            except OSError as error:
                raise storage_failure(error, f"{reader} cannot read in {self.path}") from error
        if found != token:
            raise RunFailure(
                Reason.STORAGE_NOT_SHARED,
                f"{reader} read {found!r} where the head wrote {token!r}, in {self.path}",
                permanent=True,
            )

    def remove_probe(self, token: str) -> None:
        """Remove the file of ``write_probe`` once all have read it."""
        self.delete(self._probe(token))

    def _probe(self, token: str) -> Path:
        return self.path / "probes" / token

    def _inside(self, path: Path) -> Path:
        # Resolved, so that neither ".." nor a symbolic link leads out of the job's own folder.
        if not path.resolve().is_relative_to(self.path.resolve()):
            raise ValueError(f"{path} is outside of the run directory {self.path}")
        return path


def storage_failure(error: OSError, what: str) -> RunFailure:
    """The failure that an error of the storage means; only a storage that may not be written is permanent."""
    read_only = error.errno in _READ_ONLY
    return RunFailure(
        Reason.STORAGE_READ_ONLY if read_only else Reason.STORAGE_FAILED,
        f"{what}: {error.strerror or error}" + (f" ({error.filename})" if error.filename else ""),
        permanent=read_only,
    )


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
