"""Rows of prompts from where the spec says, each checked once and read again when its turn comes.

Of a source, the place of every row is kept and nothing else: 8 bytes a row, however long the rows are.
"""

import codecs
import json
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from rlhf_api.conditions import Reason
from rlhf_api.prompts import PromptSource

from rlhf_runtime.data.source_files import MAX_LINE, LineFile, invalid, json_lines, source_files
from rlhf_runtime.failures import RunFailure

#: Names that a reward function's own parameters have: a column cannot be passed under them.
RESERVED_COLUMNS = ("prompts", "completions")
#: Who may speak in a list of messages.
ROLES = ("system", "developer", "user", "assistant", "tool")

#: Names with commas or semicolons between them, and no blank after these: not a sentence.
_CSV_HEADER = re.compile(r"""["']?\w[\w .-]*["']?([,;]["']?\w[\w .-]*["']?)+""")

#: A prompt as its row has it: text, or messages with at least a role and a text as content.
PromptValue = str | list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRow:
    """One row: its prompt, its other columns as JSON values, and where it is, for messages."""

    row: int
    prompt: PromptValue
    columns: dict[str, Any]
    where: str


class PromptRows:
    """All rows of some files: iterated in their order, or read one by one.

    columns         names of the columns that any of the rows has, sorted: what reward functions get
    conversational  whether prompts are lists of messages; else all are text
    beyond_json     where the first NaN or Infinity is, which Python reads and JSON does not have; None: nowhere

    Raises RunFailure PromptsInvalid for the first row that is not as it must be, saying file, line, key, found and
    expected. One at a time may iterate or read.
    """

    def __init__(self, files: list[LineFile], key: str) -> None:
        self._files = files
        self._key = key
        self._offsets = array("q")
        self._firsts: list[int] = []
        self.beyond_json: str | None = None
        self._constants: list[str] = []
        self._json = json.JSONDecoder(parse_constant=self._constant)
        names: set[str] = set()
        kinds: set[bool] = set()
        for offset, row in self._scan(files):
            self._offsets.append(offset)
            names.update(row.columns)
            kinds.add(isinstance(row.prompt, list))
            if self._constants and self.beyond_json is None:
                column = next((name for name, value in row.columns.items() if not _is_json(value)), self._key)
                self.beyond_json = f"{row.where}: column {column!r} has {self._constants[0]}"
            if len(kinds) > 1:
                found, before = ("messages", "text") if isinstance(row.prompt, list) else ("text", "messages")
                invalid(f"{row.where}: key {key!r}: found {found}, expected {before} as in the rows before")
        self.columns = tuple(sorted(names))
        self.conversational = kinds == {True}

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[PromptRow]:
        return (row for _, row in self._scan(self._files))

    def __getitem__(self, row: int) -> PromptRow:
        file = self._files[bisect_right(self._firsts, row) - 1]
        offset = self._offsets[row]
        with file.open() as content:
            content.seek(offset)
            line = content.readline(MAX_LINE)
        return self._parsed(line.removeprefix(codecs.BOM_UTF8), row, f"{file.name}, byte {offset}")

    def _scan(self, files: list[LineFile]) -> Iterator[tuple[int, PromptRow]]:
        """Every row with the place of its line; the first time, where each file begins is noted."""
        row = 0
        for index, file in enumerate(files):
            if len(self._firsts) == index:
                self._firsts.append(row)
            with file.open() as content:
                for offset, number, line in _lines(content, file):
                    yield offset, self._parsed(line, row, f"{file.name}, {file.place(number)}")
                    row += 1

    def _parsed(self, line: bytes, row: int, where: str) -> PromptRow:
        self._constants.clear()
        return _parsed(line, row, self._key, where, self._json)

    def _constant(self, text: str) -> float:
        self._constants.append(text)
        return float(text)


