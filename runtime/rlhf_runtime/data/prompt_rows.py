"""Rows of prompts from where the spec says: a JSONL file, or a `reasoning_gym` task."""

import codecs
import dataclasses
import difflib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rlhf_api.conditions import DATASET_EMPTY, PROMPTS_INVALID
from rlhf_api.prompts import PromptSource, ReasoningGym

from rlhf_runtime.data.locations import local_path
from rlhf_runtime.failures import RunFailure

#: Names that a reward function's own parameters have: a column cannot be passed under them.
RESERVED_COLUMNS = ("prompts", "completions")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRow:
    """One row: its text, its other columns as JSON values, and where it is, for messages."""

    row: int
    text: str
    columns: dict[str, Any]
    where: str


def load_rows(source: PromptSource, field: str) -> list[PromptRow]:
    """All rows of a source; ``field`` is its name in the spec.

    Raises RunFailure (permanent): PromptsInvalid saying file, line, key, found and expected; DatasetEmpty.
    """
    if source.uri is not None:
        rows = list(_file_rows(source.uri, source.prompt_key, field))
        origin = source.uri
    elif source.reasoning_gym is not None:
        rows = list(_task_rows(source.reasoning_gym, field))
        origin = source.reasoning_gym.task
    else:
        _invalid(f"{field}: found neither uri nor reasoningGym, expected one of them")
    if not rows:
        raise RunFailure(DATASET_EMPTY, f"{field}: 0 rows in {origin}, expected at least 1", permanent=True)
    return rows


def column_names(rows: Iterable[PromptRow]) -> tuple[str, ...]:
    """Names of the columns that any of the rows has, sorted: what reward functions get."""
    return tuple(sorted({name for row in rows for name in row.columns}))


def _file_rows(uri: str, key: str, field: str) -> Iterator[PromptRow]:
    try:
        path = local_path(uri)
    except ValueError as error:
        _invalid(f"{field}.uri: {error}", error)
    row = 0
    for number, line in _lines(path, field):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        yield _file_row(line, row, key, where)
        row += 1


def _lines(path: Path, field: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers from 1, one in memory at a time; a byte order mark at the start is dropped."""
    if path.is_dir():
        _invalid(f"{field}.uri: {path} is a folder, expected a JSONL file")
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                try:
                    yield number, line.decode()
                except UnicodeDecodeError as error:
                    _invalid(
                        f"{path}, line {number}: found byte 0x{line[error.start]:02x} at position {error.start}, "
                        "expected UTF-8 text",
                        error,
                    )
    except OSError as error:
        _invalid(f"{field}.uri: cannot read {path}: {error.strerror or error}{_neighbours(path)}", error)


def _neighbours(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"; there is no folder {folder}"
    # A mounted ConfigMap has hidden folders beside its files.
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    return f"; in {folder} there is {', '.join(names[:8])}" + (", ..." if len(names) > 8 else "") if names else ""


def _file_row(line: str, row: int, key: str, where: str) -> PromptRow:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        _invalid(f"{where}: not JSON: {error}; expected one JSON object per line", error)
    if not isinstance(value, dict):
        _invalid(f"{where}: found {_kind(value)}, expected one JSON object per line")
    if key not in value:
        _invalid(f"{where}: no key {key!r} (promptKey), found {', '.join(map(repr, value)) or 'no keys'}")
    text = value.pop(key)
    if not isinstance(text, str):
        _invalid(f"{where}: key {key!r}: found {_kind(text)}, expected a string")
    return _checked(PromptRow(row=row, text=text, columns=value, where=where))


def _task_rows(gym: ReasoningGym, field: str) -> Iterator[PromptRow]:
    # Imported here: it is large, and jobs with a file of their own need not have it.
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    where = f"{field}.reasoningGym"
    if gym.task not in DATASETS:
        close = difflib.get_close_matches(gym.task, DATASETS, n=3)
        _invalid(
            f"{where}.task: there is no task {gym.task!r}"
            + (f"; close: {', '.join(close)}" if close else f"; there are {len(DATASETS)}, for instance chain_sum")
        )
    known = {parameter.name for parameter in dataclasses.fields(DATASETS[gym.task][1])} - {"seed", "size"}
    unknown = sorted(set(gym.parameters) - known)
    if unknown:
        _invalid(f"{where}.parameters: {gym.task} has no {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    try:
        entries = reasoning_gym.create_dataset(gym.task, size=gym.size, seed=gym.seed, **gym.parameters)
        for row, entry in enumerate(entries):
            columns = {"answer": entry["answer"], "metadata": entry["metadata"]}
            place = f"{where}, problem {row} of {gym.task}"
            # Through JSON, so that a column has the same value here and in a reward function's process.
            columns = json.loads(json.dumps(columns, default=str))
            yield _checked(PromptRow(row=row, text=entry["question"], columns=columns, where=place))
    except RunFailure:
        raise
    except Exception as error:
        # The task's own code says what it does not like by any kind of exception.
        _invalid(f"{where}: {gym.task} refuses {gym.parameters}: {type(error).__name__}: {error}", error)


def _checked(row: PromptRow) -> PromptRow:
    taken = [name for name in RESERVED_COLUMNS if name in row.columns]
    if taken:
        _invalid(f"{row.where}: found a column {taken[0]!r}, expected another name: reward functions take it")
    try:
        row.text.encode()
    except UnicodeEncodeError as error:
        _invalid(f"{row.where}: the prompt has half of a surrogate pair at position {error.start}", error)
    return row


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _invalid(message: str, cause: BaseException | None = None) -> NoReturn:
    raise RunFailure(PROMPTS_INVALID, message, permanent=True) from cause
