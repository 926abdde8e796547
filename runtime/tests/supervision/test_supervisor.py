"""The supervisor with real child processes, real signals and real HTTP; the coordinator is a scripted one."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from rlhf_api.job import RLHFJob
from rlhf_api.run import Failure, Report, RunConfig, Wait, run_config
from rlhf_runtime.channel.messages import Finished
from rlhf_runtime.storage.attempt_result import read_result
from rlhf_runtime.storage.journal import history
from rlhf_runtime.storage.run_directory import RunDirectory
from rlhf_runtime.supervision.deadlines import Patience, Times, next_deadline
from rlhf_runtime.supervision.endings import Ending, failure_of

TOKEN = "a-token-of-this-test"
AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}
SCRIPT = Path(__file__).with_name("scripted_coordinator.py")

#: The supervisor as `main` runs it, with the scripted coordinator in place of the real one.
_SERVE = """
import asyncio, logging, os, pathlib, sys
from rlhf_api.run import RUN_CONFIG_ENV, RunConfig
from rlhf_runtime.supervision.deadlines import Patience
from rlhf_runtime.supervisor import serve
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
script, scenario, port_file, token, linger, stop = sys.argv[1:]
sys.exit(asyncio.run(serve(
    RunConfig.model_validate_json(os.environ[RUN_CONFIG_ENV]), token=token or None, host="127.0.0.1", port=0,
    port_file=pathlib.Path(port_file), linger_seconds=float(linger), command=[sys.executable, script, scenario],
    patience=Patience(grace=0.0, stop=float(stop), exit=1.0),
)))
"""


def config(run_directory: Path, attempt: int = 1, **changes: Any) -> RunConfig:
    job = RLHFJob.model_validate(
        {
            "apiVersion": "rlhf.dev/v1alpha1",
            "kind": "RLHFJob",
            "metadata": {"name": "test", "namespace": "default", "uid": "00000000-1111", "generation": 1},
            "spec": {
                "episodes": 4,
                "algorithm": {"type": "GRPO", "optimizer": {"learningRate": 0.001}},
                "models": {"actor": {"uri": "/models/none"}},
                "rewards": [{"function": "rewards:f"}],
                "prompts": {"uri": "/prompts.jsonl"},
                "rollout": {"promptsPerEpisode": 2, "samplesPerPrompt": 4, "maxNewTokens": 8},
                "checkpoint": {"storage": {"path": "/storage"}},
                "makers": {"replicas": 2},
            },
        }
    )
    made = run_config(job, "/storage", attempt=attempt, incarnation=1)
    return made.model_copy(update={"run_directory": str(run_directory), **changes})


class Running:
    """A supervisor in a process of its own, and the address of its endpoint."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, url: str, session: aiohttp.ClientSession) -> None:
        self.process = process
        self.log = log
        self.url = url
        self.session = session

    async def poll(self, attempt: int = 0, seq: int = 0, revision: int = -1, wait: float = 0) -> Report:
        query = {"attempt": str(attempt), "seq": str(seq), "revision": str(revision), "wait": str(wait)}
        async with self.session.get(f"{self.url}/v1/report", params=query, headers=AUTHORISED) as answer:
            assert answer.status == 200, await answer.text()
            return Report.model_validate_json(await answer.read())

    async def until(self, holds: Callable[[Report], bool], attempt: int = 0, seq: int = 0) -> Report:
        """Long-poll until the report is as wanted."""
        report = await self.poll(attempt, seq)
        async with asyncio.timeout(30):
            while not holds(report):
                report = await self.poll(attempt, seq, report.revision, wait=5)
        return report

    async def ended(self) -> Report:
        return await self.until(lambda report: report.state in ("Succeeded", "Failed"))

    async def exit(self) -> tuple[int, str]:
        """Its exit code and its log."""
        code = await asyncio.to_thread(self.process.wait, timeout=30)
        return code, self.log.read_text()


def start(config: RunConfig, folder: Path, scenario: str, linger: float, stop: float) -> subprocess.Popen[bytes]:
    """A supervisor in a process of its own; its log and its port are files of ``folder``."""
    folder.mkdir(parents=True)
    arguments = [str(SCRIPT), scenario, str(folder / "port"), TOKEN, str(linger), str(stop)]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-c", _SERVE, *arguments],
            env={**os.environ, "RLHF_RUN_CONFIG": config.to_json()},
            stderr=log,
        )


