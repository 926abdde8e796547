"""What the API server does with a structural schema, in its order: unknown fields, defaults, then the checks.

Works on JSON values and on the schema of the generated CRD itself; which keywords that uses is held by a test. Own
code, not the jsonschema package: defaults, pruning and integer-or-string are the API server's, and the messages (what
was found, what is expected, which name was meant) are what a user needs of it.

What is larger than the schema allows is not looked into: the server would not do so either.
"""

import copy
import difflib
import json
import re
from collections.abc import Iterator
from typing import Any

from rlhf_cli.validation.manifest import FieldPath
from rlhf_cli.validation.patterns import in_words

Schema = dict[str, Any]
#: A place and what is wrong there.
Finding = tuple[FieldPath, str]

#: The schema of a value that is taken as it is, whatever it holds.
ANYTHING: Schema = {"x-kubernetes-preserve-unknown-fields": True}
_INT_OR_STRING = "x-kubernetes-int-or-string"
_LONGEST_SHOWN = 80


def written(path: FieldPath) -> str:
    """A path as the API server writes it: ``spec.rewards[0].function``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def shown(value: Any) -> str:
    """A value for a message, cut where it is long."""
    text = json.dumps(value[:_LONGEST_SHOWN] if isinstance(value, str | list) else value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"


def field_schema(schema: Schema, key: str) -> Schema | None:
    """The schema of one field of an object, or of one entry of a map; None where none is known."""
    additional: Schema | None = schema.get("additionalProperties")
    known: Schema | None = schema.get("properties", {}).get(key)
    return known if known is not None else additional


def unknown_fields(value: Any, schema: Schema, root: Schema, path: FieldPath = ()) -> Iterator[Finding]:
    """Fields that the schema does not have, each with the name that may have been meant."""
    if isinstance(value, list):
        for position, item in enumerate(value):
            yield from unknown_fields(item, schema.get("items", {}), root, (*path, position))
    if not isinstance(value, dict) or ("properties" not in schema and "additionalProperties" not in schema):
        return
    for key, item in value.items():
        known = field_schema(schema, key)
        if known is None:
            yield (*path, key), "unknown field" + _meant(key, schema["properties"], root)
        else:
            yield from unknown_fields(item, known, root, (*path, key))


def defaulted(value: Any, schema: Schema) -> Any:
    """A copy with every default filled in. A null is absent: the default takes its place, or nothing does."""
    if isinstance(value, list):
        return [defaulted(item, schema.get("items", {})) for item in value]
    if not isinstance(value, dict):
        return value
    filled: dict[str, Any] = {}
    for key, item in value.items():
        known = field_schema(schema, key)
        if known is None:
            filled[key] = item
        elif item is not None:
            filled[key] = defaulted(item, known)
    for key, known in schema.get("properties", {}).items():
        if key not in filled and "default" in known:
            filled[key] = defaulted(copy.deepcopy(known["default"]), known)
    return filled


def violations(value: Any, schema: Schema, path: FieldPath = ()) -> Iterator[Finding]:
    """Everything in a defaulted value that the schema does not allow, except unknown fields and rules."""
    if schema == ANYTHING:
        return
    if not _has_type(value, schema):
        yield path, f"found {shown(value)}, expected {expected(schema)}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield path, f"found {shown(value)}, expected {expected(schema)}" + _closest(str(value), schema["enum"])
    match value:
        case str():
            yield from _text_violations(value, schema, path)
        case int() | float():
            yield from _number_violations(value, schema, path)
        case list():
            yield from _size_violations(len(value), "Items", "items", schema, path)
            for position, item in enumerate([] if is_too_large(value, schema) else value):
                yield from violations(item, schema.get("items", {}), (*path, position))
        case dict():
            yield from _size_violations(len(value), "Properties", "entries", schema, path)
            yield from _object_violations({} if is_too_large(value, schema) else value, schema, path)


def is_too_large(value: Any, schema: Schema) -> bool:
    """Whether a list, an object or a text has more in it than its schema allows; what is inside does not count."""
    match value:
        case list():
            most = schema.get("maxItems")
        case dict():
            most = schema.get("maxProperties")
        case str():
            most = schema.get("maxLength")
        case _:
            return False
    return most is not None and len(value) > most


def expected(schema: Schema) -> str:
    """What a field takes, in words: ``an integer from 2 to 4096``."""
    if schema.get(_INT_OR_STRING):
        return "an integer or a quantity in quotes, such as '500m' or '2Gi'"
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    name = {
        **{"integer": "an integer", "number": "a number", "boolean": "true or false"},
        **{"string": "text", "array": "a list", "object": "an object"},
    }
    if schema["type"] in ("integer", "number") and "minimum" in schema and "maximum" in schema:
        low = "above" if schema.get("exclusiveMinimum") else "from"
        high = "to below" if schema.get("exclusiveMaximum") else "to"
        return f"{name[schema['type']]} {low} {_plain(schema['minimum'])} {high} {_plain(schema['maximum'])}"
    return name[schema["type"]]


def _has_type(value: Any, schema: Schema) -> bool:
    if schema.get(_INT_OR_STRING):
        return isinstance(value, int | str) and not isinstance(value, bool)
    match schema.get("type"):
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case other:
            raise ValueError(f"the schema has a type that nothing here checks: {other}")


def _text_violations(value: str, schema: Schema, path: FieldPath) -> Iterator[Finding]:
    yield from _size_violations(len(value), "Length", "characters", schema, path)
    if is_too_large(value, schema):
        return
    # To the server, $ is the very end of the text; to Python, a last line end may follow.
    pattern = schema.get("pattern", "")
    if not re.search(re.sub(r"\$$", r"\\Z", pattern), value):
        yield path, f"found {shown(value)}, expected {in_words(pattern)}"


def _number_violations(value: float, schema: Schema, path: FieldPath) -> Iterator[Finding]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and (value <= low if schema.get("exclusiveMinimum") else value < low):
        word = "more than" if schema.get("exclusiveMinimum") else "at least"
        yield path, f"found {shown(value)}, expected {word} {_plain(low)}"
    if high is not None and (value >= high if schema.get("exclusiveMaximum") else value > high):
        word = "less than" if schema.get("exclusiveMaximum") else "at most"
        yield path, f"found {shown(value)}, expected {word} {_plain(high)}"


def _size_violations(size: int, kind: str, unit: str, schema: Schema, path: FieldPath) -> Iterator[Finding]:
    if size < schema.get(f"min{kind}", 0):
        yield path, f"found {size} {unit}, expected at least {schema[f'min{kind}']}"
    if size > schema.get(f"max{kind}", size):
        yield path, f"found {size} {unit}, expected at most {schema[f'max{kind}']}"


def _object_violations(value: dict[str, Any], schema: Schema, path: FieldPath) -> Iterator[Finding]:
    for key in schema.get("required", ()):
        if key not in value:
            yield (*path, key), f"found nothing, expected {expected(schema['properties'][key])}"
    for key, item in value.items():
        known = field_schema(schema, key)
        if known is not None:
            yield from violations(item, known, (*path, key))


def _plain(number: float) -> str:
    return f"{number:.15g}" if isinstance(number, float) else str(number)


def _meant(key: str, siblings: Schema, root: Schema) -> str:
    """A hint: a field of the same object with nearly this name, else one of this very name elsewhere."""
    hint = _closest(key, list(siblings))
    if hint:
        return hint
    elsewhere = [path for path in _all_fields(root) if _folded(str(path[-1])) == _folded(key)]
    return f"; did you mean {' or '.join(map(written, elsewhere[:3]))}?" if elsewhere else ""


def _closest(text: str, names: list[str]) -> str:
    by_folded = {_folded(name): name for name in names}
    for match in difflib.get_close_matches(_folded(text), by_folded, n=1, cutoff=0.75):
        return f"; did you mean {by_folded[match]}?"
    return ""


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _all_fields(schema: Schema, path: FieldPath = ()) -> Iterator[FieldPath]:
    for key, known in schema.get("properties", {}).items():
        if not path and key == "status":
            continue
        yield (*path, key)
        yield from _all_fields(known, (*path, key))
        yield from _all_fields(known.get("items", {}), (*path, key, 0))
