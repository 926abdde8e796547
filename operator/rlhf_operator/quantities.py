"""Kubernetes quantities of memory in bytes."""

import math
import re

_FORM = re.compile(r"^([+-]?\d+(?:\.\d*)?|\.\d+)(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i))?$")
_DECIMAL = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {f"{letter}i": 1024.0 ** (power + 1) for power, letter in enumerate("KMGTPE")}


def in_bytes(quantity: int | str) -> int:
    """Bytes of ``2Gi``, ``500M``, ``1e9`` or a plain number. Raises ValueError for anything else."""
    match = _FORM.match(str(quantity))
    if match is None:
        raise ValueError(f"found {quantity!r}, expected a quantity such as 2Gi")
    number, exponent, suffix = match.groups()
    scale = (_DECIMAL | _BINARY)[suffix] if suffix else 1.0
    value = float(number + (exponent or "")) * scale
    if not math.isfinite(value):
        raise ValueError(f"found {quantity!r}, expected a number of bytes that a machine can have")
    return int(value)
