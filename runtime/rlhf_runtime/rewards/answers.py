"""What a function returns and an endpoint answers: one number, or None, for each completion. Nothing but Python here.

It is imported into the processes of the user's functions, which shall not load what they don't use.
"""

import math
import numbers
from collections.abc import Callable
from typing import Any

#: Longest text of a value in a message, characters.
_MAX_TEXT = 200


class NotRewards(Exception):
    """What a function returned, or an endpoint answered, is not one number or None for each completion."""


def rewards_of(result: Any, expected: int) -> list[float | None]:
    """The rewards of a batch of ``expected`` completions. Raises NotRewards saying what was found, and where."""
    if isinstance(result, (str, bytes, dict)) or not hasattr(result, "__iter__"):
        raise NotRewards(f"its result is of type {type(result).__name__}, expected a list of {expected} numbers")
    values = list(result)
    if len(values) != expected:
        raise NotRewards(f"it returned {len(values)} numbers for {expected} completions")
    return [None if value is None else _number(value, index) for index, value in enumerate(values)]


def _number(value: Any, index: int) -> float:
    if getattr(value, "ndim", None) == 0:
        # What iterating a tensor gives: a number that is no Python number.
        value = value.item()
    if not isinstance(value, numbers.Real):
        found = f"of type {type(value).__name__} ({shortened(value, repr)})"
        raise NotRewards(f"item {index} is {found}, expected a number or None")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise NotRewards(f"item {index} is {number}, expected a finite number")
    return number


def shortened(value: Any, form: Callable[[Any], str]) -> str:
    """A value's text for a message, whatever the value's own code does when it is asked for it."""
    try:
        text = form(value)
    except Exception as error:
        return f"<its text cannot be had: {type(error).__name__}>"
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "..."
