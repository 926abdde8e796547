"""Group-relative policy optimisation as functions of tensors.

Shape suffixes
    b  samples of a micro-batch
    t  completion tokens, right-padded
    l  all tokens of a row: prompt left-padded, then completion right-padded
    v  vocabulary
    n  samples of any number of whole groups, the samples of a group side by side

Log-probabilities, KL and entropy are in nats and are computed in fp32 whatever dtype comes in. Masks are bool
and *select*: a NaN at a masked position never reaches a result, which `x * mask` would let through.

A loss here is one micro-batch's *share*: it is a sum divided by a count of the whole optimiser step. Shares,
and their gradients, therefore add up to the same step for any split into micro-batches and ranks.

Sources: GRPO, Shao et al. 2024 (arXiv 2402.03300), eq. 3; clipping, Schulman et al. 2017 (1707.06347), eq. 7,
with separate bounds as in DAPO (2503.14476), eq. 10; fixed denominator and no division by the standard
deviation, Dr. GRPO (2503.20783); k3, Schulman, "Approximating KL divergence" (2020).
"""

from typing import Literal

import torch
from torch import Tensor

Normalization = Literal["Std", "None"]
Aggregation = Literal["Token", "Sequence", "Fixed"]

STD_EPSILON = 1e-4
"""Added to a group's standard deviation (reward units); TRL's value."""


def token_logprobs(logits_btv: Tensor, tokens_bt: Tensor, temperature: float) -> Tensor:
    """Log-probability of each token under softmax(logits / temperature): [b, t] fp32, nats.

    `logits_btv[:, t]` predicts `tokens_bt[:, t]`. The temperature is the sampler's, so that the ratio of an
    unchanged policy is exactly 1.
    """
    logprobs_btv = (logits_btv.float() / temperature).log_softmax(-1)
    return logprobs_btv.gather(-1, tokens_bt.long().unsqueeze(-1)).squeeze(-1)


def token_entropy(logits_btv: Tensor, temperature: float) -> Tensor:
    """Entropy of softmax(logits / temperature) at each position: [b, t] fp32, nats."""
    logprobs_btv = (logits_btv.float() / temperature).log_softmax(-1)
    probs_btv = logprobs_btv.exp()
    # 0 log 0 is 0; a logit of -inf would make it 0 * -inf = NaN.
    terms_btv = torch.where(probs_btv > 0, probs_btv * logprobs_btv, torch.zeros_like(probs_btv))
    return -terms_btv.sum(-1)


def position_ids(attention_mask_bl: Tensor) -> Tensor:
    """Position of each token counted from the row's first real token: [b, l] int64; padding before it gets 0."""
    mask_bl = attention_mask_bl.long()
    return (mask_bl.cumsum(-1) - mask_bl).long()


def group_advantages(rewards_n: Tensor, group_size: int, normalization: Normalization) -> Tensor:
    """Reward above the group's mean, [n] fp32, in standard deviations ("Std") or in reward units ("None").

    The deviation is the unbiased one. A group whose rewards are all equal says nothing about its samples: its
    advantages are exactly 0, decided by equality and not left to rounding. So are those of a group of one.
    """
    if group_size < 1 or rewards_n.numel() == 0 or rewards_n.numel() % group_size:
        raise ValueError(f"rewards: found {rewards_n.numel()}, expected whole groups of {group_size}")
    rewards = rewards_n.double().view(-1, group_size)
    advantages = rewards - rewards.mean(-1, keepdim=True)
    if normalization == "Std" and group_size > 1:
        advantages = advantages / (rewards.std(-1, keepdim=True, unbiased=True) + STD_EPSILON)
    all_equal = (rewards == rewards[:, :1]).all(-1, keepdim=True)
    return torch.where(all_equal, torch.zeros_like(advantages), advantages).flatten().float()


