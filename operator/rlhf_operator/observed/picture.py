"""What one pass has seen, as a frozen picture: parsed from the API's raw objects and from Ray's answers.

RayCluster's own summaries are not used where they are sticky (``state``, ``RayClusterProvisioned`` stay as they
were after the head is gone): pods say whether they are ready, and a head is recognised by its UID and restarts.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from rlhf_api.conditions import Reason
from rlhf_api.names import JOB_UID_LABEL, RAY_CONTAINER, ROLE_LABEL
from rlhf_api.tails import last_lines

HEAD_ROLE = "head"
RAY_CLUSTER_LABEL = "ray.io/cluster"


@dataclass(frozen=True, kw_only=True)
class ContainerSeen:
    """One container, init containers included."""

    name: str
    image: str
    restarts: int = 0
    waiting_reason: str = ""
    waiting_message: str = ""
    exit_code: int | None = None
    """Exit code of its last end; None when it never ended."""
    exit_reason: str = ""
    exit_message: str = ""
    sidecar: bool = False
    """Whether Ray runs without it: its state is said, and decides nothing."""

    @property
    def ending(self) -> str:
        """How it last ended, with its last words, for people."""
        code = f"exit code {self.exit_code}" + (f", {self.exit_reason}" if self.exit_reason else "")
        tail = last_lines(self.exit_message.strip(), 300)
        return f"({code})" + (f": {tail}" if tail else "")


@dataclass(frozen=True, kw_only=True)
class PodSeen:
    """One pod of the job."""

    name: str
    uid: str
    role: str
    ip: str = ""
    phase: str = ""
    ready: bool = False
    """Whether its Ray container is: a sidecar that is not ready does not count."""
    terminating: bool = False
    created: str = ""
    unschedulable: str = ""
    """The scheduler's message while it finds no node."""
    containers: tuple[ContainerSeen, ...] = ()

    @property
    def ray(self) -> ContainerSeen | None:
        """The Ray container, once the kubelet has told of it."""
        return next((container for container in self.containers if container.name == RAY_CONTAINER), None)

    @property
    def ray_restarts(self) -> int:
        """Restarts of the Ray container: with them the head's job table is gone though the pod stays."""
        return self.ray.restarts if self.ray else 0


@dataclass(frozen=True, kw_only=True)
class ClusterSeen:
    """The RayCluster of the current incarnation."""

    name: str
    uid: str = ""
    owner_uid: str = ""
    """UID of its controlling owner; a cluster of that name that is not ours is never touched."""
    created: datetime | None = None
    deleting: bool = False
    answered: bool = False
    """KubeRay has written a status."""
    replica_failure: str = ""
    """KubeRay's message while it cannot create or delete a pod (quota, admission)."""


@dataclass(frozen=True)
class Submission:
    """Ray's authoritative answer about one submission; Unknown: this head has never heard of it."""

    state: Literal["Unknown", "Pending", "Running", "Succeeded", "Failed", "Stopped"]
    message: str = ""
    exit_code: int | None = None
    """Of the driver, once it has ended."""

    @property
    def over(self) -> bool:
        """Whether no process of it can be alive."""
        return self.state in ("Unknown", "Succeeded", "Failed", "Stopped")


@dataclass(frozen=True)
class Unreachable:
    """Ray gave no answer: nothing may be concluded."""

    error: str


@dataclass(frozen=True)
class Obstacle:
    """Why the job does not move. One that heals is a condition until its deadline; another fails the job."""

    reason: Reason
    message: str
    heals: bool


