"""Rows of prompts that a reasoning_gym task makes: which problems, and the message where it cannot make them."""

import json
from typing import Any

import pytest
import reasoning_gym  # noqa: F401 -- the code under test imports it late; here it says that the module isn't quick
from rlhf_api.prompts import PromptSource, ReasoningGym
from rlhf_runtime.data.prompt_rows import open_rows
from rlhf_runtime.failures import RunFailure


def test_a_task_makes_the_same_problems_every_time() -> None:
    source = PromptSource(
        reasoning_gym=ReasoningGym(task="chain_sum", size=20, seed=7, parameters={"max_terms": 3, "max_digits": 2})
    )
    found = list(open_rows(source, "prompts"))
    assert found == list(open_rows(source, "prompts"))
    assert len(found) == 20
    assert found[3].where == "prompts.reasoningGym, problem 3 of chain_sum"
    assert set(found[0].columns) == {"answer", "metadata"}
    for row in found:
        assert json.loads(json.dumps(row.columns)) == row.columns
        assert row.columns["answer"] == str(eval(row.columns["metadata"]["expression"]))
    other = PromptSource(reasoning_gym=ReasoningGym(task="chain_sum", size=20, seed=8, parameters={"max_terms": 3}))
    assert {row.prompt for row in open_rows(other, "prompts")} != {row.prompt for row in found}


@pytest.mark.parametrize(
    ("task", "parameters", "parts"),
    [
        pytest.param("chain_sums", {}, ["prompts.reasoningGym.task: there is no task 'chain_sums'; close: chain_sum"],
                     id="an unknown task with a close one"),
        pytest.param("zzzz", {}, ["there is no task 'zzzz'", "for instance chain_sum"], id="an unknown task"),
        pytest.param("chain_sum", {"min_term": 2}, ["chain_sum has no min_term; it has allow_negation, max_digits"],
                     id="an unknown parameter"),
        pytest.param("chain_sum", {"size": 3}, ["has no size"], id="a parameter that is a field of ours"),
        pytest.param("chain_sum", {"min_terms": -1}, ["refuses", "AssertionError: min_terms must be positive"],
                     id="a parameter out of range"),
        pytest.param("chain_sum", {"min_terms": "two"}, ["refuses", "TypeError"], id="a parameter of another type"),
    ],
)  # fmt: skip
def test_a_task_that_cannot_be_made(task: str, parameters: dict[str, Any], parts: list[str]) -> None:
    source = PromptSource(reasoning_gym=ReasoningGym(task=task, size=2, parameters=parameters))
    with pytest.raises(RunFailure) as error:
        open_rows(source, "prompts")
    assert (error.value.reason, error.value.permanent) == ("PromptsInvalid", True)
    for part in parts:
        assert part in error.value.message
