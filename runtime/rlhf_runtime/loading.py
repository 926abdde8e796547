"""Makers and trainers from a RunConfig: what happens in an actor's process before its first call."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from rlhf_api.algorithm import Gae, Optimizer
from rlhf_api.run import RunConfig
from torch import nn

from rlhf_runtime.buffer import ExperienceBuffer
from rlhf_runtime.doctor.gpus import check_own_gpus
from rlhf_runtime.doctor.limits import check_own_memory
from rlhf_runtime.engines.engine import Engine
from rlhf_runtime.engines.loading import load_engine, sampling_of, truncation_of
from rlhf_runtime.engines.tensor_parallel.loading import start_engine
from rlhf_runtime.engines.transformers_engine import TransformersEngine
from rlhf_runtime.maker import Maker, MakerSettings
from rlhf_runtime.maths.policy_loss import Clip
from rlhf_runtime.model_forwards import FrozenModels
from rlhf_runtime.models.critic import load_critic, save_critic
from rlhf_runtime.models.model_folder import model_folder
from rlhf_runtime.models.policy import load_policy, save_policy
from rlhf_runtime.models.policy_parts import ACTOR, CRITIC, REFERENCE, LoadsParts, expected_weights
from rlhf_runtime.models.policy_weights import model_weights, published_weights
from rlhf_runtime.models.reward_scorer import load_reward_scorer
from rlhf_runtime.models.role_models import Role, RoleModel, role_models
from rlhf_runtime.models.tokenizer import load_tokenizer
from rlhf_runtime.rewards.runner import RewardRunner
from rlhf_runtime.training.learner import Learner
from rlhf_runtime.training.learning_rate import Schedule
from rlhf_runtime.training.objective import Mean, PolicyObjective, Pull, ValueObjective
from rlhf_runtime.training.optimized import AdamWParameters, OptimizedModel
from rlhf_runtime.training.reference import RefreshedReference
from rlhf_runtime.training.step_batches import PassBound
from rlhf_runtime.training.strategy import Strategy, make_strategy
from rlhf_runtime.training.trainer import Trainer, TrainerSettings
from rlhf_runtime.weight_sync import PublishedPart, Publisher, Receiver

#: Samples of a forward and backward pass when the spec bounds it by nothing.
ROWS_OF_A_PASS = 64


def load_maker(config: RunConfig, columns: tuple[str, ...]) -> Maker:
    """A maker with its models loaded and its reward functions started; it samples after its first sync only.

    Raises RunFailure for what is wrong with models or functions, and for missing GPUs.
    """
    check_own_gpus(config, "maker")
    check_own_memory(config, "maker")
    roles = role_models(config)
    folder = model_folder(config.models.actor.uri, "models.actor")
    tokenizer = load_tokenizer(config.models.actor.uri, folder)
    engine, actor = _engine(config, tokenizer, folder.path)
    scorer = load_reward_scorer(roles["reward"].model, tokenizer, engine.end_ids) if "reward" in roles else None
    rewards = RewardRunner(config.rewards, scorer=scorer)
    rewards.check_importable(columns)
    own = None if config.evaluation is None else config.evaluation.rewards
    beside: dict[str, nn.Module] = {
        role: _beside(each) for role, each in roles.items() if role in (REFERENCE, CRITIC, "teacher")
    }
    synced = {CRITIC: beside[CRITIC]} if CRITIC in beside else {}
    if _refresh(config) is not None:
        synced[REFERENCE] = beside[REFERENCE]
    return Maker(
        engine,
        Receiver(expected_weights({ACTOR: actor, **synced}), LoadsParts(engine, synced)),
        rewards,
        tokenizer,
        MakerSettings(
            samples_per_prompt=config.rollout.samples_per_prompt,
            sampling=sampling_of(config),
            end_ids=engine.end_ids,
            algorithm=config.algorithm,
        ),
        FrozenModels(
            pad_id=pad_id(tokenizer),
            temperature=config.rollout.temperature,
            reference=beside.get(REFERENCE),
            teacher=beside.get("teacher"),
            critic=beside.get(CRITIC),
        ),
        evaluation_rewards=None if own is None else RewardRunner(own, field="evaluation.rewards", scorer=scorer),
    )


def _engine(config: RunConfig, tokenizer: Any, folder: Path) -> tuple[Engine, nn.Module]:
    """The engine, and a model of the names, shapes and dtypes that its weights come by."""
    if config.makers.tensor_parallel > 1:
        divided = start_engine(config)
        return divided, divided.whole
    actor = load_policy(config.models.actor, folder, config.models.actor.dtype)
    return load_engine(config, actor, tokenizer, folder, partial(TransformersEngine, actor)), actor


def load_trainer(config: RunConfig, rank: int, resume: Path | None) -> tuple[Trainer, Publisher]:
    """One rank, with fp32 masters; from the checkpoint in `resume`, or from the starting models."""
    check_own_memory(config, "trainer")
    models, algorithm = config.models, config.algorithm
    folder = model_folder(models.actor.uri, "models.actor")
    tokenizer = load_tokenizer(models.actor.uri, folder)
    strategy = make_strategy(config.trainers, distributed=config.trainers.replicas > 1)
    actor = OptimizedModel(
        load_policy(models.actor, resume or folder.path, "float32", lora=models.actor.lora),
        _adamw(algorithm.optimizer, config),
        strategy,
        getattr(torch, models.actor.dtype),
    )
    critic_role = role_models(config).get("critic")
    critic = None if critic_role is None else _trained_critic(critic_role, config, strategy, resume)
    parts = [PublishedPart(prefix=ACTOR, dtype=getattr(torch, models.actor.dtype), weights=lambda _: _plain(actor))]
    if critic is not None and critic_role is not None:
        dtype = getattr(torch, critic_role.model.dtype)
        parts.append(PublishedPart(prefix=CRITIC, dtype=dtype, weights=lambda _: _plain(critic)))
    reference = None
    if (every := _refresh(config)) is not None:
        reference = RefreshedReference(every, lambda: _plain(actor), _named_reference(config))
        reference.refuse_misfit(_plain(actor))
        dtype = getattr(torch, role_models(config)["reference"].model.dtype)
        parts.append(PublishedPart(prefix=REFERENCE, dtype=dtype, weights=reference.weights))
    trainer = Trainer(
        Learner(
            actor,
            _objective(config),
            critic=critic,
            value_objective=None if critic is None else _value_objective(config),
            strategy=strategy,
        ),
        ExperienceBuffer(config.buffer_capacity // config.rollout.samples_per_prompt),
        strategy,
        _Models(actor, critic, reference, tokenizer, strategy).save,
        TrainerSettings(
            epochs=algorithm.epochs,
            minibatches=algorithm.minibatches,
            bound=PassBound(
                rows=config.trainers.micro_batch_size or ROWS_OF_A_PASS,
                max_tokens=config.trainers.max_tokens_per_micro_batch,
                pinned=config.trainers.pin_memory,
            ),
            dynamic=config.trainers.balance == "Dynamic",
            pad_id=pad_id(tokenizer),
            whiten=algorithm.type == "PPO" and (algorithm.gae or Gae()).whiten,
            recompute=algorithm.old_log_probs == "Recomputed",
        ),
    )
    if resume is not None:
        trainer.resume(resume)
        if reference is not None:
            reference.load(resume / REFERENCE)
    return trainer, Publisher(parts, publishes=strategy.rank == 0)


class _Models:
    """The trained models as files; all ranks save together, and rank 0 writes."""

    def __init__(
        self,
        actor: OptimizedModel,
        critic: OptimizedModel | None,
        reference: RefreshedReference | None,
        tokenizer: Any,
        strategy: Strategy,
    ) -> None:
        self._actor = actor
        self._critic = critic
        self._reference = reference
        self._tokenizer = tokenizer
        self._writes = strategy.rank == 0

    def save(self, folder: Path, resumable: bool) -> None:
        """What a resume needs, adapters without their base, or what people load: see `policy.save_policy`."""
        actor = self._actor.weights()
        if self._writes:
            save_policy(self._actor.module, self._tokenizer, folder, weights=actor, adapter_only=resumable)
        if self._critic is not None:
            critic = self._critic.weights()
            if self._writes:
                (folder / CRITIC).mkdir()
                save_critic(
                    self._critic.module, self._tokenizer, folder / CRITIC, weights=critic, adapter_only=resumable
                )
        if self._reference is not None and self._writes and resumable:
            self._reference.save(folder / REFERENCE)


def _plain(model: OptimizedModel) -> dict[str, torch.Tensor]:
    """As makers load them; {} on ranks that have no whole weights."""
    weights = model.weights()
    return published_weights(model.module, weights) if weights else {}


def _named_reference(config: RunConfig) -> dict[str, torch.Tensor] | None:
    """Weights of a reference that is not the actor, as the trainers keep them."""
    if config.models.reference is None:
        return None
    module = _beside(role_models(config)["reference"])
    return {name: tensor.cpu() for name, tensor in model_weights(module).items()}


def _beside(role: RoleModel) -> nn.Module:
    """A model that a maker computes with and does not train."""
    folder = model_folder(role.model.uri, role.field)
    if role.role == "critic":
        return load_critic(role.model, folder.path, role.model.dtype, role=_spec_role(role)).requires_grad_(False)
    return load_policy(role.model, folder.path, role.model.dtype, role=_spec_role(role)).requires_grad_(False)


def _trained_critic(role: RoleModel, config: RunConfig, strategy: Strategy, resume: Path | None) -> OptimizedModel:
    folder = model_folder(role.model.uri, role.field).path if resume is None else resume / CRITIC
    module = load_critic(role.model, folder, "float32", role=_spec_role(role), lora=role.lora)
    parameters = _adamw(config.algorithm.critic_optimizer, config)
    return OptimizedModel(module, parameters, strategy, getattr(torch, role.model.dtype))


def _spec_role(role: RoleModel) -> Role:
    """The role whose model of the spec it is: a critic may begin as the reward model, or as the actor."""
    name: Role = role.field.removeprefix("models.")  # type: ignore[assignment]
    return name


def _refresh(config: RunConfig) -> int | None:
    return None if config.algorithm.kl is None else config.algorithm.kl.refresh_every_episodes


def _adamw(optimizer: Optimizer, config: RunConfig) -> AdamWParameters:
    return AdamWParameters(
        schedule=Schedule(
            peak=optimizer.learning_rate,
            kind=optimizer.schedule,
            warmup_steps=optimizer.warmup_steps,
            total_steps=config.episodes * config.algorithm.epochs * config.algorithm.minibatches,
            final_fraction=optimizer.final_learning_rate_fraction or 0.0,
        ),
        betas=(optimizer.beta1, optimizer.beta2),
        epsilon=optimizer.epsilon,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_gradient_norm,
    )


def _mean(config: RunConfig) -> Mean:
    return Mean(aggregation=config.algorithm.loss_aggregation, max_tokens=config.rollout.max_new_tokens)


def _objective(config: RunConfig) -> PolicyObjective:
    algorithm = config.algorithm
    kl, distillation, off_policy = algorithm.kl, algorithm.distillation, algorithm.off_policy
    in_loss = kl is not None and kl.applies_to == "Loss"
    return PolicyObjective(
        clip=Clip(low=algorithm.clip_low, high=algorithm.clip_high, dual=algorithm.dual_clip),
        mean=_mean(config),
        temperature=config.rollout.temperature,
        truncation=truncation_of(config),
        ratio_level=algorithm.ratio_level,
        old=algorithm.old_log_probs,
        correction=None if off_policy is None else off_policy.correction,
        correction_cap=2.0 if off_policy is None else off_policy.cap,
        reference=Pull(weight=kl.coefficient, estimator=kl.effective_estimator) if kl is not None and in_loss else None,
        teacher=None if distillation is None else Pull(weight=distillation.weight, estimator=distillation.estimator),
        entropy_coefficient=algorithm.entropy_coefficient,
    )


def _value_objective(config: RunConfig) -> ValueObjective:
    critic = config.algorithm.critic
    return ValueObjective(clip=None if critic is None else critic.value_clip, mean=_mean(config))


def pad_id(tokenizer: Any) -> int:
    """What fills batches; masks never come from it, so the end token does where there is none."""
    return int(tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id)