@contextlib.asynccontextmanager
async def running(config: RunConfig, scenario: str, *, linger: float = 30, stop: float = 20) -> AsyncIterator[Running]:
    folder = Path(config.run_directory) / f"test-{time.monotonic_ns()}"
    process = start(config, folder, scenario, linger, stop)
    try:
        async with aiohttp.ClientSession() as session:
            port = await _port(process, folder)
            yield Running(process, folder / "log", f"http://127.0.0.1:{port}", session)
    finally:
        process.kill()
        process.wait(timeout=10)


async def _port(process: subprocess.Popen[bytes], folder: Path) -> str:
    for _ in range(1500):
        if (folder / "port").exists():
            return (folder / "port").read_text().strip()
        assert process.poll() is None, (folder / "log").read_text()
        await asyncio.sleep(0.02)
    raise TimeoutError


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def gone(*pids: int) -> bool:
    for _ in range(100):
        if not any(map(alive, pids)):
            return True
        await asyncio.sleep(0.05)
    return False


async def test_success_is_reported_kept_and_acknowledged(tmp_path: Path) -> None:
    async with running(config(tmp_path), "succeeds") as supervisor:
        last = await supervisor.ended()
        assert last.state == "Succeeded"
        assert last.failure is None
        assert [e.seq for e in last.episodes] == [1, 2, 3, 4]
        assert (last.makers.desired, last.makers.ready, last.makers.pods) == (2, 2, ["maker-a", "maker-b"])
        assert (last.policy_version, last.final_model, last.applied_generation) == (4, "/models/final", 1)
        # A cursor at the end without the current revision has not seen the end; with it, it acknowledges.
        await supervisor.poll(1, 4)
        await asyncio.sleep(0.3)
        assert supervisor.process.poll() is None
        await supervisor.poll(1, 4, last.revision)
        code, _ = await supervisor.exit()
    assert code == 0
    directory = RunDirectory(tmp_path)
    assert [e.episode for e in history(directory)] == [1, 2, 3, 4]
    result = read_result(directory, 1)
    assert result is not None
    assert (result.report.state, result.episodes) == ("Succeeded", 4)
    assert json.loads(directory.read(directory.attempt(1).config))["attempt"] == 1


@pytest.mark.parametrize(
    ("scenario", "changes", "code", "reason", "message", "tail"),
    [
        pytest.param(
            "fails", {}, 78, "RewardFunctionInvalid", "it is not there", "",
            id="what the coordinator says is what is reported; the log has no more to say",
        ),
        pytest.param(
            "is_killed", {}, 75, "CoordinatorCrashed", "signal SIGKILL", "the last words",
            id="kill -9 of the coordinator is a crash that names the signal",
        ),
        pytest.param(
            "raises", {}, 75, "CoordinatorCrashed",
            "ended with exit code 1 and did not say why; its last line: RuntimeError: no such thing", "Traceback",
            id="an exception is a crash whose message is the last line",
        ),
        pytest.param(
            "no_such_scenario", {}, 75, "CoordinatorCrashed", "KeyError: 'no_such_scenario'", "Traceback",
            id="a coordinator that cannot start is a crash",
        ),
        pytest.param(
            "never_runs", {"pre_running_deadline_seconds": 1}, 75, "PreRunningDeadlineExceeded",
            "no rollout 1 s (preRunningDeadlineSeconds)", "", id="too long before the first rollout",
        ),
        pytest.param(
            "stops_training", {"progress_deadline_seconds": 1}, 75, "ProgressDeadlineExceeded",
            "no episode was trained for 1 s", "", id="too long without an episode",
        ),
        pytest.param(
            "says_nonsense", {}, 75, "CoordinatorCrashed", "said what it may not", "", id="a message that is none",
        ),
        pytest.param(
            "skips_an_episode", {}, 75, "CoordinatorCrashed", "found episode 3, expected 2", "",
            id="an episode out of order is not journaled",
        ),
    ],
)  # fmt: skip
async def test_a_failed_attempt_says_why(
    tmp_path: Path, scenario: str, changes: dict[str, Any], code: int, reason: str, message: str, tail: str
) -> None:
    async with running(config(tmp_path, **changes), scenario) as supervisor:
        last = await supervisor.ended()
        assert last.state == "Failed"
        assert last.failure is not None
        assert last.failure.reason == reason
        assert message in last.failure.message
        assert tail in last.failure.tail
        assert not (last.failure.permanent and last.failure.tail)
        assert not last.failure.tail.startswith("x"), "a tail begins with a line"
        assert len(last.failure.tail) <= 4096
        assert last.waits == []
        seq = last.episodes[-1].seq if last.episodes else 0
        await supervisor.poll(1 if seq else 0, seq, last.revision)
        assert (await supervisor.exit())[0] == code
    result = read_result(RunDirectory(tmp_path), 1)
    assert result is not None
    assert result.report.failure == last.failure


