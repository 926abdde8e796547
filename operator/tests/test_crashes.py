"""The operator killed after any of its effects ends where it would have ended: one cluster, one submission an attempt.

The passes are the real ones; the world around them is written by hand and keeps count. A kill is an exception right
after an effect, which loses everything that the operator holds in memory.
"""

import asyncio
import contextlib
import copy
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from rlhf_api import names
from rlhf_api.job import RLHFJob
from rlhf_api.status import EpisodeReport, ReportCursor, RLHFJobStatus
from rlhf_operator.clients.cluster import Proof
from rlhf_operator.clients.kube import ApiError, Conflict
from rlhf_operator.clients.rayjobs import RayRefused
from rlhf_operator.decisions.plan import Acknowledge, Submit
from rlhf_operator.manifests.children import config_map, secret
from rlhf_operator.metrics import Metrics
from rlhf_operator.observe import Observer
from rlhf_operator.observed.picture import Code, Submission, Unreachable
from rlhf_operator.observed.report_view import NOTHING_HEARD, Follow, ReportView
from rlhf_operator.passes import Passes
from rlhf_operator.throttle import Throttle
from rlhf_operator.watched import Watched

G = Any
EPISODES = 6
KEY = ("team", "addition")


class Killed(BaseException):
    """The operator process is gone."""


@dataclass
class Attempt:
    """A driver in some head, with its supervisor."""

    number: int
    head: str
    resumed_from: int
    state: str = "Starting"
    acknowledged: bool = False
    revision: int = 0


@dataclass
class World:
    """Kubernetes, KubeRay, Ray and the runtime as far as the operator sees them; ``kills`` are effects by number."""

    given: G
    job: dict[str, Any]
    kills: frozenset[int] = frozenset()
    seconds: float = 5
    """How long a step is, in which an episode is trained."""
    fails: Callable[["World", Attempt], tuple[str, bool] | None] = lambda world, attempt: None
    """Why an attempt fails now, and whether for good."""
    claim_comes: float = 0
    """When the storage claim is applied, seconds after the job; and when the ConfigMap with its code is."""
    code_comes: float = 0
    forbidden: frozenset[str] = frozenset()
    """Kinds that the operator may not delete."""
    refusal: str = ""
    """What Ray says to every submission."""
    accident: Callable[["World"], None] = lambda world: None
    """Called once, when three episodes are trained."""
    now: datetime = field(init=False)
    effects: list[str] = field(default_factory=list)
    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    pods: list[dict[str, Any]] = field(default_factory=list)
    heads: Counter[str] = field(default_factory=Counter)
    attempts: dict[str, Attempt] = field(default_factory=dict)
    accepted: list[str] = field(default_factory=list)
    created: list[str] = field(default_factory=list)
    journal: list[EpisodeReport] = field(default_factory=list)
    versions: int = 1
    written: list[datetime] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.now = self.given.at(0)

    def effect(self, what: str) -> None:
        """Something was done that cannot be undone; here the operator may die."""
        self.effects.append(what)
        if len(self.effects) in self.kills:
            raise Killed

    @property
    def status(self) -> RLHFJobStatus:
        return RLHFJobStatus.model_validate(self.job.get("status", {}))

    @property
    def clusters(self) -> list[dict[str, Any]]:
        return [raw for (kind, _), raw in self.objects.items() if kind == "RayCluster"]

    def version(self) -> str:
        self.versions += 1
        return str(self.versions)

    # What happens without the operator.

    def step(self) -> None:
        self.now += timedelta(seconds=self.seconds)
        self._kuberay()
        for identity, attempt in list(self.attempts.items()):
            self._train(identity, attempt)
        if len(self.series()) == 3:
            accident, self.accident = self.accident, lambda world: None
            accident(self)

    def _kuberay(self) -> None:
        wanted = {raw["metadata"]["name"] for raw in self.clusters}
        if "code" in self.job["spec"].get("runtime", {}) and not any(kind == "ConfigMap" for kind, _ in self.objects):
            return  # the kubelet starts no pod whose volume is not there
        self.pods = [pod for pod in self.pods if pod["metadata"]["labels"]["ray.io/cluster"] in wanted]
        self.attempts = {
            identity: attempt
            for identity, attempt in self.attempts.items()
            if attempt.head in {pod["metadata"]["uid"] for pod in self.pods}
        }
        for pod in self.pods:
            pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
            pod["metadata"]["resourceVersion"] = self.version()
        for name in wanted - {pod["metadata"]["labels"]["ray.io/cluster"] for pod in self.pods}:
            self.heads[name] += 1
            self.pods.append(self._head(name, f"{name}-head-{self.heads[name]}"))

    def _head(self, cluster: str, name: str) -> dict[str, Any]:
        labels = {names.JOB_UID_LABEL: self.given.uid, names.JOB_NAME_LABEL: "addition", names.ROLE_LABEL: "head"}
        metadata = {"name": name, "namespace": "team", "uid": name, "labels": {**labels, "ray.io/cluster": cluster}}
        container = {"name": "ray", "image": "i", "restartCount": 0, "state": {"running": {}}}
        return {
            "metadata": {
                **metadata,
                "creationTimestamp": self.now.isoformat(),
                "resourceVersion": self.version(),
            },
            "status": {"podIP": name, "phase": "Running", "containerStatuses": [container]},
        }

    def series(self) -> list[int]:
        """Episodes that are trained and not replaced by a later attempt."""
        last: dict[int, int] = {}
        for entry in self.journal:
            last = {number: a for number, a in last.items() if number < entry.episode} | {entry.episode: entry.attempt}
        return sorted(last)

    def _train(self, identity: str, attempt: Attempt) -> None:
        if attempt.state == "Starting":
            attempt.state = "Running"
        elif attempt.state == "Running":
            done = [entry.seq for entry in self.journal if entry.attempt == attempt.number]
            number = attempt.resumed_from + len(done) + 1
            if number > EPISODES:
                attempt.state = "Succeeded"
            elif self.fails(self, attempt) is not None:
                attempt.state = "Failed"
            else:
                self.journal.append(self.given.episode(number, attempt=attempt.number, seq=len(done) + 1))
        elif attempt.acknowledged and "Exited" not in attempt.state:
            attempt.state = f"Exited {attempt.state}"
        attempt.revision += 1

    def checkpoint(self) -> int:
        """A checkpoint after every second episode."""
        return len(self.series()) // 2 * 2


