"""What the dataflow needs of a run's workers. No Ray, no torch.

The `actors` package gives a `MakerHandle` and a `TrainersHandle` over Ray. The dataflow sees only these protocols, so
anything that keeps the same promises can drive it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rlhf_runtime.data.prompts import Prompt
from rlhf_runtime.experience.messages import GroupSummary, Task, Trained
from rlhf_runtime.scheduling.ledger import Dispatch
from rlhf_runtime.storage.checkpoints import StagedFile
from rlhf_runtime.weight_sync.manifest import Order, Payload, Publication


class MakerLost(Exception):
    """The maker's process is gone, or answers no more."""


class PayloadLost(Exception):
    """An object was lost with the node that held it, before it had arrived."""


@dataclass(frozen=True, slots=True)
class Made:
    """A batch of whole groups: a summary of each, and what each trainer rank shall get, by rank."""

    groups: tuple[GroupSummary, ...]
    payloads: tuple[Payload, ...]


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
