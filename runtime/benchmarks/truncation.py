"""What top-k and top-p cost: their cutoffs, a maker's tokens a second, a trainer's log-probs; on one GPU, in 2 minutes:

    PYTHONPATH=crds:runtime python runtime/benchmarks/truncation.py

Vocabulary of 151,936, bfloat16; the model is a Qwen2 of 494 M parameters, random. Without a GPU, small numbers show
that it runs.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from rlhf_runtime.engines.engine import Request, Sampling
from rlhf_runtime.engines.transformers_engine import TransformersEngine
from rlhf_runtime.experience.rollout import Rollout
from rlhf_runtime.maths.logprobs import token_logprobs_and_entropy
from rlhf_runtime.maths.truncation import Truncation, _sorted_cutoffs, cutoffs
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

IS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if IS_GPU else "cpu")
ROWS, VOCABULARY, NEW_TOKENS = (256, 151_936, 128) if IS_GPU else (8, 2000, 8)
CASES = {
    "none": None,
    "top-p 0.9": Truncation(top_p=0.9),
    "top-k 50": Truncation(top_k=50),
    "both": Truncation(top_p=0.9, top_k=50),
}


def timed(work: Callable[[], object], repeats: int = 5) -> float:
    """Milliseconds, the median of so many after one that warms up."""
    work()
    found = []
    for _ in range(repeats):
        wait()
        began = time.perf_counter()
        work()
        wait()
        found.append(1000 * (time.perf_counter() - began))
    return sorted(found)[repeats // 2]


def wait() -> None:
    if IS_GPU:
        torch.cuda.synchronize()


def of_cutoffs(dtype: torch.dtype) -> None:
    logits = (3 * torch.randn(1, ROWS, VOCABULARY, device=DEVICE)).to(dtype)
    plain = timed(lambda: logits.float().log_softmax(-1))
    print(f"\n{ROWS} rows of {VOCABULARY} {dtype}: log_softmax {plain:.2f} ms")
    for name, truncation in CASES.items():
        if truncation is not None:
            ours, by_sort = partial(cutoffs, logits), partial(_sorted_cutoffs, logits.float())
            differ = int((ours(1.0, truncation) != by_sort(1.0, truncation)).sum())
            spent = [timed(partial(way, 1.0, truncation)) for way in (ours, by_sort)]
            print(f"  {name}: cutoffs {spent[0]:.2f} ms, by a sort {spent[1]:.2f} ms; rows that differ: {differ}")


def make_engine() -> TransformersEngine:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 896, "num_hidden_layers": 24, "intermediate_size": 4864}
    if not IS_GPU:
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}
    heads = {"num_attention_heads": 14 if IS_GPU else 4, "num_key_value_heads": 2}
    tokens = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None}
    config = Qwen2Config(**sizes, **heads, **tokens, max_position_embeddings=4096, tie_word_embeddings=True)
    model = Qwen2ForCausalLM(config).to(DEVICE, torch.bfloat16).eval()
    # Logits wider than a random model's, so that some tokens are likelier than others.
    model.model.norm.weight.data.mul_(4)
    return TransformersEngine(model, end_ids=(), max_rows=ROWS)


def of_sampling(engine: TransformersEngine, name: str, truncation: Truncation | None) -> None:
    requests = [
        Request(prompt_index=i, prompt_ids=np.arange(i, i + 64, dtype=np.int32), samples=8) for i in range(ROWS // 8)
    ]
    sampling = Sampling(temperature=1.0, max_new_tokens=NEW_TOKENS, seed=0, truncation=truncation)

    def sample() -> list[Rollout]:
        return [rollout for group in engine.generate(requests, sampling) for rollout in group.rollouts]

    first, again = sample(), sample()
    same = np.mean([np.mean(r.completion_ids == o.completion_ids) for r, o in zip(first, again, strict=True)])
    spent = timed(sample, 3)
    some = first[:16]
    drawn = np.concatenate([r.logprobs for r in some])
    gaps = np.abs(np.concatenate(engine.logprobs(some, sampling)) - drawn)
    mass = np.exp(np.concatenate(engine.logprobs(some, replace(sampling, truncation=None))) - drawn).mean()
    steps = None if engine._memory is None else engine._memory.recorded
    print(
        f"  {name}: {1000 * ROWS * NEW_TOKENS / spent:.0f} tokens/s, steps recorded: "
        f"{steps is not None and not steps.failed}, the same tokens again: {same:.4f}, "
        f"log-prob gap {gaps.mean():.5f} (max {gaps.max():.4f}), ratio without the correction {mass:.4f}"
    )


def of_training(logits: Tensor, tokens: Tensor, name: str, truncation: Truncation | None) -> None:
    def work() -> None:
        logits.grad = None
        found, entropy = token_logprobs_and_entropy(logits, tokens, 1.0, truncation)
        (found.sum() + entropy.sum()).backward()  # type: ignore[no-untyped-call]

    spent, memory = timed(work), 0.0
    if IS_GPU:
        logits.grad = None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        memory = (torch.cuda.max_memory_allocated() - before) / 2**30
    print(f"  {name}: {spent:.1f} ms, {memory:.2f} GiB beside the logits")


def main() -> None:
    for dtype in (torch.bfloat16, torch.float32):
        of_cutoffs(dtype)
    print(f"\nmaker, {ROWS} rows x {NEW_TOKENS} new tokens")
    engine = make_engine()
    for name, truncation in CASES.items():
        of_sampling(engine, name, truncation)
    rows, positions = (16, 256) if IS_GPU else (2, 8)
    logits = (3 * torch.randn(rows, positions, VOCABULARY, device=DEVICE)).bfloat16().requires_grad_()
    tokens = torch.randint(0, VOCABULARY, (rows, positions), device=DEVICE)
    print(f"\ntrainer, log-probs and entropy of {rows * positions} tokens, forwards and backwards")
    for name, truncation in CASES.items():
        of_training(logits, tokens, name, truncation)


if __name__ == "__main__":
    main()
