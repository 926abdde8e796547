"""How much better a token or sample was than expected: GAE, and what groups and whole batches are compared with.

Sources: GAE, Schulman et al. 2016 (arXiv 1506.02438), eq. 16; groups, GRPO (2402.03300), section 4.1.2;
without the standard deviation, Dr. GRPO (2503.20783); leave-one-out, Ahmadian et al. 2024 (2402.14740), section 2.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Normalization = Literal["Std", "None"]
Baseline = Literal["Mean", "LeaveOneOut"]

STD_EPSILON = 1e-4
"""Added to a group's standard deviation (reward units); TRL's value."""

VARIANCE_EPSILON = 1e-8
"""Added to the variance that whitening divides by the root of; TRL's value."""


def gae(
    rewards_bt: Tensor,
    values_bt: Tensor,
    mask_bt: Tensor,
    bootstrap_b: Tensor,
    *,
    gamma: float,
    lambda_: float,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates and returns (advantage + value, the critic's target): two [b, t] fp32.

    `bootstrap_b` is the value of the state after the last token: 0 where the policy ended the sample itself, the
    critic's value there where the token limit did (`bootstrap_values`). In reward units; 0 where masked, and what
    stands there in rewards and values is not read. Returns are those of the raw advantages: whiten afterwards.
    """
    zero = torch.zeros((), dtype=torch.float64, device=mask_bt.device)
    # Valid tokens side by side, whatever lies between or before them.
    order_bt = (~mask_bt).byte().sort(dim=-1, stable=True).indices
    places_t = torch.arange(mask_bt.shape[-1], device=mask_bt.device)
    lengths_b1 = mask_bt.sum(-1, keepdim=True)
    rewards = torch.where(mask_bt, rewards_bt.double(), zero).gather(-1, order_bt)
    values_bt = torch.where(mask_bt, values_bt.double(), zero)
    values = values_bt.gather(-1, order_bt)
    next_values = torch.where(places_t == lengths_b1 - 1, bootstrap_b.double().unsqueeze(-1), _earlier(values, 1))
    deltas = torch.where(places_t < lengths_b1, rewards + gamma * next_values - values, zero)
    advantages = torch.zeros_like(deltas).scatter(-1, order_bt, _discounted_sums(deltas, gamma * lambda_))
    advantages = torch.where(mask_bt, advantages, zero)
    return advantages.float(), (advantages + values_bt).float()


def _discounted_sums(terms_bt: Tensor, factor: float) -> Tensor:
    """Sum over k >= 0 of factor^k * term[t + k], [b, t], in log2(t) steps; 0 <= factor <= 1.

    After each step a sum covers twice as many terms: its own, and, discounted, those of the sum that begins where
    it ends. No power is ever divided by, so nothing is lost in long rows.
    """
    sums_bt, covered = terms_bt, 1
    while covered < terms_bt.shape[-1]:
        sums_bt = sums_bt + factor**covered * _earlier(sums_bt, covered)
        covered *= 2
    return sums_bt


def _earlier(values_bt: Tensor, steps: int) -> Tensor:
    """values[t + steps] at t, and 0 at the end."""
    return torch.nn.functional.pad(values_bt[..., steps:], (0, steps))


def bootstrap_values(next_values_b: Tensor, truncated_b: Tensor) -> Tensor:
    """Value of the state after the last token, [b] fp32: the critic's where the token limit ended it, else 0."""
    return torch.where(truncated_b, next_values_b.float(), torch.zeros((), device=truncated_b.device))


def group_advantages(
    rewards_n: Tensor, group_size: int, normalization: Normalization, baseline: Baseline = "Mean"
) -> Tensor:
    """Reward above the group's, [n] fp32, in standard deviations ("Std") or in reward units ("None").

    The baseline is the mean of the whole group, or of the other samples ("LeaveOneOut"). The deviation is the
    unbiased one. A group whose rewards are all equal says nothing about its samples: its advantages are exactly
    0, decided by equality and not left to rounding. So are those of a group of one.
    """
    if group_size < 1 or rewards_n.numel() == 0 or rewards_n.numel() % group_size:
        raise ValueError(f"rewards: found {rewards_n.numel()}, expected whole groups of {group_size}")
    rewards = rewards_n.double().view(-1, group_size)
    advantages = rewards - rewards.mean(-1, keepdim=True)
    if baseline == "LeaveOneOut" and group_size > 1:
        advantages = advantages * (group_size / (group_size - 1))
    if normalization == "Std" and group_size > 1:
        advantages = advantages / (rewards.std(-1, keepdim=True, unbiased=True) + STD_EPSILON)
    all_equal = (rewards == rewards[:, :1]).all(-1, keepdim=True)
    return torch.where(all_equal, torch.zeros_like(advantages), advantages).flatten().float()


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Mean, and unbiased variance, of values that may be spread over ranks; `count` of them."""

    count: int
    mean: float
    variance: float


def global_moments(
    values: Sequence[Tensor], masks: Sequence[Tensor], sum_over_ranks: Callable[[Tensor], Tensor] = lambda sums: sums
) -> Moments:
    """Moments of the valid ones of `values`, whose shapes may differ, over all ranks.

    Two sums over ranks, in fp64: the mean first, then the squares about it, since the difference of the squares'
    mean and the mean's square loses all digits where the mean is large. Every rank gets the same, and takes part
    even if it has no values. No values have mean 0, and fewer than two variance 0.
    """
    valid = [part[mask].double() for part, mask in zip(values, masks, strict=True)]
    device = valid[0].device if valid else None
    empty = torch.zeros(0, dtype=torch.float64, device=device)
    flat = torch.cat([empty, *valid])
    count_and_sum = torch.stack([torch.tensor(float(flat.numel()), dtype=torch.float64, device=device), flat.sum()])
    count, total = sum_over_ranks(count_and_sum).tolist()
    mean = total / max(count, 1.0)
    squares = float(sum_over_ranks((flat - mean).square().sum()))
    return Moments(count=int(count), mean=mean, variance=squares / (count - 1) if count > 1 else 0.0)


def whiten(values: Tensor, mask: Tensor, moments: Moments) -> Tensor:
    """Values less the mean, in standard deviations: fp32, of the same shape, 0 where masked."""
    scale = (moments.variance + VARIANCE_EPSILON) ** -0.5
    whitened = ((values.double() - moments.mean) * scale).float()
    return torch.where(mask, whitened, torch.zeros_like(whitened))
