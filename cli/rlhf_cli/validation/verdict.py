"""Says of an RLHFJob what the API server would say, without one: all problems, each with its line.

The schema is the generated CRD's own, and so are the rules across fields; a test gives a real server and this module
the same specs and wants the same verdicts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

from pydantic import ValidationError
from rlhf_api.crd import object_schema
from rlhf_api.job import API_VERSION, KIND, RLHFJob

from rlhf_cli.validation.manifest import Document, FieldPath
from rlhf_cli.validation.object_metadata import metadata_violations
from rlhf_cli.validation.rules import broken_rules
from rlhf_cli.validation.structural import Finding, Schema, defaulted, shown, unknown_fields, violations, written

#: Most problems that are looked for in one object, so that a file of nothing else ends soon and can be read.
MAX_PROBLEMS = 100


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


class InvalidObject(Exception):
    """An object that no API server would take; ``problems`` says why, in the order of the file."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


def is_job(document: Document) -> bool:
    """Whether a document means to be an RLHFJob, of whatever version."""
    return document.kind == KIND


def validate(document: Document) -> list[Problem]:
    """What is wrong with one document that means to be an RLHFJob, in the order of the file; empty when it is valid.

    At most MAX_PROBLEMS, and one more line that says so.
    """
    effective = _effective(document.value)
    return in_order(document, _findings(document, effective)) or in_order(document, _model_findings(effective))


def in_order(document: Document, findings: Iterator[Finding]) -> list[Problem]:
    """The first MAX_PROBLEMS findings as problems, in the order of the file, and a last one where there are more."""
    problems = sorted(
        Problem(document.file, document.line(path), written(path) or document.kind, text)
        for path, text in islice(findings, MAX_PROBLEMS)
    )
    if next(findings, None) is not None:
        more = f"has more problems than these {MAX_PROBLEMS}; the others are not listed"
        problems.append(Problem(document.file, document.line(()), document.kind, more))
    return problems


def doubles(documents: Sequence[Document]) -> list[Problem]:
    """Objects of a kind, namespace and name that an earlier document has.

    An absent namespace is the default one, as `run` takes it.
    """
    first: dict[tuple[str, str, str], Document] = {}
    problems = []
    for document in documents:
        metadata = document.value.get("metadata")
        if not isinstance(metadata, dict) or not metadata.get("name"):
            continue
        place = (document.kind, str(metadata.get("namespace") or "default"), str(metadata["name"]))
        earlier = first.setdefault(place, document)
        if earlier is not document:
            path: tuple[str, ...] = ("metadata", "name")
            message = (
                f"{document.kind} {'/'.join(place[1:])} is also at {earlier.file}:{earlier.line(path)}; "
                "expected one: the last would replace the others"
            )
            problems.append(Problem(document.file, document.line(path), written(path), message))
    return problems


def load_job(document: Document) -> RLHFJob:
    """The job as the operator would see it, every default filled in. Raises InvalidObject."""
    problems = validate(document)
    if problems:
        raise InvalidObject(problems)
    return RLHFJob.model_validate(_effective(document.value))


def _findings(document: Document, effective: dict[str, Any]) -> Iterator[Finding]:
    """By the schema first; then by the rules, which know what the schema has found already."""
    wrong: set[FieldPath] = set()
    for path, text in _schema_findings(document, effective):
        wrong.add(path)
        yield path, text
    yield from broken_rules(effective, _schema(), wrong)


def _schema_findings(document: Document, effective: dict[str, Any]) -> Iterator[Finding]:
    value, schema = document.value, _schema()
    for path, _ in document.duplicates:
        yield path, "written more than once; only the last one would count"
    for field, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if value.get(field) != expected:
            yield (field,), f"found {shown(value.get(field))}, expected {expected}"
    yield from metadata_violations(value.get("metadata"))
    yield from unknown_fields(_without(value, "metadata"), schema, schema)
    yield from violations(_without(effective, "metadata"), schema)


def _effective(value: dict[str, Any]) -> dict[str, Any]:
    """What the server would store of a new object: a status is dropped, then defaults are filled in."""
    effective: dict[str, Any] = defaulted(_without(value, "status"), _schema())
    return {**effective, **{key: value[key] for key in ("metadata",) if key in value}}


def _without(value: dict[str, Any], field: str) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key != field}


def _model_findings(effective: dict[str, Any]) -> Iterator[Finding]:
    """The typed model's own word. It agrees with the schema; should it ever not, that must not pass in silence."""
    try:
        RLHFJob.model_validate(effective)
    except ValidationError as error:
        for item in error.errors():
            yield tuple(item["loc"]), item["msg"]


@cache
def _schema() -> Schema:
    return object_schema()