def open_rows(source: PromptSource, field: str) -> PromptRows:
    """The rows of a source, at least one; ``field`` is its name in the spec.

    Raises RunFailure: PromptsInvalid, DatasetEmpty (both permanent), SourceUnreachable.
    """
    if source.reasoning_gym is not None:
        from rlhf_runtime.data.tasks import QUESTION, task_lines

        rows, origin = PromptRows([task_lines(source.reasoning_gym, field)], QUESTION), source.reasoning_gym.task
    elif source.uri is not None:
        rows, origin = PromptRows(_uri_files(source.uri, source.prompt_key, field), source.prompt_key), source.uri
    else:
        invalid(f"{field}: found neither uri nor reasoningGym, expected one of them")
    if not len(rows):
        raise RunFailure(Reason.DATASET_EMPTY, f"{field}: 0 rows in {origin}, expected at least 1", permanent=True)
    return rows


def said(prompt: PromptValue) -> str:
    """One text for all that a prompt says: equal for equal prompts only."""
    return prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True)


def _uri_files(uri: str, key: str, field: str) -> list[LineFile]:
    files = []
    for file in source_files(uri, field):
        if file.path.suffix == ".parquet":
            # Imported here: it takes a second that other sources need not wait.
            from rlhf_runtime.data.parquet import parquet_lines

            files.append(parquet_lines(file, key, field))
        else:
            files.append(json_lines(file, field))
    return files


def _lines(content: BinaryIO, file: LineFile) -> Iterator[tuple[int, int, bytes]]:
    """Place, number (from 1) and content of every line that is not blank; a byte order mark at the start is dropped."""
    offset = number = 0
    while line := content.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            invalid(f"{file.name}, {file.place(number)}: longer than {MAX_LINE} bytes, expected one JSON object a line")
        start, offset = offset, offset + len(line)
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.strip():
            yield start, number, line


def _parsed(line: bytes, row: int, key: str, where: str, decoder: json.JSONDecoder) -> PromptRow:
    try:
        value = decoder.decode(line.decode())
    except UnicodeDecodeError as error:
        found = f"byte 0x{line[error.start]:02x} at position {error.start}"
        invalid(f"{where}: found {found}, expected UTF-8 text", error)
    except (ValueError, RecursionError) as error:
        # JSON's own message has a line number too, counted within this line.
        found = f"{error.msg}, at column {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else str(error)
        invalid(f"{where}: not JSON: {found}{_other_format(line.decode())}; expected one JSON object per line", error)
    if not isinstance(value, dict):
        invalid(f"{where}: found {_kind(value)}, expected one JSON object per line")
    if key not in value:
        invalid(f"{where}: no key {key!r} (promptKey), found {', '.join(map(repr, value)) or 'no keys'}")
    prompt = value.pop(key)
    taken = [name for name in RESERVED_COLUMNS if name in value]
    if taken:
        invalid(f"{where}: found a column {taken[0]!r}, expected another name: reward functions take it")
    if isinstance(prompt, list):
        prompt = [_message(each, f"{where}: key {key!r}: message {i}") for i, each in enumerate(prompt)]
        if not prompt:
            invalid(f"{where}: key {key!r}: found an empty array, expected text or messages")
    elif not isinstance(prompt, str):
        invalid(f"{where}: key {key!r}: found {_kind(prompt)}, expected a string or an array of messages")
    _check_text(prompt, where)
    return PromptRow(row=row, prompt=prompt, columns=value, where=where)


def _other_format(line: str) -> str:
    """What a line that is not JSON looks like: a row or the header of a table."""
    text = line.strip()
    if not text.startswith(("{", "[")) and "\t" in text:
        return ", it looks like a tab-separated table"
    return ", it looks like the header of a CSV file" if _CSV_HEADER.fullmatch(text) else ""


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def _message(value: Any, where: str) -> dict[str, Any]:
    """A message without its keys that are null, which Parquet gives to every message if one has them."""
    if not isinstance(value, dict):
        invalid(f"{where}: found {_kind(value)}, expected an object with role and content")
    for name in ("role", "content"):
        if name not in value:
            invalid(f"{where}: no {name!r}, found {', '.join(map(repr, value)) or 'no keys'}")
        if not isinstance(value[name], str):
            invalid(f"{where}: {name}: found {_kind(value[name])}, expected a string")
    if value["role"] not in ROLES:
        invalid(f"{where}: role: found {value['role']!r}, expected {', '.join(ROLES)}")
    return {name: each for name, each in value.items() if each is not None}


def _check_text(prompt: PromptValue, where: str) -> None:
    for text in [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            invalid(f"{where}: the prompt has half of a surrogate pair at position {error.start}", error)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
