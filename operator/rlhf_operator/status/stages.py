"""Conditions by kstatus: Ready, Reconciling and Stalled never contradict each other. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from rlhf_api import conditions
from rlhf_api.status import Condition

Truth = Literal["True", "False", "Unknown"]

PENDING = "Pending"
PROVISIONING = "Provisioning"
STARTING = "Starting"
RUNNING = "Running"
RECOVERING = "Recovering"
SUCCEEDED = "Succeeded"
FAILED = "Failed"

#: Ready, Reconciling, Stalled, Succeeded in each phase. Running without an answer is told apart below.
_TRUTHS: dict[str, tuple[Truth, Truth, Truth, Truth]] = {
    PENDING: ("False", "True", "False", "Unknown"),
    PROVISIONING: ("False", "True", "False", "Unknown"),
    STARTING: ("False", "True", "False", "Unknown"),
    RECOVERING: ("False", "True", "False", "Unknown"),
    RUNNING: ("True", "False", "False", "Unknown"),
    SUCCEEDED: ("True", "False", "False", "True"),
    FAILED: ("False", "False", "True", "False"),
}
_TYPES = (conditions.READY, conditions.RECONCILING, conditions.STALLED, conditions.SUCCEEDED)


@dataclass(frozen=True)
class Stage:
    """Where a job stands: the phase for people, and the reason and message behind it."""

    phase: str
    reason: str
    message: str

    @property
    def over(self) -> bool:
        return self.phase in (SUCCEEDED, FAILED)


@dataclass(frozen=True)
class Fact:
    """One condition before it has a generation and a time."""

    type: str
    status: Truth
    reason: str
    message: str = ""


def of_stage(stage: Stage) -> list[Fact]:
    """Ready, Reconciling, Stalled and Succeeded for a stage."""
    truths = _TRUTHS[stage.phase]
    if stage.phase == RUNNING and stage.reason == conditions.UNREACHABLE:
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
