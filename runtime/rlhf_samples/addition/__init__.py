"""Two-digit sums with the answer written back to front, and the rewards for them.

A right completion is the answer's characters from last to first and then the end: "115" is "511", "-30" is
"03-". Rewards have TRL's signature, `f(prompts, completions, **columns) -> list[float]`; both read the column
`answer`. `make_policy` makes the policy and the prompts of this folder.
"""

import random
from collections.abc import Sequence
from typing import Any


def exact_answer(prompts: list[str], completions: list[str], *, answer: Sequence[str], **_: Any) -> list[float]:
    """1.0 where the completion is the answer back to front, else 0.0.

    A completion is its text up to the end of sequence; one cut off by the token limit is wrong unless its text
    is right.
    """
    return [
        1.0 if completion.strip() == expected[::-1] else 0.0
        for completion, expected in zip(completions, answer, strict=True)
    ]


def shuffled_answer(
    prompts: list[str], completions: list[str], *, answer: Sequence[str], **columns: Any
) -> list[float]:
    """The control: the rewards of `exact_answer` dealt out anew over the whole batch, so nothing can be learned.

    As many rewards of each value as before, each to a completion drawn without looking at it. The same batch is
    always dealt the same way.
    """
    rewards = exact_answer(prompts, completions, answer=answer, **columns)
    # A string seed, because Python's own hash of a string differs from process to process.
    random.Random("\n".join(prompts + completions)).shuffle(rewards)
    return rewards
