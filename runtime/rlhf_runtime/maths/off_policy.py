"""Corrections where the old policy, which ratios are taken against, is not the one that sampled.

They weigh a token's loss by e^(old - sampled). With `oldLogProbs: Sampled` the ratio itself is taken against the
sampler and there is nothing to correct: the weight would be 1 everywhere.

Sources: truncated importance sampling, Yao et al., "Your efficient RL framework secretly brings you off-policy
RL training" (2025); decoupled PPO, Hilton et al. 2021 (arXiv 2110.00641), and its cap in AReaL (2505.24298);
interpolation, AReaL's `loglinear` (its docs/algorithms/prox_approx.md); effective sample size, Kish 1965.
"""

from typing import Literal

import torch
from torch import Tensor

from rlhf_runtime.maths.kl import token_log_ratio

Correction = Literal["TIS", "Decoupled"]


def off_policy_weights(
    old_logprobs_bt: Tensor, sampled_logprobs_bt: Tensor, mask_bt: Tensor, *, correction: Correction, cap: float
) -> Tensor:
    """Weight of each token's policy loss, [b, t] fp32 without gradient; 0 where masked.

    e^(old - sampled), above `cap` clamped to it ("TIS"), or 0, which leaves the token out ("Decoupled"). Left out
    tokens still count in denominators: the weight, not the number of tokens, says what they are worth.
    """
    weights_bt = token_log_ratio(old_logprobs_bt.detach(), sampled_logprobs_bt.detach(), mask_bt).exp()
    zero = torch.zeros_like(weights_bt)
    match correction:
        case "TIS":
            weights_bt = weights_bt.clamp(max=cap)
        case "Decoupled":
            weights_bt = torch.where(weights_bt <= cap, weights_bt, zero)
    return torch.where(mask_bt, weights_bt, zero)


def interpolated_logprobs(
    sampled_logprobs_bt: Tensor, logprobs_bt: Tensor, versions_bt: Tensor, version: int
) -> Tensor:
    """Approximate log-probs of the policy before this update without a forward pass: [b, t] fp32, no gradient.

    `version` is the one that the update in progress will publish, so the policy before it is `version - 1`. Between
    the sampling policy, at `versions_bt`, and the trained one, log-probs are taken as linear in the version:
    sampled + a (trained - sampled), a = (version - 1 - sampling version) / (version - sampling version). Tokens of
    the newest policy keep the log-prob they were sampled with.
    """
    age_bt = (version - versions_bt).clamp(min=1).double()
    step_bt = (logprobs_bt.detach().double() - sampled_logprobs_bt.double()) * (age_bt - 1) / age_bt
    return (sampled_logprobs_bt.double() + step_bt).float()


def effective_sample_size(weights_sum: float, squares_sum: float, count: float) -> float:
    """(sum w)^2 / (count * sum w^2), in (0, 1]: the share of samples that as good as count; 1 for no samples."""
    return weights_sum**2 / (count * squares_sum) if count > 0 and squares_sum > 0 else 1.0