@pytest.mark.parametrize("scenario", ["succeeds_and_crashes_on_the_way_out", "succeeds_and_does_not_end"])
async def test_after_its_last_word_the_way_a_coordinator_ends_changes_nothing(tmp_path: Path, scenario: str) -> None:
    async with running(config(tmp_path), scenario, linger=0) as supervisor:
        assert (await supervisor.exit())[0] == 0


async def test_a_job_that_is_complete_is_not_run_again(tmp_path: Path) -> None:
    async with running(config(tmp_path), "succeeds", linger=0) as supervisor:
        assert (await supervisor.exit())[0] == 0
    async with running(config(tmp_path, attempt=2), "raises") as again:
        last = await again.ended()
        assert (last.state, last.attempt, last.final_model) == ("Succeeded", 2, "/models/final")
        assert [e.episode for e in last.episodes] == [1, 2, 3, 4]
        await again.poll(1, 4, last.revision)
        assert (await again.exit())[0] == 0
    # With more episodes wanted than were trained it is not complete.
    async with running(config(tmp_path, attempt=3, episodes=5), "raises", linger=0) as more:
        assert (await more.exit())[0] == 75


async def test_a_second_attempt_serves_what_the_first_trained_and_supersedes_what_it_does_not_build_on(
    tmp_path: Path,
) -> None:
    async with running(config(tmp_path), "is_killed", linger=0) as first:
        assert (await first.exit())[0] == 75
    async with running(config(tmp_path, attempt=2), "resumes_from_2") as second:
        last = await second.ended()
        assert [(e.attempt, e.seq, e.episode) for e in last.episodes] == [(1, 1, 1), (1, 2, 2), (2, 1, 3), (2, 2, 4)]
        assert last.resumed_from == 2
        assert [e.episode for e in (await second.poll(1, 2)).episodes] == [3, 4]
        # A reader that has seen the superseded episode 3 of attempt 1 gets the one that counts.
        assert [e.episode for e in (await second.poll(1, 3)).episodes] == [3, 4]
        assert (await second.poll(2, 2)).episodes == []


async def test_an_attempt_is_run_by_one_supervisor(tmp_path: Path) -> None:
    async with running(config(tmp_path), "is_killed", linger=0) as first:
        await first.exit()
    before = read_result(RunDirectory(tmp_path), 1)
    async with running(config(tmp_path), "succeeds") as second:
        last = await second.ended()
        assert last.failure is not None
        assert (last.failure.reason, last.failure.permanent) == ("AttemptTaken", False)
    assert read_result(RunDirectory(tmp_path), 1) == before


async def test_a_stop_lets_the_coordinator_save_and_is_resumable(tmp_path: Path) -> None:
    async with running(config(tmp_path), "ends_when_asked") as supervisor:
        await supervisor.until(lambda report: bool(report.episodes))
        supervisor.process.send_signal(signal.SIGTERM)
        # It does not linger: who asks it to stop does not wait for a reader.
        code, log = await supervisor.exit()
    assert code == 130
    assert "saved at episode 2" in log
    assert [e.episode for e in history(RunDirectory(tmp_path))] == [1, 2]


