"""What the watches keep and what the observer believes of it."""

from typing import Any

import kopf
import pytest
from rlhf_api import names
from rlhf_api.job import RLHFJob
from rlhf_operator.clients.cluster import Proof
from rlhf_operator.handlers import registry, settings
from rlhf_operator.observe import REREAD_SECONDS, Observer
from rlhf_operator.observed.obstacles import of_sidecars
from rlhf_operator.observed.picture import Code, Submission, parse_cluster, parse_pod
from rlhf_operator.observed.report_view import NOTHING_HEARD
from rlhf_operator.status.release import with_release
from rlhf_operator.throttle import Throttle
from rlhf_operator.watched import Watched

G = Any
PROVEN = {"kind": "RayCluster"}


def raw(name: str, version: int, uid: str = "u1", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "team",
            "name": name,
            "uid": uid,
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-02T03:04:00Z",
            **metadata,
        }
    }


def test_an_older_version_never_replaces_a_newer_one() -> None:
    watched = Watched()
    watched.jobs.put(raw("a", 10))
    watched.jobs.put(raw("a", 9))
    found = watched.jobs.get(("team", "a"))
    assert found is not None
    assert found["metadata"]["resourceVersion"] == "10"


def test_the_deletion_of_a_predecessor_leaves_the_successor() -> None:
    watched = Watched()
    watched.jobs.put(raw("a", 10, uid="old"))
    watched.jobs.put(raw("a", 12, uid="new"))
    watched.jobs.remove(("team", "a"), "old")
    assert watched.jobs.get(("team", "a")) is not None
    watched.jobs.remove(("team", "a"), "new")
    assert watched.jobs.get(("team", "a")) is None


def test_kopf_has_event_handlers_only_and_so_writes_nothing() -> None:
    handlers = registry(Watched(), lambda key: None)
    watching = [handler.id.rsplit(".", 1)[-1] for handler in handlers._watching.get_all_handlers()]
    assert watching == ["on_job", "on_cluster", "on_pod"]
    for other in (handlers._changing, handlers._spawning, handlers._indexing, handlers._webhooks):
        assert list(other.get_all_handlers()) == []
    options = settings()
    assert (options.peering.standalone, options.posting.enabled) == (True, False)


class Cluster:
    """Reads are counted; what is not given is not there."""

    def __init__(self, cluster: dict[str, Any] | None) -> None:
        self.cluster = cluster
        self.pods: list[dict[str, Any]] = []
        self.reads: list[str] = []

    def token(self, job: RLHFJob) -> str:
        return "token"

    async def read_cluster(self, namespace: str, name: str) -> dict[str, Any] | None:
        self.reads.append("cluster")
        return self.cluster

    async def read_pods(self, job: RLHFJob) -> list[dict[str, Any]]:
        self.reads.append("pods")
        return self.pods

    async def read_code(self, job: RLHFJob) -> Code | None:
        return None

    async def claim_exists(self, job: RLHFJob) -> bool:
        return False

    async def prove(self, job: RLHFJob, code: Code | None) -> Proof:
        self.reads.append("prove")
        return Proof(PROVEN)


class Ray:
    def __init__(self) -> None:
        self.asked: list[str] = []

    async def ask(self, ip: str, token: str, submission_id: str) -> Submission:
        self.asked.append(submission_id)
        return Submission("Running")


class Scene:
    """An observer with its surroundings; time is a number."""

    def __init__(self, given: G, cluster: dict[str, Any] | None) -> None:
        self.given, self.time = given, 0.0
        self.watched, self.ray = Watched(), Ray()
        self.cluster: Any = Cluster(cluster)
        ray: Any = self.ray
        self.observer = Observer(self.watched, self.cluster, ray, monotonic=lambda: self.time)

    async def observe(self, job: RLHFJob, view: Any = NOTHING_HEARD) -> Any:
        self.cluster.reads.clear()
        return await self.observer.observe(job, view, self.given.at(60))


def ray_cluster(given: G, version: int = 5) -> dict[str, Any]:
    owner = {"uid": given.uid, "controller": True}
    name = names.ray_cluster_name(given.job(), 1)
    return {**raw(name, version, uid="c1", ownerReferences=[owner]), "status": {"state": "ready"}}


