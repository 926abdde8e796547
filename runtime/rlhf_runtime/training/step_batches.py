"""The micro-batches of an optimiser step: groups to ranks, samples to passes, and as many passes on every rank."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from rlhf_runtime.experience.batch import Batch, collate
from rlhf_runtime.experience.buffer import ExperienceGroup
from rlhf_runtime.experience.rollout import TOKEN_FIELDS, Experience
from rlhf_runtime.training.micro_batches import Length, balanced, by_rows, by_tokens
from rlhf_runtime.training.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class PassBound:
    """What bounds one forward and backward pass: samples, or with `max_tokens` padded tokens.

    `pinned`: batches are laid out in page-locked memory, from which a GPU copies while it computes.
    """

    rows: int
    max_tokens: int | None = None
    pinned: bool = False


def exchanged(groups: Sequence[ExperienceGroup], strategy: Strategy) -> list[ExperienceGroup]:
    """This rank's groups of a step after all ranks have dealt theirs anew, by tokens; a collective."""
    everyones = sorted(
        (group for share in strategy.gather_objects(list(groups)) for group in share),
        key=lambda group: group.dispatch.cursor,
    )
    tokens = [sum(sum(length_of(e)) for e in group.experiences) for group in everyones]
    return [everyones[index] for index in balanced(tokens, strategy.data_ranks)[strategy.data_rank]]


def step_batches(
    steps: Sequence[Sequence[Experience]], bound: PassBound, pad_id: int, strategy: Strategy
) -> list[list[Batch]]:
    """The micro-batches of several steps, in each as many on every rank; a collective.

    Raises ValueError for a sample that is longer than the bound.
    """
    planned = [[collate([step[index] for index in chosen], pad_id) for chosen in _plan(step, bound)] for step in steps]
    counts = torch.zeros(len(steps), strategy.data_ranks, dtype=torch.float64)
    counts[:, strategy.data_rank] = torch.tensor([len(batches) for batches in planned])
    wanted = strategy.sum_over_ranks(counts.to(strategy.device)).max(-1).values.tolist()
    for step, batches, count in zip(steps, planned, wanted, strict=True):
        # A forward of divided weights is a collective, which waits for all ranks.
        batches.extend(blank(step[0], pad_id) for _ in range(int(count) - len(batches)))
    if bound.pinned and strategy.device.type == "cuda":
        return [[batch.pinned() for batch in batches] for batches in planned]
    return planned


def blank(experience: Experience, pad_id: int) -> Batch:
    """A batch of two tokens that count for nothing, with the fields that `experience` has."""
    rollout = experience.rollout
    short = replace(
        rollout,
        prompt_ids=rollout.prompt_ids[-1:],
        completion_ids=rollout.completion_ids[:1],
        logprobs=rollout.logprobs[:1],
        versions=rollout.versions[:1],
    )
    fields = {name: array[:1] for name in TOKEN_FIELDS if (array := getattr(experience, name)) is not None}
    batch = collate([replace(experience, rollout=short, **fields)], pad_id)
    return replace(batch, mask=torch.zeros_like(batch.mask))


def length_of(experience: Experience) -> Length:
    return Length(len(experience.rollout.prompt_ids), len(experience.rollout.completion_ids))


def _plan(experiences: Sequence[Experience], bound: PassBound) -> list[list[int]]:
    if bound.max_tokens is None:
        return by_rows(len(experiences), bound.rows)
    return by_tokens([length_of(experience) for experience in experiences], bound.max_tokens)
