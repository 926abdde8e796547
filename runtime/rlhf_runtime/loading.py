"""Makers and trainers from a RunConfig: what happens in an actor's process before its first call."""

from pathlib import Path
from typing import Any

import torch
from rlhf_api.algorithm import Group
from rlhf_api.run import RunConfig

from rlhf_runtime.buffer import ExperienceBuffer
from rlhf_runtime.doctor.limits import check_own_memory
from rlhf_runtime.engines.engine import Sampling
from rlhf_runtime.engines.transformers_engine import TransformersEngine
from rlhf_runtime.maker import Maker, MakerSettings
from rlhf_runtime.models.model_folder import model_folder
from rlhf_runtime.models.policy import load_policy
from rlhf_runtime.models.tokenizer import load_tokenizer
from rlhf_runtime.rewards.runner import RewardRunner
from rlhf_runtime.training.learner import AdamWParameters, Learner, PolicyObjective
from rlhf_runtime.training.strategy import make_strategy
from rlhf_runtime.training.trainer import Trainer, TrainerSettings
from rlhf_runtime.weight_sync import Publisher, Receiver


def load_maker(config: RunConfig, columns: tuple[str, ...]) -> Maker:
    """A maker with its model loaded and its reward functions started; it samples after its first sync only.

    Raises RunFailure for what is wrong with model or functions.
    """
    check_own_memory(config, "maker")
    folder = model_folder(config.models.actor.uri, "models.actor")
    tokenizer = load_tokenizer(config.models.actor.uri, folder)
    model = load_policy(config.models.actor, folder.path, config.models.actor.dtype)
    engine = TransformersEngine(model, end_ids=(tokenizer.eos_token_id,), max_rows=config.max_batch_samples)
    rewards = RewardRunner(config.rewards)
    rewards.check_importable(columns)
    return Maker(
        engine,
        Receiver(model, engine.load),
        rewards,
        tokenizer,
        MakerSettings(
            samples_per_prompt=config.rollout.samples_per_prompt,
            sampling=Sampling(
                temperature=config.rollout.temperature,
                max_new_tokens=config.rollout.max_new_tokens,
                seed=config.prompts.seed,
            ),
            normalization=(config.algorithm.group or Group()).normalization,
        ),
    )


def load_trainer(config: RunConfig, rank: int, resume: Path | None) -> tuple[Trainer, Publisher]:
    """One rank, with fp32 masters; from the checkpoint in `resume`, or from the starting model."""
    check_own_memory(config, "trainer")
    folder = model_folder(config.models.actor.uri, "models.actor")
    tokenizer = load_tokenizer(config.models.actor.uri, folder)
    model = load_policy(config.models.actor, resume or folder.path, "float32", lora=config.models.actor.lora)
    algorithm, optimizer = config.algorithm, config.algorithm.optimizer
    learner = Learner(
        model,
        AdamWParameters(
            learning_rate=optimizer.learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            epsilon=optimizer.epsilon,
            weight_decay=optimizer.weight_decay,
            max_grad_norm=optimizer.max_gradient_norm,
            warmup_steps=optimizer.warmup_steps,
        ),
        PolicyObjective(
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
            aggregation=algorithm.loss_aggregation,
            temperature=config.rollout.temperature,
            max_tokens=config.rollout.max_new_tokens,
        ),
        strategy=make_strategy(config.trainers, distributed=config.trainers.replicas > 1),
    )
    trainer = Trainer(
        learner,
        ExperienceBuffer(config.buffer_capacity // config.rollout.samples_per_prompt),
        tokenizer,
        TrainerSettings(
            rank=rank,
            ranks=config.trainers.replicas,
            epochs=algorithm.epochs,
            minibatches=algorithm.minibatches,
            micro_batch_samples=config.trainers.micro_batch_size,
            pad_id=pad_id(tokenizer),
        ),
    )
    if resume is not None:
        trainer.resume(resume)
    return trainer, Publisher(model, getattr(torch, config.models.actor.dtype))


def pad_id(tokenizer: Any) -> int:
    """What fills batches; masks never come from it, so the end token does where there is none."""
    return int(tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id)
