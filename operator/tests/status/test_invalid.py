"""An object that this operator cannot read says so, and goes on when it can be read again."""

from typing import Any

import pytest
from pydantic import ValidationError
from rlhf_api.job import RLHFJob
from rlhf_operator.status import invalid

G = Any


def failing(raw: dict[str, Any]) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        RLHFJob.model_validate(raw)
    return caught.value


def test_a_spec_of_another_version_is_a_condition_and_not_the_end(given: G) -> None:
    raw = {**given.manifest(mode="Hybrid"), "status": given.running(phase="Running")}
    old, new = invalid.statuses(raw, failing(raw), given.at(60))
    truths = {condition.type: (condition.status, condition.reason) for condition in new.conditions}
    assert truths["Stalled"] == ("True", "InvalidSpec")
    assert truths["Ready"] == ("False", "InvalidSpec")
    assert new.message == "spec.mode: Input should be 'FullyAsync'; is the CRD of the same version as the operator?"
    assert (new.completion_time, new.submission_id) == (None, old.submission_id), "the run in it goes on"


def test_said_once_it_is_not_written_again(given: G) -> None:
    raw = given.manifest(mode="Hybrid")
    _, first = invalid.statuses(raw, failing(raw), given.at(60))
    raw["status"] = first.to_dict()
    old, second = invalid.statuses(raw, failing(raw), given.at(120))
    assert old == second == first


def test_a_status_that_cannot_be_read_either_is_replaced(given: G) -> None:
    raw = {**given.manifest(mode="Hybrid"), "status": {"phase": 7}}
    _, new = invalid.statuses(raw, failing(raw), given.at(60))
    assert new.phase == "Failed"
