"""What an engine says whose model two processes divide: `test_tensor_parallel_engine.py` compares it with one."""

import multiprocessing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from rlhf_runtime.engines.engine import Engine, Request, Sampling
from rlhf_runtime.engines.int8 import quantize, quantized_like, weight_bytes
from rlhf_runtime.engines.tensor_parallel.parts import DividedModel
from rlhf_runtime.engines.tensor_parallel.progress import Progress
from rlhf_runtime.engines.tensor_parallel.rank import RankEngine
from rlhf_runtime.engines.transformers_engine import TransformersEngine
from rlhf_runtime.experience.rollout import Float32Array, Group, Rollout
from rlhf_runtime.models.policy_weights import model_weights
from strategy_ranks import FAMILIES
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

SECONDS = 300
SAMPLING = Sampling(temperature=0.8, max_new_tokens=10, seed=3)
REQUESTS = [
    Request(prompt_index=index, prompt_ids=np.array(ids, np.int32), samples=4)
    for index, ids in enumerate(([3, 4, 5, 6, 7], [8], [9, 10, 2]))
]


@dataclass(frozen=True, kw_only=True)
class Model:
    family: str = "llama"
    dtype: torch.dtype = torch.float32
    int8: bool = False


@dataclass(frozen=True, kw_only=True)
class Said:
    """Groups of the first weights and of the ones loaded then, and what these say of the first; the weights' bytes, and
    the heads that a cache has keys and values of."""

    first: list[Group]
    then: list[Group]
    logprobs: list[Float32Array]
    version: int
    memory: int
    heads: int


def rollouts(groups: list[Group]) -> list[Rollout]:
    return [rollout for group in groups for rollout in group.rollouts]


def whole(model: Model, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model.family, **FAMILIES[model.family])
    made: nn.Module = AutoModelForCausalLM.from_config(config).to(model.dtype).eval()
    with torch.no_grad():
        # Biases that are 0 would hide one that every rank adds.
        for name, parameter in made.named_parameters():
            if name.endswith("bias"):
                parameter.uniform_(-0.3, 0.3)
    return made


def say(engine: Engine, module: nn.Module, state: dict[str, torch.Tensor]) -> Said:
    first = engine.generate(REQUESTS, SAMPLING)
    engine.load(state, 4)
    then = engine.generate(REQUESTS, SAMPLING)
    logprobs = engine.logprobs(rollouts(first), SAMPLING)
    with torch.no_grad():
        read: Any = module(torch.tensor([[3, 4]]), use_cache=True)
    heads = read.past_key_values.layers[0].keys.shape[1]
    memory = weight_bytes(module)
    return Said(first=first, then=then, logprobs=logprobs, version=engine.version, memory=memory, heads=heads)


def of_one(model: Model) -> tuple[Said, TransformersEngine]:
    module = whole(model, 0)
    engine = TransformersEngine(module, **_options(model, module))
    return say(engine, module, model_weights(whole(model, 1))), engine


def _options(model: Model, module: nn.Module) -> dict[str, Any]:
    options: dict[str, Any] = {"end_ids": (1,), "max_rows": 5}
    if model.int8:
        quantize(module)
        options["as_held"] = quantized_like
    return options


def _rank_main(rank: int, models: list[Model], folder: Path) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(seconds=SECONDS))
    for number, model in enumerate(models):
        divided = DividedModel(whole(model, 0), rank, 2)
        engine = RankEngine(divided, Progress.shared(2), **_options(model, divided.module))
        state = model_weights(whole(model, 1)) if rank == 0 else {}
        torch.save(say(engine, divided.module, state), folder / f"{number}-{rank}.pt")
    dist.destroy_process_group()


def of_two(models: list[Model], folder: Path) -> list[list[Said]]:
    """Of each model, what each of two ranks says."""
    spawn = multiprocessing.get_context("spawn")
    started = [spawn.Process(target=_rank_main, args=(rank, models, folder)) for rank in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join(SECONDS)
    assert [process.exitcode for process in started] == [0, 0]
    return [
        [torch.load(folder / f"{number}-{rank}.pt", weights_only=False) for rank in range(2)]
        for number in range(len(models))
    ]
