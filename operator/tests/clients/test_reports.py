"""Links to a real HTTP server that answers as the supervisor does."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from rlhf_api.run import MAX_EPISODES_PER_REPORT, LiveSettings
from rlhf_api.status import EpisodeReport, ReportCursor
from rlhf_operator.clients.reports import MOST_UNWRITTEN, Links, Pace
from rlhf_operator.decisions.plan import Acknowledge
from rlhf_operator.observed.report_view import NOTHING_HEARD, Follow, ReportView

G = Any
Until = Callable[[Callable[[], bool]], Awaitable[None]]
KEY = ("team", "addition")
TOKEN = "s3cret"


@dataclass
class Supervisor:
    """The server side of the contract, with a journal in memory."""

    given: G
    journal: list[EpisodeReport] = field(default_factory=list)
    state: str = "Running"
    attempt: int = 1
    revision: int = 100
    port: int = 0
    broken: bool = False
    acknowledged: bool = False
    polls: list[dict[str, str]] = field(default_factory=list)
    settings: list[LiveSettings] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def train(self, count: int) -> None:
        first = len(self.journal) + 1
        self.journal += [self.given.episode(number) for number in range(first, first + count)]
        self.touch()

    def end(self, state: str) -> None:
        self.state = state
        self.touch()

    def touch(self) -> None:
        self.revision += 1
        self.changed.set()
        self.changed = asyncio.Event()

    async def report(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise web.HTTPUnauthorized(text="expected the token")
        if self.broken:
            raise web.HTTPServiceUnavailable(text="storage is away")
        self.polls.append(dict(request.query))
        attempt, seq, revision, wait = (int(request.query[name]) for name in ("attempt", "seq", "revision", "wait"))
        if not self._after(attempt, seq) and revision == self.revision:
            if self.state in ("Succeeded", "Failed"):
                self.acknowledged = True
            elif wait:
                await asyncio.wait([asyncio.ensure_future(self.changed.wait())], timeout=wait)
        report = self.given.report(
            self.state, attempt=self.attempt, revision=self.revision, episodes=self._after(attempt, seq)
        )
        return web.json_response(text=report.to_json())

    def _after(self, attempt: int, seq: int) -> list[EpisodeReport]:
        left = [entry for entry in self.journal if (entry.attempt, entry.seq) > (attempt, seq)]
        return left[:MAX_EPISODES_PER_REPORT]

    async def put(self, request: web.Request) -> web.Response:
        self.settings.append(LiveSettings.model_validate_json(await request.read()))
        return web.json_response(text=self.settings[-1].to_json())


@pytest.fixture
async def supervisor(given: G) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(given)
    application = web.Application()
    application.router.add_get("/v1/report", supervisor.report)
    application.router.add_put("/v1/settings", supervisor.put)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    supervisor.port = runner.addresses[0][1]
    yield supervisor
    await runner.cleanup()


@dataclass
class Reader:
    """Links as the operator has them, with one job."""

    links: Links
    given: G
    changes: int = 0

    @property
    def view(self) -> ReportView:
        return self.links.view(KEY)

    def follow(self, *, attempt: int = 1, seq: int = 0, token: str = TOKEN) -> None:
        target = Follow(ip="127.0.0.1", attempt=attempt, cursor=ReportCursor(attempt=1 if seq else 0, seq=seq))
        self.links.follow(KEY, self.given.job(), token, target)

    def written(self, seq: int) -> None:
        self.links.written(KEY, ReportCursor(attempt=1, seq=seq))


@pytest.fixture
async def reader(given: G, supervisor: Supervisor) -> AsyncIterator[Reader]:
    async with aiohttp.ClientSession() as session:

        def changed(_: object) -> None:
            reader.changes += 1

        pace = Pace(answered=0.01, failed=0.01, cap=0.05)
        reader = Reader(Links(session, changed, port=supervisor.port, pace=pace), given)
        yield reader
        reader.links.close()


async def test_episodes_arrive_once_each_while_the_poll_is_held(
    supervisor: Supervisor, reader: Reader, until: Until
) -> None:
    reader.follow()
    await until(lambda: reader.view.report is not None)
    for count in (1, 2):
        supervisor.train(count)
        await until(lambda: len(reader.view.episodes) == len(supervisor.journal))
    assert [entry.episode for entry in reader.view.episodes] == [1, 2, 3]
    assert list(reader.view.episodes) == supervisor.journal, "entries are what the journal has, to the last digit"
    await asyncio.sleep(0.05)
    assert len(supervisor.polls) <= 6, "a poll that has nothing to fetch waits at the server"
    assert supervisor.polls[-1] == {"attempt": "1", "seq": "3", "revision": "102", "wait": "25"}


async def test_live_settings_come_first_and_again_after_a_reconnect(
    supervisor: Supervisor, reader: Reader, until: Until
) -> None:
    reader.follow()
    await until(lambda: reader.view.report is not None)
    expected = LiveSettings(generation=1, max_staleness=1, episodes=12)
    assert supervisor.settings == [expected]
    supervisor.broken = True
    supervisor.touch()
    await until(lambda: reader.view.silent_since is not None)
    supervisor.broken = False
    await until(lambda: reader.view.silent_since is None)
    assert supervisor.settings[-1] == expected
    assert len(supervisor.settings) >= 2


async def test_a_reader_far_behind_reads_at_once_until_it_has_all(
    supervisor: Supervisor, reader: Reader, until: Until
) -> None:
    supervisor.train(250)
    reader.follow()
    await until(lambda: reader.view.drained)
    assert [entry.seq for entry in reader.view.episodes] == list(range(1, 251))
    assert {poll["wait"] for poll in supervisor.polls[:3]} == {"0"}


async def test_it_goes_on_from_the_cursor_in_status(supervisor: Supervisor, reader: Reader, until: Until) -> None:
    supervisor.train(5)
    reader.follow(seq=3)
    await until(lambda: reader.view.drained)
    assert [entry.seq for entry in reader.view.episodes] == [4, 5]


async def test_what_is_written_is_forgotten_and_the_rest_is_kept(
    supervisor: Supervisor, reader: Reader, until: Until
) -> None:
    supervisor.train(5)
    reader.follow()
    await until(lambda: reader.view.drained)
    reader.written(3)
    assert [entry.seq for entry in reader.view.episodes] == [4, 5]
    supervisor.train(1)
    await until(lambda: len(reader.view.episodes) == 3)


async def test_with_too_much_unwritten_it_waits_and_loses_nothing(
    supervisor: Supervisor, reader: Reader, until: Until
) -> None:
    supervisor.train(MOST_UNWRITTEN + 150)
    reader.follow()
    await until(lambda: len(reader.view.episodes) >= MOST_UNWRITTEN)
    polls = len(supervisor.polls)
    await asyncio.sleep(0.05)
    assert (len(supervisor.polls), len(reader.view.episodes)) == (polls, MOST_UNWRITTEN)
    reader.written(MOST_UNWRITTEN)
    await until(lambda: reader.view.drained)
    assert reader.view.episodes[-1].seq == MOST_UNWRITTEN + 150


@pytest.mark.parametrize("episodes", [3, MAX_EPISODES_PER_REPORT, 2 * MAX_EPISODES_PER_REPORT])
@pytest.mark.parametrize("state", ["Succeeded", "Failed"])
async def test_a_final_report_is_kept_and_not_acknowledged_by_reading_it(
    supervisor: Supervisor, reader: Reader, state: str, episodes: int, until: Until
) -> None:
    reader.follow()
    await until(lambda: reader.view.report is not None)
    supervisor.train(episodes)
    supervisor.end(state)
    await until(lambda: reader.view.drained and reader.links.view(KEY).report.state == state)  # type: ignore[union-attr]
    await asyncio.sleep(0.05)
    assert not supervisor.acknowledged
    assert len(reader.view.episodes) == episodes

    reader.links.follow(KEY, reader.given.job(), TOKEN, None)
    assert reader.view.report is not None, "it is kept until it is acknowledged"
    reader.written(episodes)
    cursor = ReportCursor(attempt=1, seq=episodes)
    await reader.links.acknowledge(KEY, Acknowledge(1, cursor, reader.view.report.revision))
    assert supervisor.acknowledged
    assert reader.view is NOTHING_HEARD


async def test_a_final_report_found_after_a_restart_is_not_acknowledged_either(
    supervisor: Supervisor, reader: Reader, until: Until
) -> None:
    supervisor.train(MAX_EPISODES_PER_REPORT)
    supervisor.end("Succeeded")
    reader.follow()
    await until(lambda: reader.view.drained)
    await asyncio.sleep(0.05)
    assert not supervisor.acknowledged
    assert len(reader.view.episodes) == MAX_EPISODES_PER_REPORT


async def test_a_wrong_token_is_silence_that_says_so(supervisor: Supervisor, reader: Reader, until: Until) -> None:
    reader.follow(token="wrong")
    supervisor.settings.clear()
    await until(lambda: reader.view.silent_since is not None)
    assert reader.view.report is None
    assert reader.view.error == "401: expected the token"


async def test_the_supervisor_of_another_attempt_is_not_listened_to(
    supervisor: Supervisor, reader: Reader, until: Until
) -> None:
    supervisor.train(2)
    reader.follow(attempt=2)
    await until(lambda: reader.view.silent_since is not None)
    assert (reader.view.report, reader.view.episodes) == (None, ())
    assert reader.view.error == "attempt 1 answers, expected attempt 2"


async def test_silence_keeps_what_was_heard_and_ends_with_the_first_answer(
    supervisor: Supervisor, reader: Reader, until: Until
) -> None:
    supervisor.train(1)
    reader.follow()
    await until(lambda: reader.view.drained)
    supervisor.broken = True
    supervisor.touch()
    await until(lambda: reader.view.silent_since is not None)
    assert reader.view.error == "503: storage is away"
    assert reader.view.report is not None
    assert len(reader.view.episodes) == 1
    supervisor.broken = False
    supervisor.train(1)
    await until(lambda: reader.view.silent_since is None)
    assert len(reader.view.episodes) == 2


async def test_the_job_is_told_of_changes_only(supervisor: Supervisor, reader: Reader, until: Until) -> None:
    reader.follow()
    await until(lambda: reader.view.report is not None)
    before = reader.changes
    await asyncio.sleep(0.05)
    assert reader.changes == before
    supervisor.touch()
    await until(lambda: reader.changes > before)


async def test_following_the_same_attempt_again_keeps_the_link_and_another_replaces_it(
    supervisor: Supervisor, reader: Reader, until: Until
) -> None:
    supervisor.train(1)
    reader.follow()
    await until(lambda: reader.view.drained)
    reader.follow(seq=1)
    assert len(reader.view.episodes) == 1, "the same link, with what it holds"
    reader.follow(attempt=2)
    assert reader.view is not None
    assert reader.view.report is None
    reader.links.drop(KEY)
    assert reader.view is NOTHING_HEARD
