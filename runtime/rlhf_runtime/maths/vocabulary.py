"""Which token ids a policy may say: those that its tokenizer has.

An embedding is often padded to a round number of rows, and a head then has a logit for each of them. Ids without a
token are no part of any distribution here: they are never drawn, and have no mass and no gradient.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Ids from 0 to `size` - 1, less those in `absent` (int64, None for no id)."""

    size: int
    absent: Tensor | None = None

    @classmethod
    def of(cls, ids: Collection[int]) -> "Vocabulary":
        """That of a tokenizer whose tokens have these ids."""
        size = max(ids) + 1
        absent = sorted(set(range(size)) - set(ids))
        return cls(size, torch.tensor(absent) if absent else None)

    def to(self, device: torch.device) -> "Vocabulary":
        return Vocabulary(self.size, None if self.absent is None else self.absent.to(device))

    def known(self, logits: Tensor) -> Tensor:
        """The logits [.., v] of the ids that are there, -inf for those that are absent: [.., min(v, size)].

        A view, unless ids are absent.
        """
        known = logits[..., : self.size]
        return known if self.absent is None else known.index_fill(-1, self.absent.to(known.device), -torch.inf)
