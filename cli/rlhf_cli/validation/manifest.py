"""Reads YAML files to the same objects as kubectl does, and remembers the line of every value.

PyYAML parses; the values are made here and in `scalars`. As for go-yaml 2, a later duplicate of a key wins, and a
merge (``<<``) overrides the keys before it. What a file may hold is bounded before the work is done: a few lines of
aliases or merges can stand for more values than any machine holds.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rlhf_cli.validation.scalars import YAML_TAG, scalar

#: Where a value is in its document: keys and positions from the root.
FieldPath = tuple[str | int, ...]

#: Largest file, bytes. An API server takes no object of half the size.
MAX_BYTES = 4 * 1024 * 1024
#: Most values in one file, each alias and merge counted as often as it is used. An RLHFJob has a few hundred.
MAX_VALUES = 20_000
#: Most levels of objects and lists in each other. A pod template has about ten.
MAX_DEPTH = 64

_NOT_AN_OBJECT = "expected an object with apiVersion and kind"


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

    @property
    def kind(self) -> str:
        """What it says it is; "" where it does not say."""
        return str(self.value.get("kind") or "")

    def line(self, path: FieldPath) -> int:
        """The line of a value, or of the nearest one around it when it is not in the file."""
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]


def read_manifest(path: Path) -> list[Document]:
    """All objects of a file, in order; the items of a list object (``kind: List``, ``RLHFJobList``) each by itself.

    Raises ManifestError when the file cannot be read, is not YAML, is too large, or holds something that is not an
    object.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror}") from error
    return parse_manifest(content, str(path))


