"""A reward that `models.reward` gives, in the maker's process and on its device."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from rlhf_runtime.data.prompt_rows import PromptValue
from rlhf_runtime.rewards.batch import Batch


class Scorer(Protocol):
    """`models.reward_scorer.RewardScorer`, known here without torch."""

    def score(
        self,
        prompt_ids: Sequence[Sequence[int]],
        completion_ids: Sequence[Sequence[int]],
        texts: Sequence[PromptValue],
    ) -> list[float]: ...


class ModelReward:
    """The reward model's opinion. Without a scorer it can be checked, and not asked."""

    def __init__(self, scorer: Scorer | None) -> None:
        self._scorer = scorer

    def start(self) -> None: ...

    def until_ready(self) -> None: ...

    def check(self, columns: Sequence[str]) -> None: ...

    async def score(self, batch: Batch) -> list[float | None]:
        """Raises RunFailure ModelInvalid."""
        if self._scorer is None or batch.tokens is None:
            raise ValueError("a reward model needs its scorer and the batch's tokens")
        texts = [whole(*sample) for sample in zip(batch.prompts, batch.completions, strict=True)]
        # In a thread, so that functions and endpoints are heard meanwhile.
        return list(
            await asyncio.to_thread(self._scorer.score, batch.tokens.prompt_ids, batch.tokens.completion_ids, texts)
        )

    def end(self) -> None: ...


def whole(prompt: PromptValue, completion: PromptValue) -> PromptValue:
    """A prompt and its completion as one text, or as one list of messages.

    >>> whole("1+1=", "2")
    '1+1=2'
    """
    if isinstance(prompt, str) and isinstance(completion, str):
        return prompt + completion
    if isinstance(prompt, str) or isinstance(completion, str):
        raise TypeError(f"found {type(prompt).__name__} and {type(completion).__name__}, expected both of a kind")
    return [*prompt, *completion]
