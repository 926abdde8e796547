"""Staleness: the trainer's version when a sample is used, minus the OLDEST token version in the sample.

Episodes are counted from 0 in here, and episode e is trained by the policy of version e: so the staleness that a
group will have when it is trained is known as soon as the group is sampled.

With maximum S, maker version v and trainer version t, a maker may start a group of episode e

    Wait             if e - v <= S: nothing that would be too stale is ever sampled
    DropAndRefill    if t - v <= S: makers go on as far as the buffer allows

and under both policies a completed group is kept on arrival if t - v <= S, and trained if e - v <= S.
"""

from typing import Literal

Policy = Literal["Wait", "DropAndRefill"]


def staleness(trainer_version: int, oldest_version: int) -> int:
    """Versions that a sample is behind; a sample from the future is an error of ours."""
    if oldest_version > trainer_version:
        raise AssertionError(f"a sample of version {oldest_version} met a trainer of version {trainer_version}")
    return trainer_version - oldest_version


def may_start(policy: Policy, *, episode: int, maker_version: int, trainer_version: int, max_staleness: int) -> bool:
    """Whether a maker may sample a group of this episode now."""
    behind = episode if policy == "Wait" else trainer_version
    return behind - maker_version <= max_staleness


def may_admit(*, trainer_version: int, oldest_version: int, max_staleness: int) -> bool:
    """Whether a completed group may wait in the buffer; the same rule with the episode's version lets it train."""
    return staleness(trainer_version, oldest_version) <= max_staleness
