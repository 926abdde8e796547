"""Which sample sits in which row of the batch: decided on the host, from who has ended and who waits."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
#: A row without a sample.
EMPTY = -1


@dataclass(frozen=True, slots=True)
class Placement:
    """`samples` that start in `rows`, both [n]."""

    samples: Indices
    rows: Indices


class Seating:
    """`rows` places, and samples (numbers) that want one, in their order.

    The rows in use are the first `width`; a row among them may be empty.
    """

    def __init__(self, samples: Iterable[int], rows: int) -> None:
        self._waiting = deque(samples)
        self.rows = min(rows, len(self._waiting))
        self.sample_of_row = np.full(self.rows, EMPTY)
        self.width = self.rows

    @property
    def alive(self) -> Indices:
        """Rows that have a sample, ascending."""
        return np.flatnonzero(self.sample_of_row[: self.width] != EMPTY)

    def leave(self, rows: Sequence[int]) -> None:
        """These rows' samples have ended."""
        self.sample_of_row[list(rows)] = EMPTY

    def fill(self) -> Placement:
        """Seat those who wait, if an eighth of the rows is free for them or nobody is seated.

        Starting a few samples costs a forward pass of its own, so they come together.
        """
        free = np.flatnonzero(self.sample_of_row[: self.width] == EMPTY)
        count = min(len(free), len(self._waiting))
        if count < min(len(self._waiting), max(1, self.width // 8)):
            count = 0
        samples = np.array([self._waiting.popleft() for _ in range(count)], np.int64)
        self.sample_of_row[free[:count]] = samples
        return Placement(samples, free[:count])

    def shrink(self, widths: Sequence[int] | None) -> tuple[Indices, Indices]:
        """Close the gaps when nobody waits: rows to move and where to, both [n].

        `widths` are the sizes a batch may have, ascending; None allows all.
        """
        nobody = np.zeros(0, np.int64)
        alive = self.alive
        if self._waiting or not len(alive):
            return nobody, nobody
        width = len(alive) if widths is None else next(w for w in widths if w >= len(alive))
        if width >= self.width:
            return nobody, nobody
        sources = alive[alive >= width]
        targets = np.flatnonzero(self.sample_of_row[:width] == EMPTY)[: len(sources)]
        self.sample_of_row[targets] = self.sample_of_row[sources]
        self.sample_of_row[sources] = EMPTY
        self.width = width
        return sources, targets
