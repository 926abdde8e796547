"""The passes of `logprobs` as Triton kernels: logits are read once forwards, and read and written once backwards.

torch's operations read and write the vocabulary some ten times for the same. One program of the forward kernel takes
one row, block by block, and keeps its running maximum and sums (Milakov and Gimelshein 2018, arXiv 1805.02867); one
program of the backward kernel takes one block of one row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
"""Logits that a program holds at a time."""

_LEAST = tl.constexpr(-1e30)
"""A finite log-prob whose probability is 0."""


def forward(
    logits_btv: Tensor, tokens_bt: Tensor, temperature: float, with_entropy: bool, cutoffs_bt: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Log-probs and, where wanted, entropies, [b, t] fp32; and what the backward pass needs, [2, b, t] fp32.

    A logit below its position's cutoff counts as -inf, unless it is the sampled token's.

    That is each row's largest logit, and the log of the sum of the others' e^(z - largest): apart, because their sum
    would round what lies near the largest.
    """
    logits_btv = _with_dense_rows(logits_btv)
    logprobs_bt = torch.empty(tokens_bt.shape, dtype=torch.float32, device=logits_btv.device)
    entropy_bt = torch.empty_like(logprobs_bt) if with_entropy else None
    normalizers_2bt = torch.empty(2, *tokens_bt.shape, dtype=torch.float32, device=logits_btv.device)
    if tokens_bt.numel():
        _forward_kernel[(tokens_bt.numel(),)](
            logits_btv,
            tokens_bt,
            cutoffs_bt if cutoffs_bt is not None else normalizers_2bt,
            logprobs_bt,
            entropy_bt if entropy_bt is not None else logprobs_bt,
            normalizers_2bt,
            logits_btv.stride(0),
            logits_btv.stride(1),
            logits_btv.shape[1],
            logits_btv.shape[2],
            1.0 / temperature,
            WITH_CUTOFFS=cutoffs_bt is not None,
            WITH_ENTROPY=with_entropy,
            BLOCK=BLOCK,
            num_warps=8,
        )
    return logprobs_bt, entropy_bt, normalizers_2bt


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
    """Gradient of the logits, into `out_btv`; `kept` is (entropy, normalizers), `grads` those of (log-probs, entropy).

    A row whose gradients are 0, which a mask has selected away, gets 0, also where its logits are not finite.
    """
    entropy_bt, normalizers_2bt = kept
    grad_logprobs_bt, grad_entropy_bt = (None if grad is None else grad.contiguous() for grad in grads)
    with_entropy = grad_entropy_bt is not None and entropy_bt is not None
    logits_btv = _with_dense_rows(logits_btv)
    if tokens_bt.numel():
        blocks = triton.cdiv(logits_btv.shape[2], BLOCK)
        _backward_kernel[(tokens_bt.numel(), blocks)](
            logits_btv,
            tokens_bt,
            cutoffs_bt if cutoffs_bt is not None else normalizers_2bt,
            normalizers_2bt,
            entropy_bt if with_entropy else normalizers_2bt,
            grad_logprobs_bt if grad_logprobs_bt is not None else normalizers_2bt,
            grad_entropy_bt if with_entropy else normalizers_2bt,
            out_btv,
            logits_btv.stride(0),
            logits_btv.stride(1),
            out_btv.stride(0),
            out_btv.stride(1),
            logits_btv.shape[1],
            logits_btv.shape[2],
            1.0 / temperature,
            WITH_CUTOFFS=cutoffs_bt is not None,
            WITH_LOGPROBS=grad_logprobs_bt is not None,
            WITH_ENTROPY=with_entropy,
            BLOCK=BLOCK,
            num_warps=8,
        )


def _with_dense_rows(logits_btv: Tensor) -> Tensor:
    """The kernels step from one logit to the next; rows may lie anywhere."""
    return logits_btv if logits_btv.stride(2) == 1 else logits_btv.contiguous()


