"""What it saves to read a group's prompt once: PYTHONPATH=crds:runtime python runtime/benchmarks/shared_prompts.py

One optimiser step over groups of 8 samples, with prompts shared and with every row read whole, in turns. On a GPU a
random Qwen2 of 494 M parameters in bfloat16, else the Llama of `grpo_step.py` in fp32.
"""

import argparse
import statistics
from dataclasses import replace

import torch
from beside_trl import DEVICE, Ours, Setup, now, scratch, spread
from gpu_tokens import QWEN
from grpo_step import LLAMA
from rlhf_runtime.experience.batch import Batch

GROUP = 8


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--turns", type=int, default=8)
    found = arguments.parse_args()
    on_gpu = DEVICE.type == "cuda"
    torch.set_num_threads(2)
    print("prompt + completion tokens, samples, rows a pass | shared min/median/max | whole rows | ratio of medians")
    for prompt, completion in ((128, 256), (1024, 256), (16, 256)) if on_gpu else ((16, 32), (64, 32), (4, 32)):
        setup = Setup(
            config=QWEN if on_gpu else LLAMA,
            prompts=8,
            group=GROUP,
            prompt_tokens=prompt,
            new_tokens=completion,
            micro_batch=32,
            turns=found.turns,
            dtype="bfloat16" if on_gpu else "float32",
        )
        with scratch(setup) as (folder, _):
            measure(setup, Ours(setup, folder))
        if on_gpu:
            torch.cuda.empty_cache()


def measure(setup: Setup, ours: Ours) -> None:
    shared = ours.batches(ours.experiences(ours.generate()))
    whole = [replace(batch, distinct_prompts=None, prompt_of_row=None) for batch in shared]
    seconds: dict[str, list[float]] = {"shared": [], "whole": []}
    memory = {"shared": 0.0, "whole": 0.0}
    # The first two turns warm up.
    for turn in range(setup.turns + 2):
        for name, batches in (("shared", shared), ("whole", whole)):
            taken = step(ours, batches, memory, name)
            if turn >= 2:
                seconds[name].append(taken)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    sizes = f"{setup.prompt_tokens} + {setup.new_tokens}, {setup.samples}, {setup.micro_batch}"
    ratio = medians["shared"] / medians["whole"]
    print(f"{sizes} | {spread(seconds['shared'])} | {spread(seconds['whole'])} | {ratio:.2f}", flush=True)
    if DEVICE.type == "cuda":
        print(f"  peak memory, GiB: shared {memory['shared']:.2f}, whole rows {memory['whole']:.2f}", flush=True)


def step(ours: Ours, batches: list[Batch], memory: dict[str, float], name: str) -> float:
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = now()
    ours.learner.step(batches)
    ended = now()
    if DEVICE.type == "cuda":
        memory[name] = torch.cuda.max_memory_allocated() / 2**30
    return ended - began


if __name__ == "__main__":
    main()
