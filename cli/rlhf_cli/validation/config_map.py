"""ConfigMaps beside the jobs of a file: what the API server refuses in one, and what `run` reads of one."""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_cli.validation.manifest import Document
from rlhf_cli.validation.object_metadata import metadata_violations
from rlhf_cli.validation.structural import ANYTHING, Finding, Schema, defaulted, shown, unknown_fields, violations
from rlhf_cli.validation.verdict import InvalidObject, Problem, in_order

KIND = "ConfigMap"
#: Most bytes of all values of one ConfigMap.
_MOST_BYTES = 1024 * 1024
_LONGEST_KEY = 253
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_ENTRIES: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
_SCHEMA: Schema = {
    "type": "object",
    "properties": {
        "apiVersion": {"type": "string", "enum": ["v1"]},
        "kind": {"type": "string"},
        "metadata": ANYTHING,
        "data": _ENTRIES,
        "binaryData": _ENTRIES,
        "immutable": {"type": "boolean"},
    },
    "required": ["apiVersion"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigMap:
    """A ConfigMap that a server would take."""

    name: str
    namespace: str | None = None
    """None: that of whoever applies it."""
    data: Mapping[str, str]
    binary_data: Mapping[str, bytes]


def config_map_problems(document: Document) -> list[Problem]:
    """What is wrong with a ConfigMap, in the order of the file; empty when it is valid."""
    return in_order(document, _findings(document))


def load_config_map(document: Document) -> ConfigMap:
    """The ConfigMap of a document. Raises InvalidObject."""
    if problems := config_map_problems(document):
        raise InvalidObject(problems)
    content = defaulted(document.value, _SCHEMA)
    return ConfigMap(
        name=content["metadata"]["name"],
        namespace=content["metadata"].get("namespace") or None,
        data=content.get("data", {}),
        binary_data={key: base64.b64decode(value) for key, value in content.get("binaryData", {}).items()},
    )


def _findings(document: Document) -> Iterator[Finding]:
    content = defaulted(document.value, _SCHEMA)
    for path, _ in document.duplicates:
        yield path, "written more than once; only the last one would count"
    yield from metadata_violations(content.get("metadata"))
    yield from unknown_fields(content, _SCHEMA, _SCHEMA)
    wrong = False
    for finding in violations(content, _SCHEMA):
        wrong = True
        yield finding
    if not wrong:
        yield from _entry_findings(content)


def _entry_findings(content: dict[str, Any]) -> Iterator[Finding]:
    """What a schema cannot say of keys and values; the values are texts."""
    data, binary = content.get("data", {}), content.get("binaryData", {})
    for field, entries in (("data", data), ("binaryData", binary)):
        for key in entries:
            # "..": a file of that name would lie outside of its folder.
            if not _KEY.fullmatch(key) or len(key) > _LONGEST_KEY or key == "." or key.startswith(".."):
                expected = f"a file name of at most {_LONGEST_KEY} letters, digits, '-', '_' and '.'"
                yield (field, key), f"found key {shown(key)}, expected {expected}"
    for key in data.keys() & binary.keys():
        yield ("binaryData", key), "found the same key in data, expected it in one of them"
    for key, value in binary.items():
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as error:
            yield ("binaryData", key), f"found {shown(value)}, expected base64 ({error})"
    size = sum(len(value.encode()) for value in data.values()) + sum(len(value) * 3 // 4 for value in binary.values())
    if size > _MOST_BYTES:
        yield (), f"found {size} bytes of data, expected at most {_MOST_BYTES}"
