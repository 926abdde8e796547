"""Optimiser steps under a strategy, in processes of their own: what `test_strategies.py` compares with one process."""

import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from learners import MEAN, OBJECTIVES, PAD, adamw, figures, make_experiences
from rlhf_api.models import Lora
from rlhf_api.roles import TrainerSettings
from rlhf_runtime.distributed.process_group import gathered_objects
from rlhf_runtime.experience.buffer import ExperienceGroup
from rlhf_runtime.models.critic import Critic
from rlhf_runtime.models.lora import attach_adapters
from rlhf_runtime.models.policy_weights import load_weights
from rlhf_runtime.scheduling.ledger import Dispatch
from rlhf_runtime.scheduling.topology import share_of_rank
from rlhf_runtime.training.learner import Learner
from rlhf_runtime.training.objective import ValueObjective
from rlhf_runtime.training.optimized import OptimizedModel
from rlhf_runtime.training.step_batches import PassBound, exchanged, step_batches
from rlhf_runtime.training.strategy import SingleProcess, Strategy, make_strategy
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
)

_SHAPE = {
    "vocab_size": 17,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "num_labels": 1,
}
_GATED = _SHAPE | {"num_key_value_heads": 2, "intermediate_size": 48, "initializer_range": 0.06}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _GATED,
    "qwen2": _GATED | {"tie_word_embeddings": True},
    "qwen3": _GATED | {"head_dim": 8, "tie_word_embeddings": True},
    "opt": _SHAPE | {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.06, "dropout": 0.0},
}


#: Longest that all cases of one group of ranks may take: half a minute, unless much else computes on the machine.
SECONDS = 900


@dataclass(frozen=True, kw_only=True)
class Case:
    """Two optimiser steps; with `then`, the second one under other settings, as after a resume."""

    trainers: TrainerSettings
    family: str = "qwen2"
    critic: bool = False
    lora: bool = False
    dtype: torch.dtype = torch.float32
    bound: PassBound = field(default_factory=lambda: PassBound(rows=3))
    then: TrainerSettings | None = None


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Metrics of each step, and the weights of actor and critic after the last."""

    metrics: list[dict[str, float]]
    weights: dict[str, torch.Tensor]


def model(case: Case, auto_class: Any = AutoModelForCausalLM) -> nn.Module:
    torch.manual_seed(0)
    made: nn.Module = auto_class.from_config(AutoConfig.for_model(case.family, **FAMILIES[case.family]))
    return made


def groups() -> list[ExperienceGroup]:
    """Eight groups of three samples of one prompt each, all of ragged lengths."""
    experiences = make_experiences(24)
    made = []
    for cursor in range(8):
        prompt_ids = np.arange(2, 4 + cursor, dtype=np.int32)
        samples = tuple(
            replace(e, rollout=replace(e.rollout, prompt_ids=prompt_ids))
            for e in experiences[3 * cursor : 3 * cursor + 3]
        )
        made.append(ExperienceGroup(Dispatch(cursor, 1, "maker-0"), samples))
    return made


def take_steps(case: Case, strategies: Sequence[Strategy]) -> Steps:
    """One step under each strategy, of all groups; what the first leaves is what the next begins with."""
    metrics: list[dict[str, float]] = []
    state: dict[str, Any] | None = None
    weights: list[dict[str, torch.Tensor]] = []
    for strategy in strategies:
        learner = _learner(case, strategy, weights)
        if state is not None:
            learner.load_state_dict(state)
        metrics.append(figures(learner.step(batches(case, strategy), version=4)))
        models = [learner.actor] if learner.critic is None else [learner.actor, learner.critic]
        # What rank 0 saves, every rank loads.
        saved = learner.state_dict(), [each.weights() for each in models]
        state, weights = gathered_objects(saved, None)[0] if strategy.ranks > 1 else saved
    named = {f"{index}.{name}": tensor for index, each in enumerate(weights) for name, tensor in each.items()}
    return Steps(metrics=metrics, weights={name: tensor.clone() for name, tensor in named.items()})


def batches(case: Case, strategy: Strategy) -> Any:
    everything = {group.dispatch.cursor: group for group in groups()}
    own = [everything[c] for c in share_of_rank(list(everything), strategy.data_rank, strategy.data_ranks)]
    if case.trainers.balance == "Dynamic":
        own = exchanged(own, strategy)
    return step_batches([[e for group in own for e in group.experiences]], case.bound, PAD, strategy)[0]


def _learner(case: Case, strategy: Strategy, weights: Sequence[dict[str, torch.Tensor]]) -> Learner:
    modules = [model(case)]
    if case.critic:
        modules.append(Critic(model(case, AutoModelForSequenceClassification)))
    if case.lora:
        for module, head in zip(modules, (None, "model.score"), strict=False):
            attach_adapters(module, Lora(rank=4, alpha=32), "models.actor", head=head)
    for module, saved in zip(modules, weights, strict=False):
        load_weights(module, saved)
    # Epsilon: else a weight whose gradient is nearly 0 moves by the sign of a rounding error.
    parameters = replace(adamw(max_grad_norm=0.5), epsilon=1e-3)
    optimized = [OptimizedModel(module, parameters, strategy, case.dtype) for module in modules]
    return Learner(
        optimized[0],
        OBJECTIVES["PPO" if case.critic else "corrected, with KL and teacher"],
        critic=optimized[1] if case.critic else None,
        value_objective=ValueObjective(clip=0.2, mean=MEAN) if case.critic else None,
        strategy=strategy,
    )


def one_process(case: Case) -> Steps:
    """All samples in one pass."""
    return take_steps(replace(case, bound=PassBound(rows=24)), [SingleProcess(), SingleProcess()])


def _rank_main(rank: int, ranks: int, cases: dict[str, Case], folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=ranks,
        # A rank that waits in vain says where.
        timeout=timedelta(seconds=300),
    )
    for number, case in enumerate(cases.values()):
        strategies = [make_strategy(each, distributed=True) for each in (case.trainers, case.then or case.trainers)]
        torch.save(take_steps(case, strategies), folder / f"{number}-{rank}.pt")
    dist.destroy_process_group()


def run_ranks(ranks: int, cases: dict[str, Case], folder: Path) -> dict[str, list[Steps]]:
    """Each case by all ranks, in the same processes."""
    spawn = multiprocessing.get_context("spawn")
    started = [spawn.Process(target=_rank_main, args=(rank, ranks, cases, folder)) for rank in range(ranks)]
    for process in started:
        process.start()
    for process in started:
        process.join(SECONDS)
    assert [process.exitcode for process in started] == [0] * ranks
    return {
        name: [torch.load(folder / f"{number}-{rank}.pt", weights_only=False) for rank in range(ranks)]
        for number, name in enumerate(cases)
    }
