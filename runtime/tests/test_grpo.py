"""The oracles of the GRPO maths: numbers worked out by hand, and TRL where it has the same function."""

import math

import pytest
import torch
from rlhf_runtime.grpo import (
    Aggregation,
    approximate_kl,
    group_advantages,
    loss_denominator,
    metric_sums,
    metrics,
    policy_loss,
    position_ids,
    token_entropy,
    token_logprobs,
)
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

NAN = float("nan")


def clipped(ratio: float, advantage: float, clip_low: float = 0.2, clip_high: float = 0.2) -> float:
    """The loss of a single token."""
    return float(
        policy_loss(
            torch.tensor([[math.log(ratio)]]),
            torch.zeros(1, 1),
            torch.tensor([advantage]),
            torch.ones(1, 1, dtype=torch.bool),
            clip_low=clip_low,
            clip_high=clip_high,
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
    assert clipped(ratio, advantage) == pytest.approx(expected, abs=1e-6)


def test_each_side_of_the_clip_has_its_own_bound() -> None:
    assert clipped(1.5, 1.0, clip_low=0.2, clip_high=0.3) == pytest.approx(-1.3, abs=1e-6)
    assert clipped(0.5, -1.0, clip_low=0.4, clip_high=0.3) == pytest.approx(0.6, abs=1e-6)


@pytest.mark.parametrize(("trained", "sampling", "expected"), [(-1.5, -1.0, 0.10653066), (-1.0, -2.0, 0.71828183)])
def test_k3_of_one_token(trained: float, sampling: float, expected: float) -> None:
    """exp(-0.5) - 1 + 0.5, and exp(1) - 1 - 1."""
    assert float(approximate_kl(torch.tensor(trained - sampling))) == pytest.approx(expected, abs=1e-6)


def test_k3_averages_to_the_kl_of_the_sampling_policy_to_the_trained_one() -> None:
    sampling, trained = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.3, 0.2])
    exact = float((sampling * (sampling / trained).log()).sum())
    assert float((sampling * approximate_kl((trained / sampling).log())).sum()) == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize(
    ("rewards", "normalization", "expected"),
    [
        ([1, 0, 0, 1], "Std", [0.86587543, -0.86587543, -0.86587543, 0.86587543]),
        ([1, 0, 0, 0], "Std", [1.49970006, -0.49990002, -0.49990002, -0.49990002]),
        ([1, 0, 0, 1], "None", [0.5, -0.5, -0.5, 0.5]),
    ],
)
def test_advantages_of_a_group(rewards: list[float], normalization: str, expected: list[float]) -> None:
    found = group_advantages(torch.tensor(rewards), 4, normalization)  # type: ignore[arg-type]
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(expected, abs=1e-7)


def test_groups_do_not_see_each_other() -> None:
    both = group_advantages(torch.tensor([1.0, 0, 0, 1, 5, 5, 5, 9]), 4, "Std")
    assert torch.equal(both[:4], group_advantages(torch.tensor([1.0, 0, 0, 1]), 4, "Std"))
    assert torch.equal(both[4:], group_advantages(torch.tensor([5.0, 5, 5, 9]), 4, "Std"))


@pytest.mark.parametrize("normalization", ["Std", "None"])
@pytest.mark.parametrize("rewards", [[0.1] * 7, [1e8] * 3, [0.3]])
def test_equal_rewards_give_exactly_zero(rewards: list[float], normalization: str) -> None:
    """0.1 seven times has a mean that is not 0.1 in fp32: only equality gives an exact 0."""
    found = group_advantages(torch.tensor(rewards), len(rewards), normalization)  # type: ignore[arg-type]
    assert found.tolist() == [0.0] * len(rewards)


@pytest.mark.parametrize("group_size", [0, 3])
def test_rewards_that_do_not_fill_their_groups_are_refused(group_size: int) -> None:
    with pytest.raises(ValueError, match="found 4, expected whole groups"):
        group_advantages(torch.zeros(4), group_size, "Std")


