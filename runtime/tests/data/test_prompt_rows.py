"""Rows of prompts: what is read from files, what is refused, and with which message."""

import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rlhf_api.prompts import PromptSource
from rlhf_runtime.data import prompt_rows
from rlhf_runtime.data.prompt_rows import open_rows
from rlhf_runtime.data.prompts import LengthPolicy, PromptSet, TrainingPrompts
from rlhf_runtime.failures import RunFailure
from tiny_prompts import Characters


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
        pytest.param("prompt,answer\n1+1=,2\n", "PromptsInvalid",
                     ["line 1: not JSON: Expecting value, at column 1, it looks like the header of a CSV file; expec"],
                     id="a CSV file"),
        pytest.param("1+1=\t2\n", "PromptsInvalid", [", it looks like a tab-separated table; expected one JSON"],
                     id="a table with tabs"),
        pytest.param("One, two, three\n", "PromptsInvalid", ["line 1: not JSON: Expecting value, at column 1; expect"],
                     id="a sentence"),
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
        pytest.param("{}/othre.jsonl", ["there is other.jsonl; did you mean other.jsonl?"], id="a name with a slip"),
        pytest.param("{}/no/folder/x.jsonl", ["there is no folder"], id="no folder"),
        pytest.param("ftp://host/x.jsonl", ["expected an absolute path, package://"], id="another scheme"),
        pytest.param("package://no_such_package/x.jsonl", ["there is no Python package"], id="no package"),
        pytest.param("/dev/zero", ["evaluation.uri: /dev/zero is no regular file"], id="a device"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read(tmp_path: Path, uri: str, parts: list[str]) -> None:
    (tmp_path / "other.jsonl").write_text("")
    with pytest.raises(RunFailure) as error:
        open_rows(PromptSource(uri=uri.format(tmp_path)), "evaluation")
    assert (error.value.reason, error.value.permanent) == ("PromptsInvalid", True)
    for part in parts:
        assert part in error.value.message


def write_parquet(path: Path, columns: dict[str, Any], rows_per_group: int = 2) -> None:
    pq.write_table(pa.table(columns), path, row_group_size=rows_per_group)


def test_parquet_keeps_every_value_that_json_has(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    columns = {
        "question": pa.array(["a", "b", "c"], pa.large_string()),
        "answer": pa.array([4, None, 6], pa.int32()),
        "level": pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), ["easy", "hard"]),
        "day": pa.array([0, 1, 2], pa.date32()),
        "tests": pa.array([[{"in": 1, "ok": True}], [], None]),
    }
    write_parquet(path, columns)
    found = open_rows(PromptSource(uri=str(path), prompt_key="question"), "prompts")
    assert [row.prompt for row in found] == ["a", "b", "c"]
    assert found[2].columns == {"answer": 6, "level": "easy", "day": "1970-01-03", "tests": None}
    assert found[0].columns["tests"] == [{"in": 1, "ok": True}]
    assert [row.where for row in found] == [f"{path}, row group {g}, row {r}" for g, r in ((0, 0), (0, 1), (1, 0))]


def test_messages_in_parquet_have_no_keys_that_are_null(tmp_path: Path) -> None:
    path = tmp_path / "chat.parquet"
    messages = [[{"role": "user", "content": "hi", "name": None}], [{"role": "user", "content": "x", "name": "Eva"}]]
    write_parquet(path, {"prompt": messages})
    found = open_rows(PromptSource(uri=str(path)), "prompts")
    assert found.conversational
    assert found[0].prompt == [{"role": "user", "content": "hi"}]
    assert found[1].prompt == [{"role": "user", "content": "x", "name": "Eva"}]


def null_prompt(path: Path) -> None:
    write_parquet(path, {"prompt": ["a", "b", "c", None]})


def other_column(path: Path) -> None:
    write_parquet(path, {"question": ["a"], "answer": [1]})


def binary_column(path: Path) -> None:
    write_parquet(path, {"prompt": ["a"], "image": [b"\x89PNG"]})


def two_of_a_name(path: Path) -> None:
    pq.write_table(pa.table([pa.array(["a"]), pa.array(["b"])], names=["prompt", "prompt"]), path)


def beyond_all_dates(path: Path) -> None:
    write_parquet(path, {"prompt": ["a"], "day": pa.array([1 << 62], pa.timestamp("ms"))})


def not_parquet(path: Path) -> None:
    path.write_text('{"prompt": "a"}\n')


