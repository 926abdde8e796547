"""KL estimates, what they are as a loss, and the reward they are taken from."""

import pytest
import torch
from rlhf_runtime.maths.advantages import gae
from rlhf_runtime.maths.kl import KlEstimator, kl_estimates, kl_loss, token_rewards
from torch import Tensor

NAN = float("nan")


@pytest.mark.parametrize(
    ("trained", "reference", "expected"),
    [(-1.0, -1.5, [0.5, 0.125, 0.10653066]), (-2.0, -1.0, [-1.0, 0.5, 0.71828183])],
)
def test_the_estimates_of_one_token(trained: float, reference: float, expected: list[float]) -> None:
    """exp(-0.5) - 1 + 0.5, and exp(1) - 1 - 1."""
    d = torch.tensor(trained - reference)
    assert [float(kl_estimates(d, e)) for e in ("K1", "K2", "K3")] == pytest.approx(expected, abs=1e-7)


LOGITS, REFERENCE = torch.tensor([0.3, -0.4, 0.9]), torch.tensor([0.5, 0.3, 0.2]).log()


def exact_kl(logits: Tensor) -> Tensor:
    logprobs = logits.log_softmax(-1)
    return (logprobs.exp() * (logprobs - REFERENCE)).sum()


@pytest.mark.parametrize("estimator", ["K1", "K3"])
def test_k1_and_k3_are_on_average_the_kl(estimator: KlEstimator) -> None:
    logprobs = LOGITS.log_softmax(-1)
    estimates = kl_estimates(logprobs - REFERENCE, estimator)
    assert float((logprobs.exp() * estimates).sum()) == pytest.approx(float(exact_kl(LOGITS)), abs=1e-6)


def expected_gradient(estimator: KlEstimator) -> Tensor:
    """Mean, over tokens drawn from the policy, of the estimate's gradient in the logits: [3]."""
    logits = LOGITS.clone().requires_grad_()
    logprobs = logits.log_softmax(-1)
    total = (logprobs.detach().exp() * kl_estimates(logprobs - REFERENCE, estimator)).sum()
    return torch.autograd.grad(total, logits)[0]


def test_as_a_loss_k1_does_nothing_k2_is_the_kl_and_k3_is_the_kl_the_other_way_round() -> None:
    logits = LOGITS.clone().requires_grad_()
    forward = torch.autograd.grad(exact_kl(logits), logits)[0]
    backward = torch.autograd.grad((REFERENCE.exp() * (REFERENCE - logits.log_softmax(-1))).sum(), logits)[0]
    assert float((forward - backward).abs().max()) > 0.02, "the two divergences differ here"
    torch.testing.assert_close(expected_gradient("K1"), torch.zeros(3), atol=1e-7, rtol=0)
    torch.testing.assert_close(expected_gradient("K2"), forward, atol=1e-6, rtol=0)
    torch.testing.assert_close(expected_gradient("K3"), backward, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("estimator", "expected"), [("K2", (0.125 + 0.5) / 2), ("K3", (0.10653066 + 0.71828183) / 2)])
def test_the_loss_is_the_mean_over_valid_tokens(estimator: KlEstimator, expected: float) -> None:
    logprobs = torch.tensor([[-1.0, -2.0, NAN]], requires_grad=True)
    loss = kl_loss(
        logprobs,
        torch.tensor([[-1.5, -1.0, NAN]]),
        torch.tensor([[True, True, False]]),
        estimator=estimator,
        aggregation="Token",
        denominator=2.0,
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss) == pytest.approx(expected, abs=1e-7)
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()
    assert logprobs.grad[0, 2] == 0


def test_k1_is_refused_as_a_loss() -> None:
    some = torch.zeros(1, 1)
    with pytest.raises(ValueError, match="found K1, whose gradient has mean zero"):
        kl_loss(some, some, some.bool(), estimator="K1", aggregation="Token", denominator=1.0)


def test_kl_in_the_reward_and_the_advantages_of_it() -> None:
    """KL [.2, .1, .3] times .1, the score at the last token; then GAE with gamma 1 and lambda .95."""
    kl, mask = torch.tensor([[0.2, 0.1, 0.3]]), torch.ones(1, 3, dtype=torch.bool)
    rewards = token_rewards(torch.tensor([1.0]), kl - 1, kl * 0 - 1, mask, estimator="K1", coefficient=0.1)
    assert rewards.flatten().tolist() == pytest.approx([-0.02, -0.01, 0.97], abs=1e-7)
    values = torch.tensor([[0.5, 0.4, 0.3]])
    advantages, returns = gae(rewards, values, mask, torch.zeros(1), gamma=1.0, lambda_=0.95)
    assert advantages.flatten().tolist() == pytest.approx([0.380175, 0.5265, 0.67], abs=1e-6)
    assert returns.flatten().tolist() == pytest.approx([0.880175, 0.9265, 0.97], abs=1e-6)


@pytest.mark.parametrize(
    ("mask", "last"), [([1, 1, 0, 0], 1), ([1, 0, 0, 0], 0), ([1, 1, 1, 1], 3), ([0, 0, 1, 1], 3), ([0, 0, 0, 0], None)]
)
def test_the_score_stands_at_the_last_valid_token(mask: list[int], last: int | None) -> None:
    expected = [2.5 if i == last else 0.0 for i in range(4)]
    logprobs = torch.tensor([[-1.0 if valid else NAN for valid in mask]])
    mask_bt = torch.tensor([mask], dtype=torch.bool)
    for reference in (None, logprobs):
        found = token_rewards(torch.tensor([2.5]), logprobs, reference, mask_bt, estimator="K3", coefficient=0.1)
        assert found.tolist() == [expected]
