"""What a step is reported by: sums over tokens that add over micro-batches and ranks, and means made of them.

`Sums` maps a name to a scalar float64 without gradient. A step adds those of its micro-batches by name, then all
of them over ranks at once, and `means` reads the totals. Ranks of a step always have the same names.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from rlhf_runtime.maths.kl import kl_estimates, token_log_ratio
from rlhf_runtime.maths.off_policy import effective_sample_size
from rlhf_runtime.maths.policy_loss import Clip, RatioLevel, log_ratios

Sums = dict[str, Tensor]


def policy_sums(
    logprobs_bt: Tensor,
    old_logprobs_bt: Tensor,
    sampled_logprobs_bt: Tensor,
    entropy_bt: Tensor,
    advantages_bt: Tensor,
    mask_bt: Tensor,
    *,
    clip: Clip,
    ratio_level: RatioLevel = "Token",
    weights_bt: Tensor | None = None,
) -> Sums:
    """Of the policy: ratios, clipping and off-policy weights against the old one, KL against the sampling one."""
    ratio_bt = log_ratios(logprobs_bt.detach(), old_logprobs_bt, mask_bt, ratio_level).exp()
    # Only where the bound takes the token's gradient away: a ratio that is far off in the safe direction isn't.
    clipped_bt = ((ratio_bt < 1 - clip.low) & (advantages_bt < 0)) | ((ratio_bt > 1 + clip.high) & (advantages_bt > 0))
    terms = {
        "tokens": torch.ones_like(ratio_bt),
        "entropy": entropy_bt.detach(),
        "clipped": clipped_bt,
        "ratio": ratio_bt,
        "ratio_squared": ratio_bt.double().square(),
        # The trained policy did not draw these tokens, the sampling one did: it stands first, KL(sampling || trained).
        "kl": kl_estimates(token_log_ratio(sampled_logprobs_bt, logprobs_bt.detach(), mask_bt), "K3"),
    }
    if clip.dual is not None:
        terms["dual_clipped"] = (ratio_bt > clip.dual) & (advantages_bt < 0)
    if weights_bt is not None:
        terms["weight"] = weights_bt
        terms["weight_squared"] = weights_bt.double().square()
    return _sums(terms, mask_bt)


def reference_sums(logprobs_bt: Tensor, reference_logprobs_bt: Tensor, mask_bt: Tensor, name: str) -> Sums:
    """The KL (K3) of the trained policy to a reference or teacher, as `name`."""
    log_ratio_bt = token_log_ratio(logprobs_bt.detach(), reference_logprobs_bt, mask_bt)
    return _sums({name: kl_estimates(log_ratio_bt, "K3")}, mask_bt)


def value_sums(
    values_bt: Tensor, old_values_bt: Tensor, returns_bt: Tensor, mask_bt: Tensor, *, clip: float | None
) -> Sums:
    """Of the critic: what its explained variance is made of, and where its clip holds."""
    errors_bt = returns_bt.double() - values_bt.detach().double()
    terms = {
        "value_error": errors_bt,
        "value_error_squared": errors_bt.square(),
        "return": returns_bt,
        "return_squared": returns_bt.double().square(),
    }
    if clip is not None:
        terms["value_clipped"] = (values_bt.detach() - old_values_bt).abs() > clip
    return _sums(terms, mask_bt)


def means(sums: Mapping[str, float]) -> dict[str, float]:
    """What the totals of a step say; only names whose sums are there.

    clip_fraction, dual_clip_fraction, value_clip_fraction: share of tokens. kl, kl_reference, kl_teacher, entropy:
    nats a token. ratio, off_policy_weight: mean. ratio_ess, off_policy_ess: in (0, 1]. explained_variance: of the
    returns by the values, at most 1.
    """
    tokens = max(sums["tokens"], 1.0)
    named = {
        "clip_fraction": "clipped",
        "dual_clip_fraction": "dual_clipped",
        "value_clip_fraction": "value_clipped",
        "kl": "kl",
        "kl_reference": "kl_reference",
        "kl_teacher": "kl_teacher",
        "entropy": "entropy",
        "ratio": "ratio",
        "off_policy_weight": "weight",
    }
    found = {name: sums[total] / tokens for name, total in named.items() if total in sums}
    for name, weight in (("ratio_ess", "ratio"), ("off_policy_ess", "weight")):
        if weight in sums:
            found[name] = effective_sample_size(sums[weight], sums[f"{weight}_squared"], sums["tokens"])
    if "return" in sums:
        variance = sums["return_squared"] / tokens - (sums["return"] / tokens) ** 2
        unexplained = sums["value_error_squared"] / tokens - (sums["value_error"] / tokens) ** 2
        found["explained_variance"] = 1 - unexplained / variance if variance > 0 else 0.0
    return found


def _sums(terms: Mapping[str, Tensor], mask_bt: Tensor) -> Sums:
    zero = torch.zeros((), dtype=torch.float64, device=mask_bt.device)
    return {name: torch.where(mask_bt, term.double(), zero).sum() for name, term in terms.items()}
