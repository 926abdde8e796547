"""Tracebacks that users are shown: of their own code from its first frame on, of ours only where we are to mend it."""

import importlib
import traceback
from pathlib import Path

import pytest
from rlhf_runtime.coordinator import failure_of
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.rewards.function_process import InvalidFunction, find

DEEP = """
def first_of_mine():
    deeper(40)

def deeper(n):
    if not n:
        raise ValueError("too deep")
    deepest(n)

def deepest(n):
    deeper(n - 1)
"""


def trace_of(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The traceback that importing this code as a reward's module gives."""
    (folder / "of_a_user.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(InvalidFunction) as raised:
        find("of_a_user:f")
    return raised.value.trace


@pytest.mark.parametrize(
    ("code", "frames", "last"),
    [
        pytest.param("x = {}['key']\n", 1, "KeyError: 'key'", id="what a module does when it is imported"),
        pytest.param(
            "try:\n    x = {}['key']\nexcept KeyError as error:\n    raise ValueError('no key') from error\n", 2,
            "ValueError: no key", id="a chain, each with its own frame",
        ),
        pytest.param("x = (1,\n", 0, "SyntaxError: '(' was never closed", id="syntax: the place, without a frame"),
    ],
)  # fmt: skip
def test_a_module_that_cannot_be_imported(
    code: str, frames: int, last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = trace_of(code, tmp_path, monkeypatch)
    assert trace.count("in <module>") == frames
    assert trace.count('of_a_user.py", line ') == max(frames, 1)
    assert "importlib" not in trace
    assert trace.endswith(f"{last}\n")


def test_of_a_long_one_the_first_frames_and_the_error_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trace_of(DEEP + "\nfirst_of_mine()\n", tmp_path, monkeypatch)
    assert len(trace) <= 4000
    assert "in first_of_mine\n" in trace
    assert trace.endswith("ValueError: too deep\n")
    before, after = trace.split("\n  ... lines left out ...\n")
    with pytest.raises(ValueError, match="too deep") as raised:
        importlib.import_module("of_a_user")
    whole = "".join(traceback.format_exception(raised.value)).splitlines()
    assert {*before.splitlines(), *after.splitlines()} <= set(whole)


@pytest.mark.parametrize(
    ("error", "message", "tail"),
    [
        pytest.param(
            RunFailure("PromptsInvalid", "line 1: not JSON", permanent=True), "line 1: not JSON", [],
            id="a message that says all",
        ),
        pytest.param(
            RunFailure("RewardFunctionFailed", "it raised", permanent=False, tail="mine.py"), "it raised", ["mine.py"],
            id="a message with the user's traceback",
        ),
        pytest.param(
            KeyError("x"), "the coordinator failed: KeyError: 'x'",
            ["OSError: what was below", "KeyError: 'x'"], id="an error of ours, with what is below it",
        ),
    ],
)  # fmt: skip
def test_what_a_coordinator_says_of_an_error(error: Exception, message: str, tail: list[str]) -> None:
    error.__cause__ = OSError("what was below")
    failure = failure_of(ExceptionGroup("tasks", [error]))
    assert failure.message == message
    assert [line for line in failure.tail.splitlines() if line in tail] == tail
    assert bool(failure.tail) == bool(tail)
