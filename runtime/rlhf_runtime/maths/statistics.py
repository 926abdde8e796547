"""The figures of a step: sums over tokens that add over micro-batches and ranks, and the means of those sums.

`Sums` maps a name to a scalar float64 without gradient. A step adds those of its micro-batches by name, then all
of them over ranks at once, and `means` reads the totals. Ranks of a step always have the same names.
"""

from collections.abc import Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMeans:
    """Means over the tokens of a step; None for a term that the step does not have.

    kl                     KL(sampling || trained policy), nats per token, K3 estimate
    entropy                nats per token
    clip_fraction          share of the tokens whose gradient the ratio's bound takes away
    dual_clip_fraction     share of the tokens whose loss the dual clip holds
    value_clip_fraction    share of the tokens whose value is further from the old one than the clip allows
    ratio                  mean ratio of the trained to the old policy
    off_policy_weight      mean weight of the off-policy correction
    effective_sample_size  fraction of the tokens, in (0, 1], from the off-policy weights, or from the ratios without
                           a correction
    reference_kl, teacher_kl  KL(trained policy || other), nats per token, K3 estimate
    explained_variance     share of the returns' variance that the values explain, at most 1
    """

    kl: float
    entropy: float
    clip_fraction: float
    ratio: float
    effective_sample_size: float
    dual_clip_fraction: float | None
    value_clip_fraction: float | None
    off_policy_weight: float | None
    reference_kl: float | None
    teacher_kl: float | None
    explained_variance: float | None


def means(sums: Mapping[str, float]) -> TokenMeans:
    """Means from the totals of a step."""
    tokens = max(sums["tokens"], 1.0)

    def mean(name: str) -> float | None:
        return sums[name] / tokens if name in sums else None

    weight = "weight" if "weight" in sums else "ratio"
    return TokenMeans(
        kl=sums["kl"] / tokens,
        entropy=sums["entropy"] / tokens,
        clip_fraction=sums["clipped"] / tokens,
        ratio=sums["ratio"] / tokens,
        effective_sample_size=effective_sample_size(sums[weight], sums[f"{weight}_squared"], sums["tokens"]),
        dual_clip_fraction=mean("dual_clipped"),
        value_clip_fraction=mean("value_clipped"),
        off_policy_weight=mean("weight"),
        reference_kl=mean("reference_kl"),
        teacher_kl=mean("teacher_kl"),
        explained_variance=_explained_variance(sums, tokens) if "return" in sums else None,
    )


def _explained_variance(sums: Mapping[str, float], tokens: float) -> float:
    variance = sums["return_squared"] / tokens - (sums["return"] / tokens) ** 2
    unexplained = sums["value_error_squared"] / tokens - (sums["value_error"] / tokens) ** 2
    return 1 - unexplained / variance if variance > 0 else 0.0


def _sums(terms: Mapping[str, Tensor], mask_bt: Tensor) -> Sums:
    zero = torch.zeros((), dtype=torch.float64, device=mask_bt.device)
    return {name: torch.where(mask_bt, term.double(), zero).sum() for name, term in terms.items()}
