"""A trainer's buffer: experiences that have arrived and wait for their episode, in whole groups, and bounded.

The ledger decides what is admitted; here it is held. A group is kept under its dispatch, the number of its try, so
that only the try that the ledger admitted can be trained.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlhf_runtime.experience.rollout import Experience
from rlhf_runtime.scheduling.ledger import Dispatch


@dataclass(frozen=True, slots=True, eq=False)
class ExperienceGroup:
    """All samples of one try at a prompt, scored."""

    dispatch: Dispatch
    experiences: tuple[Experience, ...]


class ExperienceBuffer:
    """At most `capacity` groups. Groups arrive in one thread while another trains.

    >>> buffer = ExperienceBuffer(capacity=2)
    >>> buffer.add([ExperienceGroup(Dispatch(7, 1, "maker-0"), ())])
    >>> [group.dispatch.cursor for group in buffer.take([Dispatch(7, 1, "maker-0")])], len(buffer)
    ([7], 0)
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._groups: dict[int, ExperienceGroup] = {}
        self._trained_below = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, groups: Iterable[ExperienceGroup]) -> None:
        """Keep whole groups; of two tries at a prompt the later one stays, whichever arrives last.

        What comes when its prompt has been trained (from a maker that was given up too early) is let go of. Raises
        OverflowError when more would be held than the ledger may admit.
        """
        with self._lock:
            for group in groups:
                cursor, held = group.dispatch.cursor, self._groups.get(group.dispatch.cursor)
                if cursor >= self._trained_below and (held is None or held.dispatch.number < group.dispatch.number):
                    self._groups[cursor] = group
        if len(self._groups) > self._capacity:
            raise OverflowError(f"buffer: found {len(self._groups)} groups, expected at most {self._capacity}")

    def forget(self, dispatches: Iterable[Dispatch]) -> None:
        """Let go of tries that were dropped; it is no error if they never arrived."""
        with self._lock:
            for dispatch in dispatches:
                held = self._groups.get(dispatch.cursor)
                if held is not None and held.dispatch == dispatch:
                    del self._groups[dispatch.cursor]

    def trained(self, below: int) -> None:
        """All prompts below this cursor have been trained: no other try at one of them is wanted any more."""
        with self._lock:
            self._trained_below = below
            self._groups = {cursor: group for cursor, group in self._groups.items() if cursor >= below}

    def take(self, dispatches: Sequence[Dispatch]) -> list[ExperienceGroup]:
        """Remove and return these groups, in this order. Raises LookupError, removing none, if one isn't there."""
        with self._lock:
            groups = [self._groups.get(dispatch.cursor) for dispatch in dispatches]
            for dispatch, group in zip(dispatches, groups, strict=True):
                if group is None or group.dispatch != dispatch:
                    found = f"try {group.dispatch.number}" if group else "nothing"
                    raise LookupError(f"prompt {dispatch.cursor}: found {found}, expected try {dispatch.number}")
            for dispatch in dispatches:
                del self._groups[dispatch.cursor]
        return [group for group in groups if group is not None]
