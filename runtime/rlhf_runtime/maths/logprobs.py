"""Log-probabilities and entropies of tokens from logits, in memory that does not grow with the batch.

The fp32 copy of [b, t, v] logits that a plain log_softmax makes (and autograd keeps) is the largest tensor of a
training step with a large vocabulary. Here fp32 exists for one chunk of rows at a time, forwards and backwards:
kept for the backward pass are the logits, which the model keeps anyway, and one number per token.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CPU_CHUNK_ELEMENTS = 1 << 18
"""Logits held in fp32 at a time on a CPU: 1 MiB, which stays in its cache from one operation to the next."""

GPU_CHUNK_ELEMENTS = 1 << 24
"""On a GPU: 64 MiB, enough to fill it."""

LEAST = -1e30
"""A finite log-prob whose probability is 0, and which a weight does not overflow."""


def token_logprobs(logits_btv: Tensor, tokens_bt: Tensor, temperature: float) -> Tensor:
    """Log-probability of each token under softmax(logits / temperature): [b, t] fp32, nats.

    `logits_btv[:, t]` predicts `tokens_bt[:, t]`. The temperature is the sampler's, so that the ratio of an
    unchanged policy is exactly 1.
    """
    logprobs_bt, _ = _TokenStatistics.apply(logits_btv, tokens_bt, temperature, False)
    return logprobs_bt  # type: ignore[no-any-return]


def token_logprobs_and_entropy(logits_btv: Tensor, tokens_bt: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """`token_logprobs`, and the entropy of softmax(logits / temperature) at each position, in one pass over the logits.

    Both [b, t] fp32, nats, both with gradient; what is not used costs nothing in the backward pass.
    """
    logprobs_bt, entropy_bt = _TokenStatistics.apply(logits_btv, tokens_bt, temperature, True)
    return logprobs_bt, entropy_bt


class _TokenStatistics(torch.autograd.Function):
    """Chunked log-probability and entropy, whose backward pass makes the probabilities anew.

    With z = logits / T and p = softmax(z): d log p[token] / d z = onehot(token) - p, and
    d entropy / d z = -p (log p + entropy).
    """

    @staticmethod
    def forward(
        ctx: Any, logits_btv: Tensor, tokens_bt: Tensor, temperature: float, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        tokens_bt = tokens_bt.long()
        logprobs_bt = torch.empty(tokens_bt.shape, dtype=torch.float32, device=logits_btv.device)
        entropy_bt = torch.empty_like(logprobs_bt) if with_entropy else None
        for part in _chunks(logits_btv):
            logprobs = _scaled(logits_btv[part], temperature).log_softmax(-1)
            logprobs_bt[part] = logprobs.gather(-1, tokens_bt[part].unsqueeze(-1)).squeeze(-1)
            if entropy_bt is not None:
                entropy_bt[part] = -torch.linalg.vecdot(logprobs.exp(), _finite(logprobs))
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits_btv, tokens_bt, entropy_bt)
        return logprobs_bt, entropy_bt

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs_bt: Tensor | None, grad_entropy_bt: Tensor | None) -> tuple[Any, ...]:
        logits_btv, tokens_bt, entropy_bt = ctx.saved_tensors
        if grad_logprobs_bt is None and grad_entropy_bt is None:
            return None, None, None, None
        grad_btv = torch.empty(logits_btv.shape, dtype=logits_btv.dtype, device=logits_btv.device)
        for part in _chunks(logits_btv):
            scaled = _scaled(logits_btv[part], ctx.temperature)
            unused = torch.ones_like(tokens_bt[part], dtype=torch.bool)
            if grad_entropy_bt is None:
                factor = torch.zeros((), device=scaled.device)
                probs = scaled.softmax(-1)
            else:
                weight = grad_entropy_bt[part]
                unused &= weight == 0
                logprobs = scaled.log_softmax(-1)
                probs = logprobs.exp()
                factor = _finite(logprobs).add_(entropy_bt[part].unsqueeze(-1)).mul_(weight.unsqueeze(-1))
            if grad_logprobs_bt is None:
                grad = probs.mul_(-factor)
            else:
                weight = grad_logprobs_bt[part]
                unused &= weight == 0
                grad = probs.mul_(-(factor + weight.unsqueeze(-1)))
                grad.scatter_add_(-1, tokens_bt[part].unsqueeze(-1), weight.unsqueeze(-1))
            if ctx.temperature != 1:
                grad /= ctx.temperature
            # What a mask has selected away gets a gradient of 0, also where the logits are not finite.
            grad_btv[part] = grad.masked_fill_(unused.unsqueeze(-1), 0.0)
        return grad_btv, None, None, None


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    """logits / temperature, fp32."""
    return logits.float() if temperature == 1 else logits.float() / temperature


def _finite(logprobs: Tensor) -> Tensor:
    """In place: a log-prob of -inf, times its probability of 0, is then 0 and not NaN."""
    return logprobs.clamp_(min=LEAST)


def _chunks(logits_btv: Tensor) -> Iterator[tuple[slice, slice]]:
    """Rows and positions that together hold so many logits at most, but at least one position.

    Slices of both, and not a flattened view: logits without their last position cannot be flattened uncopied.
    """
    rows, positions, vocabulary = logits_btv.shape
    limit = GPU_CHUNK_ELEMENTS if logits_btv.is_cuda else CPU_CHUNK_ELEMENTS
    positions_at_once = max(1, min(positions, limit // max(vocabulary, 1)))
    whole_rows = positions_at_once == positions
    rows_at_once = max(1, limit // max(positions * vocabulary, 1)) if whole_rows else 1
    for row in range(0, rows, rows_at_once):
        for position in range(0, positions, positions_at_once):
            yield slice(row, row + rows_at_once), slice(position, position + positions_at_once)
