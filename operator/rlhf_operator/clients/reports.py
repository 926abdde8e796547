"""Links to supervisors: one task for each running job holds the long poll and keeps what it brings.

Nothing is lost between two status writes: the cursor in memory moves with what was received, the one in status with
what was written, and a link that starts anew starts from the latter. When too much waits to be written the link
stops polling; the journal keeps the rest. A final report is kept and *not* polled past, since that would
acknowledge it: the supervisor may exit only once the status holds what it said.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import aiohttp
from pydantic import ValidationError
from rlhf_api.job import RLHFJob
from rlhf_api.run import MAX_EPISODES_PER_REPORT, REPORT_PATH, REPORT_PORT, SETTINGS_PATH, LiveSettings, Report
from rlhf_api.schema import first_error
from rlhf_api.series import unread
from rlhf_api.status import ReportCursor

from rlhf_operator.clients.heads import address, text_of
from rlhf_operator.decisions.plan import Acknowledge
from rlhf_operator.observed.report_view import NOTHING_HEARD, Follow, ReportView
from rlhf_operator.queue import Key

log = logging.getLogger(__name__)

POLL_SECONDS = 25
#: Episodes kept in memory until they are written; a full link waits.
MOST_UNWRITTEN = 5 * MAX_EPISODES_PER_REPORT


@dataclass(frozen=True)
class Pace:
    """Seconds between polls: after an answer, and after failures (growing up to ``cap``). All jittered."""

    answered: float = 1.0
    failed: float = 1.0
    cap: float = 8.0


class BadAnswer(Exception):
    """Something answered, and it was not the report of the attempt that is followed."""


class Links:
    """The links of all jobs. ``changed`` is called with a job's key whenever its view has changed."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        changed: Callable[[Key], None],
        *,
        port: int = REPORT_PORT,
        pace: Pace = Pace(),
    ) -> None:
        self._session = session
        self._changed = changed
        self._port = port
        self._pace = pace
        self._links: dict[Key, _Link] = {}

    def view(self, key: Key) -> ReportView:
        """What is held for a job."""
        link = self._links.get(key)
        return link.view if link else NOTHING_HEARD

    def follow(self, key: Key, job: RLHFJob, token: str, target: Follow | None) -> None:
        """Makes the link what is wanted. A final report is kept though nothing is followed, until acknowledged."""
        link = self._links.get(key)
        if link is not None and target is not None and link.same(target):
            return
        if link is not None and target is None and link.holds_final:
            return
        self.drop(key)
        if target is not None:
            supervisor = _Supervisor(self._session, address(target.ip, self._port), token)
            self._links[key] = _Link(target, supervisor, _settings(job), self._pace, lambda: self._changed(key))

    def written(self, key: Key, cursor: ReportCursor) -> None:
        """Status now holds everything up to the cursor."""
        if (link := self._links.get(key)) is not None:
            link.written(cursor)

    async def acknowledge(self, key: Key, action: Acknowledge) -> None:
        """Lets the supervisor exit. One try: it waits for a bounded time only, and is stopped after that."""
        link = self._links.get(key)
        if link is None:
            return
        try:
            await link.supervisor.report(action.attempt, action.cursor, action.revision, wait=0)
        except (BadAnswer, aiohttp.ClientError, TimeoutError, OSError) as error:
            log.info("%s/%s: attempt %d was not acknowledged: %s", *key, action.attempt, error)
        self.drop(key)

    def drop(self, key: Key) -> None:
        """Ends the link and forgets what it holds."""
        if (link := self._links.pop(key, None)) is not None:
            link.end()

    def close(self) -> None:
        for key in list(self._links):
            self.drop(key)


