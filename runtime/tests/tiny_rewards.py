"""Reward functions of the test runs."""

from typing import Any


def ones(prompts: list[str], completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """The share of ones in the completion: easy to learn."""
    return [completion.count("1") / max(len(completion), 1) for completion in completions]


def raises(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    raise RuntimeError("no answer today")


async def even(prompts: list[str], completions: list[str], answer: list[str], **columns: Any) -> list[float | None]:
    """Of no meaning, and for every other problem only."""
    return [1.0 if int(number) % 2 == 0 else None for number in answer]


def huge(prompts: list[str], completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """As large as may be: a gradient's squares are no longer finite then."""
    return [1e30 if index % 2 else -1e30 for index, _ in enumerate(completions)]


def sevens(prompts: list[str], completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    return [7.0] * len(completions)
