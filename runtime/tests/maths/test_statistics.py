"""What a step is reported by: of its parts together, of valid tokens only."""

import math
from dataclasses import asdict

import pytest
import torch
from rlhf_runtime.maths.policy_loss import Clip
from rlhf_runtime.maths.statistics import Sums, means, policy_sums, reference_sums, value_sums
from torch import Tensor

NAN = float("nan")
RATIOS = torch.tensor([[1.2, 0.8, NAN], [1.0, 3.0, NAN]])
MASK = torch.tensor([[True, True, False]] * 2)


def totals(*parts: Sums) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            found[name] = found.get(name, 0.0) + float(value)
    return found


def sums(rows: slice) -> Sums:
    """Ratios 1.2, 0.8 with negative advantage and 1, 3 with positive; weights 1, 1, 0, 2; the critic off by .5."""
    logprobs, zero = RATIOS.log()[rows], torch.zeros(2, 3)[rows]
    entropy = torch.tensor([[0.1, 0.2, NAN], [0.3, 0.4, NAN]])[rows]
    advantages = torch.tensor([[-1.0, -1.0, NAN], [1.0, 1.0, NAN]])[rows]
    weights = torch.tensor([[1.0, 1.0, NAN], [0.0, 2.0, NAN]])[rows]
    returns = torch.tensor([[1.0, 2.0, NAN], [3.0, 4.0, NAN]])[rows]
    values = returns + torch.tensor([[0.5, -0.5, NAN], [0.5, -0.5, NAN]])[rows]
    mask = MASK[rows]
    return {
        **policy_sums(
            logprobs, zero, zero, entropy, advantages, mask, clip=Clip(low=0.1, high=0.1, dual=1.1), weights_bt=weights
        ),
        **reference_sums(logprobs, zero, mask, "reference_kl"),
        **value_sums(values, returns, returns, mask, clip=0.4),
    }


def test_what_a_step_of_four_tokens_says() -> None:
    found = asdict(means(totals(sums(slice(0, 2)))))
    assert found == pytest.approx(
        {
            # 0.8 with a negative advantage and 3.0 with a positive one; 1.2 may still come down.
            "clip_fraction": 0.5,
            # 1.2 with a negative advantage: its loss is held at 1.1.
            "dual_clip_fraction": 0.25,
            "value_clip_fraction": 1.0,
            "kl": (6.0 - 4 - math.log(1.2 * 0.8 * 3.0)) / 4,
            "reference_kl": (1 / 1.2 + 1 / 0.8 + 1 + 1 / 3 - 4 + math.log(1.2 * 0.8 * 3.0)) / 4,
            "entropy": 0.25,
            "ratio": 1.5,
            "off_policy_weight": 1.0,
            "effective_sample_size": 16 / (4 * 6),
            "teacher_kl": None,
            # The returns' variance is 1.25, the errors' .25.
            "explained_variance": 0.8,
        },
        abs=1e-6,
    )


def test_without_a_correction_the_ratios_tell_the_effective_sample_size() -> None:
    uncorrected = {name: total for name, total in totals(sums(slice(0, 2))).items() if not name.startswith("weight")}
    assert means(uncorrected).effective_sample_size == pytest.approx(0.745033, abs=1e-6)


def test_parts_add_up_to_the_whole() -> None:
    whole = asdict(means(totals(sums(slice(0, 2)))))
    assert asdict(means(totals(sums(slice(0, 1)), sums(slice(1, 2))))) == pytest.approx(whole)
    empty = {name: torch.zeros((), dtype=torch.float64) for name in sums(slice(0, 1))}
    assert all(math.isfinite(x) for x in asdict(means(totals(empty))).values() if x is not None), (
        "a step whose every token is masked"
    )


def test_the_kl_to_the_sampler_is_on_average_that_of_the_sampler_to_the_trained_policy() -> None:
    """Tokens come from the sampler, so its own share of each token weighs the estimates."""
    sampling, trained = torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([[0.5, 0.3, 0.2]])
    exact = float((sampling * (sampling / trained).log()).sum())

    def estimate(token: int) -> float:
        def row(values: Tensor) -> Tensor:
            return values[:, token : token + 1].log()

        one = torch.ones(1, 1)
        clip = Clip(low=0.2, high=0.2)
        found = policy_sums(row(trained), row(sampling), row(sampling), one, one, one.bool(), clip=clip)
        return float(found["kl"])

    assert sum(float(sampling[0, t]) * estimate(t) for t in range(3)) == pytest.approx(exact, abs=1e-6)
