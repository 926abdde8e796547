"""Parquet files as lines of JSON: the columns keep the values that JSON has, whatever their type in the file."""

import bisect
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlhf_runtime.data.source_files import LineFile, SourceFile, invalid, neighbours, unpacked

#: Rows that are Python objects at a time.
_BATCH_ROWS = 256


def parquet_lines(file: SourceFile, key: str, field: str) -> LineFile:
    """All rows of a Parquet file, of which a batch is in memory at a time. Raises RunFailure PromptsInvalid."""
    try:
        opened = pq.ParquetFile(file.path, pre_buffer=False)
    except pa.ArrowInvalid as error:
        invalid(f"{file.name}: not a Parquet file: {_first_line(error)}", error)
    except OSError as error:
        invalid(f"{field}.uri: cannot read {file.path}: {error.strerror or error}{neighbours(file.path)}", error)
    with opened:
        names = opened.schema_arrow.names
        if key not in names:
            invalid(f"{file.name}: no column {key!r} (promptKey), found {', '.join(map(repr, names)) or 'no columns'}")
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            invalid(f"{file.name}: found more than one column {twice[0]!r}, expected one of each name")
        # First row of each row group, as line numbers count: from 1.
        starts = [1]
        for group in range(opened.num_row_groups):
            starts.append(starts[-1] + opened.metadata.row_group(group).num_rows)

        def place(number: int) -> str:
            group = bisect.bisect_right(starts, number) - 1
            return f"row group {group}, row {number - starts[group]}"

        return unpacked(file.name, _lines(opened, file, place), place)


def _lines(opened: pq.ParquetFile, file: SourceFile, place: Any) -> Iterator[bytes]:
    number = 0
    try:
        for batch in opened.iter_batches(_BATCH_ROWS):
            for row in batch.to_pylist():
                number += 1
                yield _line(row, f"{file.name}, {place(number)}")
    except (pa.ArrowException, OSError, ArithmeticError, LookupError, ValueError) as error:
        # Beside what Arrow cannot read: dates beyond Python's, and time zones that are not known here.
        found = f"{type(error).__name__}: {_first_line(error)}"
        invalid(f"{file.name}, in the {_BATCH_ROWS} rows from {place(number + 1)} on: cannot be read: {found}", error)


def _line(row: dict[str, Any], where: str) -> bytes:
    try:
        return json.dumps(row, default=_text).encode()
    except TypeError as error:
        column = next(name for name, value in row.items() if _holds_bytes(value))
        invalid(f"{where}: column {column!r}: {error}", error)


def _text(value: Any) -> str:
    """Dates, times and decimals as text, as JSON has no other form for them."""
    if isinstance(value, bytes):
        raise TypeError("found binary data, expected values that JSON can hold; write it as text, or leave it out")
    return str(value)


def _holds_bytes(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_bytes, value.values()))
    return any(map(_holds_bytes, value)) if isinstance(value, list | tuple) else isinstance(value, bytes)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