@dataclass(frozen=True)
class Code:
    """The user's code from a ConfigMap: its keys, and the hash that status shows."""

    data: Mapping[str, str] = field(repr=False)
    binary_data: Mapping[str, str] = field(repr=False)
    copied: bool = False
    """Whether it was read from the job's own copy, not from the user's ConfigMap."""

    @property
    def digest(self) -> str:
        """sha256 over keys and contents, independent of their order."""
        content = json.dumps([dict(self.data), dict(self.binary_data)], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Everything that a pass has seen of the world, but the report."""

    cluster: ClusterSeen | None = None
    pods: tuple[PodSeen, ...] = ()
    code: Code | None = None
    """Read until the job's own copy of it is recorded, and while pods that mount the copy have to be made."""
    ray_cluster: Mapping[str, Any] | None = field(default=None, repr=False)
    """The RayCluster that may be created: its pods and itself were tried in a dry run. None when nothing was tried."""
    refusals: tuple[Obstacle, ...] = ()
    """What the dry run of pods and RayCluster, the look at named objects, or KubeRay's events say against creating."""
    submission: Submission | Unreachable | None = None
    """Of the current attempt; None when it was not asked for."""
    previous: Submission | Unreachable | None = None
    """Of the attempt before, while the current one is not submitted yet."""

    @property
    def head(self) -> PodSeen | None:
        """The newest head pod that is not on its way out."""
        return newest_head(self.pods)

    @property
    def ready_workers(self) -> int:
        return sum(pod.ready for pod in self.pods if pod.role != HEAD_ROLE and not pod.terminating)


def newest_head(pods: Iterable[PodSeen]) -> PodSeen | None:
    """The newest head pod that is not on its way out."""
    heads = [pod for pod in pods if pod.role == HEAD_ROLE and not pod.terminating]
    return max(heads, key=lambda pod: (pod.created, pod.name), default=None)


def parse_pod(raw: Mapping[str, Any]) -> PodSeen:
    """A Pod as the API gives it."""
    metadata, status = raw["metadata"], raw.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    scheduled = conditions.get("PodScheduled", {})
    unschedulable = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    sidecars = _sidecars(raw.get("spec", {}))
    containers = [
        _container(entry, entry["name"] in sidecars)
        for entry in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    ]
    return PodSeen(
        name=metadata["name"],
        uid=metadata["uid"],
        role=metadata.get("labels", {}).get(ROLE_LABEL, ""),
        ip=status.get("podIP", ""),
        phase=status.get("phase", ""),
        ready=_ray_is_ready(conditions.get("Ready", {}), status),
        terminating="deletionTimestamp" in metadata,
        created=metadata.get("creationTimestamp", ""),
        unschedulable=scheduled.get("message", "no node fits") if unschedulable else "",
        containers=tuple(containers),
    )


def _sidecars(spec: Mapping[str, Any]) -> set[str]:
    """Names of the containers beside Ray's, and of init containers that run on beside it."""
    beside = [container for container in spec.get("containers", ()) if container["name"] != RAY_CONTAINER]
    going_on = [container for container in spec.get("initContainers", ()) if container.get("restartPolicy") == "Always"]
    return {container["name"] for container in (*beside, *going_on)}


def _ray_is_ready(ready: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """The pod is ready, or would be if it were for its Ray container alone.

    A pod of a node that is lost is not ready either, while its containers stay as they were last seen.
    """
    if ready.get("status") == "True" or ready.get("reason") != "ContainersNotReady":
        return ready.get("status") == "True"
    return any(entry["name"] == RAY_CONTAINER and entry.get("ready") for entry in status.get("containerStatuses", ()))


def _container(raw: Mapping[str, Any], sidecar: bool) -> ContainerSeen:
    state = raw.get("state", {})
    waiting = state.get("waiting", {})
    ended = state.get("terminated") or raw.get("lastState", {}).get("terminated") or {}
    return ContainerSeen(
        name=raw["name"],
        image=raw.get("image", ""),
        restarts=raw.get("restartCount", 0),
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        exit_code=ended.get("exitCode"),
        exit_reason=ended.get("reason", ""),
        exit_message=ended.get("message", ""),
        sidecar=sidecar,
    )


def parse_cluster(raw: Mapping[str, Any]) -> ClusterSeen:
    """A RayCluster as the API gives it."""
    metadata, status = raw["metadata"], raw.get("status", {})
    owners = [owner["uid"] for owner in metadata.get("ownerReferences", ()) if owner.get("controller")]
    failures = [
        condition.get("message", "")
        for condition in status.get("conditions", ())
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True"
    ]
    return ClusterSeen(
        name=metadata["name"],
        uid=metadata["uid"],
        owner_uid=owners[0] if owners else "",
        created=datetime.fromisoformat(metadata["creationTimestamp"]),
        deleting="deletionTimestamp" in metadata,
        answered=bool(status),
        replica_failure=failures[0] if failures else "",
    )


def pods_of_cluster(raw_pods: Iterable[Mapping[str, Any]], job_uid: str, cluster: str) -> tuple[PodSeen, ...]:
    """The pods of one RayCluster of one job: those of an earlier incarnation are not among them."""
    ours = {JOB_UID_LABEL: job_uid, RAY_CLUSTER_LABEL: cluster}
    mine = [raw for raw in raw_pods if ours.items() <= raw["metadata"].get("labels", {}).items()]
    return tuple(sorted(map(parse_pod, mine), key=lambda pod: pod.name))
