"""RoundRobin: which trainer rank trains which group, and in which optimiser step."""

from collections.abc import Sequence


def rank_of(cursor: int, ranks: int) -> int:
    """The rank that trains the group of this prompt cursor: whole groups are dealt in turn, whoever made them."""
    return cursor % ranks


def optimizer_steps(cursors: Sequence[int], minibatches: int) -> list[list[int]]:
    """Cursors of an episode, in the order of the prompts, cut into equal optimiser steps.

    Raises ValueError when the groups don't divide; the API refuses such a job.
    """
    if len(cursors) % minibatches:
        raise ValueError(f"{len(cursors)} groups do not divide into {minibatches} minibatches")
    ordered = sorted(cursors)
    size = len(ordered) // minibatches
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def share_of_rank(step: Sequence[int], rank: int, ranks: int) -> list[int]:
    """The groups of one optimiser step that this rank trains."""
    return [cursor for cursor in step if rank_of(cursor, ranks) == rank]
