"""Scores completions with the user's reward functions, each in a process of its own.

User code may hang, crash, leak, print, or start processes; here it can do none of that to a maker. A process
that has failed in any way is ended with all it started, and a fresh one takes its place on the next use.
"""

import contextlib
import math
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rlhf_api.conditions import REWARD_FUNCTION_FAILED, REWARD_FUNCTION_INVALID, REWARD_FUNCTION_TIMEOUT
from rlhf_api.rewards import Reward

from rlhf_runtime.failures import RunFailure
from rlhf_runtime.lifeline import PYTHON, Tethered, describe_exit
from rlhf_runtime.rewards import wire

#: Longest that a function's module may take to be imported, seconds; `timeoutSeconds` is for calls.
IMPORT_SECONDS = 60.0
#: Time between the end of a connection and the end of its process, seconds.
_EXIT_SECONDS = 2.0
#: File descriptor of standard error: where user code's prints go.
_STDERR = 2


@dataclass(frozen=True, slots=True)
class RewardScores:
    """Rewards of a batch of B completions.

    total  [B] weighted sums
    each   for every reward, by its name, its own [B] rewards before weighting; None where it does not apply
    """

    total: list[float]
    each: dict[str, list[float | None]]

    def of(self, part: slice) -> "RewardScores":
        """Those of a part of the batch."""
        return RewardScores(self.total[part], {name: values[part] for name, values in self.each.items()})


