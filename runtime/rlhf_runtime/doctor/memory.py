"""The least memory that a role needs: what its models' parameters alone take, whatever a batch adds to that.

Bytes of a parameter: as stored for computing with 4 (float32) or 2 (bfloat16); a trained one has an fp32 master, its
gradient, and AdamW's two moments, 16 in all. Activations, logits, caches and the libraries come on top: the figures
are lower bounds, so that a limit below them is certainly too small, and one above them may be.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rlhf_api.conditions import MEMORY_TOO_SMALL
from rlhf_api.run import RunConfig

from rlhf_runtime.failures import RunFailure
from rlhf_runtime.models.role_models import Role, RoleModel

COMPUTE_BYTES = {"float32": 4, "bfloat16": 2}
TRAINED: tuple[Role, ...] = ("actor", "critic")
MASTER_BYTES = 4
#: A gradient and AdamW's two moments, fp32.
STEP_BYTES = 4 + 4 + 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Numbers of parameters, a tied one counted once: `whole` of the model, `adapters` of LoRA beside them, and
    `trained`, of both."""

    whole: int
    trained: int
    adapters: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one pod of a role needs at least: bytes by what they are for.

    models  where the models compute: the GPU, or the pod's memory where there is none
    host    in the pod's memory in either case
    """

    role: Literal["maker", "trainer"]
    models: Mapping[str, int]
    host: Mapping[str, int]

    def in_pod(self, *, gpu: bool) -> Mapping[str, int]:
        """What is in the pod's own memory; `gpu`: it has one."""
        return self.host if gpu else {**self.models, **self.host}

    def __str__(self) -> str:
        return _said(self.role, {**self.models, **self.host})


def maker_need(config: RunConfig, found: Mapping[Role, RoleModel], sizes: Mapping[Role, ModelSize]) -> Need:
    """All models, for makers complete the experience; and, beside the live weights, the version that is received."""
    kl = config.algorithm.kl
    published = (*TRAINED, "reference") if kl is not None and kl.refresh_every_episodes is not None else TRAINED
    models: dict[str, int] = {}
    received = 0
    for role, size in sizes.items():
        dtype = found[role].model.dtype
        held = size.whole * COMPUTE_BYTES[dtype]
        models[f"{role} {dtype}"] = held
        if role in published:
            received += held
    return Need(role="maker", models=models, host={"a version being received": received})


def trainer_need(sizes: Mapping[Role, ModelSize]) -> Need:
    """The trained models, whole on every rank: masters, gradients and moments."""
    models: dict[str, int] = {}
    for role in TRAINED:
        if (size := sizes.get(role)) is not None:
            models[f"{role} fp32 masters"] = (size.whole + size.adapters) * MASTER_BYTES
            models[f"{role} gradients and moments"] = size.trained * STEP_BYTES
    return Need(role="trainer", models=models, host={})


def check_limit(role: str, parts: Mapping[str, int], limit: int, found_in: str) -> None:
    """Raise RunFailure MemoryTooSmall (permanent) if so many bytes cannot even hold the parameters."""
    if sum(parts.values()) > limit:
        raise RunFailure(
            MEMORY_TOO_SMALL,
            f"{found_in} is {in_units(limit)}, but {_said(role, parts)}; activations, logits and libraries come on top",
            permanent=True,
        )


def _said(role: str, parts: Mapping[str, int]) -> str:
    listed = ", ".join(f"{name} {in_units(size)}" for name, size in parts.items())
    return f"a {role} needs at least {in_units(sum(parts.values()))}: {listed}"


def in_units(size: int) -> str:
    """Bytes as people read them: 512.0 KiB, 1.5 GiB."""
    amount, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.1f} {unit}"