@triton.jit  # type: ignore[untyped-decorator]
def _forward_kernel(  # type: ignore[no-untyped-def]
    logits,
    tokens,
    cutoffs,
    logprobs,
    entropies,
    normalizers,
    row_stride,
    position_stride,
    positions,
    vocabulary,
    inverse_temperature,
    WITH_CUTOFFS: tl.constexpr,  # noqa: N803
    WITH_ENTROPY: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    program = tl.program_id(0).to(tl.int64)
    start = logits + program // positions * row_stride + program % positions * position_stride
    token = tl.load(tokens + program)
    # Running maximum m; sums of e^(z - m), and of (z - m) e^(z - m), which small differences keep exact.
    top = _LEAST
    total = 0.0
    weighted = 0.0
    for first in range(0, vocabulary, BLOCK):
        places = first + tl.arange(0, BLOCK)
        z = tl.load(start + places, mask=places < vocabulary, other=-float("inf")).to(tl.float32)
        if WITH_CUTOFFS:
            z = tl.where((z < tl.load(cutoffs + program)) & (places != token), -float("inf"), z)
        z = z * inverse_temperature
        new_top = tl.maximum(top, tl.max(z, axis=0))
        shrunk = tl.exp(top - new_top)
        above = z - new_top
        weights = tl.exp(above)
        if WITH_ENTROPY:
            weighted = (weighted + (top - new_top) * total) * shrunk
            weighted += tl.sum(tl.where(above > _LEAST, above * weights, 0.0), axis=0)
        total = total * shrunk + tl.sum(weights, axis=0)
        top = new_top
    log_total = tl.log(total)
    chosen = tl.load(start + token).to(tl.float32) * inverse_temperature
    tl.store(logprobs + program, chosen - top - log_total)
    tl.store(normalizers + program, top)
    tl.store(normalizers + tl.num_programs(0) + program, log_total)
    if WITH_ENTROPY:
        tl.store(entropies + program, log_total - weighted / total)


@triton.jit  # type: ignore[untyped-decorator]
def _backward_kernel(  # type: ignore[no-untyped-def]
    logits,
    tokens,
    cutoffs,
    normalizers,
    entropies,
    grad_logprobs,
    grad_entropies,
    out,
    row_stride,
    position_stride,
    out_row_stride,
    out_position_stride,
    positions,
    vocabulary,
    inverse_temperature,
    WITH_CUTOFFS: tl.constexpr,  # noqa: N803
    WITH_LOGPROBS: tl.constexpr,  # noqa: N803
    WITH_ENTROPY: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    program = tl.program_id(0).to(tl.int64)
    row, position = program // positions, program % positions
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = places < vocabulary
    start = logits + row * row_stride + position * position_stride
    token = tl.load(tokens + program)
    z = tl.load(start + places, mask=inside, other=-float("inf")).to(tl.float32)
    if WITH_CUTOFFS:
        z = tl.where((z < tl.load(cutoffs + program)) & (places != token), -float("inf"), z)
    z = z * inverse_temperature
    logprob = z - tl.load(normalizers + program) - tl.load(normalizers + tl.num_programs(0) + program)
    prob = tl.exp(logprob)
    grad = tl.zeros([BLOCK], tl.float32)
    used = False
    if WITH_LOGPROBS:
        weight = tl.load(grad_logprobs + program)
        used = used | (weight != 0)
        grad += tl.where(places == token, weight, 0.0) - prob * weight
    if WITH_ENTROPY:
        weight = tl.load(grad_entropies + program)
        used = used | (weight != 0)
        grad -= tl.where(prob > 0, prob * (logprob + tl.load(entropies + program)), 0.0) * weight
    grad = tl.where(used, grad * inverse_temperature, 0.0)
    tl.store(
        out + row * out_row_stride + position * out_position_stride + places,
        grad.to(out.dtype.element_ty),
        mask=inside,
    )
