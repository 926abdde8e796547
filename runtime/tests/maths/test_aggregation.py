"""Tokens' losses become shares that add up to the step's mean, whatever they are split into."""

import pytest
import torch
from rlhf_runtime.maths.aggregation import Aggregation, loss_denominator, share

LOSSES = torch.tensor([[1.0, 1, 1, 1], [3.0, float("nan"), float("nan"), float("nan")]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]], dtype=torch.bool)


@pytest.mark.parametrize(("aggregation", "expected"), [("Token", 1.4), ("Sequence", 2.0), ("Fixed", 0.875)])
def test_a_long_and_a_short_sample(aggregation: Aggregation, expected: float) -> None:
    denominator = loss_denominator(aggregation, tokens=5, samples=2, max_tokens=4)
    assert float(share(LOSSES, MASK, aggregation, denominator)) == pytest.approx(expected)
    apart = [float(share(LOSSES[i : i + 1], MASK[i : i + 1], aggregation, denominator)) for i in (0, 1)]
    assert sum(apart) == pytest.approx(expected), "the mean of the two rows' own means would be 2.0"


def test_micro_batches_of_unequal_token_counts() -> None:
    """100 tokens at 2.0 and 900 at 0.5 are 0.65 a token; the mean of the means would be 1.25."""
    denominator = loss_denominator("Token", tokens=1000, samples=10, max_tokens=100)
    parts = [torch.full((1, 100), 2.0), torch.full((9, 100), 0.5), torch.full((3, 100), float("nan"))]
    masks = [torch.ones(1, 100).bool(), torch.ones(9, 100).bool(), torch.zeros(3, 100).bool()]
    shares = [float(share(losses, mask, "Token", denominator)) for losses, mask in zip(parts, masks, strict=True)]
    assert sum(shares) == pytest.approx(0.65)
    assert shares[2] == 0.0, "a micro-batch without a valid token"


@pytest.mark.parametrize("aggregation", ["Token", "Sequence", "Fixed"])
def test_a_step_without_tokens_has_loss_and_gradient_zero(aggregation: Aggregation) -> None:
    losses = torch.full((2, 3), float("nan"), requires_grad=True)
    denominator = loss_denominator(aggregation, tokens=0, samples=0, max_tokens=3)
    loss = share(losses, torch.zeros(2, 3).bool(), aggregation, denominator)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss) == 0.0
    assert losses.grad is not None
    assert (losses.grad == 0).all()
