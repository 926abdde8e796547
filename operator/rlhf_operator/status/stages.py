"""Conditions by kstatus: Ready, Reconciling and Stalled never contradict each other. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from rlhf_api.conditions import AnyReason, ConditionType, Phase, Reason
from rlhf_api.status import Condition

Truth = Literal["True", "False", "Unknown"]

#: Ready, Reconciling, Stalled, Succeeded in each phase. Running without an answer is told apart below.
_TRUTHS: dict[Phase, tuple[Truth, Truth, Truth, Truth]] = {
    Phase.PENDING: ("False", "True", "False", "Unknown"),
    Phase.PROVISIONING: ("False", "True", "False", "Unknown"),
    Phase.STARTING: ("False", "True", "False", "Unknown"),
    Phase.RECOVERING: ("False", "True", "False", "Unknown"),
    Phase.RUNNING: ("True", "False", "False", "Unknown"),
    Phase.SUCCEEDED: ("True", "False", "False", "True"),
    Phase.FAILED: ("False", "False", "True", "False"),
}
_TYPES = (ConditionType.READY, ConditionType.RECONCILING, ConditionType.STALLED, ConditionType.SUCCEEDED)


@dataclass(frozen=True)
class Stage:
    """Where a job stands: the phase for people, and the reason and message behind it."""

    phase: Phase
    reason: AnyReason
    message: str


@dataclass(frozen=True)
class Fact:
    """One condition before it has a generation and a time."""

    type: ConditionType
    status: Truth
    reason: AnyReason
    message: str = ""


def of_stage(stage: Stage) -> list[Fact]:
    """Ready, Reconciling, Stalled and Succeeded for a stage."""
    truths = _TRUTHS[stage.phase]
    if stage.phase == Phase.RUNNING and stage.reason == Reason.UNREACHABLE:
        truths = ("Unknown", "True", "False", "Unknown")
    return [Fact(kind, truth, stage.reason, stage.message) for kind, truth in zip(_TYPES, truths, strict=True)]


def merged(old: Sequence[Condition], facts: Sequence[Fact], generation: int, now: datetime) -> list[Condition]:
    """The old conditions with the facts in them; lastTransitionTime moves only when status changes.

    Conditions that no fact is about stay as they are: another version of the operator may know them.
    """
    result = {condition.type: condition for condition in old}
    for fact in facts:
        known = result.get(fact.type)
        result[fact.type] = Condition(
            type=fact.type,
            status=fact.status,
            observed_generation=generation,
            last_transition_time=known.last_transition_time if known and known.status == fact.status else now,
            reason=fact.reason,
            message=fact.message,
        )
    return list(result.values())
