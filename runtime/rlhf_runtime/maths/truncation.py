"""Top-k and top-p: which tokens a truncated policy keeps.

The policy that is sampled from, and trained, is softmax(logits / temperature) restricted to a set K of likely tokens
and renormalised. K is all logits from a cutoff on: of the k likeliest tokens, the fewest whose probabilities, taken
among those k, reach p. The token that crosses p is kept, as in transformers and vLLM, and so is every token whose logit
equals the cutoff: K follows from the numbers alone and not from the order that a sort leaves equal ones in.

Each side takes K from its own logits. No gradient goes through the choice of K; that through its mass does, as what
is not in K is -inf when the probabilities are made. The sampled token counts as kept whatever the set says, so that
its log-probability is finite where the weights have moved, or another precision has rounded, across the cutoff.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_runtime.maths.logprobs_chunked import chunks

CPU_ELEMENTS, GPU_ELEMENTS = 1 << 16, 1 << 23
"""Logits looked at together; each takes some 17 bytes meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """`top_k` of None keeps as many as there are, `top_p` of 1 all of their mass."""

    top_p: float = 1.0
    top_k: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.top_p <= 1 or (self.top_k is not None and self.top_k < 1):
            raise ValueError(
                f"truncation: found top_p {self.top_p} and top_k {self.top_k}, "
                "expected above 0 to 1, and at least 1 or None"
            )


@torch.no_grad()
def cutoffs(logits_btv: Tensor, temperature: float, truncation: Truncation) -> Tensor:
    """The smallest logit that is kept at each position, [b, t] fp32; NaN, which removes nothing, where one is NaN.

    A number a position instead of a bool a token: no copy of the logits is made, and none is kept for a backward pass.
    """
    cutoffs_bt = torch.empty(logits_btv.shape[:2], dtype=torch.float32, device=logits_btv.device)
    for part in chunks(logits_btv, GPU_ELEMENTS if logits_btv.is_cuda else CPU_ELEMENTS):
        cutoffs_bt[part] = _cutoffs(logits_btv[part], temperature, truncation)
    return cutoffs_bt


def without(logits_rv: Tensor, temperature: float, truncation: Truncation) -> Tensor:
    """The logits with -inf for what is not kept, [r, v] in their dtype."""
    cutoffs_r = cutoffs(logits_rv.unsqueeze(0), temperature, truncation)[0]
    # Not `>=`: a NaN has to stay, and be found by who reads the log-probs.
    return logits_rv.masked_fill(logits_rv.float() < cutoffs_r.unsqueeze(-1), -torch.inf)


def _cutoffs(logits: Tensor, temperature: float, truncation: Truncation) -> Tensor:
    """[..] fp32 of [.., v]."""
    # Half the bits are half the work below.
    exact = logits if logits.dtype in (torch.bfloat16, torch.float16) else logits.float()
    scaled = exact.float() / temperature
    cutoff = torch.full(logits.shape[:-1], -torch.inf, device=logits.device)
    if truncation.top_k is not None and truncation.top_k < logits.shape[-1]:
        cutoff = exact.topk(truncation.top_k, sorted=False).values.amin(-1).float()
        scaled = scaled.masked_fill(exact.float() < cutoff.unsqueeze(-1), -torch.inf)
    if truncation.top_p < 1:
        probs = scaled.softmax(-1)
        cutoff = torch.maximum(cutoff, _first_beyond(exact, probs, 1 - truncation.top_p))
        # One NaN makes all of a row's probabilities NaN.
        cutoff = torch.where(probs[..., 0].isnan(), torch.nan, cutoff)
    return cutoff


def _first_beyond(logits: Tensor, probs: Tensor, mass: float) -> Tensor:
    """The smallest logit such that it and what is below it have more than `mass`, [..] fp32 of [.., v].

    What is below is summed, and not what is above: small numbers, so that both sides of a job round alike at a p near
    1. Found by halving the range of the floating-point numbers themselves, as many looks as they have bits: that is
    exact, and needs neither a sort's indices nor, on a GPU, a word from the host.
    """
    keys = _ordered(logits)
    low, high = keys.amin(-1, keepdim=True).long(), keys.amax(-1, keepdim=True).long()
    for _ in range(torch.iinfo(keys.dtype).bits):
        middle = (low + high) >> 1
        beyond = torch.where(keys > middle.to(keys.dtype), 0.0, probs).sum(-1, keepdim=True) > mass
        low, high = torch.where(beyond, low, middle + 1), torch.where(beyond, middle, high)
    return _ordered(high.to(keys.dtype)).view(logits.dtype).squeeze(-1).float()


def _ordered(values: Tensor) -> Tensor:
    """Integers in the order of the floating-point numbers; the integers again as the numbers' bits."""
    kind = torch.int16 if values.element_size() == 2 else torch.int32
    bits = values.view(kind)
    limits = torch.iinfo(kind)
    # Negative numbers are kept as sign and size: the larger the size, the smaller they are.
    return bits ^ ((bits >> (limits.bits - 1)) & limits.max)
