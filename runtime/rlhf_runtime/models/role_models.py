"""Which model of the spec each role computes with; only this module resolves what the spec leaves out."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlhf_api.conditions import Reason
from rlhf_api.models import Lora, Model
from rlhf_api.run import RunConfig

from rlhf_runtime.failures import RunFailure
from rlhf_runtime.models.model_folder import ModelFolder, model_folder

Role = Literal["actor", "reference", "critic", "reward", "teacher"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleModel:
    """`field` is where the spec has the model: a critic may be read from ``models.reward`` or ``models.actor``."""

    role: Role
    field: str
    model: Model
    lora: Lora | None = None


def role_models(config: RunConfig) -> dict[Role, RoleModel]:
    """The roles that the job has, in the order in which they are checked and loaded. Raises RunFailure."""
    models, algorithm = config.models, config.algorithm
    found = [RoleModel(role="actor", field="models.actor", model=models.actor, lora=models.actor.lora)]
    if algorithm.compares_with_reference:
        named = models.reference
        field = "models.actor" if named is None else "models.reference"
        found.append(RoleModel(role="reference", field=field, model=named or models.actor))
    if algorithm.type == "PPO":
        found.append(_critic(config))
    if models.reward is not None:
        found.append(RoleModel(role="reward", field="models.reward", model=models.reward))
    if models.teacher is not None:
        found.append(RoleModel(role="teacher", field="models.teacher", model=models.teacher))
    return {each.role: each for each in found}


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The roles of a job that a process has to do with, and the folder of each one's model: looked up once.

    Looking a folder up lists it, also where it lies elsewhere, and every role's loading wants one.
    """

    models: Mapping[Role, RoleModel]
    folders: Mapping[Role, ModelFolder]

    def path(self, role: Role) -> Path:
        return self.folders[role].path


def resolved(config: RunConfig, only: Collection[Role] | None = None, *, weights: bool = True) -> Roles:
    """The roles of `only` that the job has, by default all, with their folders found complete.

    Weights that lie elsewhere are fetched, unless `weights` is False. Raises RunFailure.
    """
    models = {role: each for role, each in role_models(config).items() if only is None or role in only}
    by_uri: dict[str, ModelFolder] = {}
    for each in models.values():
        if each.model.uri not in by_uri:
            by_uri[each.model.uri] = model_folder(each.model.uri, each.field, weights=weights)
    return Roles(models=models, folders={role: by_uri[each.model.uri] for role, each in models.items()})


def _critic(config: RunConfig) -> RoleModel:
    models = config.models
    if models.critic is not None:
        if models.critic.factory is not None and models.critic.lora is not None:
            raise RunFailure(
                Reason.MODEL_INVALID,
                "models.critic.lora: not with models.critic.factory: which of the module's layers is the head, to be "
                "trained beside the adapters, is not known; leave one of them out",
                permanent=True,
            )
        return RoleModel(role="critic", field="models.critic", model=models.critic, lora=models.critic.lora)
    if models.reward is not None:
        return RoleModel(role="critic", field="models.reward", model=models.reward)
    return RoleModel(role="critic", field="models.actor", model=models.actor)


def refresh_every_episodes(config: RunConfig) -> int | None:
    """After how many episodes the reference takes the policy's weights; None: never."""
    return None if config.algorithm.kl is None else config.algorithm.kl.refresh_every_episodes
