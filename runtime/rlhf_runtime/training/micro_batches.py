"""Which samples share a forward and backward pass, and which rank has which groups. Pure; no result depends on it."""

from collections.abc import Sequence
from typing import NamedTuple


class Length(NamedTuple):
    """Tokens of one sample. Rows of a pass are padded to the longest prompt and the longest completion in it."""

    prompt: int
    completion: int


def by_rows(samples: int, rows: int) -> list[list[int]]:
    """Indices of the samples in each pass, in their order, at most `rows` each.

    >>> by_rows(5, 2)
    [[0, 1], [2, 3], [4]]
    """
    return [list(range(start, min(start + rows, samples))) for start in range(0, samples, rows)]


def by_tokens(lengths: Sequence[Length], max_tokens: int) -> list[list[int]]:
    """Indices of the samples in each pass of at most `max_tokens`, padding counted; like lengths come together.

    From the longest sample down, each pass takes samples as long as they fit. Raises ValueError for a sample that
    alone is too long.

    >>> by_tokens([Length(2, 2), Length(2, 6), Length(2, 1), Length(2, 6)], 16)
    [[1, 3], [0, 2]]
    """
    plan: list[list[int]] = []
    widest = Length(0, 0)
    for index in sorted(range(len(lengths)), key=lambda i: (-sum(lengths[i]), -lengths[i].prompt, i)):
        length = lengths[index]
        if sum(length) > max_tokens:
            raise ValueError(
                f"a sample of {length.prompt} + {length.completion} tokens: expected at most "
                f"trainers.maxTokensPerMicroBatch, {max_tokens}"
            )
        wider = Length(max(widest.prompt, length.prompt), max(widest.completion, length.completion))
        if plan and (len(plan[-1]) + 1) * sum(wider) <= max_tokens:
            plan[-1].append(index)
            widest = wider
        else:
            plan.append([index])
            widest = length
    return plan


def balanced(tokens: Sequence[int], ranks: int) -> list[list[int]]:
    """Indices of the groups of each rank, ascending, so that ranks have about as many tokens.

    The largest group first, always to the rank with fewest: at most 4/3 of the least that is possible for the fullest
    rank (Graham 1969). Every rank has a group if there are as many.

    >>> balanced([5, 9, 4, 2], 2)
    [[1, 3], [0, 2]]
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for index in sorted(range(len(tokens)), key=lambda i: (-tokens[i], i)):
        # Of equally loaded ranks the one with fewest groups: an empty group must not leave a rank without any.
        rank = min(range(ranks), key=lambda r: (loads[r], len(shares[r]), r))
        shares[rank].append(index)
        loads[rank] += tokens[index]
    return [sorted(share) for share in shares]
