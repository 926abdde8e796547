"""A trainer rank from a RunConfig: what happens in its actor's process before its first call."""

from pathlib import Path
from typing import Any

import torch
from rlhf_api.algorithm import Gae
from rlhf_api.run import RunConfig

from rlhf_runtime.experience.buffer import ExperienceBuffer
from rlhf_runtime.models.critic import load_critic, save_critic
from rlhf_runtime.models.frozen import load_frozen, spec_role
from rlhf_runtime.models.policy import load_policy, save_policy
from rlhf_runtime.models.policy_weights import model_weights, published_weights
from rlhf_runtime.models.role_models import RoleModel, Roles, refresh_every_episodes, resolved
from rlhf_runtime.models.tokenizer import load_tokenizer, pad_id, vocabulary_of
from rlhf_runtime.preflight.limits import check_own_memory
from rlhf_runtime.training.learner import Learner
from rlhf_runtime.training.optimized import OptimizedModel
from rlhf_runtime.training.reference import RefreshedReference
from rlhf_runtime.training.settings import adamw_parameters, policy_objective, value_objective
from rlhf_runtime.training.step_batches import PassBound
from rlhf_runtime.training.strategy import Strategy, make_strategy
from rlhf_runtime.training.trainer import Trainer, TrainerSettings
from rlhf_runtime.weight_sync.parts import ACTOR, CRITIC, REFERENCE
from rlhf_runtime.weight_sync.publisher import PublishedPart, Publisher

#: Samples of a forward and backward pass when the spec bounds it by nothing.
ROWS_OF_A_PASS = 64


def load_trainer(config: RunConfig, rank: int, resume: Path | None) -> tuple[Trainer, Publisher]:
    """One rank, with fp32 masters; from the checkpoint in `resume`, or from the starting models."""
    models, algorithm = config.models, config.algorithm
    refreshed = refresh_every_episodes(config)
    roles = resolved(config, (ACTOR, CRITIC) if refreshed is None else (ACTOR, CRITIC, REFERENCE))
    check_own_memory(config, "trainer", roles)
    tokenizer = load_tokenizer(models.actor.uri, roles.folders[ACTOR])
    if config.prompts.chat_template is not None:
        # What is saved must be asked as it was trained.
        tokenizer.chat_template = config.prompts.chat_template
    strategy = make_strategy(config.trainers, distributed=config.trainers.replicas > 1)
    actor = OptimizedModel(
        load_policy(models.actor, roles.path(ACTOR), "float32", lora=models.actor.lora, resume=resume),
        adamw_parameters(algorithm.optimizer, config),
        strategy,
        getattr(torch, models.actor.dtype),
    )
    critic_role = roles.models.get(CRITIC)
    critic = None if critic_role is None else _trained_critic(critic_role, roles.path(CRITIC), config, strategy, resume)
    parts = [PublishedPart(prefix=ACTOR, dtype=getattr(torch, models.actor.dtype), weights=lambda _: _plain(actor))]
    if critic is not None and critic_role is not None:
        dtype = getattr(torch, critic_role.model.dtype)
        parts.append(PublishedPart(prefix=CRITIC, dtype=dtype, weights=lambda _: _plain(critic)))
    reference = None
    if refreshed is not None:
        reference = RefreshedReference(refreshed, lambda: _plain(actor), _named_reference(config, roles))
        reference.refuse_misfit(_plain(actor))
        dtype = getattr(torch, roles.models[REFERENCE].model.dtype)
        parts.append(PublishedPart(prefix=REFERENCE, dtype=dtype, weights=reference.weights))
    trainer = Trainer(
        Learner(
            actor,
            policy_objective(config, vocabulary_of(tokenizer)),
            critic=critic,
            value_objective=None if critic is None else value_objective(config),
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


def _named_reference(config: RunConfig, roles: Roles) -> dict[str, torch.Tensor] | None:
    """Weights of a reference that is not the actor, as the trainers keep them."""
    if config.models.reference is None:
        return None
    module = load_frozen(roles.models[REFERENCE], roles.path(REFERENCE))
    return {name: tensor.cpu() for name, tensor in model_weights(module).items()}


def _trained_critic(
    role: RoleModel, folder: Path, config: RunConfig, strategy: Strategy, resume: Path | None
) -> OptimizedModel:
    module = load_critic(
        role.model,
        folder,
        "float32",
        role=spec_role(role),
        lora=role.lora,
        resume=None if resume is None else resume / CRITIC,
    )
    parameters = adamw_parameters(config.algorithm.critic_optimizer, config)
    return OptimizedModel(module, parameters, strategy, getattr(torch, role.model.dtype))
