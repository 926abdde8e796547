"""Compares the GPU's log-prob kernels with torch's own log_softmax: on a GPU, or interpreted by Triton on a CPU.

Run as a program: Triton must be told to interpret (TRITON_INTERPRET=1) before anything imports it.
"""

import itertools

import torch
from rlhf_runtime.maths import logprobs_triton, truncation_triton
from rlhf_runtime.maths.truncation import Truncation, _sorted_cutoffs
from torch import Tensor

INFINITY = float("inf")


def passes(
    logits: Tensor, tokens: Tensor, grads: tuple[Tensor | None, Tensor | None], cutoffs: Tensor | None
) -> tuple[Tensor, ...]:
    """Log-probs, entropies and the gradient of the logits, by the kernels."""
    logprobs, entropy, normalizers = logprobs_triton.forward(logits, tokens, 0.8, True, cutoffs)
    out = torch.full(logits.shape, 7.0, dtype=logits.dtype, device=logits.device)
    logprobs_triton.backward(logits, tokens, 0.8, (entropy, normalizers), grads, cutoffs, out_btv=out)
    assert entropy is not None
    return logprobs, entropy, out


def plain(
    logits: Tensor, tokens: Tensor, grads: tuple[Tensor | None, Tensor | None], cutoffs: Tensor | None
) -> tuple[Tensor, ...]:
    """The same in fp64 by torch and its autograd."""
    leaf = logits.double().requires_grad_()
    kept = leaf
    if cutoffs is not None:
        others = torch.arange(logits.shape[-1], device=logits.device) != tokens.unsqueeze(-1)
        kept = torch.where((leaf < cutoffs.unsqueeze(-1)) & others, -INFINITY, leaf)
    whole = (kept / 0.8).log_softmax(-1)
    logprobs = whole.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    entropy = -(whole.exp() * whole.clamp(min=-1e30)).sum(-1)
    total = sum(((x * g).sum() for x, g in zip((logprobs, entropy), grads, strict=True) if g is not None), start=0.0)
    total.backward()  # type: ignore[union-attr]
    assert leaf.grad is not None
    return logprobs.detach().float(), entropy.detach().float(), leaf.grad.to(logits.dtype)


def compare_cutoffs(device: str) -> None:
    """Of the kernel and of torch's sort: with ties, -inf and both signs, in blocks that end within the row."""
    truncation_triton.BLOCK = 8
    for dtype, (top_p, top_k) in itertools.product(
        (torch.float32, torch.bfloat16), ((0.7, None), (1.0, 4), (0.8, 6), (0.001, None))
    ):
        logits = torch.randn(2, 5, 11, device=device).to(dtype)[:, :-1]
        logits[0, 0] = 4 * logits[0, 0].abs() + 1
        logits[0, 1] = -logits[0, 1].abs() - 1
        logits[0, 2, :6] = -INFINITY
        logits[0, 3, 3:] = logits[0, 3, 2]
        logits[1, 1, 5], logits[1, 2, 5], logits[1, 3, 5] = float("nan"), -float("nan"), INFINITY
        found = truncation_triton.cutoffs(logits, 0.8, top_p, top_k)
        expected = _sorted_cutoffs(logits.float(), 0.8, Truncation(top_p=top_p, top_k=top_k))
        numbers = logits.isfinite().any(-1) & (logits < INFINITY).all(-1)
        assert numbers.sum() == 5
        assert torch.equal(found[numbers], expected[numbers]), (dtype, top_p, top_k)
        # What is no number is not removed, and so seen.
        assert not (logits[1, 1:, 5] < found[1, 1:]).any()


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    for (block, truncated), dtype, (with_logprobs, with_entropy) in itertools.product(
        ((8, True), (16, False)), (torch.float32, torch.bfloat16), ((True, False), (False, True), (True, True))
    ):
        logprobs_triton.BLOCK = block
        # Without their last position, as a model's logits are used: rows lie apart.
        logits = (10 * torch.randn(3, 6, 11, device=device)).to(dtype)[:, :-1]
        logits[1, 2, 4:] = -INFINITY
        logits[2, 0, :9] = -INFINITY
        tokens = torch.randint(0, 11, (3, 5), device=device)
        tokens[1, 2], tokens[2, 0] = 3, 9
        weights = torch.randn(2, 3, 5, device=device)
        weights[:, 0, 1] = 0
        grads = (weights[0] if with_logprobs else None, weights[1] if with_entropy else None)
        # Each position keeps its four largest logits, of which the drawn token need not be one, or all.
        cutoffs = logits.float().sort(-1).values[..., -4].contiguous() if truncated else None
        if cutoffs is not None:
            cutoffs[:, 3] = -INFINITY
        found, expected = passes(logits, tokens, grads, cutoffs), plain(logits, tokens, grads, cutoffs)
        for name, one, other in zip(("log-probs", "entropy", "gradient"), found, expected, strict=True):
            rounding = 1e-5 if dtype == torch.float32 or name != "gradient" else 8e-3
            torch.testing.assert_close(one, other, rtol=rounding, atol=2e-6, msg=f"{name} differ")
        # A row that nothing uses may be anything.
        logits[0, 1] = float("nan")
        gradient = passes(logits, tokens, grads, cutoffs)[2]
        assert (gradient[0, 1] == 0).all()
        assert gradient.isfinite().all()
    compare_cutoffs(device)
    print(f"kernels: as torch on {device}")


if __name__ == "__main__":
    main()