def head(given: G, **status: Any) -> dict[str, Any]:
    labels = {
        names.JOB_UID_LABEL: given.uid,
        names.JOB_NAME_LABEL: "addition",
        names.ROLE_LABEL: "head",
        "ray.io/cluster": names.ray_cluster_name(given.job(), 1),
    }
    conditions = [{"type": "Ready", "status": "True"}]
    return {**raw("head", 7, uid="head-1", labels=labels), "status": {"podIP": "10.0.0.1", "conditions": conditions}}


async def test_a_cluster_that_the_watch_has_not_told_of_yet_is_read(given: G) -> None:
    scene = Scene(given, ray_cluster(given))
    observed = await scene.observe(given.job(given.submitted()))
    assert observed.cluster is not None
    assert scene.cluster.reads == ["cluster", "pods"]
    await scene.observe(given.job(given.submitted()))
    assert scene.cluster.reads == [], "once read, the watch is believed for a while"


async def test_a_deletion_that_the_watch_missed_is_found_out(given: G) -> None:
    scene = Scene(given, ray_cluster(given))
    await scene.observe(given.job(given.submitted()))
    scene.cluster.cluster = None
    scene.time = REREAD_SECONDS - 1
    assert (await scene.observe(given.job(given.submitted()))).cluster is not None
    scene.time = REREAD_SECONDS
    assert (await scene.observe(given.job(given.submitted()))).cluster is None


async def test_a_finished_job_costs_no_read_once_its_cluster_was_seen_gone(given: G) -> None:
    scene = Scene(given, None)
    finished = given.job(given.running(completionTime="2026-01-02T04:00:00Z"))
    scene.watched.put_pod(head(given))
    assert (await scene.observe(finished)).pods == (), "the watch may be late: pods are read"
    assert scene.cluster.reads == ["cluster", "pods"]
    await scene.observe(finished.model_copy(update={"status": with_release(finished, given.at(60))}))
    assert scene.cluster.reads == []
    assert scene.ray.asked == []


async def test_nothing_is_proved_again_once_the_cluster_is_there_or_was_submitted_to(given: G) -> None:
    absent = Scene(given, None)
    observed = await absent.observe(given.job(given.begun()))
    assert absent.cluster.reads == ["cluster", "prove"]
    assert [(obstacle.reason, obstacle.message) for obstacle in observed.refusals] == [
        ("ReferenceMissing", "PersistentVolumeClaim runs (spec.checkpoint.storage) does not exist in team")
    ]
    await absent.observe(given.job(given.submitted()))
    assert absent.cluster.reads == ["cluster"]


async def test_ray_is_asked_only_while_the_supervisor_does_not_answer(given: G) -> None:
    scene = Scene(given, ray_cluster(given))
    scene.cluster.pods = [head(given)]
    job = given.job(given.submitted())
    assert (await scene.observe(job)).submission == Submission("Running")
    assert scene.ray.asked == ["addition-0f1e2d3c-1-1"]
    assert (await scene.observe(job, given.view(given.report()))).submission is None
    assert (await scene.observe(job, given.view(given.report(attempt=9)))).submission == Submission("Running")


async def test_another_head_is_not_asked_about_an_attempt_that_it_never_had(given: G) -> None:
    scene = Scene(given, ray_cluster(given))
    scene.cluster.pods = [head(given)]
    observed = await scene.observe(given.job(given.submitted(headPodUid="head-0")))
    assert (observed.submission, scene.ray.asked) == (None, [])


async def test_before_a_later_attempt_the_one_before_is_asked_for(given: G) -> None:
    scene = Scene(given, ray_cluster(given))
    scene.cluster.pods = [head(given)]
    observed = await scene.observe(given.job(given.begun(attempt=2)))
    assert (observed.previous, scene.ray.asked) == (Submission("Running"), ["addition-0f1e2d3c-1-1"])


async def test_pods_of_an_earlier_incarnation_are_not_seen(given: G) -> None:
    scene = Scene(given, ray_cluster(given))
    old = head(given)
    old["metadata"] = {**old["metadata"], "name": "old"}
    old["metadata"]["labels"] = {**old["metadata"]["labels"], "ray.io/cluster": "addition-00000"}
    scene.cluster.pods = [head(given), old]
    observed = await scene.observe(given.job(given.submitted()))
    assert [pod.name for pod in observed.pods] == ["head"]