def parse_manifest(content: bytes, file: str) -> list[Document]:
    """As ``read_manifest``, from the bytes of a file; ``file`` is its name in messages."""
    if len(content) > MAX_BYTES:
        raise ManifestError(f"{file}: found more than {MAX_BYTES} bytes, expected a manifest of at most so many")
    try:
        nodes = list(yaml.compose_all(content, Loader=_Loader))
    except _Refused as error:
        raise ManifestError(f"{file}:{error.line}: {error}") from error
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ManifestError(f"{file}{line}: not YAML: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        number = content[: error.position].count(b"\n") + 1
        raise ManifestError(f"{file}:{number}: not YAML: {error.reason} (#x{_code(error.character):02x})") from error
    reading = _Reading()
    try:
        read = [reading.document(node) for node in nodes]
    except _Refused as error:
        raise ManifestError(f"{file}:{error.line}: {error}") from error
    return [document for found in read if found is not None for document in _objects(*found, file)]


def _objects(value: dict[str, Any], lines: "_Lines", file: str) -> Iterator[Document]:
    """The object itself, or all objects of a list of them; a list may hold lists."""
    if not str(value.get("kind")).endswith("List") or "items" not in value:
        yield Document(file, value, dict(lines.by_path()), tuple(lines.duplicates()))
        return
    items, lines = value["items"], lines.inside["items"]
    if not isinstance(items, list):
        raise ManifestError(f"{file}:{lines.line}: items: expected a list of objects")
    for position, item in enumerate(items):
        below = lines.inside[position]
        if not isinstance(item, dict):
            raise ManifestError(f"{file}:{below.line}: {_NOT_AN_OBJECT}")
        yield from _objects(_typed_by_list(item, value), below, file)


def _code(character: bytes | str | int) -> int:
    """PyYAML gives the byte or the character that it refuses, as bytes, text or number."""
    return character if isinstance(character, int) else ord(character)


class _Refused(Exception):
    """What a node holds cannot be taken; the text says why."""

    def __init__(self, node: yaml.Node | yaml.Event, why: str) -> None:
        super().__init__(why)
        self.line = _line(node)


class _Loader(yaml.SafeLoader):
    """Composes nodes whose tag tells plain text, quoted text and written tags apart; not too many, and not too deep."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._depth = 0
        self._nodes = 0

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode:
            return YAML_TAG + ("plain" if implicit[0] else "str")
        return YAML_TAG + ("seq" if kind is yaml.SequenceNode else "map")

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        self._nodes += 1
        # A key is a node too.
        if self._nodes > 2 * MAX_VALUES:
            raise _too_many(event)
        if self._depth > MAX_DEPTH:
            raise _too_deep(event)
        self._depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _too_many(node: yaml.Node | yaml.Event) -> _Refused:
    return _Refused(node, f"more than {MAX_VALUES} values up to here, each use of an alias or merge counted")


def _too_deep(node: yaml.Node | yaml.Event) -> _Refused:
    return _Refused(node, f"nested more than {MAX_DEPTH} levels deep")


@dataclass(slots=True)
class _Lines:
    """The line of a value, those of what is in it, and the keys of its own that were written again."""

    line: int
    inside: dict[str | int, "_Lines"] = field(default_factory=dict)
    again: list[tuple[str, int]] = field(default_factory=list)

    def by_path(self, path: FieldPath = ()) -> Iterator[tuple[FieldPath, int]]:
        yield path, self.line
        for part, lines in self.inside.items():
            yield from lines.by_path((*path, part))

    def duplicates(self, path: FieldPath = ()) -> Iterator[tuple[FieldPath, int]]:
        for key, line in self.again:
            yield (*path, key), line
        for part, lines in self.inside.items():
            yield from lines.duplicates((*path, part))


class _Reading:
    """Makes the values of one file from its nodes, writing down lines and duplicates on the way."""

    def __init__(self) -> None:
        self._values = 0
        self._around: list[yaml.Node] = []

    def document(self, node: yaml.Node) -> tuple[dict[str, Any], _Lines] | None:
        """The object of a whole document; None for an empty one."""
        if isinstance(node, yaml.ScalarNode) and _scalar(node) is None:
            return None
        if not isinstance(node, yaml.MappingNode):
            raise _Refused(node, _NOT_AN_OBJECT)
        return self._mapping(node)

    def _value(self, node: yaml.Node) -> tuple[Any, _Lines]:
        if isinstance(node, yaml.ScalarNode):
            self._count(node)
            return _scalar(node), _Lines(_line(node))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node)
        self._enter(node)
        lines = _Lines(_line(node))
        values = []
        for position, item in enumerate(node.value):
            value, lines.inside[position] = self._value(item)
            values.append(value)
        self._around.pop()
        return values, lines

    def _mapping(self, node: yaml.MappingNode) -> tuple[dict[str, Any], _Lines]:
        self._enter(node)
        values: dict[str, Any] = {}
        lines = _Lines(_line(node))
        written: set[str] = set()
        for key_node, value_node in node.value:
            if key_node.tag == YAML_TAG + "merge" or (key_node.tag == YAML_TAG + "plain" and key_node.value == "<<"):
                for source in self._merge_sources(value_node):
                    merged, merged_lines = self._mapping(source)
                    values |= merged
                    lines.inside |= merged_lines.inside
                    lines.again += merged_lines.again
                continue
            key = _key(key_node)
            if key in written:
                lines.again.append((key, _line(key_node)))
            written.add(key)
            values[key], below = self._value(value_node)
            lines.inside[key] = _Lines(_line(key_node), below.inside, below.again)
        self._around.pop()
        return values, lines

    def _merge_sources(self, node: yaml.Node) -> list[yaml.MappingNode]:
        """What ``<<`` brings in, a mapping or a list of them, in the order in which later ones win."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not all(isinstance(source, yaml.MappingNode) for source in sources):
            raise _Refused(node, "<< expects a mapping or a list of mappings")
        return list(reversed(sources))

    def _enter(self, node: yaml.Node) -> None:
        if node in self._around:
            raise _Refused(node, "an anchor's value contains itself")
        if len(self._around) >= MAX_DEPTH:
            raise _too_deep(node)
        self._count(node)
        self._around.append(node)

    def _count(self, node: yaml.Node) -> None:
        self._values += 1
        if self._values > MAX_VALUES:
            raise _too_many(node)


def _typed_by_list(item: dict[str, Any], around: dict[str, Any]) -> dict[str, Any]:
    """An item of an RLHFJobList that does not say what it is, is an RLHFJob of the list's version: to kubectl too."""
    kind = str(around["kind"]).removesuffix("List")
    if not kind or item.get("kind") or item.get("apiVersion"):
        return item
    return {**item, "kind": kind, "apiVersion": around.get("apiVersion")}


def _line(node: yaml.Node | yaml.Event) -> int:
    mark: Any = node.start_mark
    return int(mark.line) + 1


def _key(node: yaml.Node) -> str:
    key = _scalar(node) if isinstance(node, yaml.ScalarNode) else None
    match key:
        case None:
            raise _Refused(node, "a key must be text, a number or a boolean")
        case bool():
            return "true" if key else "false"
        case _:
            return str(key)


def _scalar(node: yaml.ScalarNode) -> Any:
    try:
        return scalar(node.tag, node.value)
    except ValueError as error:
        raise _Refused(node, f"{node.value[:80]!r}: {error}") from error
