"""The journal: every trained episode of a run, durable before the coordinator goes on.

Each attempt has a row of immutable segments in ``attempts/N/journal/``: ``00000001-00000032.jsonl`` holds the
reports with seq 1 to 32, one JSON object a line. An episode starts as a segment of its own; when 32 segments of
one size have come together they are put into one, so a million episodes take about a hundred files. A segment
is written whole before the ones it holds are removed: a crash between leaves both, and readers take the larger.

``begin.json`` says which episode the attempt resumed from. An attempt's episodes are the ones after it, in
order, and supersede those of earlier attempts: **the series** is what is left.

A file is written under another name and renamed, so only such unfinished ones may be ignored; whatever else is
not as it should be raises DamagedFile, naming the file.
"""

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError
from rlhf_api.schema import first_error
from rlhf_api.series import last_kept
from rlhf_api.status import EpisodeReport

from rlhf_runtime.storage.run_directory import DamagedFile, RunDirectory

#: So many segments of one size become one.
_FAN_OUT = 32
_BEGIN = "begin.json"
_SEGMENT = re.compile(r"^(\d{8,})-(\d{8,})\.jsonl$")
#: A reader beside a live writer may see a folder half before, half after segments were put together.
_READ_TRIES = 5
_RETRY_SECONDS = 0.1

T = TypeVar("T")


@dataclass(frozen=True, slots=True, order=True)
class _Segment:
    """Seq ``first`` to ``last``, both included."""

    first: int
    last: int

    @property
    def name(self) -> str:
        return f"{self.first:08d}-{self.last:08d}.jsonl"

    @property
    def size(self) -> int:
        return self.last - self.first + 1


class Journal:
    """An attempt's journal, open for writing by the one supervisor that claimed the attempt.

    ``begin`` comes first, then ``append`` for each episode in order; each returns when it is durable. Both raise
    OSError if the storage fails, and ValueError if they are called out of order.
    """

    def __init__(self, directory: RunDirectory, attempt: int) -> None:
        self._directory = directory
        self._attempt = attempt
        self._folder = directory.attempt(attempt).journal
        self._segments: list[_Segment] = []
        self._resumed_from: int | None = None

    @property
    def begun(self) -> bool:
        return self._resumed_from is not None

    @property
    def last_seq(self) -> int:
        """Seq of the last episode, 0 before the first."""
        return self._segments[-1].last if self._segments else 0

    def begin(self, resumed_from: int) -> None:
        """Say how many episodes of earlier attempts this attempt builds on."""
        if self.begun:
            raise ValueError(f"attempt {self._attempt} has begun already, from episode {self._resumed_from}")
        self._directory.write(self._folder / _BEGIN, json.dumps({"resumedFrom": resumed_from}).encode())
        self._resumed_from = resumed_from

    def append(self, report: EpisodeReport) -> EpisodeReport:
        """Add the next episode; returns it with its attempt and seq."""
        if self._resumed_from is None:
            raise ValueError(f"episode {report.episode} came before it was said what attempt {self._attempt} resumes")
        seq = self.last_seq + 1
        expected = self._resumed_from + seq
        if report.episode != expected:
            raise ValueError(f"found episode {report.episode}, expected {expected} next in attempt {self._attempt}")
        report = report.model_copy(update={"attempt": self._attempt, "seq": seq})
        segment = _Segment(seq, seq)
        self._directory.write(self._folder / segment.name, _line(report))
        self._segments.append(segment)
        self._put_together()
        return report

    def _put_together(self) -> None:
        while len(self._segments) >= _FAN_OUT:
            parts = self._segments[-_FAN_OUT:]
            if len({part.size for part in parts}) > 1:
                return
            whole = _Segment(parts[0].first, parts[-1].last)
            content = b"".join(self._directory.read(self._folder / part.name) for part in parts)
            self._directory.write(self._folder / whole.name, content)
            for part in parts:
                self._directory.delete(self._folder / part.name)
            self._segments[-_FAN_OUT:] = [whole]


def history(directory: RunDirectory) -> list[EpisodeReport]:
    """The whole series of a run, oldest first. Raises DamagedFile."""
    return episodes_after(directory, 0, 0)


