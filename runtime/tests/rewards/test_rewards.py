"""Reward functions in processes of their own: what they give, and what happens when they misbehave."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from rlhf_api.rewards import Reward
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.rewards.batch import Tokens
from rlhf_runtime.rewards.runner import RewardRunner

USER_CODE = """
import itertools, os, signal, subprocess, sys, time
from pathlib import Path

def length(prompts, completions, **columns):
    return [float(len(completion)) for completion in completions]

def matches(prompts, completions, answer, **columns):
    return [1 if completion == wanted else 0 for completion, wanted in zip(completions, answer)]

def strict(prompts, completions):
    return [0.0] * len(completions)

def echo_columns(prompts, completions, **columns):
    assert columns == {"answer": ["1", None], "deep": [{"x": [1, 2.5, True]}, "\\u00e4"]}, columns
    return [1.0, 2.0]

def numpy_array(prompts, completions, **columns):
    import numpy
    return numpy.asarray([0.5] * len(completions), numpy.float32)

def tensor(prompts, completions, **columns):
    class Zero:  # As torch's tensors: iterating gives what has no dimension and is no Python number.
        ndim = 0
        def item(self):
            return 0.25
    return iter([Zero()] * len(completions))

def takes_apart(prompts, completions, **columns):
    completions.clear()
    return completions

def forks(prompts, completions, **columns):
    os.fork()
    return [float(completion) for completion in completions]

def raises_lines(prompts, completions, **columns):
    raise ValueError("one\\n\\ntwo")

def prints(prompts, completions, **columns):
    print("hello", flush=True)
    os.write(1, b"world\\n" * 10000)
    return [1.0] * len(completions)

def wrong_length(prompts, completions, **columns):
    return [1.0]

def not_a_number(prompts, completions, **columns):
    return [1.0, float("nan")]

def infinite(prompts, completions, **columns):
    return [-float("inf"), 1.0]

def too_large(prompts, completions, **columns):
    return [1.0, 10 ** 400]

def huge(prompts, completions, **columns):
    return [1e308] * len(completions)

def text(prompts, completions, **columns):
    return [1.0, "good"]

def applies_to(prompts, completions, only, **columns):
    return [len(completion) if wanted else None for completion, wanted in zip(completions, only)]

async def waits(prompts, completions, **columns):
    import asyncio
    async def one(completion):
        await asyncio.sleep(0.05)
        return float(completion)
    return await asyncio.gather(*map(one, completions))

class Client:
    # As an HTTP client: it belongs to the loop that it was made in.
    loop = None

async def keeps_a_client(prompts, completions, **columns):
    import asyncio
    Client.loop = Client.loop or asyncio.get_running_loop()
    return [1.0 if Client.loop is asyncio.get_running_loop() else 0.0] * len(completions)

async def raises_late(prompts, completions, **columns):
    raise ValueError("no answer for " + completions[0])

async def never_ends(prompts, completions, **columns):
    import asyncio
    await asyncio.Event().wait()

def token_counts(prompts, completions, completion_ids, **columns):
    assert not columns
    return [len(ids) for ids in completion_ids]

def last_words(prompts, completions, **columns):
    return [len(prompt) + len(completion[-1]["content"]) for prompt, completion in zip(prompts, completions)]

def returns_none(prompts, completions, **columns):
    pass

def returns_text(prompts, completions, **columns):
    return "ab"

def raises(prompts, completions, **columns):
    def inner():
        raise ValueError("no answer for " + completions[0])
    inner()

def exits(prompts, completions, **columns):
    sys.exit(3)

def dies(prompts, completions, **columns):
    os._exit(7)

def is_killed(prompts, completions, **columns):
    os.kill(os.getpid(), signal.SIGKILL)

def hangs(prompts, completions, **columns):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    Path(prompts[0]).write_text(f"{os.getpid()} {child.pid}")
    time.sleep(300)

def fails_once(prompts, completions, **columns):
    marker = Path(prompts[0])
    if not marker.exists():
        marker.write_text("")
        raise RuntimeError("not yet")
    return [1.0] * len(completions)

calls = itertools.count(1)

def counts(prompts, completions, **columns):
    return [float(next(calls)), float(os.getpid())]

def positional(prompts, completions, /):
    return []

