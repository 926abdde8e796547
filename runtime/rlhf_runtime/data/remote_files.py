"""Files that lie elsewhere: what a place has, and a copy of each on this machine, fetched once.

A copy's name in the cache has the version (ETag, commit) that the place gave, so a changed file is another file.
Processes that want the same file at the same time take turns; what is half there has another name until it is whole.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)

#: Environment variable of the folder that copies are kept in; without it `~/.cache/rlhfjob`.
CACHE_ENV = "RLHF_CACHE_DIR"
#: Pauses between tries of what may heal, seconds: three tries.
_PAUSES = (1.0, 3.0)
#: Longest time that a connection may take to open, and that an open one may be silent, seconds.
CONNECT_SECONDS, SILENT_SECONDS = 10.0, 60.0
#: Longest wait for another process that fetches the same file, seconds; then this one fetches it too.
_TURN_SECONDS = 1800.0
#: Longest text of a library's error in a message, characters.
_MAX_TEXT = 300


class LocationError(ValueError):
    """What a URI names cannot be had: the message says what was found, what was expected, what to do.

    ``permanent``: another attempt would find the same.
    """

    def __init__(self, message: str, *, permanent: bool) -> None:
        super().__init__(message)
        self.permanent = permanent


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a place: its name there without folders, bytes (None: not told), and its version (None: not told)."""

    name: str
    size: int | None
    version: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """What a URI names: one file, or a folder with the files directly in it."""

    folder: bool
    files: tuple[RemoteFile, ...]


class Place(Protocol):
    """Something remote that a URI names. Both methods raise LocationError."""

    def listing(self) -> Listing:
        """What is there now."""
        ...

    def fetch(self, listing: Listing, file: RemoteFile) -> Path:
        """A local copy of a file of the listing. Copies of one listing's files are in one folder."""
        ...


def retried(call: Callable[[], T]) -> T:
    """The call's result; what may heal is tried again, twice. Raises LocationError."""
    for pause in _PAUSES:
        try:
            return call()
        except LocationError as error:
            if error.permanent:
                raise
            log.warning("%s; again in %g s", error, pause)
            time.sleep(pause)
    return call()


def cached(uri: str, listing: Listing, file: RemoteFile, download: Callable[[Path], None], *, origin: str = "") -> Path:
    """The copy of a file in the cache, made by ``download`` if it is not there.

    ``origin`` tells apart what one URI means at different endpoints. Raises LocationError: the cache cannot be
    written, or what arrived is shorter or longer than was said.
    """
    versions = [f"{each.name} {each.version or time.time_ns()} {each.size}" for each in listing.files]
    folder = _cache() / _digest(origin, uri) / _digest(*versions)
    target = folder / file.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _turn(folder / f".{file.name}.lock"):
            if not target.is_file():
                _fill(uri, file, target, download)
    except OSError as error:
        raise LocationError(
            f"{uri}: cannot be kept in {folder}: {error.strerror or error}; {CACHE_ENV} names another folder",
            permanent=False,
        ) from error
    return target


def first_line(error: BaseException) -> str:
    """A library's error in one line of bounded length."""
    # aiohttp says of every address, http too, that it takes certificates as usual.
    line = (str(error).strip().splitlines() or [""])[0].replace(" ssl:default", "")
    text = f"{type(error).__name__}: {line}" if line else type(error).__name__
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "..."


def _fill(uri: str, file: RemoteFile, target: Path, download: Callable[[Path], None]) -> None:
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        download(part)
        found = part.stat().st_size
        if file.size is not None and found != file.size:
            raise LocationError(f"{uri}: {file.name}: {found} of {file.size} bytes arrived", permanent=False)
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def _cache() -> Path:
    chosen = os.environ.get(CACHE_ENV)
    return Path(chosen) if chosen else Path.home() / ".cache" / "rlhfjob"


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()


@contextlib.contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Hold the lock of a file; a process that dies lets go of it."""
    deadline = time.monotonic() + _TURN_SECONDS
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    log.warning("%s has been locked for %g s: fetching beside", path, _TURN_SECONDS)
                    break
                time.sleep(0.2)
        yield
