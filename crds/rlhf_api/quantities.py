"""Kubernetes quantities of memory in bytes. Operator and command line read them here, so that they agree."""

import re
from decimal import Decimal, localcontext

_FORM = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:[eE]([+-]?[0-9]{1,9})|([numkMGTPE]|[KMGTPE]i))?")
_FACTORS = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3")}
_FACTORS |= {letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)}
_FACTORS |= {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)}
#: Kubernetes counts with 64-bit integers.
_MOST = 2**63 - 1
#: Digits that the arithmetic keeps: those of the longest quantity that the API accepts, times 1024 ** 6.
_DIGITS = 128


def in_bytes(quantity: int | str) -> int:
    """Bytes of ``2Gi``, ``500M``, ``1.5e9`` or a plain number, exact, a fraction of a byte rounded toward zero.

    Raises ValueError for anything else, and for more bytes than 64 bits can count.
    """
    match = _FORM.fullmatch(str(quantity))
    if match is None:
        raise ValueError(f"found {quantity!r}, expected a quantity such as 2Gi or 500M")
    number, exponent, suffix = match.groups()
    with localcontext(prec=_DIGITS) as context:
        context.clear_traps()
        value = Decimal(f"{number}e{exponent or 0}") * _FACTORS.get(suffix, 1)
        if not abs(value) <= _MOST:
            raise ValueError(f"found {quantity!r}, expected at most {_MOST} bytes")
        return int(value)