async def test_a_coordinator_that_ignores_a_stop_is_ended(tmp_path: Path) -> None:
    async with running(config(tmp_path), "stops_training", stop=1) as supervisor:
        await supervisor.until(lambda report: bool(report.episodes))
        supervisor.process.send_signal(signal.SIGINT)
        code, log = await supervisor.exit()
    assert code == 130
    assert "ended 1 s later without a last checkpoint" in log


async def test_asked_twice_it_stops_at_once(tmp_path: Path) -> None:
    async with running(config(tmp_path), "stops_training", stop=1000) as supervisor:
        await supervisor.until(lambda report: bool(report.episodes))
        supervisor.process.send_signal(signal.SIGINT)
        await asyncio.sleep(0.5)
        assert supervisor.process.poll() is None
        supervisor.process.send_signal(signal.SIGINT)
        code, log = await supervisor.exit()
    assert code == 130
    assert "asked to stop at once" in log


@pytest.mark.parametrize("end", ["kill -9", "deadline"])
async def test_with_the_supervisor_goes_all_that_the_coordinator_started(tmp_path: Path, end: str) -> None:
    deadline = 1 if end == "deadline" else 1000
    async with running(config(tmp_path, progress_deadline_seconds=deadline), "has_a_family") as supervisor:
        await supervisor.until(lambda report: bool(report.episodes))
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        if end == "kill -9":
            assert all(map(alive, pids))
            supervisor.process.kill()
        else:
            await supervisor.ended()
        assert await gone(*pids)


async def test_live_settings_reach_the_coordinator_and_the_newest_generation_wins(tmp_path: Path) -> None:
    async with running(config(tmp_path), "takes_settings") as supervisor:

        async def put(body: Any) -> tuple[int, str]:
            url = f"{supervisor.url}/v1/settings"
            async with supervisor.session.put(url, data=json.dumps(body), headers=AUTHORISED) as answer:
                return answer.status, await answer.text()

        await supervisor.until(lambda report: bool(report.episodes))
        assert await put({"generation": 0, "maxStaleness": 9, "episodes": 9}) == (
            200, '{"generation":1,"maxStaleness":1,"episodes":4}'
        )  # fmt: skip
        status, text = await put({"generation": "2", "maxStaleness": 1, "episodes": 3})
        assert (status, "generation" in text) == (400, True)
        status, text = await put({"generation": 2, "maxStaleness": 1})
        assert (status, "episodes" in text) == (400, True)
        newest = {"generation": 2, "maxStaleness": 1, "episodes": 3}
        for _ in range(2):
            assert await put(newest) == (200, '{"generation":2,"maxStaleness":1,"episodes":3}')
        last = await supervisor.ended()
        assert (last.state, last.applied_generation, last.episodes[-1].episode) == ("Succeeded", 2, 3)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "text"),
    [
        pytest.param("GET", "/healthz", {}, 200, "ok", id="health needs no token"),
        pytest.param("GET", "/v1/report", {}, 401, "Bearer", id="no token"),
        pytest.param("GET", "/v1/report", {"Authorization": "Bearer other"}, 401, "Bearer", id="a wrong token"),
        pytest.param("GET", "/v1/report", {"Authorization": TOKEN}, 401, "Bearer", id="a token without Bearer"),
        pytest.param("GET", "/v1/report", {"Authorization": "Bearer ä"}, 401, "Bearer", id="a token beyond ASCII"),
        pytest.param("PUT", "/v1/settings", {}, 401, "Bearer", id="settings without a token"),
        pytest.param("GET", "/v1/report?seq=x", AUTHORISED, 400, "seq: found 'x'", id="a seq that is no number"),
        pytest.param("GET", "/v1/report?attempt=-1", AUTHORISED, 400, "attempt: found '-1'", id="a negative attempt"),
        pytest.param("GET", "/v1/report?wait=31", AUTHORISED, 400, "from 0.0 to 30", id="a wait over the limit"),
        pytest.param("GET", "/v1/report?wait=nan", AUTHORISED, 400, "wait: found 'nan'", id="a wait that is no number"),
        pytest.param("GET", "/v1/report?cursor=1", AUTHORISED, 400, "cursor: unknown", id="an unknown parameter"),
        pytest.param("POST", "/v1/report", AUTHORISED, 405, "", id="another method"),
        pytest.param("PUT", "/v1/settings", AUTHORISED, 400, "body: Invalid JSON", id="settings without a body"),
        pytest.param("GET", "/v1/other", AUTHORISED, 404, "", id="another path"),
    ],
)
async def test_the_endpoint_answers(
    waiting_supervisor: str, method: str, path: str, headers: dict[str, str], status: int, text: str
) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, waiting_supervisor + path, headers=headers) as answer,
    ):
        assert answer.status == status
        assert text in await answer.text()


