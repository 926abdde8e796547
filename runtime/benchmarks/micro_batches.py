"""Passes by a token budget against passes by rows, on ragged lengths: ``python runtime/benchmarks/micro_batches.py``.

Completion lengths are drawn log-normal, cut at the longest, as they are when some samples run to the limit; prompts
are uniform. Both plans may hold as many padded tokens in a pass: rows are as many as fit when all are of full length,
which is what a user must assume who bounds by rows. Prints for each the passes, the padded tokens of each real one, and
the seconds of forward and backward over all passes, the best of several runs. On a GPU it takes a 0.5 B Qwen2-shaped
model in bf16 and more samples.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "runtime"), str(ROOT / "crds")]
from rlhf_runtime.training.micro_batches import Length, by_rows, by_tokens  # noqa: E402
from strategies import model, synchronize  # noqa: E402  beside this file


def ragged(samples: int, prompt: int, longest: int) -> list[Length]:
    random = np.random.default_rng(0)
    completions = np.clip(random.lognormal(np.log(longest / 5), 0.8, samples), 1, longest).astype(int)
    return [Length(int(random.integers(prompt // 4, prompt + 1)), int(completion)) for completion in completions]


def padded(lengths: Sequence[Length]) -> tuple[int, int]:
    """Rows and columns of a pass."""
    return len(lengths), max(each.prompt for each in lengths) + max(each.completion for each in lengths)


def seconds(call: nn.Module, shapes: Sequence[tuple[int, int]], device: torch.device) -> float:
    began = time.monotonic()
    for rows, columns in shapes:
        ids = torch.ones(rows, columns, dtype=torch.long, device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits: Tensor = call(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
        nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten()).backward()
        call.zero_grad()
    synchronize()
    return time.monotonic() - began


def main() -> None:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=["tiny", "0.5B"], default="0.5B" if gpu else "tiny")
    parser.add_argument("--samples", type=int, default=512 if gpu else 256)
    parser.add_argument("--longest", type=int, default=1024 if gpu else 256)
    parser.add_argument("--rows", type=int, default=16, help="of a pass whose samples are all of full length")
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    prompt = given.longest // 4
    lengths = ragged(given.samples, prompt, given.longest)
    plans = {
        "rows": by_rows(len(lengths), given.rows),
        "tokens": by_tokens(lengths, given.rows * (prompt + given.longest)),
    }
    device = torch.device("cuda" if gpu else "cpu")
    call = model(given.size).to(device)
    real = sum(map(sum, lengths))
    for name, plan in plans.items():
        shapes = [padded([lengths[index] for index in chosen]) for chosen in plan]
        took = [seconds(call, shapes, device) for _ in range(given.runs + 1)][1:]
        report = {
            "plan": name,
            "passes": len(plan),
            "padded_per_real_token": round(sum(rows * columns for rows, columns in shapes) / real, 2),
            "largest_pass": max(rows * columns for rows, columns in shapes),
            "seconds": round(min(took), 3),
            "real_tokens_per_second": round(real / min(took)),
        }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
