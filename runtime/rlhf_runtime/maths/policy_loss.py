"""The clipped policy loss of PPO and GRPO.

Sources: clipping, Schulman et al. 2017 (arXiv 1707.06347), eq. 7, with separate bounds as in DAPO (2503.14476),
eq. 10; dual clip, Ye et al. 2020 (1912.09729); ratio of whole samples, GSPO (2507.18071), eq. 7.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rlhf_runtime.maths.aggregation import Aggregation, share
from rlhf_runtime.maths.kl import token_log_ratio

RatioLevel = Literal["Token", "Sequence", "GeometricMean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Bounds of the ratio, 1 - low and 1 + high; `dual` > 1 bounds the loss of a token with negative advantage A at
    dual * |A|, which the two others leave unbounded."""

    low: float
    high: float
    dual: float | None = None


def log_ratios(logprobs_bt: Tensor, old_logprobs_bt: Tensor, mask_bt: Tensor, level: RatioLevel) -> Tensor:
    """log trained - log old, [b, t] fp32, nats, 0 where masked.

    "Token": of each token. "Sequence": the sample's, the sum of its tokens', at each of them. "GeometricMean": that
    divided by the sample's number of tokens.
    """
    log_ratio_bt = token_log_ratio(logprobs_bt, old_logprobs_bt, mask_bt)
    if level == "Token":
        return log_ratio_bt
    sums_b1 = log_ratio_bt.sum(-1, keepdim=True)
    if level == "GeometricMean":
        sums_b1 = sums_b1 / mask_bt.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(mask_bt, sums_b1, torch.zeros_like(log_ratio_bt))


def policy_loss(
    logprobs_bt: Tensor,
    old_logprobs_bt: Tensor,
    advantages_bt: Tensor,
    mask_bt: Tensor,
    *,
    clip: Clip,
    aggregation: Aggregation,
    denominator: float,
    ratio_level: RatioLevel = "Token",
    weights_bt: Tensor | None = None,
) -> Tensor:
    """This micro-batch's share of the clipped policy loss: scalar fp32.

    Per token max(-r A, -clip(r, 1 - low, 1 + high) A) with r = exp(`log_ratios`), times `weights_bt`, the
    `off_policy_weights`, where given. Only `logprobs_bt` gets a gradient.
    """
    ratio_bt = log_ratios(logprobs_bt, old_logprobs_bt.detach(), mask_bt, ratio_level).exp()
    advantages_bt = torch.where(mask_bt, advantages_bt.detach().float(), torch.zeros_like(ratio_bt))
    losses_bt = torch.maximum(-ratio_bt * advantages_bt, -ratio_bt.clamp(1 - clip.low, 1 + clip.high) * advantages_bt)
    if clip.dual is not None:
        bounded_bt = torch.minimum(losses_bt, -clip.dual * advantages_bt)
        losses_bt = torch.where(advantages_bt < 0, bounded_bt, losses_bt)
    if weights_bt is not None:
        losses_bt = losses_bt * torch.where(mask_bt, weights_bt.detach(), torch.zeros_like(losses_bt))
    return share(losses_bt, mask_bt, aggregation, denominator)
