"""What the coordinator and its workers say to each other, and what the dataflow needs of them. No Ray, no torch.

`MakerHandle` and `TrainersHandle` are given by `ray_workers.py` over Ray. The dataflow sees only these, so it can be
driven by anything that keeps the same promises.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rlhf_runtime.data.prompts import Prompt
from rlhf_runtime.ledger import Dispatch
from rlhf_runtime.logprob_gap import LogprobGap, Probe
from rlhf_runtime.weight_manifest import Manifest, Order

#: Something in Ray's object store: whoever gets it passes it on, unopened.
Payload = Any


class MakerLost(Exception):
    """The maker's process is gone, or answers no more."""


class PayloadLost(Exception):
    """An object was lost with the node that held it, before it had arrived."""


@dataclass(frozen=True, slots=True)
class Task:
    """One group to sample; `shown` asks for its texts as well, for people to read."""

    dispatch: Dispatch
    prompt: Prompt
    shown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRollout:
    """One rollout as people read it; `advantage` is the mean over its tokens, `versions` are the oldest and the newest
    that sampled a token of it."""

    prompt: str
    completion: str
    reward: float
    advantage: float
    versions: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """What the coordinator needs to know of a group that was made: counts in samples and completion tokens.

    `rewards` are the samples' weighted sums; `rewards_each` holds each reward's own by its name, before weighting,
    None for a sample that it does not apply to.
    """

    dispatch: Dispatch
    oldest_version: int
    rewards: tuple[float, ...]
    rewards_each: Mapping[str, tuple[float | None, ...]]
    tokens: int
    truncated: int
    shown: tuple[ShownRollout, ...]
    logprob_gap: LogprobGap | None = None
    """Of the version that sampled it, where one was measured."""


@dataclass(frozen=True, slots=True)
class Made:
    """A batch of whole groups: a summary of each, and what each trainer rank shall get, by rank."""

    groups: tuple[GroupSummary, ...]
    payloads: tuple[Payload, ...]


@dataclass(frozen=True, slots=True)
class Publication:
    """A complete version in the object store; the coordinator keeps the newest one, for makers that come later."""

    manifest: Manifest
    buckets: tuple[tuple[str, Payload], ...]
    digest: str
    probe: Probe | None = None

    @property
    def version(self) -> int:
        return self.manifest.order.version


@dataclass(frozen=True, slots=True)
class TrainedGroup:
    """A group that went into optimiser steps: its prompt's cursor, and how many samples it had."""

    prompt: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One episode's optimiser steps: means over all ranks, and the groups of the rank, or ranks, that say so.

    KLs and entropy are in nats a token, `value_loss` in squared reward units; `moved`: some gradient and its learning
    rate were not 0. None where the algorithm has no such thing.
    """

    loss: float
    kl: float
    entropy: float
    clip_fraction: float
    gradient_norm: float
    effective_sample_size: float
    reference_kl: float | None
    teacher_kl: float | None
    value_loss: float | None
    explained_variance: float | None
    moved: bool
    optimizer_steps: int
    groups: tuple[TrainedGroup, ...]


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of an unfinished checkpoint: path from its folder, bytes, and blake2b digest."""

    name: str
    size: int
    digest: str


class MakerHandle(Protocol):
    """One maker. Every method raises MakerLost when its process is gone, and RunFailure when the run cannot go on."""

    @property
    def name(self) -> str:
        """Unique in the run: a replacement has another."""
        ...

    @property
    def pod(self) -> str: ...

    async def make(self, tasks: Sequence[Task]) -> Made:
        """Sample and score whole groups, with the version that is in use."""
        ...

    async def evaluate(self, prompts: Sequence[Prompt], version: int) -> list[float]:
        """Reward of one sample of each prompt, by exactly this version."""
        ...

    async def receive(self, publication: Publication, seconds: float) -> None:
        """Pull a version and put it into use between two batches. Raises TimeoutError, and SyncFailed."""
        ...

    async def ping(self, seconds: float) -> None:
        """Raises MakerLost too if there is no answer in time."""
        ...

    def kill(self) -> None:
        """End its process, if it still runs."""
        ...


class TrainersHandle(Protocol):
    """All trainer ranks. Every method raises RunFailure: TrainerLost when a rank is gone, NotFinite, ..."""

    @property
    def pods(self) -> list[str]: ...

    async def receive(self, made: Made, admitted: Sequence[Dispatch]) -> None:
        """Bring the admitted groups to their ranks. Raises PayloadLost."""
        ...

    async def forget(self, dispatches: Sequence[Dispatch]) -> None:
        """Free what was dropped after it had arrived."""
        ...

    async def train(self, dispatches: Sequence[Dispatch], version: int) -> Trained:
        """Train an episode's groups, each once per epoch: what makes policy version `version`."""
        ...

    async def publish(self, order: Order, *, must_differ: bool, seconds: float) -> Publication:
        """Put the weights as they are into the object store. Raises RunFailure WeightSyncFailed after `seconds`."""
        ...

    async def save(self, folder: Path, *, resumable: bool) -> list[StagedFile]:
        """Write the models and their tokenizer, and with `resumable` what training goes on from, into this folder."""
        ...

    async def ping(self, seconds: float) -> None: ...

    def kill(self) -> None: ...
