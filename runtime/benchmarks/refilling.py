"""Rows that are filled again as samples end, beside batches that run until their longest sample ends; on CPU:

    PYTHONPATH=crds:runtime python runtime/benchmarks/refilling.py

256 samples on 32 rows; completions of 1 to 128 tokens, 28 in the mean. Both draw the same tokens.
"""

import time

import numpy as np
import torch
from beside_trl import say, spread
from grpo_step import LLAMA
from rlhf_runtime.engines.engine import Request, Sampling
from rlhf_runtime.engines.transformers_engine import TransformersEngine
from rlhf_runtime.experience.rollout import Group
from transformers import LlamaForCausalLM

ROWS, GROUP, TURNS = 32, 8, 5


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LLAMA)
    # Any of so many tokens ends a completion.
    engine = TransformersEngine(model, end_ids=range(36), max_rows=ROWS)
    random = np.random.default_rng(0)
    requests = [
        Request(prompt_index=i, prompt_ids=random.integers(36, 1024, 16).astype(np.int32), samples=GROUP)
        for i in range(32)
    ]
    sampling = Sampling(temperature=1.0, max_new_tokens=112, seed=0)
    at_once = ROWS // GROUP

    def in_batches() -> list[Group]:
        return [
            group
            for start in range(0, len(requests), at_once)
            for group in engine.generate(requests[start : start + at_once], sampling)
        ]

    def refilled() -> list[Group]:
        return engine.generate(requests, sampling)

    seconds: dict[str, list[float]] = {"in batches": [], "filled again": []}
    for _ in range(TURNS):
        for (name, taken), call in zip(seconds.items(), (in_batches, refilled), strict=True):
            began = time.perf_counter()
            groups = call()
            taken.append(time.perf_counter() - began)
            lengths = [len(rollout.completion_ids) for group in groups for rollout in group.rollouts]
            say(name, s=round(taken[-1], 3), mean_tokens=float(np.mean(lengths)), longest=max(lengths))
    for name, taken in seconds.items():
        print(f"{name}: {spread(taken)}")


if __name__ == "__main__":
    main()
