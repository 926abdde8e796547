"""Models that a process computes with and does not train."""

from pathlib import Path

from torch import nn

from rlhf_runtime.models.critic import load_critic
from rlhf_runtime.models.policy import load_policy
from rlhf_runtime.models.role_models import Role, RoleModel


def load_frozen(role: RoleModel, folder: Path) -> nn.Module:
    """A model that a maker computes with and does not train, from its local folder. Raises RunFailure ModelInvalid."""
    load = load_critic if role.role == "critic" else load_policy
    return load(role.model, folder, role.model.dtype, role=spec_role(role)).requires_grad_(False)


def spec_role(role: RoleModel) -> Role:
    """The role whose model of the spec it is: a critic may begin as the reward model, or as the actor."""
    name: Role = role.field.removeprefix("models.")  # type: ignore[assignment]
    return name
