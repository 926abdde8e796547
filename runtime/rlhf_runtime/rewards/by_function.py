"""A reward that the user's function gives, in a process of its own.

User code may hang, crash, leak, print, or start processes; here it can do none of that to a maker. A process
that has failed in any way is ended with all it started, and a fresh one takes its place on the next use.
"""

import asyncio
import math
import signal
import socket
import time
from collections.abc import Sequence
from typing import Any

from rlhf_api.conditions import Reason

from rlhf_runtime.failures import RunFailure
from rlhf_runtime.lifeline import PYTHON, Tethered, describe_exit
from rlhf_runtime.rewards import wire
from rlhf_runtime.rewards.batch import Batch

#: What every function gets beside the columns, by these names; token ids only if it has a parameter for them.
_OWN_NAMES = ("prompts", "completions", "completion_ids")
#: Time between the end of a connection and the end of its process, seconds.
_EXIT_SECONDS = 2.0
#: File descriptor of standard error: where user code's prints go.
_STDERR = 2


class FunctionReward:
    """One function's process: not there, or started and ready, or busy with one batch.

    Raises RunFailure: RewardFunctionInvalid (permanent), RewardFunctionFailed, RewardFunctionTimeout.
    """

    def __init__(self, label: str, path: str, seconds: float, import_seconds: float) -> None:
        """``label`` begins every message; ``seconds`` are for one batch."""
        self._label = label
        self._path = path
        self._seconds = seconds
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
                [*PYTHON, "-m", "rlhf_runtime.rewards.function_process", str(theirs.fileno()), self._path],
                pass_fds=[theirs.fileno()],
                stdout=_STDERR,
            )
        self._deadline = time.monotonic() + self._import_seconds

    def until_ready(self) -> None:
        """Wait until the function is imported."""
        if self._signature is None:
            self._signature = self._receive(f"importing it took longer than {self._import_seconds:g} s")

    def check(self, columns: Sequence[str]) -> None:
        """Check that the function can be called with prompts, completions and these columns."""
        assert self._signature is not None
        required, accepted = self._signature["required"], self._signature["accepted"]
        taken = [name for name in columns if name in _OWN_NAMES]
        if taken:
            raise self._invalid(f"the prompts have a column {taken[0]!r}, a name that functions get something else by")
        missing = [name for name in required if name not in (*_OWN_NAMES, *columns)]
        if missing:
            there = f"the prompts have {', '.join(columns)}" if columns else "the prompts have no columns"
            raise self._invalid(f"it needs a column {missing[0]!r}, but {there}")
        refused = [name for name in ("prompts", "completions", *columns) if name not in accepted]
        if refused and not self._signature["any"]:
            raise self._invalid(f"it does not accept {', '.join(refused)}: add **columns to its parameters")

    async def score(self, batch: Batch) -> list[float | None]:
        try:
            return await asyncio.to_thread(self._score, batch)
        except asyncio.CancelledError:
            # The thread that waits for its answer sees it end.
            if self._process is not None:
                self._process.signal(signal.SIGKILL)
            raise

    def end(self) -> None:
        """Kill the process and all it started."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.kill()
            self._process = None
        self._signature = None

    def _score(self, batch: Batch) -> list[float | None]:
        assert self._connection is not None
        assert self._signature is not None
        request = batch.request()
        if "completion_ids" in self._signature["accepted"] and batch.tokens is not None:
            request["completion_ids"] = [list(ids) for ids in batch.tokens.completion_ids]
        self._deadline = time.monotonic() + self._seconds
        try:
            wire.send(self._connection, request, self._deadline)
        except TimeoutError as error:
            raise self._overdue() from error
        except OSError as error:
            raise self._died() from error
        rewards: list[float | None] = self._receive()["rewards"]
        # User code shares that process: what it says is looked at again.
        good = [value is None or (type(value) is float and math.isfinite(value)) for value in rewards]
        if len(rewards) != len(batch) or not all(good):
            raise self._invalid(f"its process answered {str(rewards)[:200]}, expected {len(batch)} finite numbers")
        return rewards

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
                Reason.REWARD_FUNCTION_FAILED,
                f"{self._label}: it raised {message['message']}",
                permanent=False,
                tail=message["traceback"],
            )
        return message

    def _invalid(self, message: str, tail: str = "") -> RunFailure:
        return RunFailure(Reason.REWARD_FUNCTION_INVALID, f"{self._label}: {message}", permanent=True, tail=tail)

    def _overdue(self, what: str | None = None) -> RunFailure:
        what = what or f"a batch took longer than timeoutSeconds ({self._seconds:g} s)"
        return RunFailure(
            Reason.REWARD_FUNCTION_TIMEOUT, f"{self._label}: {what}; its process was ended", permanent=False
        )

    def _died(self) -> RunFailure:
        assert self._process is not None
        status = self._process.wait(_EXIT_SECONDS)
        how = "closed its connection" if status is None else f"ended with {describe_exit(status)}"
        return RunFailure(Reason.REWARD_FUNCTION_FAILED, f"{self._label}: its process {how}", permanent=False)
