"""One episode's numbers, from its groups, its optimiser steps and a clock."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pydantic import ValidationError
from rlhf_api.conditions import Reason
from rlhf_api.schema import first_error
from rlhf_api.status import EpisodeReport

from rlhf_runtime.experience.messages import GroupSummary, Trained
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.scheduling.staleness import staleness


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds: the whole episode, and of it collecting, training, and publishing on the trainers' side."""

    whole: float
    wait: float
    train: float
    publish: float


def episode_report(
    *,
    attempt: int,
    version: int,
    groups: Sequence[GroupSummary],
    trained: Trained,
    timing: Timing,
    sync_seconds: float,
    changed_weights: float | None,
    dropped: int,
    score: float | None,
    time: datetime,
) -> EpisodeReport:
    """The report of the episode that the policy of `version` was trained in, and that made version + 1.

    `seq` is given by the journal. Raises RunFailure for a number that is not finite: no report can hold it.
    """
    rewards = [reward for group in groups for reward in group.rewards]
    behind = [staleness(version, group.oldest_version) for group in groups for _ in group.rewards]
    tokens = sum(group.tokens for group in groups)
    gaps = [group.logprob_gap for group in groups if group.logprob_gap is not None]
    try:
        return EpisodeReport(
            **dict(trained.figures),
            attempt=attempt,
            seq=0,
            episode=version + 1,
            policy_version=version + 1,
            reward=statistics.fmean(rewards),
            reward_std=statistics.pstdev(rewards),
            rewards=_mean_of_each(groups),
            score=score,
            changed_weights=changed_weights,
            logprob_gap_mean=statistics.fmean(gap.mean for gap in gaps) if gaps else None,
            logprob_gap_max=max(gap.max for gap in gaps) if gaps else None,
            staleness_mean=statistics.fmean(behind),
            staleness_max=max(behind),
            samples=len(rewards),
            tokens=tokens,
            tokens_per_second=tokens / max(timing.whole, math.ulp(1.0)),
            truncated_fraction=sum(group.truncated for group in groups) / len(rewards),
            dropped=dropped,
            seconds=timing.whole,
            train_seconds=timing.train,
            wait_seconds=timing.wait,
            sync_seconds=sync_seconds,
            time=time,
        )
    except ValidationError as error:
        message = f"episode {version + 1}: {first_error(error)}"
        raise RunFailure(Reason.NOT_FINITE, message, permanent=False) from error


def _mean_of_each(groups: Sequence[GroupSummary]) -> dict[str, float]:
    """Each reward's mean over the samples that it applies to; one that applies to none of the episode is left out."""
    values: dict[str, list[float]] = {}
    for group in groups:
        for name, rewards in group.rewards_each.items():
            values.setdefault(name, []).extend(reward for reward in rewards if reward is not None)
    return {name: statistics.fmean(rewards) for name, rewards in values.items() if rewards}