LENGTHS_4_AND_1 = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]], dtype=torch.bool)


def aggregate(aggregation: Aggregation, rows: slice, denominator: float) -> float:
    """The loss of rows [1, 1, 1, 1] and [3]: with ratio 1 a token's loss is minus its advantage."""
    advantages, mask = torch.tensor([-1.0, -3.0])[rows], LENGTHS_4_AND_1[rows]
    logprobs = torch.zeros(mask.shape)
    return float(
        policy_loss(
            logprobs,
            logprobs,
            advantages,
            mask,
            clip_low=0.2,
            clip_high=0.2,
            aggregation=aggregation,
            denominator=denominator,
        )
    )


@pytest.mark.parametrize(("aggregation", "expected"), [("Token", 1.4), ("Sequence", 2.0), ("Fixed", 0.875)])
def test_aggregation_of_a_long_and_a_short_sample(aggregation: Aggregation, expected: float) -> None:
    denominator = loss_denominator(aggregation, tokens=5, samples=2, max_tokens=4)
    assert aggregate(aggregation, slice(0, 2), denominator) == pytest.approx(expected)
    apart = [aggregate(aggregation, slice(row, row + 1), denominator) for row in (0, 1)]
    assert sum(apart) == pytest.approx(expected), "the mean of the two rows' own means would be 2.0"


def test_a_sample_without_tokens_adds_nothing() -> None:
    for aggregation in ("Token", "Sequence", "Fixed"):
        loss = policy_loss(
            torch.zeros(1, 2),
            torch.zeros(1, 2),
            torch.ones(1),
            torch.zeros(1, 2, dtype=torch.bool),
            clip_low=0.2,
            clip_high=0.2,
            aggregation=aggregation,
            denominator=1.0,
        )
        assert float(loss) == 0.0


@pytest.mark.parametrize("where", ["trained", "sampling"])
def test_a_nan_behind_the_mask_reaches_neither_loss_nor_gradient_nor_metrics(where: str) -> None:
    logprobs = torch.tensor([[-1.0, NAN if where == "trained" else -1.0]], requires_grad=True)
    old_logprobs = torch.tensor([[-1.0, NAN if where == "sampling" else -1.0]])
    mask = torch.tensor([[True, False]])
    loss = policy_loss(
        logprobs,
        old_logprobs,
        torch.tensor([1.0]),
        mask,
        clip_low=0.2,
        clip_high=0.2,
        aggregation="Token",
        denominator=1.0,
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss) == -1.0
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[-1.0, 0.0]]
    entropy = torch.tensor([[0.5, NAN]])
    sums = metric_sums(logprobs, old_logprobs, entropy, torch.tensor([1.0]), mask, clip_low=0.2, clip_high=0.2)
    assert metrics(sums) == {"clip_fraction": 0.0, "kl": 0.0, "entropy": 0.5, "ratio": 1.0, "ratio_ess": 1.0}


def test_positions_are_counted_from_the_first_real_token() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]])
    assert position_ids(mask).tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]


def test_left_padding_does_not_change_the_logits_of_a_model_with_absolute_positions() -> None:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=20, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config).eval()
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.no_grad():
        expected = model(tokens).logits
        for padding in range(6):
            mask = torch.tensor([[0] * padding + [1] * 5])
            padded = torch.nn.functional.pad(tokens, (padding, 0))
            found = model(padded, attention_mask=mask, position_ids=position_ids(mask)).logits[:, padding:]
            assert float((found - expected).abs().max()) < 1e-5


def test_the_temperature_divides_the_logits() -> None:
    """Logits 0 and log 9 are 1:9; at temperature 2 they are 1:3."""
    logits = torch.tensor([[[0.0, math.log(9.0)]]])
    tokens = torch.tensor([[0]])
    assert float(token_logprobs(logits, tokens, 1.0)) == pytest.approx(math.log(0.1))
    assert float(token_logprobs(logits, tokens, 2.0)) == pytest.approx(math.log(0.25))
    expected = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert float(token_entropy(logits, 2.0)) == pytest.approx(expected)


