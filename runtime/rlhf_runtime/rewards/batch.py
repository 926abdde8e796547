"""What rewards are asked about, what they give, and how the parts become one number: pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_api.conditions import Reason

from rlhf_runtime.data.prompt_rows import PromptValue
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.rewards.answers import shortened

#: Largest reward, either way: advantages and losses are fp32, which a little above has no room for.
LARGEST = 1e30


@dataclass(frozen=True, slots=True)
class Tokens:
    """A batch as the policy reads and writes it, one list of token ids a completion; ends of sequence are in it."""

    prompt_ids: Sequence[Sequence[int]]
    completion_ids: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Batch:
    """B completions, each with its prompt and its row's columns: texts, or messages where the rows have messages.

    `rows` are the numbers of the prompts' rows in their source, for messages.
    """

    prompts: Sequence[PromptValue]
    completions: Sequence[PromptValue]
    columns: dict[str, list[Any]]
    tokens: Tokens | None = None
    rows: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if any(len(values) != len(self) for values in (self.prompts, *self.columns.values())):
            raise ValueError(
                f"found {len(self.prompts)} prompts, {len(self.completions)} completions and columns of "
                f"{ {name: len(values) for name, values in self.columns.items()} }, expected equal numbers"
            )

    def __len__(self) -> int:
        return len(self.completions)

    def place(self, index: int) -> str:
        """Which prompt a completion answers, for messages."""
        prompt = shortened(self.prompts[index], repr)
        return f"the prompt {prompt}" if self.rows is None else f"row {self.rows[index]}, whose prompt is {prompt}"

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


def summed(batch: Batch, each: dict[str, list[float | None]], weights: Sequence[float], field: str) -> RewardScores:
    """The weighted sums, each over the rewards that apply to the completion.

    ``each`` and ``weights`` are in the same order; ``field`` is where the spec has them. Raises RunFailure
    RewardInvalid (permanent) for a completion that no reward applies to, and for a sum that is not finite or too large.
    """
    totals = []
    for index, values in enumerate(zip(*each.values(), strict=True)):
        applying = [
            (title, weight, value)
            for title, weight, value in zip(each, weights, values, strict=True)
            if value is not None
        ]
        if not applying:
            raise _invalid(
                f"{field}: none of {', '.join(each)} gives a number for a completion of {batch.place(index)}; "
                "expected one at least"
            )
        # Not fsum, which raises where a sum overflows on its way.
        total = sum(weight * value for _, weight, value in applying)
        if not abs(total) <= LARGEST:
            terms = " + ".join(f"{weight:g} * {value:g} ({title})" for title, weight, value in applying)
            raise _invalid(
                f"{field}: {terms} is {total} for a completion of {batch.place(index)}; expected a number up to "
                f"{LARGEST:g}"
            )
        totals.append(total)
    return RewardScores(totals, each)


def _invalid(message: str) -> RunFailure:
    return RunFailure(Reason.REWARD_INVALID, message, permanent=True)
