"""Tokens a second, generated and trained, and memory, beside TRL's GRPOTrainer, on one GPU, in under 8 minutes:

    PYTHONPATH=crds:runtime python runtime/benchmarks/gpu_tokens.py

Qwen2 of 494 M parameters, random, bfloat16: 32 prompts of 128 tokens x 8 samples x 256 new tokens. Our trainer keeps
fp32 masters and computes in bfloat16; TRL's weights are bfloat16. Without a GPU, a tiny model shows that it runs.
"""

import signal
import time

import numpy as np
import torch
import transformers
from beside_trl import DEVICE, Ours, Setup, Theirs, load, now, same_loss, say, scratch, spread
from rlhf_runtime.engines.engine import Sampling
from rlhf_runtime.engines.transformers_engine import TransformersEngine
from rlhf_runtime.experience.batch import rows_of
from rlhf_runtime.experience.rollout import Group
from rlhf_runtime.maths.logprobs import token_logprobs
from rlhf_runtime.models.forwards import completion_logits
from torch import nn
from transformers import Qwen2Config

SECONDS = 470
IS_GPU = DEVICE.type == "cuda"
QWEN = Qwen2Config(
    hidden_size=896 if IS_GPU else 64,
    num_hidden_layers=24 if IS_GPU else 2,
    num_attention_heads=14 if IS_GPU else 4,
    num_key_value_heads=2,
    intermediate_size=4864 if IS_GPU else 128,
    vocab_size=151_936 if IS_GPU else 2000,
    max_position_embeddings=4096,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=None,
)
SETUP = Setup(
    config=QWEN,
    prompts=32 if IS_GPU else 4,
    group=8,
    prompt_tokens=128 if IS_GPU else 16,
    new_tokens=256 if IS_GPU else 16,
    micro_batch=32,
    turns=4 if IS_GPU else 2,
    dtype="bfloat16",
    learning_rate=1e-6,
)
BEGAN = time.perf_counter()


def gib() -> float:
    """Most memory in use since the last call, GiB."""
    if not IS_GPU:
        return 0.0
    found = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.reset_peak_memory_stats()
    return round(found, 2)


def gap(model: nn.Module, groups: list[Group]) -> dict[str, float]:
    """|sampled log-prob - fp32 log-prob by the trainer's weights| over 32 rollouts, nats."""
    rollouts = [rollout for group in groups[:4] for rollout in group.rollouts]
    sampled = np.stack([rollout.logprobs for rollout in rollouts])
    with torch.no_grad():
        rows = rows_of(rollouts, 0).to(DEVICE)
        found = token_logprobs(completion_logits(model, rows), rows.completion_ids, 1.0).cpu().numpy()
    difference = np.abs(found - sampled)
    return {"mean": float(difference.mean()), "max": float(difference.max())}


def generation(what: str, ours: Ours, engine: TransformersEngine, runs: int) -> None:
    gib()
    seconds, groups = [], []
    for run in range(runs):
        began = now()
        groups = engine.generate(
            ours.requests, Sampling(temperature=1.0, max_new_tokens=SETUP.new_tokens, seed=100 + run)
        )
        seconds.append(now() - began)
    memory = engine._memory
    say(
        what,
        first_s=round(seconds[0], 3),
        then=spread(seconds[1:]),
        tokens_per_s=round(SETUP.samples * SETUP.new_tokens / min(seconds[1:])),
        peak_gib=gib(),
        recorded=memory is not None and memory.recorded is not None and not memory.recorded.failed,
        logprob_gap_nats=gap(ours.actor.module, groups),
        at_s=round(time.perf_counter() - BEGAN),
    )


def int8_maker(ours: Ours, folder: object) -> None:
    from rlhf_runtime.engines.int8 import quantize, quantized_like, weight_bytes

    model = load(folder, SETUP.dtype)  # type: ignore[arg-type]
    before = weight_bytes(model)
    layers = quantize(model)
    say("int8 weights", layers=len(layers), mib_before=before >> 20, mib=weight_bytes(model) >> 20)
    engine = TransformersEngine(model, end_ids=(QWEN.vocab_size,), max_rows=SETUP.samples, as_held=quantized_like)
    generation("ours int8 generate", ours, engine, 3)


def training(ours: Ours) -> None:
    experiences = ours.experiences(ours.generate())
    batches = ours.batches(experiences)
    gib()
    seconds = []
    for _ in range(SETUP.turns):
        began = now()
        ours.learner.step(batches)
        seconds.append(now() - began)
    tokens = SETUP.samples * (SETUP.prompt_tokens + SETUP.new_tokens)
    say(
        "ours train",
        first_s=round(seconds[0], 3),
        then=spread(seconds[1:]),
        tokens_per_s=round(tokens / min(seconds[1:])),
        peak_gib=gib(),
        at_s=round(time.perf_counter() - BEGAN),
    )
    ours.publish()


def main() -> None:
    if torch.cuda.device_count() > 1:
        # TRL's trainer would divide its batches over them.
        raise SystemExit(f"found {torch.cuda.device_count()} GPUs, expected one: set CUDA_VISIBLE_DEVICES=0")
    signal.alarm(SECONDS)
    say(
        "versions",
        torch=torch.__version__,
        transformers=transformers.__version__,
        device=torch.cuda.get_device_name() if IS_GPU else "cpu",
    )
    with scratch(SETUP) as (folder, tokenizer):
        ours = Ours(SETUP, folder)
        say("parameters", count=sum(p.numel() for p in ours.actor.module.parameters()))
        generation("ours generate", ours, ours.engine, 5)
        training(ours)
        try:
            int8_maker(ours, folder)
        except (ImportError, RuntimeError) as error:
            say("int8 not measured", error=repr(error)[:500])
        theirs = Theirs(SETUP, folder, tokenizer, SETUP.turns)
        say("TRL's settings", **theirs.settings)
        ours.seconds.whole.clear()
        ours.seconds.parts.clear()
        peaks: dict[str, list[float]] = {"ours": [], "trl": []}
        gib()

        def turn() -> None:
            peaks["trl"].append(gib())
            ours.step()
            peaks["ours"].append(gib())
            for name, side in (("ours", ours), ("trl", theirs)):
                parts = {part: round(values[-1], 3) for part, values in side.seconds.parts.items()}
                say(f"{name} step", s=round(side.seconds.whole[-1], 3), **parts)

        theirs.run(turn)
        say("peak GiB in turns, with both sides' weights in memory", **peaks)
        tokens = SETUP.samples * SETUP.new_tokens
        for name, side in (("ours", ours), ("TRL", theirs)):
            generate = min(side.seconds.parts["generate"][1:])
            print(f"{name}: {side.seconds.line()}; generates {tokens / generate:.0f} tokens/s")
        # Last, because it leaves TRL's weights as ours.
        same_loss_small(ours, theirs)


def same_loss_small(ours: Ours, theirs: Theirs) -> None:
    """One micro-batch: all samples in one backward pass would not fit."""
    ours.requests = ours.requests[: SETUP.micro_batch // SETUP.group]
    same_loss(ours, theirs)


if __name__ == "__main__":
    main()
