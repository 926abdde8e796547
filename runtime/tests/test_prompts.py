"""Prompts: what is read, what is refused and how it is said, and the order in which they are trained on."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rlhf_api.prompts import PromptSource, ReasoningGym
from rlhf_runtime.data.prompt_rows import PromptRow, load_rows
from rlhf_runtime.data.prompts import (
    HELD_OUT_INDEX,
    PromptSet,
    TrainingPrompts,
    columns_of,
    encoder,
    held_out_prompts,
    training_rows,
)
from rlhf_runtime.failures import RunFailure


def characters(texts: Sequence[str]) -> list[list[int]]:
    return [[ord(character) for character in text] for text in texts]


def rows(*texts: str) -> list[PromptRow]:
    return [PromptRow(row=i, text=text, columns={}, where=f"row {i}") for i, text in enumerate(texts)]


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
    found = load_rows(jsonl(tmp_path, content), "prompts")
    assert [row.text for row in found] == texts
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
                     ["line 3: key 'prompt': found a number, expected a string"], id="a prompt that is a number"),
        pytest.param('{"prompt": [{"role": "user", "content": "hi"}]}\n', "PromptsInvalid",
                     ["key 'prompt': found an array"], id="a prompt that is a list of messages"),
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
        load_rows(source, "prompts")
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
        pytest.param("{}", ["is a folder, expected a JSONL file"], id="a folder"),
        pytest.param("gs://bucket/x.jsonl", ["expected an absolute path, package://"], id="another scheme"),
        pytest.param("package://no_such_package/x.jsonl", ["there is no Python package"], id="no package"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read(tmp_path: Path, uri: str, parts: list[str]) -> None:
    (tmp_path / "other.jsonl").write_text("")
    with pytest.raises(RunFailure) as error:
        load_rows(PromptSource(uri=uri.format(tmp_path)), "evaluation")
    assert (error.value.reason, error.value.permanent) == ("PromptsInvalid", True)
    for part in parts:
        assert part in error.value.message


def test_a_task_makes_the_same_problems_every_time() -> None:
    source = PromptSource(
        reasoning_gym=ReasoningGym(task="chain_sum", size=20, seed=7, parameters={"max_terms": 3, "max_digits": 2})
    )
    found = load_rows(source, "prompts")
    assert found == load_rows(source, "prompts")
    assert len(found) == 20
    assert found[3].where == "prompts.reasoningGym, problem 3 of chain_sum"
    assert set(found[0].columns) == {"answer", "metadata"}
    for row in found:
        assert json.loads(json.dumps(row.columns)) == row.columns
        assert row.columns["answer"] == str(eval(row.columns["metadata"]["expression"]))
    other = PromptSource(reasoning_gym=ReasoningGym(task="chain_sum", size=20, seed=8, parameters={"max_terms": 3}))
    assert {row.text for row in load_rows(other, "prompts")} != {row.text for row in found}


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
        load_rows(source, "prompts")
    assert (error.value.reason, error.value.permanent) == ("PromptsInvalid", True)
    for part in parts:
        assert part in error.value.message


def order(letters: str, seed: int, cursors: int) -> list[int]:
    prompts = TrainingPrompts(PromptSet(rows(*letters), characters, 8), seed)
    return [prompts.prompt_at(cursor).row for cursor in range(cursors)]


def test_every_pass_has_every_row_once_in_an_order_of_its_own() -> None:
    letters = "abcdefghijklmnopqrst"
    found = order(letters, 3, 80)
    passes = [found[start : start + 20] for start in range(0, 80, 20)]
    assert all(Counter(each) == Counter(range(20)) for each in passes)
    assert len({tuple(each) for each in passes}) == 4
    assert passes[0] != list(range(20))
    assert order(letters, 4, 20) != passes[0]


def test_any_cursor_gives_its_prompt_at_any_time() -> None:
    prompts = TrainingPrompts(PromptSet(rows(*"abcdefgh"), characters, 8), seed=3)
    forward = [prompts.prompt_at(cursor) for cursor in range(80)]
    assert [prompts.prompt_at(cursor) for cursor in reversed(range(80))] == forward[::-1]
    with pytest.raises(ValueError, match="cursor -1"):
        prompts.prompt_at(-1)


def test_the_order_is_the_same_in_every_process_and_release() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import test_prompts as t; print(t.order('abcdefgh', 11, 16))"
    arguments = [sys.executable, "-c", code, str(Path(__file__).parent)]
    there = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    # Written down: a job that resumes after an upgrade goes on in the same order.
    assert order("abcdefgh", 11, 16) == [4, 7, 6, 0, 2, 1, 5, 3, 6, 5, 7, 1, 0, 4, 3, 2]
    assert json.loads(there.stdout) == [4, 7, 6, 0, 2, 1, 5, 3, 6, 5, 7, 1, 0, 4, 3, 2]


def test_fewer_rows_than_an_episode_takes_are_taken_again() -> None:
    assert Counter(order("abc", 0, 9)) == {0: 3, 1: 3, 2: 3}


def test_a_prompt_carries_its_cursor_tokens_and_all_columns_of_the_set() -> None:
    some = [
        PromptRow(row=0, text="ab", columns={"answer": 1}, where="x"),
        PromptRow(row=2, text="c", columns={"level": "hard"}, where="x"),
    ]
    made = PromptSet(some, characters, 8)
    assert made.columns == ("answer", "level")
    assert made.longest == 2
    prompt = made.prompt(1, index=17)
    assert (prompt.index, prompt.row, prompt.text, prompt.token_ids) == (17, 2, "c", (99,))
    assert prompt.columns == {"answer": None, "level": "hard"}
    assert columns_of([made.prompt(0, 0), prompt]) == {"answer": [1, None], "level": [None, "hard"]}


def test_held_out_prompts_have_indices_that_no_training_prompt_has() -> None:
    held_out = held_out_prompts(PromptSet(rows("a", "b"), characters, 8))
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
def test_what_is_held_out_is_not_trained_on(
    tmp_path: Path, texts: list[str], held_out: list[str], left: list[int], taken: int
) -> None:
    source = jsonl(tmp_path, "".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    found, count = training_rows(source, rows(*held_out))
    assert [row.row for row in found] == left
    assert count == taken


def test_nothing_left_to_train_on(tmp_path: Path) -> None:
    source = jsonl(tmp_path, '{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "a"}\n')
    with pytest.raises(RunFailure, match="0 of 3 rows left after taking out the 2 held-out prompts") as error:
        training_rows(source, rows("a", "b"))
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
        PromptSet(rows(*texts), characters, 5)
    assert (error.value.reason, error.value.permanent) == ("PromptsInvalid", True)


class Tokenizer:
    """Words to ids, as a transformers tokenizer that puts these ids around every text."""

    def __init__(self, before: list[int], after: list[int]) -> None:
        self.eos_token_id = 2
        self.before, self.after = before, after

    def __call__(self, texts: str | list[str]) -> dict[str, Any]:
        if isinstance(texts, str):
            return {"input_ids": self([texts])["input_ids"][0]}
        words = [[2 if word == "</s>" else 10 + len(word) for word in text.split()] for text in texts]
        return {"input_ids": [[*self.before, *each, *self.after] for each in words]}


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        pytest.param(Tokenizer([], []), [[13, 15]], id="no special tokens"),
        pytest.param(Tokenizer([1], []), [[1, 13, 15]], id="a beginning is kept, once"),
        pytest.param(Tokenizer([1], [2]), [[1, 13, 15]], id="an end is taken off"),
        pytest.param(Tokenizer([], [2, 7]), [[13, 15, 2, 7]], id="what is not the end stays"),
    ],
)
def test_a_prompt_has_the_special_tokens_of_its_tokenizer_but_no_end(
    tokenizer: Tokenizer, expected: list[list[int]]
) -> None:
    encode = encoder(tokenizer)
    assert encode(["abc defgh"]) == expected
    # An end that the text itself spells out is the text's.
    assert encode(["abc </s>"])[0][len(tokenizer.before) :][:2] == [13, 2]
