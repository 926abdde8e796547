"""Values of YAML scalars as kubectl sends them.

kubectl reads YAML 1.1 by the rules of go-yaml 2, which are not PyYAML's: ``1e-6`` is a number, ``on`` is true,
``0o17`` is 15, ``1:30`` is text, a date is text. No Python library reads them so, hence this code. The values are
JSON values as the API server will see them: a whole number is an int, however it was written.
"""

import base64
import math
import re
from typing import Any

YAML_TAG = "tag:yaml.org,2002:"
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


def scalar(tag: str, text: str) -> Any:
    """The JSON value of a scalar: what plain text means to go-yaml, or what its tag says.

    `tag` is "plain" after the prefix of YAML's own tags where the file has none. Raises ValueError for what JSON
    cannot hold.
    """
    match tag.removeprefix(YAML_TAG):
        case "plain":
            return _plain(text)
        case "int" | "float" | "bool" | "null" as kind:
            return _tagged(kind, text)
        case "binary":
            return base64.b64decode(text, validate=True).decode()
        case _:
            return _text(text)


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