@pytest.fixture(scope="module")
def waiting_supervisor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a supervisor whose coordinator does nothing."""
    folder = tmp_path_factory.mktemp("waiting") / "test"
    process = start(config(folder.parent / "run"), folder, "never_runs", 30, 1)
    try:
        yield f"http://127.0.0.1:{asyncio.run(_port(process, folder))}"
    finally:
        process.kill()
        process.wait(timeout=10)


async def test_a_long_poll_waits_for_a_change_and_no_longer_than_asked(tmp_path: Path) -> None:
    async with running(config(tmp_path), "never_runs") as supervisor:
        report = await supervisor.until(lambda report: bool(report.waits))
        assert report.state == "Starting"
        began = time.monotonic()
        assert await supervisor.poll(0, 0, report.revision, wait=1) == report
        assert 0.9 <= time.monotonic() - began < 5
        # The end of the coordinator wakes it.
        poll = asyncio.create_task(supervisor.poll(0, 0, report.revision, wait=20))
        await asyncio.sleep(0.3)
        began = time.monotonic()
        # Two signals of one kind, one after the other, may arrive as one.
        supervisor.process.send_signal(signal.SIGTERM)
        supervisor.process.send_signal(signal.SIGINT)
        assert (await poll).state in ("Starting", "Failed")
        assert time.monotonic() - began < 5


async def test_waiting_polls_are_bounded(tmp_path: Path) -> None:
    async with running(config(tmp_path), "never_runs") as supervisor:
        report = await supervisor.until(lambda report: bool(report.waits))

        async def poll(wait: int) -> int:
            query = {"revision": str(report.revision), "wait": str(wait)}
            url = f"{supervisor.url}/v1/report"
            async with supervisor.session.get(url, params=query, headers=AUTHORISED) as answer:
                return answer.status

        statuses = await asyncio.gather(*(poll(3) for _ in range(40)))
        assert (statuses.count(200), statuses.count(429)) == (32, 8)
        # Readers that went away do not count.
        left = [asyncio.create_task(poll(30)) for _ in range(32)]
        await asyncio.sleep(0.5)
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0.5)
        assert await poll(1) == 200


async def test_a_storage_that_cannot_be_written_is_said_by_the_report(tmp_path: Path) -> None:
    # A file in the folder's place: root, too, cannot make a folder below it.
    (tmp_path / "file").write_text("")
    changed = config(tmp_path).model_copy(update={"run_directory": str(tmp_path / "file" / "run")})
    process = start(changed, tmp_path / "test", "succeeds", 0, 1)
    assert await asyncio.to_thread(process.wait, timeout=30) == 75
    log = (tmp_path / "test" / "log").read_text()
    assert "StorageFailed: the run directory cannot be used: Not a directory" in log


@pytest.mark.parametrize(
    ("arguments", "environment", "text"),
    [
        pytest.param([], {}, "has no RLHF_RUN_CONFIG", id="no RunConfig"),
        pytest.param([], {"RLHF_RUN_CONFIG": "{}"}, "Field required", id="a RunConfig without fields"),
        pytest.param(["--host", "0.0.0.0"], {"RLHF_RUN_CONFIG": "config"}, "without a token", id="open to all"),
        pytest.param(["--port", "x"], {}, "invalid int value", id="a port that is no number"),
    ],
)
def test_a_supervisor_that_cannot_run_says_so(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], text: str
) -> None:
    if environment.get("RLHF_RUN_CONFIG") == "config":
        environment = {"RLHF_RUN_CONFIG": config(tmp_path).to_json()}
    clean = {name: value for name, value in os.environ.items() if name not in ("RAY_AUTH_TOKEN", "RLHF_RUN_CONFIG")}
    done = subprocess.run(
        [sys.executable, "-m", "rlhf_runtime.supervisor", *arguments],
        env={**clean, **environment}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode in (1, 2)
    assert text in done.stderr
    assert "Traceback" not in done.stderr


NOW = datetime(2026, 1, 1, tzinfo=UTC)
WAIT = Wait(reason="PlacementPending", owner="makers", message="1 of 2", since=NOW, deadline=NOW + timedelta(seconds=9))


@pytest.mark.parametrize(
    ("times", "at", "reason"),
    [
        pytest.param(Times(started=100.0), 100 + 50 + 5, "PreRunningDeadlineExceeded", id="before the first rollout"),
        pytest.param(
            Times(started=100.0, running=120.0), 120 + 20 + 5, "ProgressDeadlineExceeded", id="before the first episode"
        ),
        pytest.param(
            Times(started=100.0, running=120.0, last_episode=500.0), 525, "ProgressDeadlineExceeded",
            id="after episodes",
        ),
        pytest.param(
            Times(started=100.0, running=120.0, stop_requested=130.0), 137, "Stopped", id="asked to stop"
        ),
        pytest.param(
            Times(started=100.0, running=120.0, stop_requested=144.0), 145, "ProgressDeadlineExceeded",
            id="asked to stop when it was nearly late",
        ),
    ],
)  # fmt: skip
def test_the_next_deadline(times: Times, at: float, reason: str) -> None:
    settings = config(Path("/run"), pre_running_deadline_seconds=50, progress_deadline_seconds=20)
    deadline = next_deadline(settings, times, Patience(grace=5, stop=7, exit=1), [WAIT])
    assert (deadline.at, deadline.failure.reason) == (at, reason)
    assert not deadline.failure.permanent
    assert ("waiting: makers: PlacementPending: 1 of 2" in deadline.failure.message) == (reason != "Stopped")


SAID = Failure(reason="NotFinite", message="the loss is NaN", permanent=False)
LATE = Failure(reason="ProgressDeadlineExceeded", message="late", permanent=False)


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        pytest.param(Ending(finished=Finished(), returncode=0, given_up=None, tail="x"), None, id="success"),
        pytest.param(
            Ending(finished=Finished(), returncode=-11, given_up=None, tail="x"), None, id="success, then a crash"
        ),
        pytest.param(
            Ending(finished=Finished(failure=SAID), returncode=1, given_up=None, tail="log"),
            ("NotFinite", "the loss is NaN", "log"), id="its own word, with the log's end",
        ),
        pytest.param(
            Ending(finished=Finished(failure=SAID.model_copy(update={"permanent": True})), returncode=1, given_up=None,
                   tail="log"),
            ("NotFinite", "the loss is NaN", ""), id="a permanent failure says all itself",
        ),
        pytest.param(
            Ending(finished=Finished(failure=SAID.model_copy(update={"tail": "trace"})), returncode=1, given_up=None,
                   tail="log"),
            ("NotFinite", "the loss is NaN", "trace"), id="its own word with its own trace",
        ),
        pytest.param(
            Ending(finished=None, returncode=None, given_up=LATE, tail="log"),
            ("ProgressDeadlineExceeded", "late", "log"), id="given up",
        ),
        pytest.param(
            Ending(finished=None, returncode=0, given_up=None, tail=""),
            ("CoordinatorCrashed", "the coordinator ended with exit code 0 and did not say why", ""),
            id="exit code 0 without a word is no success",
        ),
        pytest.param(
            Ending(finished=None, returncode=None, given_up=None, tail="a\nb\n"),
            ("CoordinatorCrashed", "the coordinator closed its channel and did not say why; its last line: b",
             "a\nb\n"),
            id="a closed channel",
        ),
    ],
)  # fmt: skip
def test_what_the_end_of_a_coordinator_means(ending: Ending, expected: tuple[str, str, str] | None) -> None:
    failure = failure_of(ending)
    assert (failure and (failure.reason, failure.message, failure.tail)) == expected