def episodes_after(directory: RunDirectory, attempt: int, seq: int, limit: int | None = None) -> list[EpisodeReport]:
    """The series after the cursor (attempt, seq), oldest first, at most ``limit``. Raises DamagedFile."""
    return _settled(lambda: list(itertools.islice(_after(directory, attempt, seq), limit)))


def episodes_trained(directory: RunDirectory) -> int:
    """Number of the last episode of the series, 0 if there is none. Raises DamagedFile."""

    def last() -> int:
        begun = _begun(directory)
        if not begun:
            return 0
        newest = max(begun)
        return begun[newest] + sum(segment.size for segment in _cover(directory, newest))

    return _settled(last)


def _after(directory: RunDirectory, attempt: int, seq: int) -> Iterator[EpisodeReport]:
    begun = _begun(directory)
    for number in sorted(begun):
        if number < attempt:
            continue
        kept = last_kept(number, begun)
        last = None if kept is None else kept - begun[number]
        yield from _reports(directory, number, seq if number == attempt else 0, last)


def _reports(directory: RunDirectory, attempt: int, after: int, last: int | None) -> Iterator[EpisodeReport]:
    """An attempt's reports with seq above ``after``, up to ``last``."""
    for segment in _cover(directory, attempt):
        if segment.last <= after:
            continue
        if last is not None and segment.first > last:
            return
        path = directory.attempt(attempt).journal / segment.name
        lines = directory.read(path).splitlines(keepends=True)
        if len(lines) != segment.size or not lines[-1].endswith(b"\n"):
            raise DamagedFile(f"{path}: found {len(lines)} lines, expected {segment.size} whole ones")
        for seq, line in enumerate(lines, segment.first):
            if seq > after and (last is None or seq <= last):
                yield _report(path, attempt, seq, line)


def _report(path: Path, attempt: int, seq: int, line: bytes) -> EpisodeReport:
    try:
        report = EpisodeReport.read_json(line)
    except ValidationError as error:
        raise DamagedFile(f"{path}, seq {seq}: {first_error(error)}") from error
    if (report.attempt, report.seq) != (attempt, seq):
        raise DamagedFile(
            f"{path}: found attempt {report.attempt}, seq {report.seq}, expected attempt {attempt}, seq {seq}"
        )
    return report


def _begun(directory: RunDirectory) -> dict[int, int]:
    """The attempts that have begun, and the episode that each resumed from."""
    return {
        attempt: resumed
        for attempt in directory.attempts()
        if (resumed := _resumed_from(directory, directory.attempt(attempt).journal / _BEGIN)) is not None
    }


def _resumed_from(directory: RunDirectory, path: Path) -> int | None:
    try:
        found = json.loads(directory.read(path))["resumedFrom"]
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedFile(f'{path}: expected {{"resumedFrom": EPISODE}}') from error
    if not isinstance(found, int):
        raise DamagedFile(f"{path}: found resumedFrom {found!r}, expected a number")
    return found


def _cover(directory: RunDirectory, attempt: int) -> list[_Segment]:
    """The segments that hold the attempt's episodes, each once, from seq 1 on."""
    folder = directory.attempt(attempt).journal
    found = sorted(
        (_parse(folder, name) for name in directory.names(folder) if name != _BEGIN),
        key=lambda segment: (segment.first, -segment.last),
    )
    cover: list[_Segment] = []
    for segment in found:
        end = cover[-1].last if cover else 0
        if segment.first == end + 1:
            cover.append(segment)
        elif segment.last > end:
            raise DamagedFile(f"{folder / segment.name}: expected a segment that starts at seq {end + 1} before it")
    return cover


def _parse(folder: Path, name: str) -> _Segment:
    match = _SEGMENT.match(name)
    if match is None or not 0 < int(match[1]) <= int(match[2]):
        raise DamagedFile(f"{folder / name}: expected FIRST-LAST.jsonl or {_BEGIN}")
    return _Segment(int(match[1]), int(match[2]))


def _settled(read: Callable[[], T]) -> T:
    """What ``read`` gives when the folder holds still: damage is what is still there after some tries."""
    for _ in range(_READ_TRIES - 1):
        try:
            return read()
        except (FileNotFoundError, DamagedFile):
            time.sleep(_RETRY_SECONDS)
    try:
        return read()
    except FileNotFoundError as error:
        raise DamagedFile(f"{error.filename} is gone") from error


def _line(report: EpisodeReport) -> bytes:
    return report.to_json().encode() + b"\n"
