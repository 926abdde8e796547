"""The status of an object that the API server has taken and this operator cannot read. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from rlhf_api.conditions import ConditionType, Phase, Reason
from rlhf_api.schema import first_error
from rlhf_api.status import Condition

from rlhf_operator.status import stages as stages
from rlhf_operator.status.build import bounded
from rlhf_operator.status.stages import Fact


def status_of(raw: Mapping[str, Any], error: ValidationError, now: datetime) -> dict[str, Any]:
    """The object's status with what is wrong in it; of all else in it nothing changes.

    Not terminal: another version of the operator may read the object. What runs in it goes on, and a finished job
    stays as it ended.
    """
    status = dict(raw.get("status") or {})
    if status.get("completionTime"):
        return status
    message = bounded(f"{first_error(error)}; is the CRD of the same version as the operator?", raw["metadata"]["name"])
    generation = int(raw["metadata"].get("generation", 1))
    changes: dict[str, Any] = {"message": message}
    if status.get("startTime"):
        facts = [
            Fact(ConditionType.READY, "Unknown", Reason.INVALID_SPEC, message),
            Fact(ConditionType.RECONCILING, "False", Reason.INVALID_SPEC, message),
            Fact(ConditionType.STALLED, "True", Reason.INVALID_SPEC, message),
        ]
    else:
        changes |= {"phase": Phase.FAILED, "observedGeneration": generation}
        facts = stages.of_stage(stages.Stage(Phase.FAILED, Reason.INVALID_SPEC, message))
    before = status.get("conditions") or []
    return {**status, **changes, "conditions": _with_facts(before, facts, generation, now)}


def _with_facts(
    before: Sequence[Mapping[str, Any]], facts: Sequence[Fact], generation: int, now: datetime
) -> list[Mapping[str, Any]]:
    merged = {str(condition.get("type")): condition for condition in before}
    concerned = [condition for fact in facts if (condition := _readable(merged.get(fact.type))) is not None]
    merged |= {new.type: new.to_dict() for new in stages.merged(concerned, facts, generation, now)}
    return list(merged.values())


def _readable(condition: Mapping[str, Any] | None) -> Condition | None:
    try:
        return Condition.read(condition)
    except ValidationError:
        return None
