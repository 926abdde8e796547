"""A maker from a RunConfig: what happens in its actor's process before its first call."""

from functools import partial
from pathlib import Path
from typing import Any

from rlhf_api.run import RunConfig
from torch import nn

from rlhf_runtime.completing.frozen_models import FrozenModels
from rlhf_runtime.engines.engine import Engine
from rlhf_runtime.engines.loading import load_engine, sampling_of
from rlhf_runtime.engines.tensor_parallel.loading import start_engine
from rlhf_runtime.engines.transformers_engine import TransformersEngine
from rlhf_runtime.making.maker import Maker, MakerSettings
from rlhf_runtime.models.frozen import load_frozen
from rlhf_runtime.models.policy import load_policy
from rlhf_runtime.models.reward_scorer import load_reward_scorer
from rlhf_runtime.models.role_models import refresh_every_episodes, resolved
from rlhf_runtime.models.tokenizer import load_tokenizer, pad_id, vocabulary_of
from rlhf_runtime.preflight.gpus import check_own_gpus
from rlhf_runtime.preflight.limits import check_own_memory
from rlhf_runtime.rewards.runner import RewardRunner
from rlhf_runtime.weight_sync.parts import ACTOR, CRITIC, REFERENCE, LoadsParts, expected_weights
from rlhf_runtime.weight_sync.receiver import Receiver


def load_maker(config: RunConfig, columns: tuple[str, ...]) -> Maker:
    """A maker with its models loaded and its reward functions started; it samples after its first sync only.

    Raises RunFailure for what is wrong with models or functions, and for missing GPUs.
    """
    check_own_gpus(config, "maker")
    roles = resolved(config)
    check_own_memory(config, "maker", roles)
    tokenizer = load_tokenizer(config.models.actor.uri, roles.folders[ACTOR])
    engine, actor = _engine(config, tokenizer, roles.path(ACTOR))
    scorer = None
    if (reward := roles.models.get("reward")) is not None:
        scorer = load_reward_scorer(reward.model, roles.folders["reward"], tokenizer, engine.end_ids)
    rewards = RewardRunner(config.rewards, scorer=scorer)
    rewards.check_importable(columns)
    own = None if config.evaluation is None else config.evaluation.rewards
    beside: dict[str, nn.Module] = {
        role: load_frozen(each, roles.path(role))
        for role, each in roles.models.items()
        if role in (REFERENCE, CRITIC, "teacher")
    }
    synced = {CRITIC: beside[CRITIC]} if CRITIC in beside else {}
    if refresh_every_episodes(config) is not None:
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
            vocabulary=vocabulary_of(tokenizer),
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
