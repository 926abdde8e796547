"""Time and memory that a source of many prompts takes: ``python runtime/benchmarks/prompts.py [ROWS]``.

Writes the same rows as JSON Lines and as Parquet into a temporary folder, and for each, in a process of its own,
prints the seconds to check every row, those to draw prompts at random, and the resident memory before and after.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DRAWS = 1000


def rows(count: int) -> Iterator[dict[str, Any]]:
    """About 500 bytes each."""
    for i in range(count):
        yield {"prompt": f"What is {i} + {i * 7}? " + "Think step by step. " * 20, "answer": str(i * 8), "level": i % 5}


def write(folder: Path, count: int) -> list[Path]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines, table = folder / "rows.jsonl", folder / "rows.parquet"
    with lines.open("w") as file:
        for row in rows(count):
            file.write(json.dumps(row) + "\n")
    with pq.ParquetWriter(table, pa.Table.from_pylist(list(rows(1))).schema) as writer:
        some: list[dict[str, Any]] = []
        for row in rows(count):
            some.append(row)
            if len(some) == 10_000:
                writer.write_table(pa.Table.from_pylist(some))
                some = []
        if some:
            writer.write_table(pa.Table.from_pylist(some))
    return [lines, table]


def measure(path: str) -> None:
    import torch  # noqa: F401  what any process of the runtime has loaded
    from rlhf_api.prompts import PromptSource
    from rlhf_runtime.data.locations import local_path
    from rlhf_runtime.data.prompt_rows import open_rows
    from rlhf_runtime.data.prompts import LengthPolicy, PromptSet, TrainingPrompts
    from rlhf_runtime.data.templates import TokenizerEncoder
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(local_path("package://rlhf_samples/addition/policy")))
    before, began = resident(), time.monotonic()
    found = open_rows(PromptSource(uri=path), "prompts")
    indexed = time.monotonic()
    training = TrainingPrompts(PromptSet(found, TokenizerEncoder(tokenizer), LengthPolicy(1000), "prompts"), seed=1)
    checked, memory = time.monotonic(), resident()
    training.prompt_at(0)
    ordered = time.monotonic()
    for cursor in range(DRAWS):
        training.prompt_at(cursor)
    drawn = time.monotonic()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    file = Path(path)
    print(
        f"{file.name}: {len(training):,} rows, {file.stat().st_size / 2**20:.0f} MiB: types {indexed - began:.1f} s, "
        f"tokens {checked - indexed:.1f} s, order of a pass {ordered - checked:.2f} s, a prompt "
        f"{(drawn - ordered) / DRAWS * 1e6:.0f} us; MiB before {before:.0f}, after {memory:.0f}, peak {peak:.0f}"
    )


def resident() -> float:
    """MiB."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize() / 2**20


def main() -> None:
    if len(sys.argv) == 3:
        measure(sys.argv[2])
        return
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        for path in write(Path(folder), count):
            subprocess.run([sys.executable, __file__, "measure", str(path)], check=True)


if __name__ == "__main__":
    main()
