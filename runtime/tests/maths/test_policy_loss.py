"""The clipped policy loss of one token, of whole samples, and behind a mask."""

import math

import pytest
import torch
from rlhf_runtime.maths.policy_loss import Clip, RatioLevel, log_ratios, policy_loss
from torch import Tensor

NAN = float("nan")
CLIP = Clip(low=0.2, high=0.2)


def loss_of(ratio: float, advantage: float, clip: Clip = CLIP) -> float:
    """The loss of a single token."""
    return float(
        policy_loss(
            torch.tensor([[math.log(ratio)]]),
            torch.zeros(1, 1),
            torch.tensor([[advantage]]),
            torch.ones(1, 1, dtype=torch.bool),
            clip=clip,
            aggregation="Token",
            denominator=1.0,
        )
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.5, 1.0, -1.2), (1.5, -1.0, 1.5), (0.5, 1.0, -0.5), (0.5, -1.0, 0.8), (1.0, 2.0, -2.0)],
)
def test_the_clip_bounds_what_a_token_can_gain_and_not_what_it_can_lose(
    ratio: float, advantage: float, expected: float
) -> None:
    assert loss_of(ratio, advantage) == pytest.approx(expected, abs=1e-6)


def test_each_side_of_the_clip_has_its_own_bound() -> None:
    assert loss_of(1.5, 1.0, Clip(low=0.2, high=0.3)) == pytest.approx(-1.3, abs=1e-6)
    assert loss_of(0.5, -1.0, Clip(low=0.4, high=0.3)) == pytest.approx(0.6, abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(5.0, -1.0, 3.0), (5.0, -2.0, 6.0), (2.0, -1.0, 2.0), (5.0, 1.0, -1.2), (0.5, -1.0, 0.8)],
)
def test_the_dual_clip_bounds_what_a_token_can_lose(ratio: float, advantage: float, expected: float) -> None:
    assert loss_of(ratio, advantage, Clip(low=0.2, high=0.2, dual=3.0)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("Token", [1.10517092, 0.81873075, 1.34985881]),
        ("Sequence", [1.22140276] * 3),
        ("GeometricMean", [1.06893911] * 3),
    ],
)
def test_the_ratio_of_a_token_of_a_sample_and_of_its_mean_token(level: RatioLevel, expected: list[float]) -> None:
    logprobs = torch.tensor([[0.1, -0.2, 0.3, NAN]])
    mask = torch.tensor([[True, True, True, False]])
    found = log_ratios(logprobs, torch.zeros(1, 4), mask, level)
    assert found.exp()[0].tolist() == pytest.approx([*expected, 1.0], abs=1e-6)


def test_the_ratio_of_a_sample_moves_all_its_tokens() -> None:
    """GSPO's gradient: of -s A with s = exp(mean d), -A s / T at each of the T tokens."""
    logprobs = torch.tensor([[0.1, -0.2, 0.3, 9.0]], requires_grad=True)
    policy_loss(
        logprobs,
        torch.zeros(1, 4),
        torch.tensor([[2.0, 2.0, 2.0, NAN]]),
        torch.tensor([[True, True, True, False]]),
        clip=CLIP,
        aggregation="Sequence",
        denominator=1.0,
        ratio_level="GeometricMean",
    ).backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert logprobs.grad[0].tolist() == pytest.approx([-2 * 1.06893911 / 3] * 3 + [0.0], abs=1e-6)


@pytest.mark.parametrize("where", ["trained", "old", "advantages", "weights"])
@pytest.mark.parametrize("level", ["Token", "Sequence", "GeometricMean"])
def test_a_nan_behind_the_mask_reaches_neither_loss_nor_gradient(where: str, level: RatioLevel) -> None:
    def row(name: str, valid: float) -> Tensor:
        return torch.tensor([[valid, NAN if where == name else 5.0]])

    logprobs = row("trained", -1.0).requires_grad_()
    loss = policy_loss(
        logprobs,
        row("old", -1.0),
        row("advantages", 1.0),
        torch.tensor([[True, False]]),
        clip=Clip(low=0.2, high=0.2, dual=3.0),
        aggregation="Token",
        denominator=1.0,
        ratio_level=level,
        weights_bt=row("weights", 1.0),
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss) == -1.0
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[-1.0, 0.0]]


def test_only_the_trained_policy_gets_a_gradient() -> None:
    tensors = [torch.full((1, 1), 0.1, requires_grad=True) for _ in range(4)]
    logprobs, old, advantages, weights = tensors
    policy_loss(
        logprobs, old, advantages, torch.ones(1, 1).bool(), clip=CLIP, aggregation="Token", denominator=1.0,
        weights_bt=weights,
    ).backward()  # type: ignore[no-untyped-call]  # fmt: skip
    assert [tensor.grad is not None for tensor in tensors] == [True, False, False, False]
