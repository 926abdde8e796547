"""Evaluation: every held-out prompt sampled once by exactly one version; the score is the mean reward."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_runtime.data.prompts import Prompt


def is_due(version: int, *, every_episodes: int, last: int) -> bool:
    """Whether this version is evaluated: the starting one, every so many, and the last."""
    return version % every_episodes == 0 or version == last


@dataclass(frozen=True, slots=True)
class EvaluationBatch:
    """A part of a round for one maker: `first` is the place of its first prompt in the round."""

    version: int
    first: int
    prompts: tuple[Prompt, ...]


class EvaluationRound:
    """One version's evaluation: batches go out to makers, rewards come back, in any order.

    >>> round = EvaluationRound(3, [], batch=8)
    Traceback (most recent call last):
    ValueError: an evaluation needs at least one prompt
    """

    def __init__(self, version: int, prompts: Sequence[Prompt], batch: int) -> None:
        if not prompts:
            raise ValueError("an evaluation needs at least one prompt")
        self.version = version
        self._waiting = [
            EvaluationBatch(version, first, tuple(prompts[first : first + batch]))
            for first in range(0, len(prompts), batch)
        ]
        self._rewards: dict[int, float] = {}
        self._expected = len(prompts)

    def take(self) -> EvaluationBatch | None:
        """A batch that nobody works on; None if all are out or done."""
        return self._waiting.pop(0) if self._waiting else None

    def give_back(self, batch: EvaluationBatch) -> None:
        """The maker was lost: another does it."""
        self._waiting.insert(0, batch)

    def complete(self, batch: EvaluationBatch, rewards: Sequence[float]) -> None:
        """Raises ValueError if it isn't one reward a prompt."""
        if len(rewards) != len(batch.prompts):
            raise ValueError(f"evaluation: found {len(rewards)} rewards, expected {len(batch.prompts)}")
        self._rewards.update(enumerate(rewards, batch.first))

    @property
    def score(self) -> float | None:
        """Mean reward; None until every prompt has one."""
        if len(self._rewards) < self._expected:
            return None
        return math.fsum(self._rewards.values()) / self._expected