def test_a_pod_is_read_with_what_keeps_it_from_running(given: G) -> None:
    pod = head(given)
    pod["status"] = {
        "phase": "Pending",
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"},
            {"type": "Ready", "status": "False"},
        ],
        "initContainerStatuses": [
            {
                "name": "wait-gcs-ready",
                "image": "i",
                "restartCount": 4,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
                "lastState": {"terminated": {"exitCode": 3, "reason": "Error", "message": "no luck"}},
            }
        ],
        "containerStatuses": [{"name": "ray", "image": "i", "restartCount": 2, "state": {"running": {}}}],
    }
    seen = parse_pod(pod)
    assert (seen.role, seen.ready, seen.unschedulable, seen.ray_restarts) == ("head", False, "0/1 nodes", 2)
    init = seen.containers[0]
    assert (init.waiting_reason, init.exit_code, init.exit_message, init.restarts) == (
        "CrashLoopBackOff",
        3,
        "no luck",
        4,
    )


def test_a_cluster_is_ours_by_its_controlling_owner(given: G) -> None:
    assert parse_cluster(ray_cluster(given)).owner_uid == given.uid
    mere = ray_cluster(given)
    mere["metadata"]["ownerReferences"] = [{"uid": given.uid}]
    assert parse_cluster(mere).owner_uid == ""


def test_status_is_written_at_most_once_in_five_seconds_and_counters_once_in_twenty(given: G) -> None:
    time = 100.0
    throttle = Throttle(monotonic=lambda: time)
    key = ("team", "addition")
    old = given.job(given.running()).status
    counted = old.model_copy(update={"ledger": old.ledger.model_copy(update={"dispatched": 9}), "message": "other"})
    trained = old.model_copy(update={"episode": 1})
    assert (throttle.wait(key, old, trained), throttle.wait(key, old, counted)) == (0, 0)
    throttle.wrote(key)
    time = 102.0
    assert (throttle.wait(key, old, trained), throttle.wait(key, old, counted)) == (3, 18)
    time = 105.0
    assert (throttle.wait(key, old, trained), throttle.wait(key, old, counted)) == (0, 15)
    throttle.forget(key)
    assert throttle.wait(key, old, counted) == 0


@pytest.mark.parametrize("resource", ["pods", "rayclusters"])
def test_only_our_pods_and_clusters_are_watched_at_all(resource: str) -> None:
    selectors = settings().watching.label_selectors
    [selector] = [value for key, value in selectors.items() if resource in str(key)]
    assert selector == names.JOB_UID_LABEL
    assert isinstance(selectors, type(kopf.OperatorSettings().watching.label_selectors))


CRASHED = {"name": "shipper", "image": "s:1", "ready": False, "restartCount": 3}
ENDED = {"terminated": {"exitCode": 1, "reason": "Error", "message": "no route\n"}}


@pytest.mark.parametrize(
    ("condition", "ray_ready", "ready"),
    [
        ({"status": "True"}, True, True),
        ({"status": "False", "reason": "ContainersNotReady"}, True, True),
        ({"status": "False", "reason": "ContainersNotReady"}, False, False),
        ({"status": "False"}, True, False),
    ],
    ids=["all are ready", "a sidecar is not", "Ray's container is not", "the node is lost"],
)
def test_a_pod_is_as_ready_as_its_ray_container(
    given: G, condition: dict[str, str], ray_ready: bool, ready: bool
) -> None:
    pod = head(given)
    pod["spec"] = {
        "initContainers": [{"name": "wait"}, {"name": "proxy", "restartPolicy": "Always"}],
        "containers": [{"name": "ray"}, {"name": "shipper"}],
    }
    pod["status"]["conditions"] = [{"type": "Ready", **condition}]
    pod["status"]["containerStatuses"] = [
        {"name": "ray", "image": "r:1", "ready": ray_ready, "restartCount": 0},
        {**CRASHED, "lastState": ENDED},
    ]
    pod["status"]["initContainerStatuses"] = [{"name": "wait", "restartCount": 0}, {"name": "proxy", "restartCount": 0}]
    seen = parse_pod(pod)
    assert seen.ready == ready
    assert {container.name: container.sidecar for container in seen.containers} == {
        "wait": False,
        "proxy": True,
        "ray": False,
        "shipper": True,
    }
    assert of_sidecars([seen]) == "sidecar shipper of pod head has ended 3 times (exit code 1, Error): no route"