def test_logprobs_and_entropy_are_those_of_trl_and_are_fp32_for_bf16_logits() -> None:
    torch.manual_seed(0)
    logits, tokens = torch.randn(3, 4, 11), torch.randint(0, 11, (3, 4))
    torch.testing.assert_close(token_logprobs(logits, tokens, 1.0), selective_log_softmax(logits, tokens))
    torch.testing.assert_close(token_entropy(logits, 1.0), entropy_from_logits(logits))
    assert token_logprobs(logits.bfloat16(), tokens, 1.0).dtype == torch.float32


def test_a_token_that_cannot_occur_leaves_the_entropy_finite() -> None:
    logits = torch.tensor([[[0.0, 0.0, -float("inf")]]])
    assert float(token_entropy(logits, 1.0)) == pytest.approx(math.log(2))


def test_metrics_of_a_batch_are_those_of_its_parts_together() -> None:
    ratios = torch.tensor([[1.2, 0.8], [1.0, 3.0]])
    advantages = torch.tensor([-1.0, 1.0])
    entropy = torch.tensor([[0.1, 0.2], [0.3, 0.4]])

    def sums(rows: slice) -> Tensor:
        return metric_sums(
            ratios.log()[rows],
            torch.zeros(2, 2)[rows],
            entropy[rows],
            advantages[rows],
            torch.ones(2, 2, dtype=torch.bool)[rows],
            clip_low=0.1,
            clip_high=0.1,
        )

    whole = metrics(sums(slice(0, 2)))
    # 0.8 with a negative advantage and 3.0 with a positive one; 1.2 may still come down.
    assert whole["clip_fraction"] == pytest.approx(0.5)
    assert whole["ratio"] == pytest.approx(1.5)
    assert whole["ratio_ess"] == pytest.approx(0.745033, abs=1e-6)
    assert whole["entropy"] == pytest.approx(0.25)
    assert whole["kl"] == pytest.approx((6.0 - 4 - math.log(1.2 * 0.8 * 3.0)) / 4, abs=1e-6)
    assert metrics(sums(slice(0, 1)) + sums(slice(1, 2))) == pytest.approx(whole)


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
@pytest.mark.parametrize("aggregation", ["Token", "Sequence", "Fixed"])
def test_loss_and_gradient_do_not_depend_on_the_number_of_sub_batches(parts: int, aggregation: Aggregation) -> None:
    torch.manual_seed(0)
    logits, tokens = torch.randn(8, 5, 7), torch.randint(0, 7, (8, 5))
    old = token_logprobs(logits + 0.3 * torch.randn(8, 5, 7), tokens, 1.0)
    advantages = group_advantages(torch.randint(0, 2, (8,)).float(), 4, "Std")
    mask = torch.arange(5) < torch.tensor([5, 1, 3, 2, 5, 4, 1, 2]).unsqueeze(1)
    denominator = loss_denominator(aggregation, tokens=int(mask.sum()), samples=8, max_tokens=5)

    def loss_and_gradient(count: int) -> tuple[float, Tensor]:
        weights = torch.zeros(7, requires_grad=True)
        total = 0.0
        for rows in torch.arange(8).chunk(count):
            loss = policy_loss(
                token_logprobs(logits[rows] + weights, tokens[rows], 1.0),
                old[rows],
                advantages[rows],
                mask[rows],
                clip_low=0.2,
                clip_high=0.2,
                aggregation=aggregation,
                denominator=denominator,
            )
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss)
        assert weights.grad is not None
        return total, weights.grad

    loss, gradient = loss_and_gradient(1)
    found_loss, found_gradient = loss_and_gradient(parts)
    assert float(gradient.abs().max()) > 1e-3
    assert found_loss == pytest.approx(loss, abs=1e-6)
    assert float((found_gradient - gradient).abs().max()) <= 1e-6
