"""Amounts as Kubernetes writes them, beside the reader of Kubernetes' own client."""

from itertools import product

import pytest
from kubernetes.utils import parse_quantity
from rlhf_api.quantities import in_bytes

NUMBERS = ("0", "5", "+5", "-2", "1.5", "2.", ".5", "-.5", "9007199254740993", "0.123456789012345678901234567890123")
SUFFIXES = ("", "n", "u", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti", "e3", "E3", "e+2", "e-2", "e0")


@pytest.mark.parametrize("quantity", [number + suffix for number, suffix in product(NUMBERS, SUFFIXES)])
def test_bytes_are_those_of_kubernetes_s_client(quantity: str) -> None:
    expected = parse_quantity(quantity)
    if abs(expected) >= 2**63:
        with pytest.raises(ValueError, match="expected at most"):
            in_bytes(quantity)
    else:
        # The client rounds to 28 digits, which is finer than a byte.
        assert in_bytes(quantity) == int(expected)


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        pytest.param(1024, 1024, id="a plain number"),
        pytest.param("1500m", 1, id="a fraction of a byte is dropped"),
        pytest.param("1E", 10**18, id="exa, not an exponent"),
        pytest.param("1Ei", 2**60, id="exbi"),
        pytest.param("9007199254740993", 9007199254740993, id="more digits than a float has"),
        pytest.param("0." + "0" * 60 + "1", 0, id="as many digits as the API accepts"),
        pytest.param("0e999999999", 0, id="nothing, whatever the exponent"),
        pytest.param("1e-999999999", 0, id="next to nothing"),
        pytest.param(2**63 - 1, 2**63 - 1, id="the most that Kubernetes counts"),
    ],
)
def test_bytes(quantity: int | str, expected: int) -> None:
    assert in_bytes(quantity) == expected


@pytest.mark.parametrize(
    "quantity",
    # The last group was taken by one of the two readers that this one replaced.
    [
        *("", "x", "one", "2K", "2Qi", "Gi", "1GiB", "1 Gi", "NaN", "Infinity", "1.5.5", "--1", "1e", "."),
        *("2Gi\n", "\N{ARABIC-INDIC DIGIT THREE}Gi", "1e3k", "1e3Ki", "1_000"),
    ],
)
def test_a_text_that_is_not_a_quantity_is_refused(quantity: str) -> None:
    with pytest.raises(ValueError, match="expected a quantity such as 2Gi"):
        in_bytes(quantity)


@pytest.mark.parametrize("quantity", ["1e400", "1e999999999", "9Ei", 2**63])
def test_more_than_a_machine_can_have_is_refused(quantity: int | str) -> None:
    with pytest.raises(ValueError, match="expected at most 9223372036854775807 bytes"):
        in_bytes(quantity)