class RewardRunner:
    """The job's reward functions. A context manager: leaving it ends their processes. Used from one thread.

    All methods raise RunFailure: RewardFunctionInvalid (permanent), RewardFunctionFailed, RewardFunctionTimeout.
    """

    def __init__(self, functions: Sequence[Reward], import_seconds: float = IMPORT_SECONDS) -> None:
        self._functions = [_FunctionProcess(function, import_seconds) for function in functions]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes. The next use starts them again."""
        for function in self._functions:
            function.end()

    def check_importable(self, columns: Sequence[str] = ()) -> None:
        """Start every process, import its function, check that it takes prompts, completions and the columns."""
        with self._all_or_none():
            self._start()
            for function in self._functions:
                function.check_signature(columns)

    def score(self, prompts: Sequence[Any], completions: Sequence[Any], columns: dict[str, list[Any]]) -> RewardScores:
        """Rewards of B completions; ``prompts`` and every column have one entry a completion, all JSON values.

        The functions work at the same time.
        """
        if len(prompts) != len(completions) or any(len(values) != len(completions) for values in columns.values()):
            raise ValueError(
                f"found {len(prompts)} prompts, {len(completions)} completions and columns of "
                f"{ {name: len(values) for name, values in columns.items()} }, expected equal numbers"
            )
        request = {"prompts": list(prompts), "completions": list(completions), "columns": columns}
        with self._all_or_none():
            self._start()
            for function in self._functions:
                function.ask(request)
            rewards = [function.answer(len(completions)) for function in self._functions]
        weights = [function.function.weight for function in self._functions]
        return RewardScores(
            total=[_weighted(weights, values) for values in zip(*rewards, strict=True)],
            each={f.function.title: list(values) for f, values in zip(self._functions, rewards, strict=True)},
        )

    def _start(self) -> None:
        # All imports run at the same time.
        for function in self._functions:
            function.start()
        for function in self._functions:
            function.until_ready()

    def _all_or_none(self) -> contextlib.ExitStack:
        # An answer that nobody fetches would be taken for the next one's: after any error all start anew.
        stack = contextlib.ExitStack()
        stack.push(lambda kind, *_: self.close() if kind else None)
        return stack


def _weighted(weights: Sequence[float], values: Sequence[float]) -> float:
    total = math.fsum(weight * value for weight, value in zip(weights, values, strict=True))
    if not math.isfinite(total):
        raise RunFailure(
            REWARD_FUNCTION_INVALID,
            f"rewards: the sum of {list(values)} weighted by {list(weights)} is {total}, expected a finite number",
            permanent=True,
        )
    return total


class _FunctionProcess:
    """One function's process: not there, or started and ready, or busy with one batch."""

    def __init__(self, function: Reward, import_seconds: float) -> None:
        self.function = function
        self._import_seconds = import_seconds
        self._process: Tethered | None = None
        self._connection: socket.socket | None = None
        self._signature: dict[str, Any] | None = None
        self._deadline = 0.0

    def start(self) -> None:
        """Start the process, if it is not there."""
        if self._process is not None:
            return
        ours, theirs = socket.socketpair()
        with theirs:
            self._connection = ours
            self._process = Tethered(
                [
                    *PYTHON,
                    "-m",
                    "rlhf_runtime.rewards.function_process",
                    str(theirs.fileno()),
                    str(self.function.function),
                ],
                pass_fds=[theirs.fileno()],
                stdout=_STDERR,
            )
        self._deadline = time.monotonic() + self._import_seconds

    def until_ready(self) -> None:
        """Wait until the function is imported."""
        if self._signature is None:
            self._signature = self._receive(f"importing it took longer than {self._import_seconds:g} s")

    def check_signature(self, columns: Sequence[str]) -> None:
        """Check that the function can be called with prompts, completions and these columns."""
        given = ["prompts", "completions", *columns]
        assert self._signature is not None
        required, accepted = self._signature["required"], self._signature["accepted"]
        missing = [name for name in required if name not in given]
        if missing:
            there = f"the prompts have {', '.join(columns)}" if columns else "the prompts have no columns"
            raise self._invalid(f"it needs a column {missing[0]!r}, but {there}")
        refused = [name for name in given if name not in accepted]
        if refused and not self._signature["any"]:
            raise self._invalid(f"it does not accept {', '.join(refused)}: add **columns to its parameters")

    def ask(self, request: dict[str, Any]) -> None:
        """Give it a batch; its time runs from here."""
        assert self._connection is not None
        self._deadline = time.monotonic() + self.function.seconds
        try:
            wire.send(self._connection, request, self._deadline)
        except TimeoutError as error:
            raise self._overdue() from error
        except OSError as error:
            raise self._died() from error

    def answer(self, expected: int) -> list[float]:
        """The rewards of the batch that was asked."""
        rewards = self._receive()["rewards"]
        if len(rewards) != expected or not all(type(value) is float and math.isfinite(value) for value in rewards):
            raise self._invalid(f"its process answered {str(rewards)[:200]}, expected {expected} finite numbers")
        found: list[float] = rewards
        return found

    def end(self) -> None:
        """Kill the process and all it started."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.kill()
            self._process = None
        self._signature = None

    def _receive(self, overdue: str | None = None) -> dict[str, Any]:
        assert self._connection is not None
        try:
            message = wire.receive(self._connection, self._deadline)
        except TimeoutError as error:
            raise self._overdue(overdue) from error
        except EOFError as error:
            raise self._died() from error
        if message["kind"] == "invalid":
            raise self._invalid(message["message"], message["traceback"])
        if message["kind"] == "raised":
            raise RunFailure(
                REWARD_FUNCTION_FAILED,
                f"{self.function.title} raised {message['message']}",
                permanent=False,
                tail=message["traceback"],
            )
        return message

    def _invalid(self, message: str, tail: str = "") -> RunFailure:
        return RunFailure(REWARD_FUNCTION_INVALID, f"{self.function.title}: {message}", permanent=True, tail=tail)

    def _overdue(self, what: str | None = None) -> RunFailure:
        what = what or f"a batch took longer than timeoutSeconds ({self.function.seconds} s)"
        return RunFailure(
            REWARD_FUNCTION_TIMEOUT, f"{self.function.title}: {what}; its process was ended", permanent=False
        )

    def _died(self) -> RunFailure:
        assert self._process is not None
        status = self._process.wait(_EXIT_SECONDS)
        how = "closed its connection" if status is None else f"ended with {describe_exit(status)}"
        return RunFailure(REWARD_FUNCTION_FAILED, f"{self.function.title}: its process {how}", permanent=False)
