"""Plans of passes and of ranks: bounded, complete, and balanced; blank passes count for nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from learners import PAD, make_experiences
from rlhf_runtime.training.micro_batches import Length, balanced, by_rows, by_tokens
from rlhf_runtime.training.step_batches import blank

LENGTHS = some.lists(some.builds(Length, some.integers(1, 40), some.integers(1, 40)), min_size=1, max_size=60)


def padded(chosen: list[Length]) -> int:
    """Tokens of a pass: as many rows as samples, each as wide as longest prompt and longest completion."""
    return len(chosen) * (max(length.prompt for length in chosen) + max(length.completion for length in chosen))


@pytest.mark.parametrize(
    ("lengths", "budget", "plan"),
    [
        pytest.param([(1, 3)], 4, [[0]], id="one that just fits"),
        pytest.param([(2, 2), (2, 2), (2, 2)], 8, [[0, 1], [2]], id="two fill a pass"),
        pytest.param([(1, 1), (5, 5), (1, 1)], 10, [[1], [0, 2]], id="the long one has its own pass"),
        # 1 + 4 and 4 + 1: together 2 rows of 8, not of 5.
        pytest.param([(1, 4), (4, 1)], 15, [[1], [0]], id="prompts and completions pad one another"),
        pytest.param([(1, 4), (4, 1)], 16, [[1, 0]], id="one token more and they share"),
    ],
)
def test_passes_by_tokens(lengths: list[tuple[int, int]], budget: int, plan: list[list[int]]) -> None:
    assert by_tokens([Length(*length) for length in lengths], budget) == plan


def test_a_sample_over_the_budget_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"a sample of 3 \+ 6 tokens: expected at most .*maxTokensPerMicroBatch, 8"):
        by_tokens([Length(1, 1), Length(3, 6)], 8)


@given(LENGTHS, some.integers(80, 400))
def test_every_sample_is_in_one_pass_within_the_budget(lengths: list[Length], budget: int) -> None:
    plan = by_tokens(lengths, budget)
    assert sorted(index for chosen in plan for index in chosen) == list(range(len(lengths)))
    assert all(padded([lengths[index] for index in chosen]) <= budget for chosen in plan)


@given(some.integers(1, 60), some.integers(1, 20))
def test_passes_by_rows_keep_the_order(samples: int, rows: int) -> None:
    plan = by_rows(samples, rows)
    assert [index for chosen in plan for index in chosen] == list(range(samples))
    assert all(len(chosen) == rows for chosen in plan[:-1])
    assert 1 <= len(plan[-1]) <= rows


@given(some.lists(some.integers(1, 500), min_size=1, max_size=40), some.integers(1, 8))
def test_ranks_share_tokens(tokens: list[int], ranks: int) -> None:
    shares = balanced(tokens, ranks)
    assert sorted(index for share in shares for index in share) == list(range(len(tokens)))
    loads = [sum(tokens[index] for index in share) for share in shares]
    # No rank is fuller than another by more than one group that it could have been spared.
    assert max(loads) - min(loads) <= max(tokens)
    assert len(tokens) < ranks or all(shares)


def test_a_blank_pass_has_the_fields_of_the_others_and_no_token() -> None:
    batch = blank(make_experiences(1)[0], PAD)
    assert not batch.mask.any()
    assert batch.input_ids.shape == (1, 2)
    assert batch.attention_mask.all()
    for tensor in (batch.values, batch.returns, batch.reference_logprobs, batch.teacher_logprobs):
        assert tensor is not None
        assert tensor.shape == (1, 1)
    assert np.prod(batch.advantages.shape) == 1
    assert torch.equal(batch.position_ids, torch.tensor([[0, 1]]))
