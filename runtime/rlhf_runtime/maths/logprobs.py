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

CHUNK_ELEMENTS = 1 << 22
"""Logits that are held in fp32 at a time: 16 MiB."""


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
        normalizers_bt = torch.empty_like(logprobs_bt)
        entropy_bt = torch.empty_like(logprobs_bt) if with_entropy else None
        for part in _chunks(logits_btv):
            scaled = logits_btv[part].float() / temperature
            normalizers = scaled.logsumexp(-1)
            normalizers_bt[part] = normalizers
            logprobs_bt[part] = scaled.gather(-1, tokens_bt[part].unsqueeze(-1)).squeeze(-1) - normalizers
            if entropy_bt is not None:
                entropy_bt[part] = -_p_log_p(scaled - normalizers.unsqueeze(-1)).sum(-1)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits_btv, tokens_bt, normalizers_bt, entropy_bt)
        return logprobs_bt, entropy_bt

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs_bt: Tensor | None, grad_entropy_bt: Tensor | None) -> tuple[Any, ...]:
        logits_btv, tokens_bt, normalizers_bt, entropy_bt = ctx.saved_tensors
        if grad_logprobs_bt is None and grad_entropy_bt is None:
            return None, None, None, None
        grad_btv = torch.empty(logits_btv.shape, dtype=logits_btv.dtype, device=logits_btv.device)
        for part in _chunks(logits_btv):
            logprobs = logits_btv[part].float() / ctx.temperature - normalizers_bt[part].unsqueeze(-1)
            unused = torch.ones_like(normalizers_bt[part], dtype=torch.bool)
            grad = torch.zeros((), device=logits_btv.device)
            if grad_entropy_bt is not None:
                weight = grad_entropy_bt[part]
                terms = _p_log_p(logprobs) + logprobs.exp() * entropy_bt[part].unsqueeze(-1)
                grad = -terms * weight.unsqueeze(-1)
                unused = unused & (weight == 0)
            if grad_logprobs_bt is not None:
                weight = grad_logprobs_bt[part]
                grad = grad - logprobs.exp_() * weight.unsqueeze(-1)
                grad.scatter_add_(-1, tokens_bt[part].unsqueeze(-1), weight.unsqueeze(-1))
                unused = unused & (weight == 0)
            # What a mask has selected away gets a gradient of 0, also where the logits are not finite.
            grad_btv[part] = grad.div_(ctx.temperature).masked_fill_(unused.unsqueeze(-1), 0.0)
        return grad_btv, None, None, None


def _p_log_p(logprobs: Tensor) -> Tensor:
    """p log p; 0 for a p of 0, where exp(-inf) * -inf would be NaN."""
    probs = logprobs.exp()
    return torch.where(probs > 0, probs * logprobs, torch.zeros_like(probs))


def _chunks(logits_btv: Tensor) -> Iterator[tuple[slice, slice]]:
    """Rows and positions that together hold at most CHUNK_ELEMENTS logits, but at least one position.

    Slices of both, and not a flattened view: logits without their last position cannot be flattened uncopied.
    """
    rows, positions, vocabulary = logits_btv.shape
    positions_at_once = max(1, min(positions, CHUNK_ELEMENTS // max(vocabulary, 1)))
    rows_at_once = (
        max(1, CHUNK_ELEMENTS // max(positions_at_once * vocabulary, 1)) if positions_at_once == positions else 1
    )
    for row in range(0, rows, rows_at_once):
        for position in range(0, positions, positions_at_once):
            yield slice(row, row + rows_at_once), slice(position, position + positions_at_once)
