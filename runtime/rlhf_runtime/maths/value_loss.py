"""The critic's loss. Source: Schulman et al. 2017 (arXiv 1707.06347), clipped as in OpenAI's baselines `ppo2`."""

import torch
from torch import Tensor

from rlhf_runtime.maths.aggregation import Aggregation, share


def value_loss(
    values_bt: Tensor,
    old_values_bt: Tensor,
    returns_bt: Tensor,
    mask_bt: Tensor,
    *,
    clip: float | None,
    aggregation: Aggregation,
    denominator: float,
) -> Tensor:
    """This micro-batch's share of the squared error of values against returns: scalar fp32, squared reward units.

    Per token (value - return)^2 / 2; with `clip` the larger of that and the same with the value held within `clip`
    of the old one, so that a step away from the old value is not rewarded beyond it.
    """
    zero = torch.zeros((), device=mask_bt.device)
    values_bt = torch.where(mask_bt, values_bt.float(), zero)
    old_values_bt = torch.where(mask_bt, old_values_bt.float(), zero)
    returns_bt = torch.where(mask_bt, returns_bt.float(), zero)
    errors_bt = (values_bt - returns_bt).square()
    if clip is not None:
        held_bt = old_values_bt + (values_bt - old_values_bt).clamp(-clip, clip)
        errors_bt = torch.maximum(errors_bt, (held_bt - returns_bt).square())
    return share(errors_bt / 2, mask_bt, aggregation, denominator)
