"""The coordinator as its supervisor sees it: a child process, a channel, and the end of its log."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from typing import IO

from pydantic import TypeAdapter
from rlhf_api.run import RUN_CONFIG_ENV, RunConfig
from rlhf_api.tails import MAX_TAIL, last_lines, without_routine

from rlhf_runtime.channel.coordinator_end import CHANNEL_FD_ENV, MAX_LINE
from rlhf_runtime.channel.messages import FromCoordinator, FromSupervisor
from rlhf_runtime.lifeline import PYTHON, Tethered

#: The command that starts a coordinator.
COORDINATOR = (*PYTHON, "-m", "rlhf_runtime.coordinator")
#: Bytes of the end of its standard error that are kept: a tail in characters of four bytes, and routine lines, which
#: the tail leaves out, around it.
_KEPT_BYTES = 4 * (4 * MAX_TAIL + 4)
#: Longest wait for the rest of a dead coordinator's log, seconds.
_LOG_SECONDS = 2.0
_STDERR = 2

_from_coordinator: TypeAdapter[FromCoordinator] = TypeAdapter(FromCoordinator)


class CoordinatorProcess:
    """A running coordinator. Its process group ends at ``end``, or when this process does.

    ``receive`` until it gives None, ``send`` at any time, ``end`` on every path.
    """

    def __init__(
        self, process: Tethered, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: "_LogTail"
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._log = log

    @classmethod
    async def start(cls, config: RunConfig, command: Sequence[str] = COORDINATOR) -> "CoordinatorProcess":
        """Start ``command`` with the RunConfig and its end of the channel in the environment."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = Tethered(
                command,
                pass_fds=[theirs.fileno()],
                stderr=subprocess.PIPE,
                env={
                    **os.environ,
                    RUN_CONFIG_ENV: config.to_json(),
                    CHANNEL_FD_ENV: str(theirs.fileno()),
                },
            )
        assert process.process.stderr is not None
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=MAX_LINE)
        return cls(process, reader, writer, _LogTail(process.process.stderr))

    async def receive(self) -> FromCoordinator | None:
        """Its next message; None when it has closed the channel, by dying for instance. Raises ValueError."""
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        # A line without its end is what a process that was killed while writing leaves.
        return _from_coordinator.validate_json(line) if line.endswith(b"\n") else None

    async def send(self, message: FromSupervisor) -> None:
        """Tell it something. It is no error if it is gone: ``receive`` says so."""
        with contextlib.suppress(ConnectionError):
            self._writer.write(message.to_json().encode() + b"\n")
            await self._writer.drain()

    async def exited(self, seconds: float) -> int | None:
        """How it ended, as ``Popen.returncode`` says it; None if it still runs after ``seconds``."""
        return await asyncio.to_thread(self._process.wait, seconds)

    async def end(self, seconds: float) -> None:
        """End it: SIGTERM, and SIGKILL ``seconds`` later, to all its process group. Again does nothing."""
        if await self.exited(0) is None:
            self._process.signal(signal.SIGTERM)
            await self.exited(seconds)
        await asyncio.to_thread(self._process.kill)
        self._writer.close()

    async def tail(self) -> str:
        """The last lines of its standard error that are not routine."""
        return await asyncio.to_thread(self._log.text)


class _LogTail:
    """Forwards a process's standard error to ours and keeps its end.

    In a thread: what reads our standard error may be slow, and the report endpoint is not to wait for it.
    """

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._end = b""
        self._thread = threading.Thread(target=self._forward, name="coordinator-log", daemon=True)
        self._thread.start()

    def text(self) -> str:
        """The end of the log; waits a little for what a process that has ended wrote last."""
        self._thread.join(_LOG_SECONDS)
        return last_lines(without_routine(self._end.decode(errors="replace")))

    def _forward(self) -> None:
        descriptor = self._source.fileno()
        while chunk := os.read(descriptor, 65536):
            self._end = (self._end + chunk)[-_KEPT_BYTES:]
            while chunk:
                chunk = chunk[os.write(_STDERR, chunk) :]
        self._source.close()
