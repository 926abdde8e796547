"""Prompts: the order in which they are trained on, their lengths, and what is left out."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_prompts
from rlhf_runtime.data.prompt_rows import said
from rlhf_runtime.data.prompts import (
    HELD_OUT_INDEX,
    LengthPolicy,
    TrainingPrompts,
    columns_of,
    held_out_prompts,
)
from rlhf_runtime.failures import RunFailure
from tiny_prompts import order, prompt_set


def test_every_pass_has_every_row_once_in_an_order_of_its_own() -> None:
    letters = "abcdefghijklmnopqrst"
    found = order(letters, 3, 80)
    passes = [found[start : start + 20] for start in range(0, 80, 20)]
    assert all(Counter(each) == Counter(range(20)) for each in passes)
    assert len({tuple(each) for each in passes}) == 4
    assert passes[0] != list(range(20))
    assert order(letters, 4, 20) != passes[0]


def test_any_cursor_gives_its_prompt_at_any_time() -> None:
    prompts = TrainingPrompts(prompt_set(*"abcdefgh"), seed=3)
    forward = [prompts.prompt_at(cursor) for cursor in range(80)]
    assert [prompts.prompt_at(cursor) for cursor in reversed(range(80))] == forward[::-1]
    with pytest.raises(ValueError, match="cursor -1"):
        prompts.prompt_at(-1)


def test_the_order_is_the_same_in_every_process_and_release() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import tiny_prompts as t; print(t.order('abcdefgh', 11, 16))"
    arguments = [sys.executable, "-c", code, str(Path(tiny_prompts.__file__).parent)]
    there = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    # Written down: a job that resumes after an upgrade goes on in the same order.
    assert order("abcdefgh", 11, 16) == [4, 7, 6, 0, 2, 1, 5, 3, 6, 5, 7, 1, 0, 4, 3, 2]
    assert json.loads(there.stdout) == [4, 7, 6, 0, 2, 1, 5, 3, 6, 5, 7, 1, 0, 4, 3, 2]


def test_fewer_rows_than_an_episode_takes_are_taken_again() -> None:
    assert Counter(order("abc", 0, 9)) == {0: 3, 1: 3, 2: 3}


def test_a_prompt_carries_its_cursor_tokens_and_all_columns_of_the_set() -> None:
    made = prompt_set({"prompt": "ab", "answer": 1}, {"prompt": "c", "level": "hard"})
    assert made.columns == ("answer", "level")
    assert made.longest == 2
    prompt = made.prompt(1, index=17)
    assert (prompt.index, prompt.row, prompt.text, prompt.token_ids) == (17, 1, "c", (99,))
    assert prompt.columns == {"answer": None, "level": "hard"}
    assert columns_of([made.prompt(0, 0), prompt]) == {"answer": [1, None], "level": [None, "hard"]}


def test_held_out_prompts_have_indices_that_no_training_prompt_has() -> None:
    held_out = held_out_prompts(prompt_set("a", "b"))
    assert [prompt.index for prompt in held_out] == [HELD_OUT_INDEX, HELD_OUT_INDEX + 1]
    # The most episodes and prompts that the API allows.
    assert 1_000_000 * 1_000_000 < HELD_OUT_INDEX < 2**53


@pytest.mark.parametrize(
    ("texts", "held_out", "left", "taken"),
    [
        pytest.param(["a", "b", "c"], [], [0, 1, 2], 0, id="nothing held out"),
        pytest.param(["a", "b", "c", "b"], ["b"], [0, 2], 2, id="by text, every time it comes"),
        pytest.param(["a", "b"], ["z", "B", "b "], [0, 1], 0, id="only the very same text"),
    ],
)
def test_what_is_held_out_is_not_trained_on(texts: list[str], held_out: list[str], left: list[int], taken: int) -> None:
    found = prompt_set(*texts, held_out=held_out)
    assert [found.prompt(position, 0).row for position in range(len(found))] == left
    assert (found.counts.rows, found.counts.held_out) == (len(texts), taken)


def test_conversations_are_held_out_by_all_that_they_say() -> None:
    one, other = [{"role": "user", "content": "a"}], [{"content": "a", "role": "system"}]
    same = [{"content": "a", "role": "user"}]
    found = prompt_set(one, other, held_out=[said(same)])
    assert [found.prompt(0, 0).messages, len(found)] == [other, 1]


@pytest.mark.parametrize(
    ("overlong", "tokens", "dropped", "truncated", "longest"),
    [
        pytest.param("Drop", ["ab", "abcde"], 2, 0, 5, id="dropped"),
        pytest.param("TruncateLeft", ["ab", "^cdef", "cdefg", "abcde"], 0, 2, 5, id="truncated, a beginning kept"),
    ],
)
def test_what_becomes_of_overlong_prompts(
    overlong: Any, tokens: list[str], dropped: int, truncated: int, longest: int
) -> None:
    found = prompt_set("ab", "^bcdef", "abcdefg", "abcde", policy=LengthPolicy(5, overlong))
    made = [found.prompt(position, 0) for position in range(len(found))]
    assert ["".join(map(chr, prompt.token_ids)) for prompt in made] == tokens
    assert (found.counts.rows, found.counts.dropped, found.counts.truncated) == (4, dropped, truncated)
    assert found.longest == longest
    # What reward functions get is whole.
    assert all(prompt.value in ("ab", "^bcdef", "abcdefg", "abcde") for prompt in made)


@pytest.mark.parametrize(
    ("texts", "held_out", "message"),
    [
        pytest.param(["a", "b", "a"], ["a", "b"], "0 of 3 rows left after taking out the 2 held-out prompts",
                     id="all held out"),
        pytest.param(["a" * 50] * 3, [], "0 of 3 rows left after overlong filter: 3 rows taken out; expected some of "
                     "at most 8 tokens", id="all overlong"),
        pytest.param(["a" * 50, "b"], ["b"], "0 of 2 rows left after overlong filter: 1 rows and 1 held-out rows",
                     id="overlong or held out"),
    ],
)  # fmt: skip
def test_nothing_left_to_train_on(texts: list[str], held_out: list[str], message: str) -> None:
    with pytest.raises(RunFailure, match=message) as error:
        prompt_set(*texts, policy=LengthPolicy(8, "Drop"), held_out=held_out)
    assert (error.value.reason, error.value.permanent) == ("DatasetEmpty", True)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        pytest.param(["ab", "abcdef", "abcdefg"], r"row 1: the prompt has 6 tokens, expected at most 5 \(prompts.maxPr",
                     id="too long"),
        pytest.param(["ab", ""], "row 1: the prompt has 0 tokens, expected at least 1", id="empty"),
        pytest.param(["a"] * 2500 + ["abcdef"], "row 2500: the prompt has 6 tokens", id="far down"),
    ],
)  # fmt: skip
def test_a_prompt_of_a_length_that_is_not_allowed(texts: list[str], message: str) -> None:
    with pytest.raises(RunFailure, match=message) as error:
        prompt_set(*texts, policy=LengthPolicy(5))
    assert (error.value.reason, error.value.permanent) == ("PromptsInvalid", True)


def test_without_shuffling_every_pass_has_the_rows_own_order() -> None:
    prompts = TrainingPrompts(prompt_set(*"abc"), seed=3, shuffle=False)
    assert [prompts.prompt_at(cursor).row for cursor in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_the_order_of_millions_of_rows_is_made_of_the_same_draws() -> None:
    """NumPy's generator in the state of Python's: the draws by which the rows are sorted are Python's own."""
    import random

    generator = random.Random("5/2")
    draws = [generator.random() for _ in range(2000)]
    expected = sorted(range(2000), key=draws.__getitem__)
    prompts = TrainingPrompts(prompt_set(*map(str, range(2000))), seed=5)
    order = prompts._order(2)
    assert order.tolist() == expected
    assert order.dtype == np.uint32
