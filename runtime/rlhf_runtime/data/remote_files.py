"""Files that lie elsewhere, and a copy of each on this machine, fetched once.

A copy's name in the cache has the version (ETag, commit) that the store gave, so a changed file is another file.
Processes that want the same file at the same time take turns; a file that has not arrived in full has another name.
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

T = TypeVar("T")
log = logging.getLogger(__name__)

#: Environment variable of the folder that copies are kept in; without it `~/.cache/rlhfjob`.
CACHE_ENV = "RLHF_CACHE_DIR"
#: Pauses between tries of what may heal, seconds: three tries.
_PAUSES = (1.0, 3.0)
#: Seconds to wait for another process that fetches the same file; then this one fetches it too.
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


def retried(call: Callable[[], T], tries: int) -> T:
    """The call's result; what may heal is tried again, until it was tried ``tries`` times. Raises LocationError."""
    for pause in _PAUSES[: tries - 1]:
        try:
            return call()
        except LocationError as error:
            if error.permanent:
                raise
            log.warning("%s; again in %g s", error, pause)
            time.sleep(pause)
    return call()


def cached(uri: str, listing: Listing, file: RemoteFile, download: Callable[[Path], None], *, origin: str) -> Path:
    """The copy of a file in the cache, made by ``download`` if it is not there.

    ``origin`` tells apart what one URI means at different endpoints. Raises LocationError: the cache cannot be
    written, or more or fewer bytes arrived than the listing has.
    """
    versions = [f"{each.name} {each.version or time.time_ns()} {each.size}" for each in listing.files]
    folder = _cache() / _digest(origin, uri) / _digest(*versions)
    target = folder / file.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f".{file.name}.lock")
        try:
            lock.acquire(timeout=_TURN_SECONDS)
        except Timeout:
            log.warning("%s has been locked for %g s: fetching beside", lock.lock_file, _TURN_SECONDS)
        try:
            if not target.is_file():
                _fill(uri, file, target, download)
        finally:
            lock.release()
    except OSError as error:
        raise LocationError(
            f"{uri}: cannot be kept in {folder}: {error.strerror or error}; {CACHE_ENV} names another folder",
            permanent=False,
        ) from error
    return target


def first_line(error: BaseException) -> str:
    """A library's error in one line of bounded length."""
    # aiohttp says "ssl:default" of every address, http too.
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
