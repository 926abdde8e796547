"""Log-probabilities and entropies of tokens from logits, in memory that does not grow with the batch.

The fp32 copy of [b, t, v] logits that a plain log_softmax makes (and autograd keeps) is the largest tensor of a
training step with a large vocabulary. Here fp32 exists for a few rows at a time, forwards and backwards: kept for the
backward pass are the logits, which the model keeps anyway, and a number or two per token.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlhf_runtime.maths import logprobs_chunked, triton_kernels
from rlhf_runtime.maths.truncation import Truncation, cutoffs
from rlhf_runtime.maths.vocabulary import Vocabulary


def token_logprobs(
    logits_btv: Tensor,
    tokens_bt: Tensor,
    temperature: float,
    truncation: Truncation | None = None,
    vocabulary: Vocabulary | None = None,
) -> Tensor:
    """Log-probability of each token under softmax(logits / temperature): [b, t] fp32, nats.

    With a `vocabulary`, over its ids alone, of which the tokens are. With a `truncation`, under that softmax over what
    it keeps and the token itself: see `truncation`.

    `logits_btv[:, t]` predicts `tokens_bt[:, t]`; of logits with more positions than tokens the first are taken, and
    the others get a gradient of 0. The temperature is the sampler's, so that the ratio of an unchanged policy is 1.
    """
    logprobs_bt, _ = _TokenStatistics.apply(logits_btv, tokens_bt, temperature, truncation, vocabulary, False)
    return logprobs_bt  # type: ignore[no-any-return]


def token_logprobs_and_entropy(
    logits_btv: Tensor,
    tokens_bt: Tensor,
    temperature: float,
    truncation: Truncation | None = None,
    vocabulary: Vocabulary | None = None,
) -> tuple[Tensor, Tensor]:
    """`token_logprobs`, and the entropy of the same distribution at each position, in one pass over the logits.

    Both [b, t] fp32, nats, both with gradient; what is not used costs nothing in the backward pass.
    """
    logprobs_bt, entropy_bt = _TokenStatistics.apply(logits_btv, tokens_bt, temperature, truncation, vocabulary, True)
    return logprobs_bt, entropy_bt


class _TokenStatistics(torch.autograd.Function):
    """Log-probability and entropy, whose backward pass makes the probabilities again.

    With z = logits / T and p = softmax(z): d log p[token] / d z = onehot(token) - p, and
    d entropy / d z = -p (log p + entropy). What a truncation does not keep, or a vocabulary does not have, has p = 0,
    and so a gradient of 0. The vocabulary is cut off here, since a slice outside would cost a second, whole gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits_btv: Tensor,
        tokens_bt: Tensor,
        temperature: float,
        truncation: Truncation | None,
        vocabulary: Vocabulary | None,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor | None]:
        tokens_bt = tokens_bt.long().contiguous()
        used_btv = _used(logits_btv, tokens_bt, vocabulary)
        cutoffs_bt = None if truncation is None else cutoffs(used_btv, temperature, truncation)
        logprobs_bt, entropy_bt, kept_bt = _passes(logits_btv.device.type).forward(
            used_btv, tokens_bt, temperature, with_entropy, cutoffs_bt
        )
        ctx.temperature, ctx.vocabulary = temperature, vocabulary
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits_btv, tokens_bt, entropy_bt, kept_bt, cutoffs_bt)
        return logprobs_bt, entropy_bt

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs_bt: Tensor | None, grad_entropy_bt: Tensor | None) -> tuple[Any, ...]:
        logits_btv, tokens_bt, entropy_bt, kept_bt, cutoffs_bt = ctx.saved_tensors
        if grad_logprobs_bt is None and grad_entropy_bt is None:
            return (None,) * 6
        used_btv = _used(logits_btv, tokens_bt, ctx.vocabulary)
        positions, ids = used_btv.shape[1:]
        grad_btv = torch.empty(logits_btv.shape, dtype=logits_btv.dtype, device=logits_btv.device)
        grad_btv[:, positions:] = 0
        grad_btv[..., ids:] = 0
        _passes(logits_btv.device.type).backward(
            used_btv,
            tokens_bt,
            ctx.temperature,
            (entropy_bt, kept_bt),
            (grad_logprobs_bt, grad_entropy_bt),
            cutoffs_bt,
            out_btv=grad_btv[:, :positions, :ids],
        )
        return grad_btv, None, None, None, None, None


def _used(logits_btv: Tensor, tokens_bt: Tensor, vocabulary: Vocabulary | None) -> Tensor:
    used_btv = logits_btv[:, : tokens_bt.shape[1]]
    return used_btv if vocabulary is None else vocabulary.known(used_btv)


def _passes(device: str) -> ModuleType:
    """What computes: kernels of our own on a GPU, or else torch."""
    if triton_kernels.available(device):
        from rlhf_runtime.maths import logprobs_triton

        return logprobs_triton
    return logprobs_chunked
