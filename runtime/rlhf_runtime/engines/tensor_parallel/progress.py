"""How far each rank has come, in memory that all of them see; and who is to blame when the engine does not go on."""

import mmap
import os
from collections.abc import Mapping, Sequence

import numpy as np

from rlhf_runtime.lifeline import describe_exit


class Progress:
    """A counter a rank, that it advances whenever it begins a forward or a step; `descriptor` is the memory's."""

    def __init__(self, descriptor: int, rank: int) -> None:
        self.descriptor = descriptor
        self._rank = rank
        self._counters = np.frombuffer(mmap.mmap(descriptor, 0), np.int64)

    @classmethod
    def shared(cls, ranks: int) -> "Progress":
        """Rank 0's; a process that is started with the descriptor sees the same."""
        descriptor = os.memfd_create("rlhf-engine-progress")
        os.truncate(descriptor, ranks * np.dtype(np.int64).itemsize)
        return cls(descriptor, 0)

    def beat(self) -> None:
        self._counters[self._rank] += 1

    def counters(self) -> list[int]:
        return [int(counter) for counter in self._counters]


def dead(ends: Mapping[int, int | None], words: Mapping[int, str]) -> str | None:
    """Which ranks have ended, and why; None if all run. `ends` as `subprocess` says them, `words` what some said."""
    ended = {rank: code for rank, code in ends.items() if code is not None}
    # Those who said why come first: the others may have died of it.
    ordered = sorted(ended, key=lambda rank: rank not in words)
    said = [
        f"rank {rank} raised {words[rank]}" if rank in words else f"rank {rank} ended with {describe_exit(ended[rank])}"
        for rank in ordered
    ]
    return ", ".join(said) or None


def lagging(counters: Sequence[int], states: Mapping[int, str], seconds: float) -> str:
    """Which rank the others wait for, when none has gone on for so long: one that has come less far.

    Rank 0 notices that it waits, so of ranks that have come equally far it is one of the others. `states` are those
    of the processes, as /proc has them.
    """
    least = min(counters)
    behind = [rank for rank in states if counters[rank] == least] or [0]
    named = ", ".join(f"{rank} (process state {states[rank]})" if rank in states else str(rank) for rank in behind)
    return f"rank {named} has not gone on for {seconds:g} s: found {list(counters)} steps of the ranks"


def state_of(pid: int) -> str:
    """/proc's letter for a process: R runs, S sleeps, D waits for a device, T is stopped; ? if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?"
