"""How a token is drawn, as functions of tensors.

Shape suffixes: r rows, v vocabulary, n blocks of the vocabulary, w tokens of one block.
"""

import torch
from torch import Tensor

from rlhf_runtime.maths.truncation import Truncation, without

#: Tokens of a block in `pick`; a smaller vocabulary is one block.
_BLOCK = 512


def probabilities(logits_rv: Tensor, temperature: float, truncation: Truncation | None = None) -> Tensor:
    """softmax(logits / temperature) of what the truncation keeps: [r, v] fp32.

    The logarithm of a token's is its log-probability as exactly as fp32 has it, for every token that can be drawn.
    """
    if truncation is not None:
        logits_rv = without(logits_rv, temperature, truncation)
    logits_rv = logits_rv.float()
    # Dividing by 1 would only read and write the whole vocabulary once more.
    return (logits_rv if temperature == 1 else logits_rv / temperature).softmax(-1)


def pick(probs_rv: Tensor, uniforms_r: Tensor) -> Tensor:
    """Token of each row by the inverse of its cumulative distribution, [r] int64; uniforms in [0, 1) float64.

    In two steps, a block of the vocabulary and then a token in it, so that the running sums in float64, which keep
    a token of probability 1e-12 from vanishing, are of a block and not of the vocabulary. A token of probability 0
    is never picked.
    """
    vocabulary = probs_rv.shape[1]
    if vocabulary <= 2 * _BLOCK:
        return _inverse(probs_rv.cumsum(-1, dtype=torch.float64), uniforms_r)[0].squeeze(-1)
    whole = vocabulary // _BLOCK * _BLOCK
    sums_rn = torch.cat(
        [
            probs_rv[:, :whole].view(-1, whole // _BLOCK, _BLOCK).sum(-1, dtype=torch.float64),
            probs_rv[:, whole:].sum(-1, dtype=torch.float64, keepdim=True),
        ],
        dim=1,
    )
    sums_rn = sums_rn.cumsum(-1)
    block_r1, targets_r1 = _inverse(sums_rn, uniforms_r)
    tokens_rw = block_r1 * _BLOCK + torch.arange(_BLOCK, device=probs_rv.device)
    probs_rw = probs_rv.gather(1, tokens_rw.clamp(max=vocabulary - 1)).double()
    probs_rw = torch.where(tokens_rw < vocabulary, probs_rw, 0.0)
    within_r1, _ = _inverse(probs_rw.cumsum(-1), _rest(sums_rn, block_r1, targets_r1))
    return (block_r1 * _BLOCK + within_r1).squeeze(-1)


def _inverse(cdf_rn: Tensor, uniforms_r: Tensor) -> tuple[Tensor, Tensor]:
    """Entry of each row whose step of `cdf_rn` holds uniform x last entry, and that number: [r, 1] each.

    The sums need not end at 1. Searching to the right of equal entries never finds a step of height 0.
    """
    targets_r1 = uniforms_r.unsqueeze(-1) * cdf_rn[:, -1:]
    return torch.searchsorted(cdf_rn, targets_r1, right=True), targets_r1


def _rest(cdf_rn: Tensor, found_r1: Tensor, targets_r1: Tensor) -> Tensor:
    """How far into the step that was found a target lies, [r] in [0, 1)."""
    top_r1 = cdf_rn.gather(1, found_r1)
    below_r1 = torch.where(found_r1 > 0, cdf_rn.gather(1, (found_r1 - 1).clamp(min=0)), 0.0)
    # Rounding may give 1, which would lie in the next step: the largest number below 1 takes its place.
    return ((targets_r1 - below_r1) / (top_r1 - below_r1)).clamp(0.0, 1 - 2.0**-53).squeeze(-1)
