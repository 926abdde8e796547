"""Says of an RLHFJob what the API server would say, without one: all problems, each with its line.

The schema is the generated CRD's own, and so are the rules across fields; a test gives a real server and this module
the same specs and wants the same verdicts.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import ValidationError
from rlhf_api.crd import object_schema
from rlhf_api.job import API_VERSION, KIND, RLHFJob

from rlhf_cli.validation.manifest import Document
from rlhf_cli.validation.object_metadata import metadata_violations
from rlhf_cli.validation.rules import broken_rules
from rlhf_cli.validation.structural import Finding, Schema, defaulted, shown, unknown_fields, violations, written


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong in a manifest."""

    file: str
    line: int
    path: str
    message: str
    """What was found and what is expected."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.path}: {self.message}"


class InvalidJob(Exception):
    """The document is no valid RLHFJob; ``problems`` has all that is wrong, in the order of the file."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


def is_job(document: Document) -> bool:
    """Whether a document means to be an RLHFJob, of whatever version."""
    return document.value.get("kind") == KIND


def validate(document: Document) -> list[Problem]:
    """Every problem of one document that means to be an RLHFJob, in the order of the file; empty when it is valid."""
    findings = _findings(document)
    if not findings:
        findings = _model_findings(_effective(document.value))
    return sorted(Problem(document.file, document.line(path), written(path), text) for path, text in findings)


def load_job(document: Document) -> RLHFJob:
    """The job as the operator would see it, every default filled in. Raises InvalidJob."""
    problems = validate(document)
    if problems:
        raise InvalidJob(problems)
    return RLHFJob.model_validate(_effective(document.value))


def _findings(document: Document) -> list[Finding]:
    value, schema = document.value, _schema()
    found: list[Finding] = [
        (path, "written more than once; only the last one would count") for path, _ in document.duplicates
    ]
    if value.get("apiVersion") != API_VERSION:
        found.append((("apiVersion",), f"found {shown(value.get('apiVersion'))}, expected {API_VERSION}"))
    if value.get("kind") != KIND:
        found.append((("kind",), f"found {shown(value.get('kind'))}, expected {KIND}"))
    found.extend(metadata_violations(value.get("metadata")))
    found.extend(unknown_fields(_without(value, "metadata"), schema, schema))
    effective = _effective(value)
    found.extend(violations(_without(effective, "metadata"), schema))
    found.extend(broken_rules(effective, schema, {path for path, _ in found}))
    return found


def _effective(value: dict[str, Any]) -> dict[str, Any]:
    """What the server would store of a new object: a status is dropped, then defaults are filled in."""
    effective: dict[str, Any] = defaulted(_without(value, "status"), _schema())
    return {**effective, **{key: value[key] for key in ("metadata",) if key in value}}


def _without(value: dict[str, Any], field: str) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key != field}


def _model_findings(effective: dict[str, Any]) -> list[Finding]:
    """The typed model's own word. It agrees with the schema; should it ever not, that must not pass in silence."""
    try:
        RLHFJob.model_validate(effective)
    except ValidationError as error:
        return [(tuple(item["loc"]), item["msg"]) for item in error.errors()]
    return []


@cache
def _schema() -> Schema:
    return object_schema()
