"""What the coordinator and its workers say to each other about groups. Needs no Ray and no torch."""

from collections.abc import Mapping
from dataclasses import dataclass

from rlhf_api.status import TrainingFigures

from rlhf_runtime.data.prompts import Prompt
from rlhf_runtime.scheduling.ledger import Dispatch


@dataclass(frozen=True, slots=True)
class LogprobGap:
    """|maker's log-prob - trainers'| over a probe's tokens, nats."""

    mean: float
    max: float


@dataclass(frozen=True, slots=True)
class Task:
    """One group to sample; `shown` asks for its texts as well, for people to read."""

    dispatch: Dispatch
    prompt: Prompt
    shown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRollout:
    """One rollout as people read it; `advantage` is the mean over its tokens, `versions` are the oldest and the newest
    that sampled a token of it."""

    prompt: str
    completion: str
    reward: float
    advantage: float
    versions: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """What the coordinator needs to know of a group that was made: counts in samples and completion tokens.

    `rewards` are the samples' weighted sums; `rewards_each` holds each reward's own by its name, before weighting,
    None for a sample that it does not apply to.
    """

    dispatch: Dispatch
    oldest_version: int
    rewards: tuple[float, ...]
    rewards_each: Mapping[str, tuple[float | None, ...]]
    tokens: int
    truncated: int
    shown: tuple[ShownRollout, ...]
    logprob_gap: LogprobGap | None = None
    """Of the version that sampled it, where one was measured."""


@dataclass(frozen=True, slots=True)
class TrainedGroup:
    """A group that went into optimiser steps: its prompt's cursor, and how many samples it had."""

    prompt: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One episode's optimiser steps, and the groups of the rank, or ranks, that name them.

    `moved`: in some step the gradient and its learning rate were not 0.
    """

    figures: TrainingFigures
    moved: bool
    optimizer_steps: int
    groups: tuple[TrainedGroup, ...]
