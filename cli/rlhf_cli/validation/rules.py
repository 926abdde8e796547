"""Evaluates the CRD's own CEL rules, the same text that the API server evaluates."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import cel

from rlhf_cli.validation.manifest import FieldPath
from rlhf_cli.validation.structural import Finding, Schema, field_schema, is_too_large, shown

_RULES = "x-kubernetes-validations"
#: Words of CEL. A field of such a name is `__name__` in rules; by its plain name the server finds nothing, unsaid.
_RESERVED = frozenset(
    (
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    )
)
#: How the evaluator says that a rule has no value for this object: an absent field, a wrong type, a division by 0.
_NO_VALUE = (KeyError, TypeError, ValueError, ArithmeticError, RuntimeError)


def broken_rules(value: Any, schema: Schema, wrong: set[FieldPath], path: FieldPath = ()) -> Iterator[Finding]:
    """Rules that a defaulted value breaks, as if it were created: rules about changes are left out.

    A rule that has no value is broken too, as for the server, unless one of ``wrong`` (the places with problems
    already known) is below it and explains that. A value that holds something too large for its schema is not
    evaluated: many rules take time that grows with the square of a list, and the server does not either.
    """
    for rule in () if _holds_too_large(value, schema) else schema.get(_RULES, ()):
        inside = rule.get("fieldPath", "").split(".")[1:]
        program = _compiled(rule["rule"])
        if "oldSelf" in program.variables():
            continue
        try:
            if program.execute({"self": _typed(value, schema)}) is not True:
                yield (*path, *inside), _found(value, inside) + rule["message"]
        except _NO_VALUE as error:
            if not any(known[: len(path)] == path for known in wrong):
                yield (*path, *inside), f"{rule['message']} (the rule has no value: {error})"
    if is_too_large(value, schema):
        return
    if isinstance(value, list):
        for position, item in enumerate(value):
            yield from broken_rules(item, schema.get("items", {}), wrong, (*path, position))
    if isinstance(value, dict):
        for key, item in value.items():
            yield from broken_rules(item, field_schema(schema, key) or {}, wrong, (*path, key))


def _holds_too_large(value: Any, schema: Schema) -> bool:
    if is_too_large(value, schema):
        return True
    if isinstance(value, list):
        return any(_holds_too_large(item, schema.get("items", {})) for item in value)
    if isinstance(value, dict):
        return any(_holds_too_large(item, field_schema(schema, key) or {}) for key, item in value.items())
    return False


def _found(value: Any, inside: list[str]) -> str:
    """The value that a message is about, where it is a single one."""
    for key in inside:
        value = value.get(key, {}) if isinstance(value, dict) else {}
    return "" if isinstance(value, dict | list) else f"found {shown(value)}, "


@cache
def _compiled(rule: str) -> Any:
    return cel.compile(rule)


def _typed(value: Any, schema: Schema) -> Any:
    """The value as a rule sees it: a number is a double also where it is whole, as its schema says; a field whose name
    CEL reserves has the server's name for it."""
    if isinstance(value, list):
        return [_typed(item, schema.get("items", {})) for item in value]
    if isinstance(value, dict):
        named = schema.get("properties", {})
        return {
            f"__{key}__" if key in _RESERVED and key in named else key: _typed(item, field_schema(schema, key) or {})
            for key, item in value.items()
        }
    if schema.get("type") == "number" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value