class _Supervisor:
    """The supervisor's endpoint as three calls."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str) -> None:
        self._session = session
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}

    async def report(self, attempt: int, cursor: ReportCursor, revision: int, wait: int) -> Report:
        """The report of ``attempt`` after the cursor. Raises BadAnswer, ClientError, TimeoutError."""
        query = {"attempt": cursor.attempt, "seq": cursor.seq, "revision": revision, "wait": wait}
        timeout = aiohttp.ClientTimeout(total=wait + 10, connect=5)
        url = f"{self._url}{REPORT_PATH}"
        async with self._session.get(
            url, params=query, headers=self._headers, timeout=timeout, allow_redirects=False
        ) as response:
            text = await text_of(response)
            if response.status != 200:
                raise BadAnswer(f"{response.status}: {text.strip()[:200]}")
        try:
            report = Report.read_json(text)
        except ValidationError as error:
            raise BadAnswer(f"not a report: {first_error(error)}") from error
        if report.attempt != attempt:
            raise BadAnswer(f"attempt {report.attempt} answers, expected attempt {attempt}")
        return report

    async def put(self, settings: LiveSettings) -> None:
        """Live settings, again after every reconnect: they are idempotent."""
        timeout = aiohttp.ClientTimeout(total=10, connect=5)
        url = f"{self._url}{SETTINGS_PATH}"
        async with self._session.put(
            url, json=settings.to_dict(), headers=self._headers, timeout=timeout, allow_redirects=False
        ) as response:
            text = await text_of(response)
            if response.status >= 300:
                raise BadAnswer(f"settings: {response.status}: {text.strip()[:200]}")


class _Link:
    """One job's long poll."""

    def __init__(
        self,
        target: Follow,
        supervisor: _Supervisor,
        settings: LiveSettings,
        pace: Pace,
        changed: Callable[[], None],
    ) -> None:
        self.view = NOTHING_HEARD
        self.supervisor = supervisor
        self._target = target
        self._settings = settings
        self._pace = pace
        self._changed = changed
        self._cursor = target.cursor
        self._room = asyncio.Event()
        self._room.set()
        self._failures = 0
        self._task = asyncio.create_task(self._run(), name=f"reports of {target.ip} attempt {target.attempt}")

    @property
    def holds_final(self) -> bool:
        return self.view.report is not None and self.view.report.ended

    def same(self, target: Follow) -> bool:
        alive = self.holds_final or not self._task.done()
        return alive and (self._target.ip, self._target.attempt) == (target.ip, target.attempt)

    def written(self, cursor: ReportCursor) -> None:
        left = tuple(unread(cursor, self.view.episodes))
        self.view = replace(self.view, episodes=left)
        if len(left) < MOST_UNWRITTEN:
            self._room.set()

    def end(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        try:
            await self._poll_until_final()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # A bug of ours must be seen as silence, which has a deadline, not as a job that never moves.
            log.exception("reports of %s: the link broke", self._target.ip)
            self._failed(error)

    async def _poll_until_final(self) -> None:
        connected = False
        while not (self.holds_final and self.view.drained):
            await self._room.wait()
            try:
                if not connected:
                    await self.supervisor.put(self._settings)
                    connected = True
                await self._poll()
            except (BadAnswer, aiohttp.ClientError, TimeoutError, OSError) as error:
                connected = False
                self._failed(error)
                delay = min(self._pace.cap, self._pace.failed * 2 ** min(self._failures - 1, 10))
            else:
                delay = self._pace.answered if self.view.drained else 0.0
            await asyncio.sleep(delay * random.uniform(0.8, 1.2))

    async def _poll(self) -> None:
        known = self.view.report
        # Only a reader with nothing left to fetch waits, and only its revision is current: a poll at the end of a
        # finished attempt with the current revision would acknowledge it. After silence an answer is wanted at once.
        waiting = known is not None and self.view.drained and self.view.silent_since is None
        revision = known.revision if known is not None and waiting else -1
        report = await self.supervisor.report(
            self._target.attempt, self._cursor, revision, POLL_SECONDS if waiting else 0
        )
        self._failures = 0
        fresh = unread(self._cursor, report.episodes)
        if fresh:
            self._cursor = fresh[-1].cursor
        unchanged = known is not None and known.revision == report.revision and not fresh and self.view.drained
        episodes = (*self.view.episodes, *fresh)
        if len(episodes) >= MOST_UNWRITTEN:
            self._room.clear()
        drained = len(report.episodes) < MAX_EPISODES_PER_REPORT
        was_silent = self.view.silent_since is not None
        # The view holds the episodes; a report that is kept for its state need not hold them again.
        self.view = ReportView(report=report.model_copy(update={"episodes": []}), episodes=episodes, drained=drained)
        if not unchanged or was_silent:
            self._changed()

    def _failed(self, error: BaseException) -> None:
        self._failures += 1
        said = "no answer in time" if isinstance(error, TimeoutError) else str(error) or repr(error)
        since = self.view.silent_since or datetime.now(UTC).replace(microsecond=0)
        first = self.view.silent_since is None
        self.view = replace(self.view, silent_since=since, error=said)
        if first:
            self._changed()


def _settings(job: RLHFJob) -> LiveSettings:
    return LiveSettings(generation=job.generation, max_staleness=job.spec.max_staleness, episodes=job.spec.episodes)
