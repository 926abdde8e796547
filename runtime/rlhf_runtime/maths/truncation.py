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

from rlhf_runtime.maths import triton_kernels
from rlhf_runtime.maths.logprobs_chunked import chunks

CPU_ELEMENTS, GPU_ELEMENTS = 1 << 16, 1 << 23
"""Logits sorted together; each takes some 40 bytes meanwhile."""


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
    """The smallest logit that is kept at each position, [b, t] fp32; one that removes no NaN.

    A number a position instead of a bool a token: no copy of the logits is made, and none is kept for a backward pass.
    """
    if triton_kernels.available(logits_btv.device.type):
        from rlhf_runtime.maths import truncation_triton

        return truncation_triton.cutoffs(logits_btv, temperature, truncation.top_p, truncation.top_k)
    cutoffs_bt = torch.empty(logits_btv.shape[:2], dtype=torch.float32, device=logits_btv.device)
    for part in chunks(logits_btv, GPU_ELEMENTS if logits_btv.is_cuda else CPU_ELEMENTS):
        cutoffs_bt[part] = _sorted_cutoffs(logits_btv[part].float(), temperature, truncation)
    return cutoffs_bt


def without(logits_rv: Tensor, temperature: float, truncation: Truncation) -> Tensor:
    """The logits with -inf for what is not kept, [r, v] in their dtype."""
    cutoffs_r = cutoffs(logits_rv.unsqueeze(0), temperature, truncation)[0]
    # Not `>=`: a NaN has to stay, and be found by who reads the log-probs.
    return logits_rv.masked_fill(logits_rv.float() < cutoffs_r.unsqueeze(-1), -torch.inf)


def _sorted_cutoffs(logits: Tensor, temperature: float, truncation: Truncation) -> Tensor:
    """[..] of [.., v], both fp32."""
    ascending = logits.sort(-1).values
    vocabulary = logits.shape[-1]
    first = 0 if truncation.top_k is None else max(0, vocabulary - truncation.top_k)
    cutoff = ascending[..., first]
    if truncation.top_p < 1:
        # Ties with the last of the k have their part of the mass too.
        scaled = ascending.masked_fill(ascending < cutoff.unsqueeze(-1), -torch.inf) / temperature
        # What is below is summed and not what is above: small numbers, which round less.
        below = scaled.softmax(-1).cumsum(-1) <= 1 - truncation.top_p
        # Where the logits are no numbers nothing is below, and the cutoff is the smallest.
        crossing = below.sum(-1, keepdim=True).clamp(max=vocabulary - 1)
        cutoff = torch.maximum(cutoff, ascending.gather(-1, crossing).squeeze(-1))
    return cutoff
