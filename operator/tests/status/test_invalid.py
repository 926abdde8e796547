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


def truths(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {condition["type"]: (condition["status"], condition["reason"]) for condition in status["conditions"]}


MESSAGE = "spec.mode: Input should be 'FullyAsync'; is the CRD of the same version as the operator?"


def test_a_new_job_that_cannot_be_read_says_so(given: G) -> None:
    raw = given.manifest(mode="Hybrid")
    status = invalid.status_of(raw, failing(raw), given.at(60))
    assert (status["phase"], status["message"]) == ("Failed", MESSAGE)
    assert truths(status)["Stalled"] == ("True", "InvalidSpec")
    assert "completionTime" not in status, "another version of the operator may read it"


def test_a_running_job_that_cannot_be_read_says_so_and_runs_on(given: G) -> None:
    began = {"type": "Succeeded", "status": "Unknown", "reason": "Running", "message": ""}
    before = given.running(episode=3, newField={"a": 1}, conditions=[began, {"type": "New", "status": 7}])
    raw = {**given.manifest(mode="Hybrid"), "status": before}
    status = invalid.status_of(raw, failing(raw), given.at(60))
    assert {**status, "message": "", "conditions": []} == {**before, "message": "", "conditions": []}
    assert status["message"] == MESSAGE
    assert status["conditions"][:2] == before["conditions"]
    said = {kind: truth for kind, (truth, reason) in truths({"conditions": status["conditions"][2:]}).items()}
    assert said == {"Ready": "Unknown", "Reconciling": "False", "Stalled": "True"}


def test_a_finished_job_that_cannot_be_read_stays_as_it_ended(given: G) -> None:
    before = given.running(phase="Succeeded", completionTime="2026-01-02T04:00:00Z", newField={"a": 1})
    raw = {**given.manifest(mode="Hybrid"), "status": before}
    assert invalid.status_of(raw, failing(raw), given.at(60)) == before


def test_said_once_it_is_not_written_again(given: G) -> None:
    raw = given.manifest(mode="Hybrid")
    raw["status"] = invalid.status_of(raw, failing(raw), given.at(60))
    assert invalid.status_of(raw, failing(raw), given.at(120)) == raw["status"]


def test_a_status_that_cannot_be_read_is_kept_but_for_what_is_said(given: G) -> None:
    raw = {**given.manifest(), "status": {"episode": "three", "startTime": "2026-01-02T03:04:00Z"}}
    status = invalid.status_of(raw, failing(raw), given.at(60))
    assert (status["episode"], status["startTime"]) == ("three", "2026-01-02T03:04:00Z")
    assert status["message"].startswith("status.episode: Input should be a valid integer")
