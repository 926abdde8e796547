"""The report endpoint: what the operator, or the local runner, asks and tells the supervisor over HTTP.

``GET /v1/report?attempt=&seq=&revision=&wait=``: the report with the episodes after the cursor (attempt, seq), at
once if there are any or if ``revision`` is not current, else after at most ``wait`` seconds.
``PUT /v1/settings``: LiveSettings; answered with those in force. ``GET /healthz``: it answers.
All but the last want ``Authorization: Bearer TOKEN`` if there is a token.
"""

import contextlib
import hmac
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from aiohttp import web
from pydantic import ValidationError
from rlhf_api.run import MAX_EPISODES_PER_REPORT, MAX_POLL_SECONDS, REPORT_PATH, SETTINGS_PATH, LiveSettings
from rlhf_api.schema import first_error
from rlhf_api.status import EpisodeReport

from rlhf_runtime.failures import RunFailure
from rlhf_runtime.supervision.report_board import ReportBoard

#: Polls that may wait at once; there is one operator, and it has one task a job.
MAX_WAITING = 32
#: Longest body of a request, bytes.
MAX_BODY = 64 * 1024
LOOPBACK = "127.0.0.1"

Number = TypeVar("Number", int, float)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class CannotListen(Exception):
    """The endpoint cannot be had at that address."""


class Supervised(Protocol):
    """What the endpoint needs of a supervisor."""

    board: ReportBoard

    async def episodes_after(self, attempt: int, seq: int, limit: int) -> list[EpisodeReport]:
        """The series after a cursor. Raises RunFailure if the storage does not give it."""
        ...

    def acknowledge(self) -> None:
        """The last report was seen."""
        ...

    async def put_settings(self, settings: LiveSettings) -> LiveSettings:
        """Take settings if they are newer; gives those in force."""
        ...


@dataclass(frozen=True, slots=True)
class _Poll:
    attempt: int
    seq: int
    revision: int
    wait: float


class ReportServer:
    """The endpoint's handlers. Without a token everyone may ask, so then it listens to this machine alone."""

    def __init__(self, supervisor: Supervised, token: str | None) -> None:
        self._supervisor = supervisor
        self._token = token
        self._waiting = 0

    def application(self) -> web.Application:
        """The aiohttp application."""
        application = web.Application(middlewares=[self._authorised], client_max_size=MAX_BODY)
        application.router.add_get(REPORT_PATH, self._report)
        application.router.add_put(SETTINGS_PATH, self._settings)
        application.router.add_get("/healthz", self._healthz)
        return application

    @contextlib.asynccontextmanager
    async def listening(self, host: str | None, port: int) -> AsyncIterator[int]:
        """Listen while the context lasts; gives the port. ``host`` None: every interface; ``port`` 0: a free one.

        Raises CannotListen for an interface that others reach when there is no token, and for a port that is taken.
        """
        if not self._token and host != LOOPBACK:
            raise CannotListen(f"without a token the report endpoint listens on {LOOPBACK} only, found {host or 'all'}")
        # A poll whose reader is gone does not wait on.
        runner = web.AppRunner(self.application(), access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port)
            try:
                await site.start()
            except OSError as error:
                raise CannotListen(f"cannot listen on {host or 'all interfaces'}, port {port}: {error}") from error
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()

    @web.middleware
    async def _authorised(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._token and request.path != "/healthz":
            given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
            if not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
                raise web.HTTPUnauthorized(
                    text="expected Authorization: Bearer TOKEN with this job's token\n",
                    headers={"WWW-Authenticate": "Bearer"},
                )
        return await handler(request)

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _settings(self, request: web.Request) -> web.Response:
        try:
            settings = LiveSettings.read_json(await request.read())
        except ValidationError as error:
            raise web.HTTPBadRequest(text=f"body: {first_error(error)}\n") from error
        return _json((await self._supervisor.put_settings(settings)).to_json())

    async def _report(self, request: web.Request) -> web.Response:
        poll = _poll(request)
        board = self._supervisor.board
        episodes = await self._episodes(poll)
        if not episodes and poll.revision == board.report.revision:
            if board.report.ended:
                self._supervisor.acknowledge()
            elif poll.wait:
                await self._wait(poll)
                episodes = await self._episodes(poll)
        # The report after the episodes: what it says of them is then never older than they are.
        report = board.report.model_copy(update={"episodes": episodes})
        return _json(report.to_json())

    async def _wait(self, poll: _Poll) -> None:
        if self._waiting >= MAX_WAITING:
            raise web.HTTPTooManyRequests(text=f"{self._waiting} polls are waiting already\n")
        self._waiting += 1
        try:
            await self._supervisor.board.change(poll.revision, poll.wait)
        finally:
            self._waiting -= 1

    async def _episodes(self, poll: _Poll) -> list[EpisodeReport]:
        try:
            return await self._supervisor.episodes_after(poll.attempt, poll.seq, MAX_EPISODES_PER_REPORT)
        except RunFailure as error:
            raise web.HTTPServiceUnavailable(text=f"{error}\n") from error


def _poll(request: web.Request) -> _Poll:
    unknown = sorted(set(request.query) - {"attempt", "seq", "revision", "wait"})
    if unknown:
        raise web.HTTPBadRequest(text=f"{unknown[0]}: unknown parameter, expected attempt, seq, revision, wait\n")
    return _Poll(
        attempt=_number(request, "attempt", int, 0),
        seq=_number(request, "seq", int, 0),
        revision=_number(request, "revision", int, -1),
        wait=_number(request, "wait", float, 0.0, MAX_POLL_SECONDS),
    )


def _number(request: web.Request, name: str, kind: type[Number], least: Number, most: float = math.inf) -> Number:
    """A parameter, ``least`` where it is absent."""
    text = request.query.get(name)
    if text is None:
        return least
    with contextlib.suppress(ValueError):
        value = kind(text)
        if least <= value <= most:
            return value
    bounds = f"of {least} or more" if most == math.inf else f"from {least} to {most}"
    whole = "a whole number" if kind is int else "a number"
    raise web.HTTPBadRequest(text=f"{name}: found {text!r}, expected {whole} {bounds}\n")


def _json(text: str) -> web.Response:
    return web.Response(text=text, content_type="application/json")
