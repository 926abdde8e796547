"""From losses of tokens to one micro-batch's share of the optimiser step's loss.

Sources: mean over all tokens, DAPO (arXiv 2503.14476), eq. 12; mean of samples' means, GRPO (2402.03300), eq. 3;
fixed denominator, Dr. GRPO (2503.20783), section 3.2.
"""

from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["Token", "Sequence", "Fixed"]


def share(losses_bt: Tensor, mask_bt: Tensor, aggregation: Aggregation, denominator: float) -> Tensor:
    """This micro-batch's share of the mean of `losses_bt` over an optimiser step: scalar fp32.

    Tokens are summed ("Token", "Fixed"), or averaged within their sample and summed over samples ("Sequence"; a
    sample without tokens adds 0), and divided by `denominator`, which `loss_denominator` computes.
    """
    sums_b = torch.where(mask_bt, losses_bt.float(), torch.zeros((), device=mask_bt.device)).sum(-1)
    if aggregation == "Sequence":
        sums_b = sums_b / mask_bt.sum(-1).clamp(min=1)
    return sums_b.sum() / denominator


def loss_denominator(aggregation: Aggregation, *, tokens: int, samples: int, max_tokens: int) -> float:
    """What the shares of one optimiser step are divided by; counts are those of all micro-batches and ranks.

    "Token": completion tokens (mean over tokens). "Sequence": samples (mean over samples of their means).
    "Fixed": samples times the longest completion allowed, so a sample's length does not change its weight.
    At least 1, so that a step without tokens has loss 0.
    """
    match aggregation:
        case "Token":
            return float(max(tokens, 1))
        case "Sequence":
            return float(max(samples, 1))
        case "Fixed":
            return float(max(samples * max_tokens, 1))