constant = 3
"""


@pytest.fixture(autouse=True)
def user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "user_rewards.py").write_text(USER_CODE)
    (tmp_path / "code" / "broken_syntax.py").write_text("def f(:\n")
    (tmp_path / "code" / "broken_import.py").write_text("import no_such_package_at_all\n")
    (tmp_path / "code" / "exits_on_import.py").write_text("import sys\nsys.exit(1)\n")
    (tmp_path / "code" / "slow_import.py").write_text("import time\ntime.sleep(300)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "code"), os.environ.get("PYTHONPATH", "")]))


TOKENS = Tokens([[1], [1, 2]], [[3, 4, 5], [6]])


def function(path: str, timeout: int = 30, weight: float = 1.0, name: str | None = None) -> Reward:
    path = path if ":" in path else f"user_rewards:{path}"
    return Reward(name=name, function=path, timeout_seconds=timeout, weight=weight)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(*pids: int) -> bool:
    for _ in range(100):
        if not any(map(alive, pids)):
            return True
        time.sleep(0.05)
    return False


def test_rewards_are_weighted_and_summed_and_each_is_kept() -> None:
    with RewardRunner([function("length", weight=0.5), function("matches", weight=-2.0)]) as rewards:
        scores = rewards.score(["p", "q", "p"], ["a", "bbb", ""], {"answer": ["a", "c", ""]})
    assert scores.each == {"user_rewards:length": [1.0, 3.0, 0.0], "user_rewards:matches": [1.0, 0.0, 1.0]}
    assert scores.total == [0.5 - 2.0, 1.5, -2.0]


@pytest.mark.parametrize(
    ("name", "columns", "expected"),
    [
        pytest.param("strict", {}, [0.0, 0.0], id="a function without columns"),
        pytest.param("echo_columns", {"answer": ["1", None], "deep": [{"x": [1, 2.5, True]}, "ä"]}, [1.0, 2.0],
                     id="columns arrive as they are"),
        pytest.param("numpy_array", {}, [0.5, 0.5], id="an array of float32"),
        pytest.param("prints", {}, [1.0, 1.0], id="what it prints does not disturb"),
        pytest.param("tensor", {}, [0.25, 0.25], id="numbers of a tensor"),
        pytest.param("token_counts", {}, [3.0, 1.0], id="token ids, if it has a parameter for them"),
    ],
)  # fmt: skip
def test_what_a_function_may_do(name: str, columns: dict[str, list[Any]], expected: list[float]) -> None:
    with RewardRunner([function(name)]) as rewards:
        rewards.check_importable(list(columns))
        assert rewards.score(["p", "q"], ["a", "b"], columns, TOKENS).total == expected


def test_an_async_function_is_awaited_in_one_loop_for_all_its_batches() -> None:
    with RewardRunner([function("waits"), function("keeps_a_client", weight=0.5)]) as rewards:
        for _ in range(2):
            scores = rewards.score(["p"] * 3, ["1", "2", "3"], {})
            assert scores.total == [1.5, 2.5, 3.5]


def test_a_function_that_forks_answers_once() -> None:
    with RewardRunner([function("forks")]) as rewards:
        for completions in (["1", "2"], ["3", "4"], ["5", "6"]):
            assert rewards.score(["p", "q"], completions, {}).total == [float(text) for text in completions]


def test_messages_arrive_as_messages() -> None:
    prompts = [[{"role": "user", "content": "q"}], [{"role": "system", "content": ""}, {"role": "user", "content": ""}]]
    completions = [[{"role": "assistant", "content": text}] for text in ("abc", "")]
    with RewardRunner([function("last_words")]) as rewards:
        assert rewards.score(prompts, completions, {}).total == [4.0, 2.0]


def test_a_reward_that_does_not_apply_is_left_out_of_the_sum() -> None:
    rewards = [function("length", weight=0.5), function("applies_to", weight=2.0, name="some")]
    with RewardRunner(rewards) as runner:
        scores = runner.score(["p", "q"], ["ab", "c"], {"only": [True, False]})
    assert scores.each == {"user_rewards:length": [2.0, 1.0], "some": [2.0, None]}
    assert scores.total == [0.5 * 2 + 2.0 * 2, 0.5 * 1]
    assert scores.of(slice(1, 2)).each == {"user_rewards:length": [1.0], "some": [None]}


def test_a_completion_that_no_reward_applies_to_is_named() -> None:
    rewards = [function("applies_to"), function("applies_to", name="again")]
    with RewardRunner(rewards, field="evaluation.rewards") as runner, pytest.raises(RunFailure) as error:
        runner.score(["p", "what is it?"], ["ab", "c"], {"only": [True, False]}, rows=[4, 17])
    assert (error.value.reason, error.value.permanent) == ("RewardInvalid", True)
    assert error.value.message == (
        "evaluation.rewards: none of user_rewards:applies_to, again gives a number for a completion of row 17, whose "
        "prompt is 'what is it?'; expected one at least"
    )


def test_a_batch_of_any_size_goes_through() -> None:
    texts = ["x" * 2000] * 5000
    with RewardRunner([function("length")]) as rewards:
        assert rewards.score(texts, texts, {"text": texts}).total == [2000.0] * 5000
        assert rewards.score([], [], {}).total == []


def test_a_process_serves_many_batches_and_its_own_function_only() -> None:
    with RewardRunner([function("counts"), function("user_rewards:counts", weight=0.0, name="again")]) as rewards:
        first = rewards.score(["", ""], ["", ""], {})
        second = rewards.score(["", ""], ["", ""], {})
    assert (first.total[0], second.total[0]) == (1.0, 2.0)
    assert first.total[1] == second.total[1] != os.getpid()


@pytest.mark.parametrize(
    ("name", "reason", "parts"),
    [
        pytest.param("wrong_length", "RewardFunctionInvalid", ["returned 1 numbers for 2 completions"], id="too few"),
        pytest.param("not_a_number", "RewardFunctionInvalid", ["item 1 is nan, expected a finite number"], id="NaN"),
        pytest.param("takes_apart", "RewardFunctionInvalid", ["returned 0 numbers for 2 completions"], id="its own"),
        pytest.param("raises_lines", "RewardFunctionFailed", ["raised ValueError: one two"], id="lines of text"),
        pytest.param("infinite", "RewardFunctionInvalid", ["item 0 is -inf"], id="infinite"),
        pytest.param("too_large", "RewardFunctionInvalid", ["item 1 is inf"], id="an integer beyond floats"),
        pytest.param("text", "RewardFunctionInvalid", ["item 1 is of type str ('good')"], id="text inside"),
        pytest.param("returns_none", "RewardFunctionInvalid", ["NoneType, expected a list of 2 numbers"], id="None"),
        pytest.param("returns_text", "RewardFunctionInvalid", ["of type str, expected a list of 2 numbers"], id="text"),
        pytest.param("raises", "RewardFunctionFailed", ["raised ValueError: no answer for a"], id="an exception"),
        pytest.param("raises_late", "RewardFunctionFailed", ["raised ValueError: no answer for a"], id="async raises"),
        pytest.param("exits", "RewardFunctionFailed", ["raised SystemExit: 3"], id="sys.exit"),
        pytest.param("dies", "RewardFunctionFailed", ["its process ended with exit code 7"], id="its process ends"),
        pytest.param("is_killed", "RewardFunctionFailed", ["its process ended with signal SIGKILL", "out-of-memory"],
                     id="its process is killed"),
    ],
)  # fmt: skip
def test_a_bad_batch_names_the_function_and_what_was_found(name: str, reason: str, parts: list[str]) -> None:
    with RewardRunner([function("length"), function(name)]) as rewards:
        for _ in range(2):
            with pytest.raises(RunFailure) as error:
                rewards.score(["p", "q"], ["a", "b"], {})
            assert error.value.reason == reason
            assert error.value.permanent == (reason == "RewardFunctionInvalid")
            for part in [*parts, f"rewards[1] (user_rewards:{name}): "]:
                assert part in error.value.message
            assert "\n" not in error.value.message
    if name in ("raises", "raises_late"):
        _, first, *_, code, said, _ = error.value.tail.split("\n")
        assert first.endswith(f", in {name}"), "the function's own frame comes first"
        assert code.strip() == 'raise ValueError("no answer for " + completions[0])'
        assert said == "ValueError: no answer for a"


def test_after_a_failure_a_fresh_process_answers(tmp_path: Path) -> None:
    with RewardRunner([function("counts", weight=0.0), function("fails_once")]) as rewards:
        with pytest.raises(RunFailure, match="not yet"):
            rewards.score([str(tmp_path / "marker")] * 2, ["a", "b"], {})
        scores = rewards.score([str(tmp_path / "marker")] * 2, ["a", "b"], {})
    assert scores.total == [1.0, 1.0]
    # The other function's process, whose answer nobody fetched, is a fresh one too.
    assert scores.each["user_rewards:counts"][0] == 1.0


def test_a_hanging_function_is_killed_with_what_it_started(tmp_path: Path) -> None:
    with RewardRunner([function("hangs", timeout=2), function("never_ends")]) as rewards:
        rewards.check_importable()
        began = time.monotonic()
        with pytest.raises(RunFailure, match=r"a batch took longer than timeoutSeconds \(2 s\)") as error:
            rewards.score([str(tmp_path / "pids")], ["a"], {})
        assert 2 <= time.monotonic() - began < 10
        assert (error.value.reason, error.value.permanent) == ("RewardFunctionTimeout", False)
        assert gone(*map(int, (tmp_path / "pids").read_text().split()))


def test_with_a_killed_owner_goes_a_hanging_function_and_what_it_started(tmp_path: Path) -> None:
    owner = os.fork()
    if owner == 0:
        try:
            RewardRunner([function("hangs", timeout=300)]).score([str(tmp_path / "pids")], ["a"], {})
        finally:
            os._exit(1)
    for _ in range(600):
        if (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 2:
            break
        time.sleep(0.05)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert all(map(alive, pids))
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    assert gone(*pids)


def test_leaving_ends_the_processes() -> None:
    with RewardRunner([function("counts")]) as rewards:
        pid = int(rewards.score(["", ""], ["", ""], {}).total[1])
        assert alive(pid)
    assert gone(pid)


@pytest.mark.parametrize(
    ("name", "columns", "parts"),
    [
        pytest.param("no_such_module:f", [], ["there is no module 'no_such_module' on PYTHONPATH"], id="no module"),
        pytest.param("user_rewards.deeper:f", [], ["there is no module 'user_rewards.deeper'"],
                     id="a module that is no package"),
        pytest.param("user_rewards:lenght", [], ["has no 'lenght'; it has length, matches"], id="no such function"),
        pytest.param("user_rewards:constant", [], ["constant in user_rewards is of type int, expected a function"],
                     id="no function"),
        pytest.param("broken_syntax:f", [], ["importing broken_syntax raised SyntaxError"], id="a syntax error"),
        pytest.param("broken_import:f", [], ["broken_import imports 'no_such_package_at_all'"], id="a missing package"),
        pytest.param("exits_on_import:f", [], ["importing exits_on_import raised SystemExit: 1"], id="it exits"),
        pytest.param("user_rewards:positional", [], ["'prompts' is positional-only"], id="positional parameters"),
        pytest.param("user_rewards:matches", ["level"], ["needs a column 'answer', but the prompts have level"],
                     id="a column that the prompts do not have"),
        pytest.param("user_rewards:matches", [], ["needs a column 'answer', but the prompts have no columns"],
                     id="prompts without columns"),
        pytest.param("user_rewards:strict", ["answer"], ["does not accept answer: add **columns"],
                     id="a column that it does not take"),
        pytest.param("user_rewards:length", ["completions"], ["the prompts have a column 'completions'"],
                     id="a column named like what functions get"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_found_before_training(name: str, columns: list[str], parts: list[str]) -> None:
    with RewardRunner([function("length"), function(name)]) as rewards:
        with pytest.raises(RunFailure) as error:
            rewards.check_importable(columns)
        assert (error.value.reason, error.value.permanent) == ("RewardFunctionInvalid", True)
        for part in [*parts, name]:
            assert part in error.value.message


def test_good_functions_are_importable_and_the_check_may_be_repeated() -> None:
    with RewardRunner([function("length"), function("matches")]) as rewards:
        rewards.check_importable(["answer", "level"])
        rewards.check_importable(["answer"])
        assert rewards.score(["p"], ["a"], {"answer": ["a"]}).total == [2.0]


def test_an_import_that_takes_too_long_is_ended() -> None:
    with (
        RewardRunner([function("slow_import:f")], import_seconds=2) as rewards,
        pytest.raises(RunFailure, match=r"rewards\[0\] \(slow_import:f\): importing it took longer than 2 s") as error,
    ):
        rewards.check_importable()
    assert error.value.reason == "RewardFunctionTimeout"


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        pytest.param(1e6, 1.0, "1e+06 * 1e+308 (user_rewards:huge) + 1 * 1e+308 (again) is inf", id="a product"),
        pytest.param(1.0, 1.0, "1 * 1e+308 (user_rewards:huge) + 1 * 1e+308 (again) is inf", id="a sum"),
        pytest.param(-1e-270, 0.0, "-1e-270 * 1e+308 (user_rewards:huge) + 0 * 1e+308 (again) is -1e+38", id="large"),
        pytest.param(1e6, -1e6, "1e+06 * 1e+308 (user_rewards:huge) + -1e+06 * 1e+308 (again) is nan", id="no number"),
    ],
)
def test_a_sum_beyond_floats_is_invalid_and_its_terms_are_named(first: float, second: float, found: str) -> None:
    rewards = [function("huge", weight=first), function("huge", weight=second, name="again")]
    with RewardRunner(rewards) as runner, pytest.raises(RunFailure) as error:
        runner.score(["p"], ["a"], {})
    assert (error.value.reason, error.value.permanent) == ("RewardInvalid", True)
    assert error.value.message == f"rewards: {found} for a completion of the prompt 'p'; expected a number up to 1e+30"
