"""The least memory that a role needs: what its models' parameters alone take, whatever a batch adds to that.

Bytes of a parameter: as stored for computing with 4 (float32) or 2 (bfloat16); a trained one has an fp32 master, its
gradient, and AdamW's two moments, 16 in all. Activations, logits, caches and the libraries come on top: the figures
are lower bounds, so that a limit below them is certainly too small, and one above them may be.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rlhf_api.conditions import Reason
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
    `trained`, of both; `linear`, those of the model that makers may hold in int8."""

    whole: int
    trained: int
    adapters: int = 0
    linear: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one process of a role needs at least: bytes by what they are for. So many `processes` share a pod.

    models  where the models compute: the process's GPU, or the pod's memory where there is none
    host    in the pod's memory in either case
    peers   on the GPUs, together, that the process computes with beside its own; else in the pod's memory too
    """

    role: Literal["maker", "trainer"]
    models: Mapping[str, int]
    host: Mapping[str, int]
    peers: Mapping[str, int] = field(default_factory=dict)
    processes: int = 1

    def in_pod(self, *, gpu: bool) -> Mapping[str, int]:
        """What is in the memory that the pod's processes share; `gpu`: each part of a model has one."""
        parts = self.host if gpu else {**self.models, **self.peers, **self.host}
        return {name: size * self.processes for name, size in parts.items()}

    def __str__(self) -> str:
        each = f", {self.processes} of them in a pod" if self.processes > 1 else ""
        return _said(f"a {self.role}", {**self.models, **self.peers, **self.host}) + each


def maker_need(config: RunConfig, found: Mapping[Role, RoleModel], sizes: Mapping[Role, ModelSize]) -> Need:
    """All models, for makers complete the experience; and, beside the live weights, the version that is received.

    The policy is divided over tensor-parallel GPUs; the others are whole on the first.
    """
    kl = config.algorithm.kl
    published = (*TRAINED, "reference") if kl is not None and kl.refresh_every_episodes is not None else TRAINED
    models: dict[str, int] = {}
    peers: dict[str, int] = {}
    received, ranks = 0, config.makers.tensor_parallel
    for role, size in sizes.items():
        dtype = found[role].model.dtype
        computing = COMPUTE_BYTES[dtype]
        name, held = f"{role} {dtype}", size.whole * computing
        if role == "actor" and config.makers.quantization == "Int8":
            name, held = "actor int8", size.linear + (size.whole - size.linear) * computing
        if role == "actor" and ranks > 1:
            peers[f"{name}, the other {ranks - 1}/{ranks} of it"] = held * (ranks - 1) // ranks
            name, held = f"{name}, 1/{ranks} of it", -(-held // ranks)
        models[name] = held
        if role in published:
            received += size.whole * computing
    return Need(role="maker", models=models, host={"a version being received": received}, peers=peers)


def trainer_need(config: RunConfig, sizes: Mapping[Role, ModelSize]) -> Need | None:
    """A rank's part of the trained models: masters, gradients and moments, by the strategy's division.

    None for a strategy of the user's own, which may divide as it likes.
    """
    settings = config.trainers
    if settings.strategy_factory is not None:
        return None
    divided = settings.tensor_parallel if settings.strategy == "DDP" else settings.replicas
    part = f", 1/{divided} of them" if divided > 1 else ""
    kept: dict[str, int] = {}
    for role in TRAINED:
        if (size := sizes.get(role)) is not None:
            kept[f"{role} fp32 masters{part}"] = -(-(size.whole + size.adapters) * MASTER_BYTES // divided)
            kept[f"{role} gradients and moments{part}"] = -(-size.trained * STEP_BYTES // divided)
    rests = settings.offload == "All"
    return Need(role="trainer", models={} if rests else kept, host=kept if rests else {}, processes=settings.per_pod)


def check_limit(role: str, parts: Mapping[str, int], limit: int, found_in: str, *, processes: int = 1) -> None:
    """Raise RunFailure MemoryTooSmall (permanent) if `limit` bytes cannot even hold the parameters.

    `parts` are those of the `processes` that share what is limited.
    """
    if sum(parts.values()) > limit:
        who = f"a {role}" if processes == 1 else f"a pod of {processes} {role}s"
        raise RunFailure(
            Reason.MEMORY_TOO_SMALL,
            f"{found_in} is {in_units(limit)}, but {_said(who, parts)}; activations, logits and libraries come on top",
            permanent=True,
        )


def _said(who: str, parts: Mapping[str, int]) -> str:
    listed = ", ".join(f"{name} {in_units(size)}" for name, size in parts.items())
    return f"{who} needs at least {in_units(sum(parts.values()))}: {listed}"


def in_units(size: int) -> str:
    """Bytes as people read them: 512.0 KiB, 1.5 GiB."""
    amount, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.1f} {unit}"
