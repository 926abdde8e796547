"""Log-probabilities and entropies of tokens: numbers worked out by hand, torch's own, and TRL's."""

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rlhf_runtime.maths import logprobs_chunked
from rlhf_runtime.maths.logprobs import token_logprobs, token_logprobs_and_entropy
from rlhf_runtime.maths.truncation import Truncation
from rlhf_runtime.maths.vocabulary import Vocabulary
from torch import Tensor
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

NAN, INFINITY = float("nan"), float("inf")


def plain(logits: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The same by torch's log_softmax, whole."""
    logprobs_btv = (logits.float() / temperature).log_softmax(-1)
    # With a log-prob that is finite where the probability is 0.
    entropy = -(logprobs_btv.exp() * logprobs_btv.clamp(min=-1e30)).sum(-1)
    return logprobs_btv.gather(-1, tokens.unsqueeze(-1)).squeeze(-1), entropy


def test_the_temperature_divides_the_logits() -> None:
    """Logits 0 and log 9 are 1:9; at temperature 2 they are 1:3."""
    logits = torch.tensor([[[0.0, math.log(9.0)]]])
    tokens = torch.tensor([[0]])
    assert float(token_logprobs(logits, tokens, 1.0)) == pytest.approx(math.log(0.1))
    found, entropy = token_logprobs_and_entropy(logits, tokens, 2.0)
    assert float(found) == pytest.approx(math.log(0.25))
    assert float(entropy) == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)))


def test_they_are_those_of_trl_and_fp32_for_bf16_logits() -> None:
    torch.manual_seed(0)
    logits, tokens = torch.randn(3, 4, 11), torch.randint(0, 11, (3, 4))
    for temperature in (0.7, 1.0):
        found, entropy = token_logprobs_and_entropy(logits, tokens, temperature)
        torch.testing.assert_close(found, selective_log_softmax(logits, tokens, temperature))
        torch.testing.assert_close(entropy, entropy_from_logits(logits / temperature))
        assert torch.equal(token_logprobs(logits, tokens, temperature), found)
    rounded = logits.bfloat16()
    found, entropy = token_logprobs_and_entropy(rounded, tokens, 1.0)
    torch.testing.assert_close((found, entropy), plain(rounded, tokens, 1.0))
    assert found.dtype == entropy.dtype == torch.float32


@pytest.mark.parametrize("elements", [1, 11, 2 * 11, 7 * 11, 10**6])
@pytest.mark.parametrize("uses", ["logprobs", "entropy", "both"])
@pytest.mark.parametrize("sliced", [True, False])
def test_values_and_gradients_are_the_whole_ones_for_any_chunk(
    elements: int, uses: str, sliced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of logits without their last position, which aren't contiguous, or of which the last is not taken."""
    monkeypatch.setattr(logprobs_chunked, "CPU_CHUNK_ELEMENTS", elements)
    torch.manual_seed(0)
    made, tokens = 30 * torch.randn(3, 6, 11), torch.randint(0, 11, (3, 5))
    made[1, 2, 4:] = -INFINITY
    tokens[1, 2] = 3
    weights = torch.randn(2, 3, 5)
    weights[:, 0, 1] = 0.0

    def gradient(function: Any, *, sliced: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        leaf = made.clone().requires_grad_()
        found, entropy = function(leaf[:, :-1] if sliced else leaf, tokens, 0.8)
        parts = {"logprobs": (found * weights[0]).sum(), "entropy": (entropy * weights[1]).sum()}
        (parts["logprobs"] + parts["entropy"] if uses == "both" else parts[uses]).backward()
        return found, entropy, leaf.grad

    found = gradient(token_logprobs_and_entropy, sliced=sliced)
    torch.testing.assert_close(found, gradient(plain, sliced=True), rtol=1e-5, atol=2e-6)


def test_a_bf16_gradient_is_the_rounded_fp32_one() -> None:
    torch.manual_seed(0)
    rounded = torch.randn(2, 3, 11).bfloat16()
    tokens = torch.randint(0, 11, (2, 3))
    exact = rounded.float().requires_grad_()
    plain(exact, tokens, 1.0)[0].sum().backward()  # type: ignore[no-untyped-call]
    leaf = rounded.clone().requires_grad_()
    token_logprobs(leaf, tokens, 1.0).sum().backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    assert exact.grad is not None
    assert torch.equal(leaf.grad, exact.grad.bfloat16())


@pytest.mark.parametrize("truncation", [None, Truncation(top_p=0.9, top_k=50)])
def test_nothing_of_the_logits_size_is_kept_beside_the_logits(truncation: Truncation | None) -> None:
    logits = torch.randn(4, 8, 100).requires_grad_()
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        token_logprobs_and_entropy(logits, torch.zeros(4, 8, dtype=torch.long), 0.9, truncation)
    large = [tensor for tensor in kept if tensor.numel() > 4 * 8]
    assert [tensor.data_ptr() for tensor in large] == [logits.data_ptr()]


@pytest.mark.parametrize("truncation", [None, Truncation(top_k=3)])
@pytest.mark.parametrize("ids", [range(7), (0, 1, 2, 4, 6)])
def test_ids_beyond_the_vocabulary_have_no_mass_and_no_gradient(
    ids: Sequence[int], truncation: Truncation | None
) -> None:
    """As if the head had no rows for them."""
    torch.manual_seed(0)
    made = torch.randn(2, 4, 11)
    made[..., 7:] = 30.0
    places = torch.tensor(ids)
    tokens = torch.randint(0, len(ids), (2, 3))
    padded, alone = made.clone().requires_grad_(), made[..., places].requires_grad_()
    found = token_logprobs_and_entropy(padded, places[tokens], 0.8, truncation, Vocabulary.of(ids))
    expected = token_logprobs_and_entropy(alone, tokens, 0.8, truncation)
    for each in (found, expected):
        sum(part.square().sum() for part in each).backward()  # type: ignore[union-attr]
    torch.testing.assert_close(found, expected)
    assert padded.grad is not None
    torch.testing.assert_close(padded.grad[..., places], alone.grad)
    others = sorted(set(range(11)) - set(ids))
    assert not padded.grad[..., others].any()


def test_a_token_that_cannot_occur_leaves_entropy_and_gradient_finite() -> None:
    logits = torch.tensor([[[0.0, 0.0, -INFINITY]]], requires_grad=True)
    found, entropy = token_logprobs_and_entropy(logits, torch.tensor([[0]]), 1.0)
    assert entropy.tolist() == [[pytest.approx(math.log(2))]]
    (found + 1000 * entropy).sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad.flatten().tolist() == pytest.approx([0.5, -0.5, 0.0], abs=1e-3)


def test_logits_of_a_masked_position_get_a_gradient_of_zero_also_where_they_are_nan() -> None:
    logits = torch.tensor([[[0.0, 0.0], [NAN, 1.0]]], requires_grad=True)
    found, entropy = token_logprobs_and_entropy(logits, torch.tensor([[0, 0]]), 1.0)
    mask = torch.tensor([[True, False]])
    torch.where(mask, found + entropy, torch.zeros(())).sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad.flatten().tolist() == pytest.approx([0.5, -0.5, 0.0, 0.0])


def test_the_gpus_kernels_say_the_same() -> None:
    """Interpreted on the CPU, which Triton must be told before it is imported."""
    program = Path(__file__).with_name("kernels_beside_torch.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    ended = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "kernels: as torch on cpu\n"
