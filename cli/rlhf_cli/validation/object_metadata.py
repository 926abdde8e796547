"""What the API server asks of any object's metadata, as far as a person writes it."""

import re
from collections.abc import Iterator
from typing import Any

from rlhf_cli.validation.manifest import FieldPath
from rlhf_cli.validation.structural import ANYTHING, Finding, Schema, defaulted, shown, unknown_fields, violations

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAMESPACE = re.compile(_LABEL)
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LONGEST_NAME = 253
_LONGEST_LABEL = 63
_ANNOTATION_BYTES = 262_144
_TEXT: Schema = {"type": "string"}
_INTEGER: Schema = {"type": "integer"}
#: Names, labels and annotations have messages of their own below.
_SCHEMA: Schema = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("name", "namespace", "labels", "annotations"), ANYTHING),
        **dict.fromkeys(("generateName", "uid", "resourceVersion", "selfLink"), _TEXT),
        **dict.fromkeys(("creationTimestamp", "deletionTimestamp"), _TEXT),
        **dict.fromkeys(("generation", "deletionGracePeriodSeconds"), _INTEGER),
        "finalizers": {"type": "array", "items": _TEXT},
        "ownerReferences": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["apiVersion", "kind", "name", "uid"],
                "properties": {
                    **dict.fromkeys(("apiVersion", "kind", "name", "uid"), _TEXT),
                    "controller": {"type": "boolean"},
                    "blockOwnerDeletion": {"type": "boolean"},
                },
            },
        },
        "managedFields": {"type": "array", "items": {"type": "object", **ANYTHING}},
    },
}


def metadata_violations(metadata: Any) -> Iterator[Finding]:
    """What the server refuses in ``metadata``. A name is required: ``generateName`` cannot be applied."""
    here: FieldPath = ("metadata",)
    if not isinstance(metadata, dict):
        yield here, f"found {shown(metadata)}, expected an object with a name"
        return
    yield from unknown_fields(metadata, _SCHEMA, _SCHEMA, here)
    yield from violations(defaulted(metadata, _SCHEMA), _SCHEMA, here)
    yield from _name_violations(metadata.get("name"))
    namespace = metadata.get("namespace")
    if namespace not in (None, "") and not _is_name(namespace, _NAMESPACE, _LONGEST_LABEL):
        yield (
            (*here, "namespace"),
            f"found {shown(namespace)}, expected at most {_LONGEST_LABEL} lower-case letters, digits and '-'",
        )
    yield from _entry_violations("labels", metadata.get("labels"))
    yield from _entry_violations("annotations", metadata.get("annotations"))


def _name_violations(name: Any) -> Iterator[Finding]:
    path: FieldPath = ("metadata", "name")
    if name is None or name == "":
        yield path, "found nothing, expected a name"
    elif not _is_name(name, _SUBDOMAIN, _LONGEST_NAME):
        yield (
            path,
            f"found {shown(name)}, expected lower-case letters, digits, '-' and '.', beginning and ending with a "
            f"letter or digit, at most {_LONGEST_NAME}",
        )


def _is_name(value: Any, form: re.Pattern[str], longest: int) -> bool:
    return isinstance(value, str) and len(value) <= longest and form.fullmatch(value) is not None


def _entry_violations(field: str, entries: Any) -> Iterator[Finding]:
    path: FieldPath = ("metadata", field)
    if entries is None:
        return
    if not isinstance(entries, dict):
        yield path, f"found {shown(entries)}, expected an object of texts"
        return
    for key, value in entries.items():
        # The server takes annotation keys in any case, label keys only with a lower-case prefix.
        if not _is_qualified(key if field == "labels" else key.lower()):
            yield (*path, key), "expected a key such as 'name' or 'example.com/name'"
        if not isinstance(value, str | None):
            yield (*path, key), f"found {shown(value)}, expected text (quote it)"
        elif field == "labels" and value and not _is_label_value(value):
            yield (
                (*path, key),
                f"found {shown(value)}, expected at most {_LONGEST_LABEL} letters, digits, '-', '_' and '.', beginning "
                "and ending with a letter or digit",
            )
    size = sum(len(key.encode()) + len(value.encode()) for key, value in entries.items() if isinstance(value, str))
    if field == "annotations" and size > _ANNOTATION_BYTES:
        yield path, f"found {size} bytes, expected at most {_ANNOTATION_BYTES}"


def _is_qualified(key: str) -> bool:
    prefix, separator, name = key.rpartition("/")
    if separator and not _is_name(prefix, _SUBDOMAIN, _LONGEST_NAME):
        return False
    return _is_label_value(name)


def _is_label_value(value: str) -> bool:
    return len(value) <= _LONGEST_LABEL and _QUALIFIED.fullmatch(value) is not None
