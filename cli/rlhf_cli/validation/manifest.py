"""Reads YAML files to the same values as kubectl does, and remembers the line of every one.

kubectl reads YAML 1.1 by the rules of go-yaml 2, which are not PyYAML's: ``1e-6`` is a number, ``on`` is true,
``0o17`` is 15, ``1:30`` is a string, a date is a string, a later duplicate of a key wins. So PyYAML parses here, and
the values are made below. They are JSON values as the API server will see them: a whole number is an int, however
it was written.
"""

import base64
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

#: Where a value is in its document: keys and positions from the root.
FieldPath = tuple[str | int, ...]

#: Most values in one file: aliases multiply, and a server takes no object of this size.
MAX_VALUES = 100_000

_YAML = "tag:yaml.org,2002:"
_TAGGED: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "null": (type(None),)}
_NUMERIC = tuple("+-.0123456789")
_TRUE = frozenset({"y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})
_FALSE = frozenset({"n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INTEGER = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)
#: Nothing longer fits 64 bits, in any base, unless it is padded.
_LONGEST_INTEGER = 80


class _Loader(yaml.SafeLoader):
    """Composes nodes whose tag tells plain text, quoted text and written tags apart."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode:
            return _YAML + ("plain" if implicit[0] else "str")
        return _YAML + ("seq" if kind is yaml.SequenceNode else "map")


class ManifestError(Exception):
    """A file that cannot be read to values at all. The text says file, line where known, and what is wrong."""


@dataclass(frozen=True)
class Document:
    """One object of a manifest: its JSON values, and where they were written."""

    file: str
    value: dict[str, Any]
    lines: dict[FieldPath, int]
    """Line, from 1, of each key and list item; ``()`` is the document itself."""
    duplicates: tuple[tuple[FieldPath, int], ...] = ()
    """Keys that were written again, with the line of the one that counts: the last."""

    def line(self, path: FieldPath) -> int:
        """The line of a value, or of the nearest one around it when it is not in the file."""
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]


def read_manifest(path: Path) -> list[Document]:
    """All objects of a file, in order; items of a ``List`` are taken out of it.

    Raises ManifestError when the file cannot be read, is not YAML, or holds something that is no object.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror}") from error
    return parse_manifest(content, str(path))


def parse_manifest(content: bytes, file: str) -> list[Document]:
    """As ``read_manifest``, from the bytes of a file; ``file`` is its name in messages."""
    try:
        nodes = list(yaml.compose_all(content, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ManifestError(f"{file}{line}: not YAML: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        number = content[: error.position].count(b"\n") + 1
        raise ManifestError(f"{file}:{number}: not YAML: {error.reason} (#x{_code(error.character):02x})") from error
    except RecursionError as error:
        raise ManifestError(f"{file}: nested too deep to be a manifest") from error
    return [
        document
        for node in nodes
        if not (isinstance(node, yaml.ScalarNode) and _scalar(node, file) is None)
        for document in _objects(_document(node, file))
    ]


def _code(character: bytes | str | int) -> int:
    """PyYAML gives the byte or the character that it refuses, as bytes, text or number."""
    return character if isinstance(character, int) else ord(character)


def _document(node: yaml.Node, file: str) -> Document:
    if not isinstance(node, yaml.MappingNode):
        raise ManifestError(f"{file}:{_line(node)}: expected an object with apiVersion and kind")
    reading = _Reading(file)
    value = reading.value(node, ())
    return Document(file, value, reading.lines, tuple(reading.duplicates))


def _objects(document: Document) -> Iterator[Document]:
    items = document.value.get("items")
    if document.value.get("kind") != "List" or not isinstance(items, list):
        yield document
        return
    for position, item in enumerate(items):
        start: FieldPath = ("items", position)
        if not isinstance(item, dict):
            raise ManifestError(f"{document.file}:{document.line(start)}: expected an object with apiVersion and kind")
        inside = {path[2:]: line for path, line in document.lines.items() if path[:2] == start}
        again = tuple((path[2:], line) for path, line in document.duplicates if path[:2] == start)
        yield Document(document.file, item, inside, again)


class _Reading:
    """Makes the values of one document from its nodes, writing down lines and duplicates on the way."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[FieldPath, int] = {}
        self.duplicates: list[tuple[FieldPath, int]] = []
        self._around: list[yaml.Node] = []

    def value(self, node: yaml.Node, path: FieldPath) -> Any:
        if isinstance(node, yaml.ScalarNode):
            self._count(node, path)
            return _scalar(node, self.file)
        if node in self._around:
            raise ManifestError(f"{self.file}:{_line(node)}: an anchor's value contains itself")
        self._count(node, path)
        self._around.append(node)
        value = self._mapping(node, path) if isinstance(node, yaml.MappingNode) else self._sequence(node, path)
        self._around.pop()
        return value

    def _count(self, node: yaml.Node, path: FieldPath) -> None:
        self.lines.setdefault(path, _line(node))
        if len(self.lines) > MAX_VALUES:
            raise ManifestError(f"{self.file}:{_line(node)}: more than {MAX_VALUES} values")

    def _sequence(self, node: yaml.Node, path: FieldPath) -> list[Any]:
        return [self.value(item, (*path, position)) for position, item in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, path: FieldPath) -> dict[str, Any]:
        """In the order of the file, as go-yaml 2 does: a merge overrides the keys before it."""
        values: dict[str, Any] = {}
        written: set[str] = set()
        for key_node, value_node in node.value:
            if key_node.tag == _YAML + "merge" or (key_node.tag == _YAML + "plain" and key_node.value == "<<"):
                values |= self._merged(value_node, path)
                continue
            key = _key(key_node, self.file)
            here = (*path, key)
            if key in written:
                self.duplicates.append((here, _line(key_node)))
            if key in values:
                self.lines = {known: line for known, line in self.lines.items() if known[: len(here)] != here}
            written.add(key)
            self.lines[here] = _line(key_node)
            values[key] = self.value(value_node, here)
        return values

    def _merged(self, node: yaml.Node, path: FieldPath) -> dict[str, Any]:
        """What ``<<`` brings in: a mapping, or a list of them of which earlier ones win."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for source in reversed(sources):
            if not isinstance(source, yaml.MappingNode):
                raise ManifestError(f"{self.file}:{_line(node)}: << expects a mapping or a list of mappings")
            merged |= self.value(source, path)
        return merged


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _key(node: yaml.Node, file: str) -> str:
    key = _scalar(node, file) if isinstance(node, yaml.ScalarNode) else None
    match key:
        case None:
            raise ManifestError(f"{file}:{_line(node)}: a key must be text, a number or a boolean")
        case bool():
            return "true" if key else "false"
        case _:
            return str(key)


def _scalar(node: yaml.ScalarNode, file: str) -> Any:
    """The JSON value of a scalar: what plain text means to go-yaml, or what its tag says."""
    try:
        match node.tag.removeprefix(_YAML):
            case "plain":
                return _plain(node.value)
            case "int" | "float" | "bool" | "null" as tag:
                return _tagged(tag, node.value)
            case "binary":
                return base64.b64decode(node.value, validate=True).decode()
            case _:
                return _text(node.value)
    except ValueError as error:
        raise ManifestError(f"{file}:{_line(node)}: {node.value!r}: {error}") from error


def _plain(text: str) -> Any:
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _NOT_FINITE.fullmatch(text):
        raise ValueError("JSON has no such number")
    if not text.startswith(_NUMERIC):
        return _text(text)
    digits = text if text.startswith(".") else text.replace("_", "")
    if len(digits) <= _LONGEST_INTEGER and _INTEGER.fullmatch(digits):
        whole = int(_with_octal_prefix(digits), 0)
        if whole in _INT64 or whole in _UINT64:
            return _number(whole)
    if _FLOAT.fullmatch(digits) and math.isfinite(float(digits)):
        return _number(float(digits))
    return _text(text)


def _with_octal_prefix(digits: str) -> str:
    """0 before another digit means octal, to go-yaml as in C; Python wants 0o."""
    return re.sub(r"^([-+]?)0([0-7])", r"\g<1>0o\2", digits)


def _number(value: float) -> int | float:
    """As the API server holds it: an int where it is whole and fits 64 bits, else a float."""
    return int(value) if value == int(value) and int(value) in _INT64 else float(value)


def _tagged(tag: str, text: str) -> Any:
    value = _plain(text)
    if type(value) not in _TAGGED[tag]:
        raise ValueError(f"expected !!{tag}")
    return value


def _text(text: str) -> str:
    """Text with the surrogate pairs of JSON's escapes joined; half a pair is an error."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        raise ValueError("half a surrogate pair is no character") from error
