"""Estimates of the KL divergence to a reference policy from sampled tokens, in reward or in loss.

With d = log trained - log reference at a token drawn from the trained policy, each estimates KL(trained ||
reference) of that token: K1 = d, K2 = d^2 / 2, K3 = e^-d - 1 + d. K1 and K3 are unbiased, K3 is never negative, K2
is biased but small where d is. Their *gradients*, taken as a loss, are another matter: K1's has mean zero, K2's is
the KL's own gradient, and K3's is that of KL(reference || trained), which agrees near the reference only.

A truncated policy has fewer tokens than the reference, so its KL is finite, and K1 of drawn tokens estimates it. The
mean of e^-d over its tokens is the reference's mass on them and not 1: K3 is low by the mass that lies outside.

Sources: Schulman, "Approximating KL divergence" (2020); on gradients, Tang and Munos, "On a few pitfalls in KL
divergence gradient estimation for RL" (arXiv 2506.09477).
"""

from typing import Literal

import torch
from torch import Tensor

from rlhf_runtime.maths.aggregation import Aggregation, share

KlEstimator = Literal["K1", "K2", "K3"]


def kl_estimates(log_ratio: Tensor, estimator: KlEstimator) -> Tensor:
    """Estimate at each token, nats, fp32, of any shape; `log_ratio` is d, log trained - log reference."""
    d = log_ratio.float()
    match estimator:
        case "K1":
            return d
        case "K2":
            return d.square() / 2
        case "K3":
            return torch.expm1(-d) + d


def token_log_ratio(logprobs_bt: Tensor, other_logprobs_bt: Tensor, mask_bt: Tensor) -> Tensor:
    """logprobs - other, [b, t] fp32, nats; 0 where masked, selected there before anything is computed with it."""
    difference_bt = logprobs_bt.float() - other_logprobs_bt.float()
    return torch.where(mask_bt, difference_bt, torch.zeros_like(difference_bt))


def kl_loss(
    logprobs_bt: Tensor,
    reference_logprobs_bt: Tensor,
    mask_bt: Tensor,
    *,
    estimator: KlEstimator,
    aggregation: Aggregation,
    denominator: float,
) -> Tensor:
    """This micro-batch's share of the KL to a reference or teacher, scalar fp32, nats; not multiplied by its weight.

    Raises ValueError for K1, which as a loss would add noise and nothing else.
    """
    if estimator == "K1":
        raise ValueError("KL estimator in the loss: found K1, whose gradient has mean zero; expected K2 or K3")
    log_ratio_bt = token_log_ratio(logprobs_bt, reference_logprobs_bt, mask_bt)
    return share(kl_estimates(log_ratio_bt, estimator), mask_bt, aggregation, denominator)


def token_rewards(
    scores_b: Tensor,
    logprobs_bt: Tensor,
    reference_logprobs_bt: Tensor | None,
    mask_bt: Tensor,
    *,
    estimator: KlEstimator,
    coefficient: float,
) -> Tensor:
    """Reward of each token, [b, t] fp32: the score at the last valid token, less coefficient * KL at every one.

    `reference_logprobs_bt` None: without a penalty. Masked positions get 0; a row without tokens has no place for
    its score. Source: Ouyang et al. 2022 (arXiv 2203.02155), eq. 2, per token.
    """
    positions_t = torch.arange(mask_bt.shape[-1], device=mask_bt.device)
    last_b1 = torch.where(mask_bt, positions_t, -1).amax(-1, keepdim=True)
    zero = torch.zeros((), device=mask_bt.device)
    rewards_bt = torch.where(positions_t == last_b1, scores_b.float().unsqueeze(-1), zero)
    if reference_logprobs_bt is None:
        return rewards_bt
    log_ratio_bt = token_log_ratio(logprobs_bt, reference_logprobs_bt, mask_bt)
    return rewards_bt - coefficient * kl_estimates(log_ratio_bt, estimator)
