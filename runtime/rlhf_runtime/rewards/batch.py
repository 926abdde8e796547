"""What rewards are asked about, what they give, and how the parts become one number: pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_api.conditions import REWARD_INVALID

from rlhf_runtime.data.prompt_rows import PromptValue
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.rewards.answers import shortened


@dataclass(frozen=True, slots=True)
class Tokens:
    """A batch as the policy reads and writes it, one list of token ids a completion; ends of sequence are in it."""

    prompt_ids: Sequence[Sequence[int]]
    completion_ids: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Batch:
    """B completions, each with its prompt and its row's columns: texts, or messages where the rows have messages."""

    prompts: Sequence[PromptValue]
    completions: Sequence[PromptValue]
    columns: dict[str, list[Any]]
    tokens: Tokens | None = None

    def __post_init__(self) -> None:
        if any(len(values) != len(self) for values in (self.prompts, *self.columns.values())):
            raise ValueError(
                f"found {len(self.prompts)} prompts, {len(self.completions)} completions and columns of "
                f"{ {name: len(values) for name, values in self.columns.items()} }, expected equal numbers"
            )

    def __len__(self) -> int:
        return len(self.completions)

    def request(self, part: slice = slice(None)) -> dict[str, Any]:
        """A part of it as JSON has it."""
        return {
            "prompts": list(self.prompts[part]),
            "completions": list(self.completions[part]),
            "columns": {name: values[part] for name, values in self.columns.items()},
        }


@dataclass(frozen=True, slots=True)
class RewardScores:
    """Rewards of a batch of B completions.

    total  [B] weighted sums
    each   for every reward, by its name, its own [B] rewards before weighting; None where it does not apply
    """

    total: list[float]
    each: dict[str, list[float | None]]

    def of(self, part: slice) -> "RewardScores":
        """Those of a part of the batch."""
        return RewardScores(self.total[part], {name: values[part] for name, values in self.each.items()})


def summed(
    each: dict[str, list[float | None]], weights: Sequence[float], prompts: Sequence[PromptValue], field: str
) -> RewardScores:
    """The weighted sums, each over the rewards that apply to the completion.

    ``each`` and ``weights`` are in the same order; ``field`` is where the spec has them. Raises RunFailure
    RewardInvalid (permanent) for a completion that no reward applies to, and for a sum that is not finite.
    """
    totals = []
    for index, values in enumerate(zip(*each.values(), strict=True)):
        applying = [(weight, value) for weight, value in zip(weights, values, strict=True) if value is not None]
        if not applying:
            raise RunFailure(
                REWARD_INVALID,
                f"{field}: none of {', '.join(each)} gives a number for completion {index} of the batch, whose prompt "
                f"is {shortened(prompts[index], repr)}; expected one at least",
                permanent=True,
            )
        total = math.fsum(weight * value for weight, value in applying)
        if not math.isfinite(total):
            raise RunFailure(
                REWARD_INVALID,
                f"{field}: the sum of {list(values)} weighted by {list(weights)} is {total}, expected a finite number",
                permanent=True,
            )
        totals.append(total)
    return RewardScores(totals, each)
