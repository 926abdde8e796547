"""The coordinator's end of the channel to its supervisor, over the socket it inherited."""

import asyncio
import contextlib
import os
import socket

from pydantic import TypeAdapter
from rlhf_api.run import Failure, LiveSettings
from rlhf_api.status import EpisodeReport

from rlhf_runtime.channel.messages import (
    CoordinatorState,
    EpisodeDone,
    Finished,
    FromCoordinator,
    FromSupervisor,
    Journaled,
)
from rlhf_runtime.channel.messages import Settings as SettingsMessage

#: Environment variable with the number of the inherited socket's file descriptor.
CHANNEL_FD_ENV = "RLHF_CHANNEL_FD"
#: Longest line, bytes: a state names the pods of up to 2000 actors.
MAX_LINE = 16 * 1024 * 1024
#: Longest wait for the first settings and for an episode to be durable, seconds.
ANSWER_SECONDS = 120.0

_from_supervisor: TypeAdapter[FromSupervisor] = TypeAdapter(FromSupervisor)


class SupervisorGone(ConnectionError):
    """The supervisor closed the channel, or did not answer in time: nothing that is trained now would count."""


class SocketChannel:
    """Implements ``channel.SupervisorChannel``. All methods raise SupervisorGone once the supervisor is gone."""

    settings: LiveSettings

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._answer_seconds = answer_seconds
        self._stop = False
        self._journaled: dict[int, asyncio.Future[None]] = {}
        self._first_settings: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listener = asyncio.create_task(self._listen(), name="supervisor-channel")

    def stop_requested(self) -> bool:
        """Whether the supervisor has asked to stop, or is gone."""
        return self._stop or self._listener.done()

    async def state(self, state: CoordinatorState) -> None:
        """Tell the state."""
        await self._send(state)

    async def episode(self, report: EpisodeReport) -> None:
        """Tell an episode; returns when it is durable in the journal."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._journaled[report.episode] = answer
        try:
            await self._send(EpisodeDone(report=report))
            await self._answered(answer, f"episode {report.episode} was not acknowledged")
        finally:
            del self._journaled[report.episode]

    async def finished(self, failure: Failure | None) -> None:
        """Say the last word."""
        await self._send(Finished(failure=failure))

    async def close(self) -> None:
        """End the channel on this side."""
        self._listener.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._listener
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def until_settings(self) -> None:
        """Wait for the first settings."""
        await self._answered(self._first_settings, "no settings arrived")

    async def _send(self, message: FromCoordinator) -> None:
        if self._listener.done():
            raise SupervisorGone("the supervisor closed the channel")
        try:
            self._writer.write(message.to_json().encode() + b"\n")
            await self._writer.drain()
        except ConnectionError as error:
            raise SupervisorGone(f"the supervisor closed the channel: {error}") from error

    async def _answered(self, answer: asyncio.Future[None], what: str) -> None:
        done, _ = await asyncio.wait(
            {answer, self._listener}, timeout=self._answer_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if answer in done:
            return
        if self._listener in done:
            raise SupervisorGone(f"{what}: the supervisor closed the channel") from self._listener.exception()
        raise SupervisorGone(f"{what} within {self._answer_seconds:g} s")

    async def _listen(self) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await self._reader.readline():
                self._take(_from_supervisor.validate_json(line))

    def _take(self, message: FromSupervisor) -> None:
        if isinstance(message, SettingsMessage):
            self.settings = message.settings
            if not self._first_settings.done():
                self._first_settings.set_result(None)
        elif isinstance(message, Journaled):
            answer = self._journaled.get(message.episode)
            if answer is not None and not answer.done():
                answer.set_result(None)
        else:
            self._stop = True


async def connect() -> SocketChannel:
    """The channel over the socket whose number is in the environment, with its first settings.

    Raises SupervisorGone, or KeyError if the environment names no socket.
    """
    inherited = socket.socket(fileno=int(os.environ[CHANNEL_FD_ENV]))
    # Not for the processes that this one starts: the channel ends with the coordinator.
    inherited.set_inheritable(False)
    inherited.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=inherited, limit=MAX_LINE)
    channel = SocketChannel(reader, writer)
    await channel.until_settings()
    return channel
