"""Amounts as Kubernetes writes them: 2Gi, 500M, 1.5e9, 128974848000m."""

from decimal import Decimal

_FACTORS = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1)}
_FACTORS |= {letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)}
_FACTORS |= {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)}


def in_bytes(quantity: int | str) -> int:
    """Bytes, rounded down. Raises ValueError for what is no quantity."""
    text = str(quantity)
    number = text.rstrip("numkKMGTPEi") if not text[-1:].isdigit() else text
    suffix = text[len(number) :]
    try:
        return int(Decimal(number) * _FACTORS[suffix])
    except (ArithmeticError, KeyError) as error:
        raise ValueError(f"{quantity}: expected a Kubernetes quantity such as 2Gi or 500M") from error
