"""The passes of `logprobs` by torch's own operations, one chunk of rows after the other."""

from collections.abc import Iterator

import torch
from torch import Tensor

CPU_CHUNK_ELEMENTS = 1 << 18
"""Logits held in fp32 at a time on a CPU: 1 MiB, which stays in its cache from one operation to the next."""

GPU_CHUNK_ELEMENTS = 1 << 25
"""On a GPU: 128 MiB, enough to fill it."""

LEAST = -1e30
"""A finite log-prob whose probability is 0, and which a weight does not overflow."""


def forward(
    logits_btv: Tensor, tokens_bt: Tensor, temperature: float, with_entropy: bool, cutoffs_bt: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Log-probs, entropies where wanted, and what the backward pass needs beside them: nothing. All [b, t] fp32.

    A logit below its position's cutoff counts as -inf, unless it is the sampled token's.
    """
    logprobs_bt = torch.empty(tokens_bt.shape, dtype=torch.float32, device=logits_btv.device)
    entropy_bt = torch.empty_like(logprobs_bt) if with_entropy else None
    for part in chunks(logits_btv, _elements(logits_btv)):
        logprobs = _scaled(logits_btv, part, temperature, tokens_bt, cutoffs_bt).log_softmax(-1)
        logprobs_bt[part] = logprobs.gather(-1, tokens_bt[part].unsqueeze(-1)).squeeze(-1)
        if entropy_bt is not None:
            entropy_bt[part] = -torch.linalg.vecdot(logprobs.exp(), _finite(logprobs))
    return logprobs_bt, entropy_bt, None


def backward(
    logits_btv: Tensor,
    tokens_bt: Tensor,
    temperature: float,
    kept: tuple[Tensor | None, Tensor | None],
    grads: tuple[Tensor | None, Tensor | None],
    cutoffs_bt: Tensor | None = None,
    *,
    out_btv: Tensor,
) -> None:
    """Gradient of the logits, into `out_btv`; `kept` is (entropy, -), `grads` those of (log-probs, entropy)."""
    entropy_bt, _ = kept
    grad_logprobs_bt, grad_entropy_bt = grads
    for part in chunks(logits_btv, _elements(logits_btv)):
        scaled = _scaled(logits_btv, part, temperature, tokens_bt, cutoffs_bt)
        unused = torch.ones_like(tokens_bt[part], dtype=torch.bool)
        # Where it may be, the gradient is made in the place where it is wanted.
        out = out_btv[part] if out_btv.dtype == scaled.dtype else None
        if grad_entropy_bt is None or entropy_bt is None:
            factor = torch.zeros((), device=scaled.device)
            probs = torch.softmax(scaled, -1, out=out)
        else:
            weight = grad_entropy_bt[part]
            unused &= weight == 0
            logprobs = scaled.log_softmax(-1)
            probs = torch.exp(logprobs, out=out)
            factor = _finite(logprobs).add_(entropy_bt[part].unsqueeze(-1)).mul_(weight.unsqueeze(-1))
        if grad_logprobs_bt is None:
            grad = probs.mul_(-factor)
        else:
            weight = grad_logprobs_bt[part]
            unused &= weight == 0
            grad = probs.mul_(-(factor + weight.unsqueeze(-1)))
            grad.scatter_add_(-1, tokens_bt[part].unsqueeze(-1), weight.unsqueeze(-1))
        if temperature != 1:
            grad /= temperature
        # What a mask has selected away gets a gradient of 0, also where the logits are not finite.
        grad.masked_fill_(unused.unsqueeze(-1), 0.0)
        if out is None:
            out_btv[part] = grad


def _scaled(
    logits_btv: Tensor, part: tuple[slice, slice], temperature: float, tokens_bt: Tensor, cutoffs_bt: Tensor | None
) -> Tensor:
    """Of one part: logits / temperature, fp32; -inf below the cutoffs."""
    logits = logits_btv[part].float()
    scaled = logits if temperature == 1 else logits / temperature
    if cutoffs_bt is None:
        return scaled
    removed = logits < cutoffs_bt[part].unsqueeze(-1)
    return scaled.masked_fill(removed.scatter_(-1, tokens_bt[part].unsqueeze(-1), False), -torch.inf)


def _finite(logprobs: Tensor) -> Tensor:
    """In place: a log-prob of -inf, times its probability of 0, is then 0 and not NaN."""
    return logprobs.clamp_(min=LEAST)


def _elements(logits: Tensor) -> int:
    return GPU_CHUNK_ELEMENTS if logits.is_cuda else CPU_CHUNK_ELEMENTS


def chunks(logits_btv: Tensor, limit: int) -> Iterator[tuple[slice, slice]]:
    """Rows and positions that together hold `limit` logits at most, but at least one position.

    Slices of both, and not a flattened view: logits without their last position cannot be flattened uncopied.
    """
    rows, positions, vocabulary = logits_btv.shape
    positions_at_once = max(1, min(positions, limit // max(vocabulary, 1)))
    whole_rows = positions_at_once == positions
    rows_at_once = max(1, limit // max(positions * vocabulary, 1)) if whole_rows else 1
    for row in range(0, rows, rows_at_once):
        for position in range(0, positions, positions_at_once):
            yield slice(row, row + rows_at_once), slice(position, position + positions_at_once)
