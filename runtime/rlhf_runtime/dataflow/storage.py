"""Where a run's files go, and how the dataflow calls the storage."""

from dataclasses import dataclass, field

from rlhf_runtime.storage.calls import StorageCalls
from rlhf_runtime.storage.checkpoints import Checkpoints
from rlhf_runtime.storage.run_directory import RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """One attempt's folder and checkpoints. `calls` has no time limit: a large checkpoint takes what it takes."""

    directory: RunDirectory
    checkpoints: Checkpoints
    calls: StorageCalls = field(default_factory=StorageCalls)
