"""A prompt that many rows share is read once, and nothing that a row gets changes by it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from family_models import make_model
from rlhf_api.models import Lora
from rlhf_runtime.experience.batch import Rows, rows_of
from rlhf_runtime.experience.rollout import Rollout
from rlhf_runtime.models.forwards import completion_logits
from rlhf_runtime.models.lora import attach_adapters
from rlhf_runtime.models.shared_prompts import may_share_prompts, worth_sharing
from rlhf_runtime.training.strategy import SingleProcess
from tiny_models import FAMILIES, VOCABULARY
from torch import Tensor, nn


def rollouts(*prompts: int, samples: int = 3) -> list[Rollout]:
    """`samples` of each prompt of so many tokens, with completions of 1 to 9."""
    random = np.random.default_rng(0)
    made = []
    for index, length in enumerate(prompts):
        prompt_ids = random.integers(2, len(VOCABULARY), length).astype(np.int32)
        for sample in range(samples):
            tokens = random.integers(1, 10)
            made.append(
                Rollout(
                    prompt_index=index,
                    sample=sample,
                    prompt_ids=prompt_ids.copy(),
                    completion_ids=random.integers(2, len(VOCABULARY), tokens).astype(np.int32),
                    logprobs=np.zeros(tokens, np.float32),
                    versions=np.zeros(tokens, np.int32),
                    truncated=True,
                )
            )
    return made


def unshared(rows: Rows) -> Rows:
    return replace(rows, distinct_prompts=None, prompt_of_row=None)


def said(model: nn.Module, rows: Rows) -> tuple[Tensor, dict[str, Tensor], int]:
    """Logits at completion tokens, gradients of a loss over them, and how many tokens the model has read."""
    read = []
    handle = model.register_forward_pre_hook(
        lambda _, args, inputs: read.append(inputs["input_ids"].numel()), with_kwargs=True
    )
    model.zero_grad()
    logits = completion_logits(model, rows)[rows.mask]
    logits.log_softmax(-1)[:, 3].square().sum().backward()  # type: ignore[no-untyped-call]
    handle.remove()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), gradients, sum(read)


def assert_same(model: nn.Module, rows: Rows) -> None:
    logits, gradients, read = said(model, rows)
    expected, expected_gradients, all_tokens = said(model, unshared(rows))
    assert read < all_tokens
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        wanted = expected_gradients[name]
        torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-5 * (1 + float(wanted.abs().max())))


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_gradients_are_those_of_whole_rows(family: str) -> None:
    # One token, which leaves nothing to read before it; and lengths that need padding.
    assert_same(make_model(family), rows_of(rollouts(1, 12, 5, 7), pad_id=0))


def test_adapters_get_the_same_gradients() -> None:
    model = make_model("qwen2")
    attach_adapters(model, Lora(rank=4, alpha=8), "models.actor")
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            nn.init.normal_(parameter)
    assert_same(model, rows_of(rollouts(12, 5), pad_id=0))


def test_rows_may_come_in_any_order_from_groups_of_any_size() -> None:
    made = [*rollouts(12, 5, samples=4), *rollouts(9, samples=1)]
    rows = rows_of([made[i] for i in (4, 0, 8, 5, 1, 6, 3)], pad_id=0)
    assert rows.distinct_prompts is not None
    assert rows.prompt_of_row is not None
    assert rows.distinct_prompts.tolist() == [0, 1, 2]
    assert rows.prompt_of_row.tolist() == [0, 1, 2, 0, 1, 0, 1]
    assert_same(make_model("llama"), rows)


@pytest.mark.parametrize(
    ("prompts", "samples", "shared"),
    [
        ((12, 5), 3, True),
        ((12, 5), 1, False),
        # There is nothing before the last token.
        ((1, 1), 8, False),
        # 12 of 18 x (2 + 9) tokens would be saved.
        ((2,) * 6, 3, False),
    ],
    ids=["groups", "one sample a prompt", "prompts of one token", "short prompts"],
)
def test_prompts_are_shared_where_that_saves_enough(prompts: tuple[int, ...], samples: int, shared: bool) -> None:
    rows = rows_of(rollouts(*prompts, samples=samples), pad_id=0)
    assert worth_sharing(rows) == shared


def test_a_model_that_recomputes_its_blocks_reads_whole_rows() -> None:
    rows = rows_of(rollouts(12, 5), pad_id=0)
    model: Any = make_model("llama")
    expected = said(model, unshared(rows))[1]
    recomputing = SingleProcess(checkpoint=True).prepare(model)
    assert not may_share_prompts(recomputing)
    gradients = said(recomputing, rows)[1]
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=1e-6)