def cut_off(path: Path) -> None:
    null_prompt(path)
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("write", "parts"),
    [
        pytest.param(null_prompt, ["row group 1, row 1: key 'prompt': found null, expected a string"], id="null"),
        pytest.param(other_column, ["no column 'prompt' (promptKey), found 'question', 'answer'"], id="no such column"),
        pytest.param(binary_column, ["row group 0, row 0: column 'image': found binary data"], id="bytes"),
        pytest.param(two_of_a_name, ["found more than one column 'prompt'"], id="two columns of one name"),
        pytest.param(
            beyond_all_dates, ["from row group 0, row 0 on: cannot be read: OverflowError"], id="a date beyond all"
        ),
        pytest.param(not_parquet, ["not a Parquet file"], id="another format"),
        pytest.param(cut_off, ["not a Parquet file"], id="cut off"),
    ],
)
def test_what_a_parquet_file_may_not_hold(tmp_path: Path, write: Callable[[Path], None], parts: list[str]) -> None:
    path = tmp_path / "train.parquet"
    write(path)
    with pytest.raises(RunFailure) as error:
        open_rows(PromptSource(uri=str(path)), "prompts")
    assert (error.value.reason, error.value.permanent) == ("PromptsInvalid", True)
    for part in [*parts, str(path)]:
        assert part in error.value.message


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder of files of every kind, and of others."""
    for name, text in (("b-2.jsonl", "d"), ("b-10.jsonl", "c"), ("notes.txt", "no"), (".hidden.jsonl", "no")):
        (tmp_path / name).write_text(json.dumps({"prompt": text}) + "\n")
    with gzip.open(tmp_path / "c.jsonl.gz", "wt") as file:
        file.write('{"prompt": "e"}\n\n{"prompt": "f"}\n')
    write_parquet(tmp_path / "a.parquet", {"prompt": ["a", "b"]})
    return tmp_path


@pytest.mark.parametrize(
    ("last", "texts"),
    [
        pytest.param("", "abcdef", id="a folder, in the order of its names"),
        pytest.param("/", "abcdef", id="a folder with a slash"),
        pytest.param("/b-*.jsonl", "cd", id="some by a star"),
        pytest.param("/*", "abcdef", id="all by a star"),
        pytest.param("/c.jsonl.gz", "ef", id="a gzip file"),
    ],
)
def test_several_files_are_one_source(shards: Path, last: str, texts: str) -> None:
    (shards / "notes.txt").unlink()
    found = open_rows(PromptSource(uri=f"{shards}{last}"), "prompts")
    assert [row.prompt for row in found] == list(texts)
    assert [found[i].prompt for i in reversed(range(len(found)))] == list(reversed(texts))
    assert [found[i].row for i in range(len(found))] == list(range(len(texts)))


@pytest.mark.parametrize(
    ("last", "parts"),
    [
        pytest.param("/*.csv", ["0 rows: found a.parquet, b-10.jsonl,", "expected *.csv"], id="no file of that name"),
        pytest.param("/empty", ["0 rows: found no files in", "expected *.jsonl"], id="an empty folder"),
    ],
)
def test_a_folder_without_prompts(shards: Path, last: str, parts: list[str]) -> None:
    (shards / "empty").mkdir()
    with pytest.raises(RunFailure) as error:
        open_rows(PromptSource(uri=f"{shards}{last}"), "prompts")
    assert (error.value.reason, error.value.permanent) == ("DatasetEmpty", True)
    for part in parts:
        assert part in error.value.message


def test_the_file_of_several_is_named(shards: Path) -> None:
    (shards / "b-3.jsonl").write_text('{"prompt": "x"}\n{"prompt": 4}\n')
    with pytest.raises(RunFailure, match=r"b-3.jsonl, line 2: key 'prompt': found a number"):
        open_rows(PromptSource(uri=f"{shards}/b-*.jsonl"), "prompts")


def test_a_broken_gzip_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "e"}\n' * 50)[:-9])
    with pytest.raises(RunFailure, match=r"a.jsonl.gz, after line \d+: not a whole gzip file"):
        open_rows(PromptSource(uri=str(tmp_path / "a.jsonl.gz")), "prompts")


def test_a_file_that_changes_under_the_run(tmp_path: Path) -> None:
    source = jsonl(tmp_path, '{"prompt": "a"}\n{"prompt": "b"}\n')
    found = open_rows(source, "prompts")
    jsonl(tmp_path, '{"prompt": "abc"}\n{"prompt": "b"}\n')
    with pytest.raises(RunFailure, match="has changed since its rows were checked"):
        found[1]


def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_rows, "MAX_LINE", 100)
    source = jsonl(tmp_path, '{"prompt": "a"}\n{"prompt": "' + "b" * 200)
    with pytest.raises(RunFailure, match="line 2: longer than 100 bytes"):
        open_rows(source, "prompts")


def test_rows_are_not_kept_in_memory(tmp_path: Path) -> None:
    count, size = 4000, 5000
    source = jsonl(tmp_path, "".join(json.dumps({"prompt": "x" * size, "n": i}) + "\n" for i in range(count)))
    write_parquet(tmp_path / "a.parquet", {"prompt": ["x" * size] * count, "n": list(range(count))}, 1000)
    for each in (source, PromptSource(uri=str(tmp_path / "a.parquet"))):
        tracemalloc.start()
        found = open_rows(each, "prompts")
        drawn = [found[i].columns["n"] for i in (0, count - 1, 17)]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (len(found), drawn) == (count, [0, count - 1, 17])
        # The file has 20 MB; Parquet's batch of rows and what is unpacked are below it.
        assert peak < 6_000_000


def test_the_order_of_prompts_is_of_the_rows_and_not_of_their_format(tmp_path: Path) -> None:
    texts = [str(i) for i in range(40)]
    lines = "".join(json.dumps({"prompt": text}) + "\n" for text in texts)
    for name in ("all", "zipped", "table", "parts"):
        (tmp_path / name).mkdir()
    (tmp_path / "all" / "a.jsonl").write_text(lines)
    (tmp_path / "zipped" / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    write_parquet(tmp_path / "table" / "a.parquet", {"prompt": texts}, 7)
    for part in range(4):
        text = "".join(line + "\n" for line in lines.splitlines()[part * 10 : part * 10 + 10])
        (tmp_path / "parts" / f"{part}.jsonl").write_text(text)
    orders = []
    for name in ("all", "zipped", "table", "parts"):
        rows = open_rows(PromptSource(uri=str(tmp_path / name)), "prompts")
        prompts = TrainingPrompts(PromptSet(rows, Characters(), LengthPolicy(8), "prompts"), seed=9)
        # As a run that resumes at the second cursor and goes on into the next pass.
        orders.append([(prompts.prompt_at(cursor).text, prompts.prompt_at(cursor).row) for cursor in range(2, 50)])
    assert orders.count(orders[0]) == 4
