"""The status of an object that the API server has taken and this operator cannot read. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from rlhf_api import conditions
from rlhf_api.schema import first_error
from rlhf_api.status import RLHFJobStatus

from rlhf_operator.status import stages as stages
from rlhf_operator.status.build import bounded


def statuses(raw: Mapping[str, Any], error: ValidationError, now: datetime) -> tuple[RLHFJobStatus, RLHFJobStatus]:
    """The stored status, as far as it can be read, and the one that says what is wrong.

    Not terminal: another version of the operator may read the object, and the run in it goes on.
    """
    try:
        old = RLHFJobStatus.model_validate(raw.get("status", {}))
    except ValidationError:
        old = RLHFJobStatus()
    message = bounded(f"{first_error(error)}; is the CRD of the same version as the operator?", raw["metadata"]["name"])
    generation = int(raw["metadata"].get("generation", 1))
    stage = stages.Stage(stages.FAILED, conditions.INVALID_SPEC, message)
    new = old.model_copy(
        update={
            "phase": stage.phase,
            "message": message,
            "observed_generation": generation,
            "conditions": stages.merged(old.conditions, stages.of_stage(stage), generation, now),
        }
    )
    return old, new
