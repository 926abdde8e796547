"""Case R14: how much of an episode's training arrives at makers is reported."""

from collections.abc import Sequence

import pytest
import torch
from rlhf_runtime.weight_sync.changed_weights import ChangedWeights


def shares(dtype: torch.dtype, steps: Sequence[float]) -> list[float | None]:
    """Four weights of 1.0 and two buffers; each step is added to three of the weights."""
    weight, changed = torch.ones(2, 2), ChangedWeights()
    found = []
    for version, step in enumerate((0.0, *steps)):
        weight.view(-1)[:3] -= step
        found.append(changed.share(version, {"weight": weight, "counts": torch.tensor([version, 7])}, dtype))
    return found


@pytest.mark.parametrize(
    ("situation", "dtype", "steps", "expected"),
    [
        ("nothing is trained", torch.float32, [0.0], [None, 0.0]),
        ("a step that float32 tells apart", torch.float32, [6e-4], [None, 0.75]),
        ("bfloat16 does not: half a unit in the last place of 1.0 is 0.002", torch.bfloat16, [6e-4], [None, 0.0]),
        ("masters add it up until it does", torch.bfloat16, [6e-4] * 4, [None, 0.0, 0.0, 0.0, 0.75]),
    ],
)
def test_weights_that_an_episode_changed(
    situation: str, dtype: torch.dtype, steps: list[float], expected: list[float | None]
) -> None:
    assert shares(dtype, steps) == expected, situation


def test_a_publish_that_is_repeated_says_the_same() -> None:
    changed = ChangedWeights()
    for value in (1.0, 2.0):
        changed.share(int(value), {"weight": torch.tensor([value])}, torch.float32)
    assert changed.share(2, {"weight": torch.tensor([2.0])}, torch.float32) == 1.0


def test_of_a_large_model_about_a_million_weights_are_compared() -> None:
    changed = ChangedWeights()
    large, small = torch.zeros(3_000_000), torch.zeros(3)
    assert changed.share(0, {"large": large, "small": small}, torch.float32) is None
    # Every third, and the first of the small one: an addition to the first half of the large one is half of that.
    large[:1_500_000] = 1
    assert changed.share(1, {"large": large, "small": small}, torch.float32) == pytest.approx(0.5, abs=1e-5)
