"""Weights for tokens that another policy sampled, the policy between two versions, and what samples are worth."""

import pytest
import torch
from rlhf_runtime.maths.off_policy import (
    Correction,
    effective_sample_size,
    interpolated_logprobs,
    off_policy_weights,
)
from rlhf_runtime.maths.policy_loss import Clip, policy_loss
from torch import Tensor

NAN = float("nan")
SAMPLED, OLD, TRAINED = torch.tensor([[-1.0]]), torch.tensor([[-0.8]]), torch.tensor([[-0.7]])
ONE = torch.ones(1, 1, dtype=torch.bool)


def loss_of(weights: Tensor | None, old: Tensor = OLD) -> float:
    return float(
        policy_loss(
            TRAINED, old, torch.ones(1, 1), ONE, clip=Clip(low=0.2, high=0.2), aggregation="Token", denominator=1.0,
            weights_bt=weights,
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("correction", "cap", "weight", "loss"),
    [
        ("Decoupled", 2.0, 1.22140276, -1.34985881),
        ("TIS", 2.0, 1.22140276, -1.34985881),
        ("TIS", 1.1, 1.1, -1.21568801),
        ("Decoupled", 1.1, 0.0, 0.0),
    ],
)
def test_sampled_at_minus_1_old_minus_0_8_trained_minus_0_7(
    correction: Correction, cap: float, weight: float, loss: float
) -> None:
    """e^.2 = 1.2214 and e^.1 = 1.1052. Above the cap TIS holds the weight there, Decoupled leaves the token out."""
    weights = off_policy_weights(OLD, SAMPLED, ONE, correction=correction, cap=cap)
    assert float(weights) == pytest.approx(weight, abs=1e-6)
    assert loss_of(weights) == pytest.approx(loss, abs=1e-6)


def test_a_ratio_against_the_sampler_is_not_corrected_again() -> None:
    """e^.3 is clipped to 1.2. With the sampler as the old policy every weight is 1: nothing is counted twice."""
    assert loss_of(None, SAMPLED) == pytest.approx(-1.2, abs=1e-6)
    weights = off_policy_weights(SAMPLED, SAMPLED, ONE, correction="TIS", cap=2.0)
    assert float(weights) == 1.0
    assert loss_of(weights, SAMPLED) == loss_of(None, SAMPLED)


def test_weights_have_no_gradient_and_are_zero_behind_the_mask() -> None:
    old = torch.tensor([[-0.8, NAN]], requires_grad=True)
    weights = off_policy_weights(
        old, torch.tensor([[-1.0, -1.0]]), torch.tensor([[True, False]]), correction="TIS", cap=2.0
    )
    assert not weights.requires_grad
    assert weights[0].tolist() == pytest.approx([1.22140276, 0.0])


@pytest.mark.parametrize(
    ("sampled_at", "expected"),
    [
        pytest.param(3, -0.8, id="3 versions ago: two thirds of the way from -1 to -.7"),
        pytest.param(4, -0.85, id="2 versions ago: half way"),
        pytest.param(5, -1.0, id="the newest policy: what it sampled with"),
    ],
)
def test_the_policy_before_version_6_lies_between_the_sampling_and_the_trained_one(
    sampled_at: int, expected: float
) -> None:
    trained = TRAINED.clone().requires_grad_()
    found = interpolated_logprobs(SAMPLED, trained, torch.tensor([[sampled_at]]), 6)
    assert float(found) == pytest.approx(expected, abs=1e-6)
    assert not found.requires_grad


def test_effective_sample_size() -> None:
    weights = torch.tensor([1.2, 0.8, 1.0, 3.0])
    found = effective_sample_size(float(weights.sum()), float(weights.square().sum()), 4)
    assert found == pytest.approx(0.745033, abs=1e-6)
    assert effective_sample_size(0.0, 0.0, 0) == 1.0
    assert effective_sample_size(3.0, 9.0, 4) == pytest.approx(0.25), "one sample has all the weight"