class FakeCluster:
    """The operator's effects on Kubernetes, each one counted."""

    def __init__(self, world: World) -> None:
        self._world = world

    def token(self, job: RLHFJob) -> str:
        return "token"

    async def read_job(self, namespace: str, name: str) -> dict[str, Any]:
        return copy.deepcopy(self._world.job)

    async def read_cluster(self, namespace: str, name: str) -> dict[str, Any] | None:
        return copy.deepcopy(self._world.objects.get(("RayCluster", name)))

    async def read_pods(self, job: RLHFJob) -> list[dict[str, Any]]:
        return copy.deepcopy(self._world.pods)

    async def read_code(self, job: RLHFJob) -> Code | None:
        copied = ("ConfigMap", names.code_config_map_name(job)) in self._world.objects
        there = copied or self._world.now >= self._world.given.at(self._world.code_comes)
        return Code({"rewards.py": "..."}, {}, copied) if there else None

    async def claim_exists(self, job: RLHFJob) -> bool:
        return bool(self._world.now >= self._world.given.at(self._world.claim_comes))

    async def prove(self, job: RLHFJob, code: Code | None) -> Proof:
        return Proof(self._world.given.ray_cluster(job, job.status.incarnation))

    async def kuberay_refusal(self, namespace: str, uid: str) -> None:
        return None

    def _create(self, manifest: dict[str, Any]) -> None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if (kind, name) not in self._world.objects:
            manifest["metadata"] |= {
                "uid": f"uid-{name}",
                "creationTimestamp": self._world.now.isoformat(),
                "resourceVersion": self._world.version(),
            }
            self._world.objects[kind, name] = {**manifest, "status": {"state": ""}}
            self._world.created.append(name)
        self._world.effect(f"create {kind}")

    async def create_secret(self, job: RLHFJob) -> None:
        self._create(secret(job, b"key"))

    async def create_config_map(self, job: RLHFJob, code: Code) -> None:
        self._create(config_map(job, code))

    async def create_ray_cluster(self, job: RLHFJob, manifest: dict[str, Any]) -> None:
        self._create(copy.deepcopy(manifest))

    async def delete_ray_cluster(self, job: RLHFJob, name: str) -> None:
        self._delete("RayCluster", name)

    async def delete_secret_and_code(self, job: RLHFJob) -> None:
        try:
            self._delete("Secret", names.token_secret_name(job))
        finally:
            self._delete("ConfigMap", names.code_config_map_name(job))

    def _delete(self, kind: str, name: str) -> None:
        if kind in self._world.forbidden:
            raise ApiError(403, "Forbidden", f"cannot delete {kind}", name)
        self._world.objects.pop((kind, name), None)
        self._world.effect(f"delete {kind}")

    async def write_status(self, raw: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
        world, status = self._world, RLHFJobStatus.model_validate(written)
        if raw["metadata"]["resourceVersion"] != world.job["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "changed", "status")
        if world.status.completion_time is not None:
            said = {"conditions": [c for c in status.conditions if c.type != "ClusterReady"]}
            before = {"conditions": [c for c in world.status.conditions if c.type != "ClusterReady"]}
            assert status.model_copy(update=said) == world.status.model_copy(update=before), "a terminal status changed"
        world.job["status"] = written
        world.job["metadata"]["resourceVersion"] = world.version()
        world.written.append(world.now)
        world.effect(f"status {status.phase}")
        return copy.deepcopy(world.job)


class FakeRay:
    """Ray's job API in every head; an IP is the head pod's UID here."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def ask(self, ip: str, token: str, submission_id: str) -> Submission | Unreachable:
        attempt = self._world.attempts.get(submission_id)
        if ip not in {pod["metadata"]["uid"] for pod in self._world.pods}:
            return Unreachable("no route to host")
        if attempt is None or attempt.head != ip:
            return Submission("Unknown")
        exited = {"Exited Succeeded": Submission("Succeeded"), "Exited Failed": Submission("Failed", "code 75", 75)}
        return exited.get(attempt.state, Submission("Running"))

    async def submit(self, token: str, job: RLHFJob, action: Submit) -> None:
        if self._world.refusal:
            raise RayRefused(self._world.refusal)
        if action.submission_id not in self._world.attempts:
            assert all("Exited" in attempt.state for attempt in self._world.attempts.values()), "two attempts at once"
            self._world.accepted.append(action.submission_id)
            attempt = Attempt(action.attempt, action.ip, self._world.checkpoint())
            self._world.attempts[action.submission_id] = attempt
        self._world.effect("submit")

    async def stop(self, ip: str, token: str, submission_id: str) -> None:
        attempt = self._world.attempts.get(submission_id)
        if attempt is not None and "Exited" not in attempt.state:
            attempt.state = "Exited Failed"
        self._world.effect("stop")


class FakeLinks:
    """What the links would have brought by now."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._target: Follow | None = None
        self._cursor = ReportCursor()
        self._view = NOTHING_HEARD

    def view(self, key: Any) -> ReportView:
        attempt = self._attempt()
        if self._target is None or self._final():
            return self._view
        if attempt is None:
            silent_since = self._view.silent_since or self._world.now
            self._view = ReportView(
                report=self._view.report, episodes=self._view.episodes, silent_since=silent_since, error="refused"
            )
            return self._view
        position = (self._cursor.attempt, self._cursor.seq)
        fresh = tuple(entry for entry in self._world.journal if (entry.attempt, entry.seq) > position)
        why = self._world.fails(self._world, attempt) if attempt.state == "Failed" else None
        report = self._world.given.report(
            attempt.state, attempt=attempt.number, resumed_from=attempt.resumed_from, revision=attempt.revision
        )
        if why is not None:
            report = self._world.given.failed_report(*why[:1], "it broke", permanent=why[1], attempt=attempt.number)
        self._view = ReportView(report=report.model_copy(update={"last_progress": self._world.now}), episodes=fresh)
        self._view = ReportView(report=self._view.report, episodes=fresh, drained=True)
        return self._view

    def _attempt(self) -> Attempt | None:
        for attempt in self._world.attempts.values():
            if self._target and (attempt.head, attempt.number) == (self._target.ip, self._target.attempt):
                return None if "Exited" in attempt.state else attempt
        return None

    def _final(self) -> bool:
        return self._view.report is not None and self._view.report.state in ("Succeeded", "Failed")

    def follow(self, key: Any, job: RLHFJob, token: str, target: Follow | None) -> None:
        same = self._target and target and (self._target.ip, self._target.attempt) == (target.ip, target.attempt)
        if same or (target is None and self._final()):
            return
        self._target, self._view = target, NOTHING_HEARD
        self._cursor = target.cursor if target else ReportCursor()

    def written(self, key: Any, cursor: ReportCursor) -> None:
        self._cursor = cursor
        self._view = ReportView(
            report=self._view.report, drained=self._view.drained, silent_since=self._view.silent_since
        )

    async def acknowledge(self, key: Any, action: Acknowledge) -> None:
        for attempt in self._world.attempts.values():
            if attempt.number == action.attempt:
                attempt.acknowledged = True
        self.drop(key)
        self._world.effect("acknowledge")

    def drop(self, key: Any) -> None:
        self._target, self._view = None, NOTHING_HEARD


class Operator:
    """One life of the operator's process."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._watched = Watched()
        clock = lambda: (world.now - world.given.at(0)).total_seconds()  # noqa: E731
        cluster: Any = FakeCluster(world)
        ray: Any = FakeRay(world)
        links: Any = FakeLinks(world)
        observer = self._observer = Observer(self._watched, cluster, ray, monotonic=clock)
        throttle = Throttle(monotonic=clock)
        self._passes = Passes(self._watched, observer, cluster, ray, links, Metrics(), throttle, now=lambda: world.now)

    def watch(self) -> None:
        """What kopf's watches would have told."""
        self._watched.jobs.put(copy.deepcopy(self._world.job))
        for raw in list(self._watched.clusters):
            if ("RayCluster", raw["metadata"]["name"]) not in self._world.objects:
                self._watched.clusters.discard(("team", raw["metadata"]["name"]))
        for raw in self._world.clusters:
            self._watched.clusters.put(copy.deepcopy(raw))
        self._watched.replace_pods(self._world.given.uid, copy.deepcopy(self._world.pods))

    async def work(self) -> None:
        """Passes until the job wants to wait."""
        for _ in range(10):
            self.watch()
            if await self._passes.process(KEY) != 0:
                return
        raise AssertionError("it spins")

    def remembers(self) -> bool:
        """Whether anything is held in memory for the job."""
        passes, observer = self._passes, self._observer
        held = (passes._uids, passes._throttle._written, observer._read_at, self._watched._pods)
        return any(held) or passes._links.view(KEY) is not NOTHING_HEARD

    def delete(self) -> None:
        """Job and pods go, as the watches tell it: the job first."""
        self._watched.jobs.remove(KEY, self._world.given.uid)
        asyncio.run(self._passes.process(KEY))
        for pod in self._world.pods:
            self._watched.put_pod(pod)
            self._watched.remove_pod(pod)


def run(world: World) -> World:
    """The world with the operator in it, restarted whenever it is killed, until nothing more happens."""
    operator = Operator(world)
    quiet = 0
    for _ in range(1000):
        world.step()
        before = len(world.effects)
        try:
            asyncio.run(operator.work())
        except Killed:
            operator = Operator(world)
        over = world.status.completion_time is not None and len(world.effects) == before
        quiet = quiet + 1 if over else 0
        if quiet == 25:
            return world
    raise AssertionError(f"it did not end: {world.status.phase}: {world.status.message}; {world.effects[-20:]}")


def outcome(world: World) -> dict[str, Any]:
    """What must not depend on when the operator was killed."""
    status = world.status
    return {
        "phase": status.phase,
        "message": status.message,
        "attempt": status.attempt,
        "incarnation": status.incarnation,
        "episodes": [(entry.attempt, entry.episode) for entry in status.episodes],
        "episode": status.episode,
        "failure": status.failure and (status.failure.reason, status.failure.message, status.failure.attempt),
        "accepted": world.accepted,
        "left": sorted(kind for kind, _ in world.objects),
        "codeHash": status.code_hash,
    }


def retryable_at_third(world: World, attempt: Attempt) -> tuple[str, bool] | None:
    trained = [entry for entry in world.journal if entry.attempt == attempt.number]
    return ("TrainerLost", False) if attempt.number == 1 and len(trained) == 3 else None


def lose_head(world: World) -> None:
    world.pods.clear()


def lose_copy_and_head(world: World) -> None:
    lose_head(world)
    for kind, name in [key for key in world.objects if key[0] == "ConfigMap"]:
        del world.objects[kind, name]
        world.created.remove(name)


def lose_cluster(world: World) -> None:
    for raw in world.clusters:
        del world.objects["RayCluster", raw["metadata"]["name"]]


def cluster_ready(world: World) -> tuple[str, str]:
    [condition] = [condition for condition in world.status.conditions if condition.type == "ClusterReady"]
    return condition.reason, condition.message


STORIES: dict[str, dict[str, Any]] = {
    "a run that succeeds": {},
    "a trainer that is lost once": {"fails": retryable_at_third},
    "an attempt that fails for good": {"fails": lambda world, attempt: ("PromptsInvalid", True)},
    "every attempt fails": {"fails": lambda world, attempt: ("TrainerLost", False)},
    "a head that is lost": {"accident": lose_head},
    "a RayCluster that is deleted": {"accident": lose_cluster},
    "a job that is applied before its code and its claim": {"code_comes": 20, "claim_comes": 40},
    "a copy of the code that is deleted with the head": {"accident": lose_copy_and_head},
}


def story(given: G, name: str, kills: frozenset[int] = frozenset(), **world: Any) -> World:
    job = given.manifest(episodes=EPISODES, runtime={"code": {"configMap": {"name": "mine"}}})
    return run(World(given, job, kills, **STORIES[name], **world))


def test_an_uninterrupted_run_does_each_thing_once(given: G) -> None:
    world = story(given, "a run that succeeds")
    assert outcome(world) == {
        "phase": "Succeeded",
        "message": "6 episodes trained",
        "attempt": 1,
        "incarnation": 1,
        "episodes": [(1, number) for number in range(1, 7)],
        "episode": 6,
        "failure": None,
        "accepted": ["addition-0f1e2d3c-1-1"],
        "left": [],
        "codeHash": Code({"rewards.py": "..."}, {}).digest,
    }
    made = ["create Secret", "create ConfigMap", "create RayCluster", "submit"]
    ended = ["acknowledge", "delete RayCluster", "delete Secret", "delete ConfigMap"]
    assert [what for what in world.effects if not what.startswith("status")] == [*made, *ended]
    end = world.effects.index("status Succeeded")
    assert world.effects.index("delete RayCluster") > end, "the end is recorded before anything is deleted"
    assert world.effects[-1] == "status Succeeded", "what was seen gone is said last"
    assert cluster_ready(world) == ("Released", "RayCluster addition-39d55 and its pods are gone")


@pytest.mark.parametrize("name", STORIES)
def test_killed_after_any_effect_it_ends_the_same(given: G, name: str) -> None:
    untouched = story(given, name)
    expected = outcome(untouched)
    for number in range(1, len(untouched.effects) + 1):
        world = story(given, name, frozenset({number}))
        assert outcome(world) == expected, f"killed after effect {number}, {world.effects[number - 1]}"
        assert max(Counter(world.accepted).values()) == 1, "an attempt was submitted twice"
        assert max(Counter(world.created).values()) == 1, "something was created twice"


@pytest.mark.parametrize("name", STORIES)
def test_killed_again_and_again_at_random_it_ends_the_same(given: G, name: str) -> None:
    expected = outcome(story(given, name))
    for seed in range(20):
        draw = random.Random(seed)
        kills = frozenset(number for number in range(1, 500) if draw.random() < 0.4)
        world = story(given, name, kills)
        assert outcome(world) == expected, f"seed {seed}"
        assert max(Counter(world.accepted).values()) == max(Counter(world.created).values()) == 1


@pytest.mark.parametrize("name", STORIES)
def test_when_much_happens_status_is_written_once_in_five_seconds_and_nothing_is_lost(given: G, name: str) -> None:
    world = story(given, name, seconds=1)
    gaps = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(world.written)]
    assert min(gaps) >= 5
    assert outcome(world)["episodes"] == outcome(story(given, name))["episodes"]


def test_a_finished_job_costs_no_more_writes_after_a_restart(given: G) -> None:
    world = story(given, "a run that succeeds")
    before = list(world.effects)
    operator = Operator(world)
    for _ in range(5):
        world.step()
        asyncio.run(operator.work())
    assert world.effects == before


def test_a_lost_cluster_and_a_lost_head_cost_one_attempt_each(given: G) -> None:
    head, cluster = story(given, "a head that is lost"), story(given, "a RayCluster that is deleted")
    assert head.accepted == ["addition-0f1e2d3c-1-1", "addition-0f1e2d3c-1-2"]
    assert cluster.accepted == ["addition-0f1e2d3c-1-1", "addition-0f1e2d3c-2-2"]
    for world in (head, cluster):
        assert outcome(world)["episodes"] == [(1, 1), (1, 2), (2, 3), (2, 4), (2, 5), (2, 6)]


def test_a_ray_that_takes_no_submission_is_said_and_ends_the_job_at_its_deadlines(given: G) -> None:
    job = given.manifest(preRunningDeadlineSeconds=120, backoffLimit=1)
    world = World(given, job, refusal="500: No available agent")
    operator = Operator(world)
    for _ in range(8):
        world.step()
        asyncio.run(operator.work())
    assert world.status.message == "Ray on the head has not taken the submission: 500: No available agent"
    run(world)
    assert (world.status.phase, world.status.attempt) == ("Failed", 2)
    assert "Ray on the head has not taken the submission; head ready" in world.status.message
    assert world.accepted == []


def test_of_a_deleted_job_nothing_is_remembered(given: G) -> None:
    job = given.manifest(episodes=EPISODES)
    world = World(given, job)
    operator = Operator(world)
    for _ in range(8):
        world.step()
        asyncio.run(operator.work())
    assert world.status.phase == "Running"
    assert operator.remembers()
    operator.delete()
    assert not operator.remembers()


def test_a_pass_that_cannot_be_finished_is_said_in_status(given: G, monkeypatch: pytest.MonkeyPatch) -> None:
    async def forbidden(self: FakeCluster, job: RLHFJob, code: Code | None) -> tuple[()]:
        raise PermissionError("pods is forbidden: the operator cannot create pods")

    monkeypatch.setattr(FakeCluster, "prove", forbidden)
    world = World(given, given.manifest(episodes=EPISODES))
    operator = Operator(world)
    for _ in range(12):
        world.step()
        with contextlib.suppress(PermissionError):
            asyncio.run(operator.work())
    assert world.status.message == (
        "the operator cannot go on: PermissionError: pods is forbidden: the operator cannot create pods"
    )


@pytest.mark.parametrize(("code", "claim"), [(30, 0), (0, 30), (20, 40), (40, 20)])
def test_what_a_job_names_may_be_applied_after_it_in_any_order(given: G, code: float, claim: float) -> None:
    job = given.manifest(episodes=EPISODES, runtime={"code": {"configMap": {"name": "mine"}}})
    world = World(given, job, code_comes=code, claim_comes=claim)
    operator = Operator(world)
    for _ in range(3):
        world.step()
        asyncio.run(operator.work())
    missing = "ConfigMap mine (spec.runtime.code) does not exist in team" if code else ""
    unbound = "PersistentVolumeClaim runs (spec.checkpoint.storage) does not exist in team" if claim else ""
    assert world.status.message == "; ".join(filter(None, (missing, unbound)))
    assert (world.objects, world.status.code_hash) == ({}, ""), "nothing is made, and nothing is said to be"
    run(world)
    assert (world.status.phase, world.status.attempt, world.status.episode) == ("Succeeded", 1, EPISODES)
    assert world.status.code_hash == Code({"rewards.py": "..."}, {}).digest


def test_a_copy_of_the_code_that_was_deleted_is_made_again_for_the_next_head(given: G) -> None:
    world = story(given, "a copy of the code that is deleted with the head")
    assert (world.status.phase, world.status.attempt) == ("Succeeded", 2)


def work_on(world: World, steps: int) -> None:
    operator = Operator(world)
    for _ in range(steps):
        world.step()
        with contextlib.suppress(ApiError):
            asyncio.run(operator.work())


def test_what_may_not_be_deleted_keeps_nothing_dearer_than_itself(given: G) -> None:
    world = World(given, given.manifest(episodes=EPISODES), forbidden=frozenset({"Secret"}))
    work_on(world, 40)
    assert cluster_ready(world)[0] == "Released"
    assert [kind for kind, _ in world.objects] == ["Secret"]
    before = list(world.effects)
    work_on(world, 10)
    assert world.effects == before, "the rest goes with the job: it costs nothing more"


def test_a_cluster_that_may_not_be_deleted_is_said_to_be_there_until_it_is_gone(given: G) -> None:
    world = World(given, given.manifest(episodes=EPISODES), forbidden=frozenset({"RayCluster"}))
    work_on(world, 40)
    reason, message = cluster_ready(world)
    assert (world.status.phase, reason) == ("Succeeded", "Completed")
    assert message.startswith("the job is over, but RayCluster addition-39d55 could not be deleted: ApiError: ")
    assert message.endswith("403 Forbidden: cannot delete RayCluster")
    assert len(world.pods) == 1
    world.forbidden = frozenset()
    work_on(world, 10)
    assert (cluster_ready(world)[0], world.pods, world.objects) == ("Released", [], {})


def newer(value: Any) -> Any:
    """A value as a newer version would write it: one more field in every object of ours."""
    if isinstance(value, list):
        return [newer(item) for item in value]
    if isinstance(value, dict):
        return {key: newer(item) for key, item in value.items()} | {"newField": {"on": True}}
    return value


def test_fields_of_a_newer_crd_change_nothing_and_those_of_its_status_stay(given: G) -> None:
    """The API server fills in a new default, in jobs that are finished or run, while the older operator serves them."""
    world = World(given, given.manifest(episodes=EPISODES))
    work_on(world, 6)
    assert world.status.phase == "Running"
    upgrade(world)
    world.job["status"]["ledger"] = newer(world.job["status"]["ledger"])
    work_on(world, 2)
    assert (world.status.phase, world.status.attempt) == ("Running", 1)
    assert world.job["status"]["newField"] == {"on": True}
    work_on(world, 30)
    assert (world.status.phase, world.status.attempt, world.accepted) == ("Succeeded", 1, ["addition-0f1e2d3c-1-1"])
    assert world.job["status"]["newField"] == {"on": True}
    [kept] = [condition for condition in world.job["status"]["conditions"] if condition["type"] == "NewCondition"]
    assert kept["reason"] == "Newer"
    assert world.job["spec"] == newer(given.manifest(episodes=EPISODES)["spec"])


def test_a_finished_job_of_a_newer_version_costs_no_write(given: G) -> None:
    world = story(given, "a run that succeeds")
    upgrade(world)
    before, effects = copy.deepcopy(world.job), list(world.effects)
    work_on(world, 5)
    world.job["spec"]["mode"] = "OfANewerVersion"
    before["spec"]["mode"] = "OfANewerVersion"
    work_on(world, 5)
    assert (world.job, world.effects) == (before, effects)


def upgrade(world: World) -> None:
    world.job["spec"] = newer(world.job["spec"])
    world.job["status"]["newField"] = {"on": True}
    condition = {"type": "NewCondition", "status": "True", "reason": "Newer", "message": "", "observedGeneration": 1}
    world.job["status"]["conditions"].append({**condition, "lastTransitionTime": world.now.isoformat()})
    world.job["metadata"]["resourceVersion"] = world.version()
