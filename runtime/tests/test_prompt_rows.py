"""Rows of prompts: what is read from files and tasks, what is refused, and how it is said."""

import json
from pathlib import Path
from typing import Any

import pytest
from rlhf_api.prompts import PromptSource, ReasoningGym
from rlhf_runtime.data.prompt_rows import open_rows
from rlhf_runtime.failures import RunFailure


def jsonl(tmp_path: Path, content: bytes | str) -> PromptSource:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return PromptSource(uri=str(path))


@pytest.mark.parametrize(
    ("content", "texts", "columns"),
    [
        pytest.param('{"prompt": "2+2?"}\n', ["2+2?"], [{}], id="one row"),
        pytest.param('{"prompt": "a"}', ["a"], [{}], id="no newline at the end"),
        pytest.param('\n{"prompt": "a"}\n  \n\n{"prompt": "b"}\n\n', ["a", "b"], [{}, {}], id="blank lines"),
        pytest.param(b'\xef\xbb\xbf{"prompt": "a"}\n', ["a"], [{}], id="a byte order mark"),
        pytest.param('{"prompt": "a"}\r\n{"prompt": "b"}\r\n', ["a", "b"], [{}, {}], id="Windows line ends"),
        pytest.param('{"prompt": "\\u00e4 \\ud83d\\ude00 日本"}', ["ä 😀 日本"], [{}], id="text beyond ASCII"),
        pytest.param(
            '{"prompt":"2+2?","answer":4}\n{"prompt":"x","answer":"four"}\n{"prompt":"y","answer":null}\n',
            ["2+2?", "x", "y"],
            [{"answer": 4}, {"answer": "four"}, {"answer": None}],
            id="a column of mixed types",
        ),
        pytest.param(
            '{"prompt": "a", "tests": [{"in": [1, 2.5], "out": {"x": true}}]}',
            ["a"],
            [{"tests": [{"in": [1, 2.5], "out": {"x": True}}]}],
            id="nested columns",
        ),
    ],
)
def test_what_a_file_holds(
    tmp_path: Path, content: bytes | str, texts: list[str], columns: list[dict[str, Any]]
) -> None:
    found = open_rows(jsonl(tmp_path, content), "prompts")
    assert [row.prompt for row in found] == texts
    assert [row.columns for row in found] == columns
    assert [row.row for row in found] == list(range(len(texts)))