def policy_loss(
    logprobs_bt: Tensor,
    old_logprobs_bt: Tensor,
    advantages_b: Tensor,
    mask_bt: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    aggregation: Aggregation,
    denominator: float,
) -> Tensor:
    """This micro-batch's share of the clipped policy loss: scalar fp32.

    Per token max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A) with r = exp(logprob - old logprob). Tokens are
    summed ("Token", "Fixed"), or averaged within their sample and summed over samples ("Sequence"; a sample
    without tokens adds 0), and divided by `denominator`, which `loss_denominator` computes.
    """
    ratio_bt = _log_ratio(logprobs_bt, old_logprobs_bt, mask_bt).exp()
    advantages_b1 = advantages_b.float().unsqueeze(-1)
    clipped_bt = ratio_bt.clamp(1 - clip_low, 1 + clip_high)
    losses_bt = torch.maximum(-ratio_bt * advantages_b1, -clipped_bt * advantages_b1)
    sums_b = torch.where(mask_bt, losses_bt, torch.zeros_like(losses_bt)).sum(-1)
    if aggregation == "Sequence":
        sums_b = sums_b / mask_bt.sum(-1).clamp(min=1)
    return sums_b.sum() / denominator


def loss_denominator(aggregation: Aggregation, *, tokens: int, samples: int, max_tokens: int) -> float:
    """What the shares of one optimiser step are divided by; counts are those of all micro-batches and ranks.

    "Token": completion tokens (mean over tokens). "Sequence": samples (mean over samples of their means).
    "Fixed": samples times the longest completion allowed, so a sample's length does not change its weight.
    """
    match aggregation:
        case "Token":
            return float(max(tokens, 1))
        case "Sequence":
            return float(max(samples, 1))
        case "Fixed":
            return float(max(samples * max_tokens, 1))


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """k3 estimate of KL(sampling || trained) per token, nats: e^d - 1 - d, d = log trained - log sampling.

    Unbiased for tokens drawn from the sampling policy, and never negative.
    """
    return torch.expm1(log_ratio.float()) - log_ratio.float()


METRIC_SUMS = ("tokens", "clipped", "kl", "entropy", "ratio", "ratio_squared")
"""What `metric_sums` returns, in order."""


def metric_sums(
    logprobs_bt: Tensor,
    old_logprobs_bt: Tensor,
    entropy_bt: Tensor,
    advantages_b: Tensor,
    mask_bt: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """Sums over this micro-batch's completion tokens, [len(METRIC_SUMS)] float64, without gradient.

    Sums of micro-batches and ranks add; `metrics` then gives the means over all of them.
    """
    log_ratio_bt = _log_ratio(logprobs_bt.detach(), old_logprobs_bt, mask_bt)
    ratio_bt = log_ratio_bt.exp()
    advantages_b1 = advantages_b.unsqueeze(-1)
    # Only where the bound takes the token's gradient away: a ratio that is far off in the safe direction isn't.
    clipped_bt = ((ratio_bt < 1 - clip_low) & (advantages_b1 < 0)) | ((ratio_bt > 1 + clip_high) & (advantages_b1 > 0))
    terms = (
        torch.ones_like(ratio_bt),
        clipped_bt,
        approximate_kl(log_ratio_bt),
        entropy_bt.detach(),
        ratio_bt,
        ratio_bt.double() ** 2,
    )
    zero = torch.zeros((), dtype=torch.float64, device=mask_bt.device)
    return torch.stack([torch.where(mask_bt, term.double(), zero).sum() for term in terms])


def metrics(sums: Tensor) -> dict[str, float]:
    """Means over completion tokens: clip fraction, KL and entropy in nats, mean ratio, ratio ESS in (0, 1]."""
    totals = dict(zip(METRIC_SUMS, sums.tolist(), strict=True))
    tokens = max(totals["tokens"], 1.0)
    squares = totals["ratio_squared"]
    return {
        "clip_fraction": totals["clipped"] / tokens,
        "kl": totals["kl"] / tokens,
        "entropy": totals["entropy"] / tokens,
        "ratio": totals["ratio"] / tokens,
        "ratio_ess": totals["ratio"] ** 2 / (tokens * squares) if squares > 0 else 1.0,
    }


def _log_ratio(logprobs_bt: Tensor, old_logprobs_bt: Tensor, mask_bt: Tensor) -> Tensor:
    """log trained - log sampling, [b, t] fp32, 0 where masked: selected before exp so no NaN enters the graph."""
    difference_bt = logprobs_bt.float() - old_logprobs_bt.float()
    return torch.where(mask_bt, difference_bt, torch.zeros_like(difference_bt))
