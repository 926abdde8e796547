"""Amounts as Kubernetes writes them."""

import pytest
from rlhf_cli.quantities import in_bytes


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        (5, 5),
        ("2Gi", 2 << 30),
        ("3Ki", 3072),
        ("500M", 500_000_000),
        ("7k", 7000),
        ("1.5e9", 1_500_000_000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("128974848000m", 128_974_848),
        ("1500m", 1),
    ],
)
def test_bytes(quantity: int | str, expected: int) -> None:
    assert in_bytes(quantity) == expected


@pytest.mark.parametrize("quantity", ["", "x", "2K", "2Qi", "Gi"])
def test_what_is_no_quantity_is_refused(quantity: str) -> None:
    with pytest.raises(ValueError, match="expected a Kubernetes quantity"):
        in_bytes(quantity)