@pytest.mark.parametrize(
    ("content", "reason", "parts"),
    [
        pytest.param("", "DatasetEmpty", ["prompts: 0 rows in", "expected at least 1"], id="an empty file"),
        pytest.param("\n \n", "DatasetEmpty", ["0 rows"], id="blank lines only"),
        pytest.param('{"prompt": "a"}\n{"prompt":"z"', "PromptsInvalid", ["line 2", "not JSON"], id="a row cut off"),
        pytest.param('[{"prompt": "a"}]', "PromptsInvalid",
                     ["line 1: found an array, expected one JSON object per line"], id="an array on one line"),
        pytest.param('[\n{"prompt": "a"}\n]', "PromptsInvalid", ["line 1", "expected one JSON object per line"],
                     id="an array over lines"),
        pytest.param('"text"\n', "PromptsInvalid", ["line 1: found a string"], id="a row that is text"),
        pytest.param('{"prompt": "a"}\n{"question": "b", "answer": 1}\n', "PromptsInvalid",
                     ["line 2: no key 'prompt' (promptKey), found 'question', 'answer'"], id="no prompt key"),
        pytest.param("{}\n", "PromptsInvalid", ["line 1: no key 'prompt'", "found no keys"], id="a row without keys"),
        pytest.param('{"prompt": "a"}\n\n{"prompt": 123}\n', "PromptsInvalid",
                     ["line 3: key 'prompt': found a number, expected a string or an array of messages"],
                     id="a prompt that is a number"),
        pytest.param('{"prompt": []}\n', "PromptsInvalid", ["line 1: key 'prompt': found an empty array"],
                     id="no messages"),
        pytest.param('{"prompt": ["hi"]}\n', "PromptsInvalid",
                     ["message 0: found a string, expected an object with role and content"],
                     id="a message that is text"),
        pytest.param('{"prompt": [{"role": "system", "content": "a"}, {"role": "usr", "content": "hi"}]}\n',
                     "PromptsInvalid",
                     ["line 1: key 'prompt': message 1: role: found 'usr', expected system, developer, user"],
                     id="a role that is not known"),
        pytest.param('{"prompt": [{"role": "user", "content": null}]}\n', "PromptsInvalid",
                     ["line 1: key 'prompt': message 0: content: found null, expected a string"],
                     id="a message without content"),
        pytest.param('{"prompt": [{"content": "hi"}]}\n', "PromptsInvalid", ["message 0: no 'role', found 'content'"],
                     id="a message without a role"),
        pytest.param('{"prompt": [{"role": "user", "content": [{"type": "image"}]}]}\n', "PromptsInvalid",
                     ["content: found an array, expected a string"], id="a message that is not text"),
        pytest.param('{"prompt": "a"}\n{"prompt": [{"role": "user", "content": "hi"}]}\n', "PromptsInvalid",
                     ["line 2: key 'prompt': found messages, expected text as in the rows before"],
                     id="text and messages in one source"),
        pytest.param('{"prompt": [{"role": "user", "content": "\\ud800"}]}\n', "PromptsInvalid",
                     ["line 1", "surrogate"], id="half a surrogate pair in a message"),
        pytest.param('{"prompt": null}\n', "PromptsInvalid", ["found null"], id="a prompt that is null"),
        pytest.param(b'{"prompt": "ok"}\n{"prompt": "caf\xe9"}\n', "PromptsInvalid",
                     ["line 2: found byte 0xe9 at position 15, expected UTF-8 text"], id="Latin-1 text"),
        pytest.param('{"prompt": "a"}'.encode("utf-16"), "PromptsInvalid", ["line 1: found byte 0xff at position 0"],
                     id="UTF-16 text"),
        pytest.param('{"prompt": "\\ud800"}\n', "PromptsInvalid", ["line 1", "surrogate"], id="half a surrogate pair"),
        pytest.param('{"prompt": "a", "completions": 1}\n', "PromptsInvalid",
                     ["line 1: found a column 'completions'"], id="a column that the reward function's parameter has"),
        pytest.param("[" * 100_000 + "\n", "PromptsInvalid", ["line 1: not JSON"], id="a row nested too deep"),
    ],
)  # fmt: skip
def test_what_a_file_may_not_hold(tmp_path: Path, content: bytes | str, reason: str, parts: list[str]) -> None:
    source = jsonl(tmp_path, content)
    with pytest.raises(RunFailure) as error:
        open_rows(source, "prompts")
    assert error.value.reason == reason
    assert error.value.permanent
    for part in [*parts, "prompts.jsonl"]:
        assert part in error.value.message


@pytest.mark.parametrize(
    ("uri", "parts"),
    [
        pytest.param("{}/none.jsonl", ["evaluation.uri: cannot read", "No such file", "there is other.jsonl"],
                     id="no file"),
        pytest.param("{}/no/folder/x.jsonl", ["there is no folder"], id="no folder"),
        pytest.param("gs://bucket/x.jsonl", ["expected an absolute path, package://"], id="another scheme"),
        pytest.param("package://no_such_package/x.jsonl", ["there is no Python package"], id="no package"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read(tmp_path: Path, uri: str, parts: list[str]) -> None:
    (tmp_path / "other.jsonl").write_text("")
    with pytest.raises(RunFailure) as error:
        open_rows(PromptSource(uri=uri.format(tmp_path)), "evaluation")
    assert (error.value.reason, error.value.permanent) == ("PromptsInvalid", True)
    for part in parts:
        assert part in error.value.message


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
