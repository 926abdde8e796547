"""The files of a source of prompts: one, those of a folder, or those that a `*` names; each as lines of JSON.

JSON Lines are read where they lie. Parquet and gzip know no line by its place, so they are unpacked once into a
temporary file, which ends with the process; so is what a `reasoning_gym` task makes.
"""

import gzip
import io
import os
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO, NoReturn, cast

from rlhf_api.conditions import Reason

from rlhf_runtime.data.locations import LocationError, local_path
from rlhf_runtime.data.nearest_name import did_you_mean
from rlhf_runtime.data.remote_files import CACHE_ENV
from rlhf_runtime.failures import RunFailure

#: Names of files that hold prompts, of all that are in a folder.
PATTERNS = ("*.jsonl", "*.json", "*.jsonl.gz", "*.json.gz", "*.parquet")
#: Longest line, bytes: a sanity limit on what one row of a broken file may take of memory.
MAX_LINE = 64 << 20
#: What is unpacked stays in memory up to here, bytes.
_IN_MEMORY = 1 << 20


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as its rows' messages call it, and where it lies here."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class LineFile:
    """Lines of JSON. `open` gives them from the first byte on; `place(n)` says where line n (from 1) came from."""

    name: str
    open: Callable[[], AbstractContextManager[BinaryIO]]
    place: Callable[[int], str]


def source_files(uri: str, field: str) -> list[SourceFile]:
    """The files that a URI names, fetched if they are elsewhere, by name; ``field`` is the source's name in the spec.

    Raises RunFailure: PromptsInvalid, DatasetEmpty, SourceUnreachable (not permanent).
    """
    parent, _, last = uri.rpartition("/")
    # A web server knows no folders, so a star in its addresses is a star.
    several = "*" in last and not uri.startswith("http")
    try:
        path = local_path(parent or "/", only=(_literal(last),)) if several else local_path(uri, only=PATTERNS)
    except LocationError as error:
        reason = Reason.PROMPTS_INVALID if error.permanent else Reason.SOURCE_UNREACHABLE
        raise RunFailure(reason, f"{field}.uri: {error}", permanent=error.permanent) from error
    shown = str(path) if uri.startswith(("/", "package://")) else (parent if several else uri).rstrip("/")
    if not several and not path.is_dir():
        return [SourceFile(shown, path)]
    wanted = (_literal(last),) if several else PATTERNS
    try:
        names = sorted(entry.name for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))
    except OSError as error:
        invalid(f"{field}.uri: cannot read {path}: {error.strerror or error}{neighbours(path)}", error)
    found = [name for name in names if any(fnmatchcase(name, pattern) for pattern in wanted)]
    if not found:
        raise RunFailure(
            Reason.DATASET_EMPTY,
            f"{field}: 0 rows: found {_listed(names) or 'no files'} in {shown}, expected "
            f"{last if several else ', '.join(PATTERNS)}",
            permanent=True,
        )
    return [SourceFile(f"{shown}/{name}", path / name) for name in found]


def json_lines(file: SourceFile, field: str) -> LineFile:
    """A file of JSON Lines, plain or in gzip. Raises RunFailure PromptsInvalid."""
    if file.path.suffix == ".gz":
        return _unzipped(file, field)
    try:
        found = file.path.stat()
    except OSError as error:
        invalid(f"{field}.uri: cannot read {file.path}: {error.strerror or error}{neighbours(file.path)}", error)
    if not stat.S_ISREG(found.st_mode):
        # A pipe would be waited for, and could not be read again.
        invalid(f"{field}.uri: {file.path} is no regular file, expected one")
    before = _identity(found)

    @contextmanager
    def opened() -> Iterator[BinaryIO]:
        try:
            with file.path.open("rb") as content:
                if _identity(os.fstat(content.fileno())) != before:
                    invalid(f"{file.name} has changed since its rows were checked, expected it to stay as it is")
                yield content
        except OSError as error:
            invalid(f"{field}.uri: cannot read {file.path}: {error.strerror or error}{neighbours(file.path)}", error)

    return LineFile(file.name, opened, lambda number: f"line {number}")


def unpacked(name: str, lines: Iterable[bytes], place: Callable[[int], str]) -> LineFile:
    """Lines kept in a temporary file, in the folder that RLHF_CACHE_DIR names or the system's; each ends a row."""
    folder = os.environ.get(CACHE_ENV) or None
    try:
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
        # Not in a `with`: it is gone when its last reader is.
        kept = cast(BinaryIO, tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY, dir=folder))  # noqa: SIM115
        for line in lines:
            kept.write(line.rstrip(b"\n") + b"\n")
    except OSError as error:
        where = folder or tempfile.gettempdir()
        invalid(f"{name}: cannot be unpacked in {where} ({CACHE_ENV}): {error.strerror or error}", error)

    @contextmanager
    def opened() -> Iterator[BinaryIO]:
        kept.seek(0)
        yield kept

    return LineFile(name, opened, place)


def neighbours(path: Path) -> str:
    """What the folder of a path has, for a message about a file that is not there."""
    folder = path.parent
    if not folder.is_dir():
        return f"; there is no folder {folder}"
    # A mounted ConfigMap has hidden folders beside its files.
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    return f"; in {folder} there is {_listed(names)}{did_you_mean(path.name, names)}" if names else ""


def invalid(message: str, cause: BaseException | None = None) -> NoReturn:
    """Raise RunFailure PromptsInvalid, permanent."""
    raise RunFailure(Reason.PROMPTS_INVALID, message, permanent=True) from cause


def _unzipped(file: SourceFile, field: str) -> LineFile:
    def lines() -> Iterator[bytes]:
        number = 0
        try:
            with gzip.open(file.path, "rb") as content:
                while line := cast(io.BufferedIOBase, content).readline(MAX_LINE + 1):
                    number += 1
                    yield line
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            invalid(f"{file.name}, after line {number}: not a whole gzip file: {error}", error)
        except OSError as error:
            invalid(f"{field}.uri: cannot read {file.path}: {error.strerror or error}{neighbours(file.path)}", error)

    return unpacked(file.name, lines(), lambda number: f"line {number}")


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns


def _literal(pattern: str) -> str:
    """A pattern in which `*` alone is special."""
    return pattern.replace("[", "[[]").replace("?", "[?]")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
