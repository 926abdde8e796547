"""The cutoffs of `truncation` as a Triton kernel: a sort of a large vocabulary takes longer than the model's own step.

One program takes one row. It halves the range of the floating-point numbers themselves, until one is left: as many
looks at the row as a number has bits, each of which sums what is above or below. No sort, no indices, no memory, and
nothing asked of the host, so a decode step with it can be recorded.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
"""Logits that a program holds at a time."""


def cutoffs(logits_btv: Tensor, temperature: float, top_p: float, top_k: int | None) -> Tensor:
    """The smallest logit that is kept at each position, [b, t] fp32; -inf where the logits are no numbers."""
    logits_btv = logits_btv if logits_btv.stride(2) == 1 else logits_btv.contiguous()
    cutoffs_bt = torch.empty(logits_btv.shape[:2], dtype=torch.float32, device=logits_btv.device)
    if cutoffs_bt.numel():
        _kernel[(cutoffs_bt.numel(),)](
            logits_btv,
            cutoffs_bt,
            logits_btv.stride(0),
            logits_btv.stride(1),
            logits_btv.shape[1],
            logits_btv.shape[2],
            1.0 / temperature,
            1.0 - top_p,
            logits_btv.shape[2] if top_k is None else top_k,
            WITH_P=top_p < 1,
            WITH_K=top_k is not None,
            # Of a bfloat16 the other half are zeros.
            BITS=16 if logits_btv.dtype == torch.bfloat16 else 32,
            BLOCK=BLOCK,
            num_warps=8,
        )
    return cutoffs_bt


@triton.jit
def _ordered(bits):  # type: ignore[no-untyped-def]
    """Integers in the order of the numbers that they are the bits of; and back. Negative numbers are sign and size."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit  # type: ignore[untyped-decorator]
def _block(start, first, vocabulary, BITS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Logits of a block and their keys; -inf beyond the vocabulary, which is below all that can be a cutoff."""
    places = first + tl.arange(0, BLOCK)
    z = tl.load(start + places, mask=places < vocabulary, other=-float("inf")).to(tl.float32)
    return z, _ordered(z.to(tl.int32, bitcast=True)) >> (32 - BITS)


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    logits,
    cutoffs,
    row_stride,
    position_stride,
    positions,
    vocabulary,
    inverse_temperature,
    mass,
    top_k,
    WITH_P: tl.constexpr,  # noqa: N803
    WITH_K: tl.constexpr,  # noqa: N803
    BITS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    program = tl.program_id(0).to(tl.int64)
    start = logits + program // positions * row_stride + program % positions * position_stride
    # The keys of -inf and of inf; in 64 bits, which their sum needs.
    least = tl.full((), -0x7F800001, tl.int64) >> (32 - BITS)
    largest = tl.full((), 0x7F800000, tl.int64) >> (32 - BITS)
    if WITH_K:
        low, high = least, largest
        for _ in range(BITS):
            middle = (low + high) >> 1
            above = 0
            for first in range(0, vocabulary, BLOCK):
                _z, keys = _block(start, first, vocabulary, BITS, BLOCK)
                above += tl.sum((keys > middle).to(tl.int32), axis=0)
            low = tl.where(above < top_k, low, middle + 1)
            high = tl.where(above < top_k, middle, high)
        least = high
    # Also without top-p: it finds out whether all are numbers.
    top = -1e30
    total = 0.0
    for first in range(0, vocabulary, BLOCK):
        z, keys = _block(start, first, vocabulary, BITS, BLOCK)
        scaled = z * inverse_temperature
        new_top = tl.maximum(top, tl.max(scaled, axis=0))
        weights = tl.where(keys < least, 0.0, tl.exp(scaled - new_top))
        total = total * tl.exp(top - new_top) + tl.sum(weights, axis=0)
        top = new_top
    if WITH_P:
        low, high = least, largest
        for _ in range(BITS):
            middle = (low + high) >> 1
            below = 0.0
            for first in range(0, vocabulary, BLOCK):
                z, keys = _block(start, first, vocabulary, BITS, BLOCK)
                inside = (keys >= least) & (keys <= middle)
                below += tl.sum(tl.where(inside, tl.exp(z * inverse_temperature - top), 0.0), axis=0)
            # What is below is summed and not what is above: small numbers, which round less.
            low = tl.where(below > mass * total, low, middle + 1)
            high = tl.where(below > mass * total, middle, high)
        least = high
    # The bits that were shifted out are zeros of the number, and so ones in the key of a negative one.
    key = (least.to(tl.int32) << (32 - BITS)) | tl.where(least < 0, (1 << (32 - BITS)) - 1, 0)
    cutoff = _ordered(key).to(tl.float32, bitcast=True)
    tl.store(cutoffs + program, tl.where(total == total, cutoff, -float("inf")))
