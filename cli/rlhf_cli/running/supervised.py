"""One attempt on this machine: the supervisor's process and its reports; nothing of it outlives the attempt.

The supervisor is the one that the operator submits. Without a RAY_ADDRESS its coordinator starts a Ray of its own,
after the files were checked.
"""

import asyncio
import contextlib
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from rlhf_api.conditions import Reason
from rlhf_api.run import RUN_CONFIG_ENV, TOKEN_ENV, ExitCode, Failure, Report, RunConfig
from rlhf_api.status import ReportCursor
from rlhf_api.tails import last_lines, without_routine
from rlhf_runtime.lifeline import PYTHON, Tethered, describe_exit
from rlhf_runtime.storage.attempt_result import read_result
from rlhf_runtime.storage.run_directory import RunDirectory

from rlhf_cli.running.descendants import adopt_orphans, end_descendants
from rlhf_cli.running.endpoint import Endpoint

#: Longest start of the supervisor until its endpoint listens, seconds.
LISTEN_SECONDS = 60.0
#: Longest wait for the supervisor's process to end after its last report was read, seconds.
EXIT_SECONDS = 30.0
#: Longest wait for the end of what was killed, seconds.
KILL_SECONDS = 10.0
#: How often a process is looked at, seconds.
_LOOK_SECONDS = 0.1
#: How soon an endpoint that did not answer is asked again, seconds.
_RETRY_SECONDS = 0.5

T = TypeVar("T")


class Interrupts:
    """Counts Ctrl-C and SIGTERM: the first asks to stop, the second ends at once."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    @contextlib.contextmanager
    def listening(self, told: Callable[[], None]) -> Iterator[None]:
        """Take the signals while the context lasts; `told` is called at the first."""
        loop = asyncio.get_running_loop()

        def heard() -> None:
            if self.first.is_set():
                self.second.set()
            else:
                self.first.set()
                told()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, heard)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


class _Interrupted(Exception):
    """The user wants an end now."""


async def run_attempt(
    config: RunConfig,
    environment: Mapping[str, str],
    scratch: Path,
    interrupts: Interrupts,
    take: Callable[[Report], ReportCursor],
) -> Failure | None:
    """Run one attempt to its end: why it failed, or None.

    `take` is given every report, and answers the cursor after its episodes.
    `scratch` is an empty folder for logs and sockets.
    """
    token = secrets.token_hex(32)
    adopt_orphans()
    supervisor = _Supervisor(config, supervisor_environment(config, environment, token, scratch), scratch)
    try:
        return await _unless(interrupts.second, supervisor.follow(token, interrupts.first, take))
    except _Interrupted:
        message = "ended at once; the next attempt resumes from the newest checkpoint"
        return Failure(reason=Reason.STOPPED, message=message, permanent=False)
    finally:
        supervisor.kill()
        await asyncio.to_thread(end_descendants, KILL_SECONDS)


def supervisor_environment(
    config: RunConfig, environment: Mapping[str, str], token: str, scratch: Path
) -> dict[str, str]:
    """What the supervisor and all that it starts get: the job's variables, with a Ray that takes no job but ours."""
    variables = {name: value for name, value in environment.items() if name != "RAY_ADDRESS"}
    return {
        **variables,
        RUN_CONFIG_ENV: config.to_json(),
        TOKEN_ENV: token,
        "RAY_AUTH_MODE": "token",
        "RAY_TMPDIR": str(scratch),
    }


class _Supervisor:
    """The supervisor's process, as under the operator except that it listens on this machine alone."""

    def __init__(self, config: RunConfig, variables: Mapping[str, str], scratch: Path) -> None:
        self._config = config
        self._directory = RunDirectory(config.run_directory)
        self._port_file = scratch / "port"
        self._log = scratch / "supervisor.log"
        command = [*PYTHON, "-m", "rlhf_runtime.supervisor", "--host", "127.0.0.1", "--port", "0"]
        command += ["--port-file", str(self._port_file)]
        with self._log.open("wb") as log:
            self._process = Tethered(command, stdout=log.fileno(), stderr=log.fileno(), env=variables)

    def kill(self) -> None:
        """End it and all it started."""
        self._process.kill()

    async def follow(self, token: str, stop: asyncio.Event, take: Callable[[Report], ReportCursor]) -> Failure | None:
        """Read its reports to the last, asking it to stop when `stop` is set; why the attempt failed, or None."""
        stopping = asyncio.ensure_future(self._stop_when(stop))
        exited = asyncio.ensure_future(self._exited())
        reading = asyncio.ensure_future(self._read(token, take))
        try:
            await asyncio.wait({exited, reading}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                last = reading.result()
                await asyncio.wait({exited}, timeout=EXIT_SECONDS)
                return last.failure
            return self._failure_of(exited.result(), stopped=stop.is_set())
        except TimeoutError as error:
            return Failure(reason=Reason.COORDINATOR_CRASHED, message=str(error), permanent=False, tail=self._tail())
        finally:
            await _cancelled(stopping, exited, reading)

    async def _read(self, token: str, take: Callable[[Report], ReportCursor]) -> Report:
        """The attempt's last report, after all before it were taken and it was acknowledged."""
        port = await self._port()
        cursor, revision = ReportCursor(), None
        async with aiohttp.ClientSession() as session:
            endpoint = Endpoint(session, port, token)
            while True:
                report = await endpoint.poll(cursor, revision)
                if report is None:
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                following = take(report)
                # A poll with the newest revision and nothing new is the acknowledgement.
                if report.ended and revision == report.revision and not report.episodes:
                    return report
                cursor, revision = following, report.revision

    async def _port(self) -> int:
        deadline = time.monotonic() + LISTEN_SECONDS
        while not self._port_file.exists():
            if time.monotonic() >= deadline:
                raise TimeoutError(f"the supervisor did not listen within {LISTEN_SECONDS:.0f} s; its log: {self._log}")
            await asyncio.sleep(_LOOK_SECONDS)
        return int(self._port_file.read_text(encoding="utf-8"))

    async def _exited(self) -> int:
        while True:
            code = self._process.wait(0)
            if code is not None:
                return code
            await asyncio.sleep(_LOOK_SECONDS)

    async def _stop_when(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._process.signal(signal.SIGTERM)

    def _failure_of(self, code: int, *, stopped: bool) -> Failure | None:
        """Why an attempt failed whose supervisor ended unheard: by its result, else by its process."""
        result = read_result(self._directory, self._config.attempt)
        if result is not None:
            return result.report.failure
        if code == ExitCode.SUCCEEDED:
            return None
        if stopped:
            message = "ended before the attempt had begun; the next one resumes from the newest checkpoint"
            return Failure(reason=Reason.STOPPED, message=message, permanent=False)
        return Failure(
            reason=Reason.COORDINATOR_CRASHED,
            message=f"the supervisor ended with {describe_exit(code)} before its last report; its log: {self._log}",
            permanent=code == ExitCode.PERMANENT,
            tail=self._tail(),
        )

    def _tail(self) -> str:
        return last_lines(without_routine(self._log.read_text(encoding="utf-8", errors="replace")))


async def _unless(event: asyncio.Event, work: Awaitable[T]) -> T:
    """The result of `work`; raises _Interrupted, with the work cancelled, when the event comes first."""
    waiting = asyncio.ensure_future(event.wait())
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait({waiting, working}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise _Interrupted
        return working.result()
    finally:
        await _cancelled(waiting, working)


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
