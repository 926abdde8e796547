"""Evaluation: exactly one version samples every held-out prompt once; the score is the mean reward."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_runtime.data.prompts import Prompt
from rlhf_runtime.dataflow.pulse import Pulse


def is_due(version: int, *, every_episodes: int, last: int) -> bool:
    """Whether this version is evaluated: the starting one, one in `every_episodes`, and the last."""
    return version % every_episodes == 0 or version == last


@dataclass(frozen=True, slots=True)
class EvaluationBatch:
    """A part of a round for one maker: `first` is the index of its first prompt in the round."""

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
        """A batch that no maker works on; None if all are taken or done."""
        return self._waiting.pop(0) if self._waiting else None

    def give_back(self, batch: EvaluationBatch) -> None:
        """The maker was lost: another one takes the batch."""
        self._waiting.insert(0, batch)

    def complete(self, batch: EvaluationBatch, rewards: Sequence[float]) -> None:
        """Take the rewards, one for each prompt. Raises ValueError if there are more or fewer."""
        if len(rewards) != len(batch.prompts):
            raise ValueError(f"evaluation: found {len(rewards)} rewards, expected {len(batch.prompts)}")
        self._rewards.update(enumerate(rewards, batch.first))

    @property
    def score(self) -> float | None:
        """Mean reward; None until every prompt has one."""
        if len(self._rewards) < self._expected:
            return None
        return math.fsum(self._rewards.values()) / self._expected


class Evaluations:
    """The evaluation under way, of one version at a time: the only writer of its rounds.

    `most` is how many prompts one batch may have.
    """

    def __init__(self, pulse: Pulse, held_out: Sequence[Prompt], most: int) -> None:
        self._pulse = pulse
        self._held_out = held_out
        self._most = most
        self._round: EvaluationRound | None = None

    @property
    def unfinished(self) -> bool:
        """Makers stay at the version that is being evaluated."""
        return self._round is not None and self._round.score is None

    def begin(self, version: int, makers: int) -> EvaluationRound:
        """Evaluate this version, in one batch for each maker if they are not too large."""
        share = -(-len(self._held_out) // max(1, makers))
        self._round = EvaluationRound(version, self._held_out, min(share, self._most))
        self._pulse.beat()
        return self._round

    def take(self, version: int) -> EvaluationBatch | None:
        """A batch for a maker that holds this version; None if there is none to do."""
        if self._round is None or self._round.version != version:
            return None
        return self._round.take()

    def give_back(self, batch: EvaluationBatch) -> None:
        """The maker was lost: another one takes the batch."""
        if self._round is not None and self._round.version == batch.version:
            self._round.give_back(batch)
            self._pulse.beat()

    def complete(self, batch: EvaluationBatch, rewards: Sequence[float]) -> None:
        """A batch's rewards, one for each prompt; those of a round that was abandoned are not used."""
        if self._round is not None and self._round.version == batch.version:
            self._round.complete(batch, rewards)
            self._pulse.beat()
