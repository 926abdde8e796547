"""Gathering what a pass must know, reading no more than the job's situation needs."""

import time
from collections.abc import Callable
from datetime import datetime

from rlhf_api.conditions import Reason
from rlhf_api.job import RLHFJob
from rlhf_api.names import code_config_map_name, ray_cluster_name, submission_id

from rlhf_operator.clients.cluster import Cluster
from rlhf_operator.clients.kube import Raw
from rlhf_operator.clients.rayjobs import RayJobs
from rlhf_operator.observed.picture import (
    ClusterSeen,
    Code,
    Observed,
    Obstacle,
    PodSeen,
    Submission,
    Unreachable,
    newest_head,
    parse_cluster,
    parse_pod,
    pods_of_cluster,
)
from rlhf_operator.observed.report_view import ReportView
from rlhf_operator.status.release import released
from rlhf_operator.watched import Watched, child_key

#: What the watches told is read anew after so many seconds: a watch may have missed a deletion.
REREAD_SECONDS = 60.0
#: KubeRay writes a first status within moments; when it has not, it may have refused the RayCluster.
KUBERAY_SILENT_SECONDS = 10.0


class Observer:
    """Reads the world for one pass. ``monotonic`` is for tests."""

    def __init__(
        self, watched: Watched, cluster: Cluster, ray: RayJobs, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._watched = watched
        self._cluster = cluster
        self._ray = ray
        self._monotonic = monotonic
        self._read_at: dict[str, float] = {}

    def forget(self, job_uid: str) -> None:
        self._read_at.pop(job_uid, None)
        self._watched.forget(job_uid)

    async def observe(self, job: RLHFJob, view: ReportView, now: datetime) -> Observed:
        """The picture for ``decide``. Raises ApiError or ClientError when Kubernetes does not answer."""
        if job.status.start_time is None:
            return Observed()
        if job.status.completion_time is not None:
            return await self._left_over(job)
        raw = await self._ray_cluster(job)
        cluster = parse_cluster(raw) if raw else None
        pods = pods_of_cluster(self._watched.pods_of(job.uid), job.uid, _cluster_name(job))
        head = newest_head(pods)
        # Read until the job's copy is recorded, and as long as pods that mount it have to be made.
        mounting = cluster is None or head is None or not head.ready
        reading = mounting or not job.status.code_hash
        code = await self._cluster.read_code(job) if reading else None
        missing = _code_missing(job, code) if reading else []
        manifest: Raw | None = None
        if cluster is not None:
            refusals = await self._refusals(job, cluster, now)
        elif not job.status.submission_id:
            proof = await self._cluster.prove(job, code)
            manifest, refusals = proof.ray_cluster, [*await self._claim_missing(job), *proof.obstacles]
        else:
            refusals = []  # it was there: it has been deleted, and what comes is a new incarnation
        return Observed(
            cluster=cluster,
            pods=pods,
            code=code,
            ray_cluster=manifest,
            refusals=(*missing, *refusals),
            submission=await self._submission(job, head, view),
            previous=await self._previous(job, head),
        )

    async def _left_over(self, job: RLHFJob) -> Observed:
        """What a finished job still holds: read, not taken from the watches, until it has been seen gone."""
        if released(job.status):
            return Observed()
        raw = await self._cluster.read_cluster(job.namespace, _cluster_name(job))
        pods = tuple(parse_pod(pod) for pod in await self._cluster.read_pods(job))
        return Observed(cluster=parse_cluster(raw) if raw else None, pods=pods)

    async def _ray_cluster(self, job: RLHFJob) -> Raw | None:
        """From the watch; read when the watch knows none (it may be late) or was last checked too long ago."""
        key = child_key(job, _cluster_name(job))
        known = self._watched.clusters.get(key)
        fresh = self._monotonic() - self._read_at.get(job.uid, float("-inf")) < REREAD_SECONDS
        if known is not None and fresh:
            return known
        read = await self._cluster.read_cluster(*key)
        if read is None:
            self._watched.clusters.discard(key)
            return None
        self._watched.clusters.put(read)
        self._watched.replace_pods(job.uid, await self._cluster.read_pods(job))
        self._read_at[job.uid] = self._monotonic()
        return self._watched.clusters.get(key)

    async def _refusals(self, job: RLHFJob, cluster: ClusterSeen, now: datetime) -> list[Obstacle]:
        age = (now - (cluster.created or now)).total_seconds()
        if cluster.answered or age < KUBERAY_SILENT_SECONDS:
            return []
        refusal = await self._cluster.kuberay_refusal(job.namespace, cluster.uid)
        return [refusal] if refusal else []

    async def _claim_missing(self, job: RLHFJob) -> list[Obstacle]:
        claim = job.spec.checkpoint.storage.persistent_volume_claim
        if claim is None or await self._cluster.claim_exists(job):
            return []
        message = (
            f"PersistentVolumeClaim {claim.claim_name} (spec.checkpoint.storage) does not exist in {job.namespace}"
        )
        return [Obstacle(Reason.REFERENCE_MISSING, message, heals=True)]

    async def _submission(
        self, job: RLHFJob, head: PodSeen | None, view: ReportView
    ) -> Submission | Unreachable | None:
        """Ray is asked while the supervisor itself does not answer, and only the head that has the attempt."""
        status = job.status
        if not status.submission_id or head is None or not head.ready or view.answers_for(status.attempt):
            return None
        if (head.uid, head.ray_restarts) != (status.head_pod_uid, status.head_restarts):
            return None
        return await self._ask(job, head, status.submission_id)

    async def _previous(self, job: RLHFJob, head: PodSeen | None) -> Submission | Unreachable | None:
        status = job.status
        if status.submission_id or status.attempt <= 1 or head is None or not head.ready:
            return None
        return await self._ask(job, head, submission_id(job, status.incarnation, status.attempt - 1))

    async def _ask(self, job: RLHFJob, head: PodSeen, submission: str) -> Submission | Unreachable:
        return await self._ray.ask(head.ip, self._cluster.token(job), submission)


def _cluster_name(job: RLHFJob) -> str:
    return job.status.ray_cluster_name or ray_cluster_name(job, job.status.incarnation)


def _code_missing(job: RLHFJob, code: Code | None) -> list[Obstacle]:
    """Why the job's own copy of the code cannot be made, if it is neither there nor can be."""
    wanted = job.spec.runtime.code
    if wanted is None or wanted.config_map is None:
        return []
    theirs = f"ConfigMap {wanted.config_map.name} (spec.runtime.code)"
    copy = f"ConfigMap {code_config_map_name(job)}, the job's copy of its code, was deleted"
    if code is None:
        message = f"{theirs} does not exist in {job.namespace}"
        message = f"{copy}, and {message}" if job.status.code_hash else message
    elif not code.copied and job.status.code_hash not in ("", code.digest):
        message = f"{copy}, and {theirs} has changed since it was copied: restore its content"
    else:
        return []
    return [Obstacle(Reason.REFERENCE_MISSING, message, heals=True)]
