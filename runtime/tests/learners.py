"""Learners, objectives and experiences that several test modules take steps with."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from rlhf_runtime.experience.batch import Batch, collate
from rlhf_runtime.experience.rollout import Experience, Float32Array, Rollout
from rlhf_runtime.maths.policy_loss import Clip
from rlhf_runtime.maths.truncation import Truncation
from rlhf_runtime.models.critic import Critic
from rlhf_runtime.training.learner import Learner, StepFigures
from rlhf_runtime.training.learning_rate import Schedule
from rlhf_runtime.training.objective import Mean, PolicyObjective, Pull, ValueObjective
from rlhf_runtime.training.optimized import AdamWParameters, OptimizedModel
from rlhf_runtime.training.strategy import DataParallel, SingleProcess
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

PAD = 0


MEAN = Mean(aggregation="Token", max_tokens=7)


PLAIN = PolicyObjective(clip=Clip(low=0.2, high=0.3), mean=MEAN, temperature=0.9)


#: Objectives that a step is split and spread for. The last is PPO's, with a critic.
OBJECTIVES = {
    "Token": PLAIN,
    "Sequence": replace(PLAIN, mean=replace(MEAN, aggregation="Sequence")),
    "Fixed": replace(PLAIN, mean=replace(MEAN, aggregation="Fixed")),
    "whole sample's ratio": replace(PLAIN, ratio_level="Sequence", clip=Clip(low=0.5, high=0.5, dual=3.0)),
    "corrected, with KL and teacher": replace(
        PLAIN,
        old="Recomputed",
        correction="TIS",
        reference=Pull(weight=0.3, estimator="K3"),
        teacher=Pull(weight=0.2, estimator="K2"),
        entropy_coefficient=0.05,
    ),
    "interpolated": replace(PLAIN, old="Interpolated", correction="Decoupled", correction_cap=1.5),
    "truncated": replace(PLAIN, truncation=Truncation(top_p=0.7, top_k=12), entropy_coefficient=0.05),
    "PPO": PLAIN,
}


def adamw(peak: float = 1e-2, **changes: Any) -> AdamWParameters:
    schedule = {name: changes.pop(name) for name in ("kind", "warmup_steps", "total_steps") if name in changes}
    return AdamWParameters(schedule=Schedule(peak=peak, **schedule), **{"max_grad_norm": 1e9, **changes})


def tiny_llama(kind: Any = LlamaForCausalLM) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=17,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.06,
        num_labels=1,
    )
    return kind(config)


def make_experiences(count: int = 12) -> list[Experience]:
    """Prompts of 2-5 and completions of 1-7 tokens, with log-probs some way off the policy's, of mixed versions."""
    random = np.random.default_rng(0)

    def draw(size: int) -> Float32Array:
        return random.normal(size=size).astype(np.float32)

    experiences = []
    for index in range(count):
        prompt, completion = random.integers(2, 6), random.integers(1, 8)
        rollout = Rollout(
            prompt_index=index,
            sample=0,
            prompt_ids=random.integers(2, 17, prompt).astype(np.int32),
            completion_ids=random.integers(2, 17, completion).astype(np.int32),
            logprobs=(-np.log(17) - random.random(completion)).astype(np.float32),
            versions=random.integers(0, 4, completion).astype(np.int32),
            truncated=True,
        )
        experiences.append(
            Experience(
                rollout=rollout,
                reward=0.0,
                advantages=draw(completion),
                returns=draw(completion),
                values=draw(completion),
                reference_logprobs=rollout.logprobs + draw(completion) / 4,
                teacher_logprobs=rollout.logprobs + draw(completion) / 4,
            )
        )
    return experiences


def make_learner(name: str = "Token", optimizer: AdamWParameters | None = None, distributed: bool = False) -> Learner:
    strategy = DataParallel() if distributed else SingleProcess()
    parameters = optimizer or adamw()
    critic = None
    if name == "PPO":
        inner = Critic(tiny_llama(LlamaForSequenceClassification))
        critic = OptimizedModel(inner, parameters, strategy, torch.float32)
    return Learner(
        OptimizedModel(tiny_llama(), parameters, strategy, torch.float32),
        OBJECTIVES[name],
        critic=critic,
        value_objective=None if critic is None else ValueObjective(clip=0.4, mean=MEAN),
        strategy=strategy,
    )


def figures(step: StepFigures) -> dict[str, float]:
    """By name, without those that the step does not have."""
    return {name: value for name, value in asdict(step).items() if value is not None}


def take_step(learner: Learner, *parts: list[Experience]) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Metrics, and the gradients the step was taken with."""
    return taken(learner, [collate(part, PAD) for part in parts])


def taken(learner: Learner, batches: list[Batch]) -> tuple[dict[str, float], dict[str, Tensor]]:
    found = learner.step(batches, version=4)
    models = {"actor": learner.actor, "critic": learner.critic}
    return figures(found), {
        f"{role}.{name}": parameter.grad.clone()
        for role, model in models.items()
        if model is not None
        for name, parameter in model.module.named_parameters()
        if parameter.grad is not None
    }


def weights(learner: Learner) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in learner.actor.weights().items()}


def moments(learner: Learner) -> list[Any]:
    """Of every optimiser: what it keeps of each parameter."""
    return [optimizer["state"] for optimizer in learner.state_dict()["optimizers"]]


def split(experiences: list[Experience], *sizes: int) -> list[list[Experience]]:
    ends = np.cumsum(sizes)
    return [experiences[end - size : end] for end, size in zip(ends, sizes, strict=True)]
