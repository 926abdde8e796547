"""One pass over one job: observe, decide, act, one status write."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import aiohttp
from pydantic import ValidationError
from rlhf_api.job import RLHFJob
from rlhf_api.status import ReportCursor, RLHFJobStatus

from rlhf_operator.clients.cluster import Cluster
from rlhf_operator.clients.kube import ApiError, Conflict, NotFound, Raw
from rlhf_operator.clients.rayjobs import RayJobs, RayRefused
from rlhf_operator.clients.reports import Links
from rlhf_operator.decisions.decide import decide
from rlhf_operator.decisions.plan import (
    Acknowledge,
    Action,
    CreateConfigMap,
    CreateRayCluster,
    CreateSecret,
    DeleteRayCluster,
    DeleteSecretAndCode,
    StopSubmission,
    Submit,
)
from rlhf_operator.metrics import Metrics
from rlhf_operator.observe import Observer
from rlhf_operator.queue import Key
from rlhf_operator.status import invalid
from rlhf_operator.status.build import bounded
from rlhf_operator.status.release import with_obstacle
from rlhf_operator.throttle import Throttle
from rlhf_operator.watched import Watched

log = logging.getLogger(__name__)

#: After a write that lost against another one: a server that refuses every write is not asked without a pause.
AFTER_CONFLICT_SECONDS = 1.0
#: A head that will not do something, or does not answer.
_NOT_DONE = (RayRefused, aiohttp.ClientError, TimeoutError, OSError)


class Passes:
    """Everything that a pass touches, wired together. ``now`` is for tests."""

    def __init__(
        self,
        watched: Watched,
        observer: Observer,
        cluster: Cluster,
        ray: RayJobs,
        links: Links,
        metrics: Metrics,
        throttle: Throttle,
        now: Callable[[], datetime] = lambda: datetime.now(UTC).replace(microsecond=0),
    ) -> None:
        self._watched = watched
        self._observer = observer
        self._cluster = cluster
        self._ray = ray
        self._links = links
        self._metrics = metrics
        self._throttle = throttle
        self._now = now
        self._uids: dict[Key, str] = {}

    async def process(self, key: Key) -> float | None:
        """One pass; how many seconds until the next, or None when only an event brings the job back."""
        started = time.monotonic()
        try:
            return await self._process(key)
        except Exception as error:
            self._metrics.pass_failures.inc()
            await self._say_failed(key, error)
            raise
        finally:
            self._metrics.pass_seconds.observe(time.monotonic() - started)

    async def _process(self, key: Key) -> float | None:
        raw = self._watched.jobs.get(key)
        if raw is None or "deletionTimestamp" in raw["metadata"]:
            self._leave(key)
            return None
        self._uids[key] = raw["metadata"]["uid"]
        try:
            job = RLHFJob.read(raw)
        except ValidationError as error:
            new = invalid.status_of(raw, error, self._now())
            if new == (raw.get("status") or {}):
                return None
            log.warning("%s/%s: %s", *key, new["message"])
            return await self._put(key, raw, new)
        view, now = self._links.view(key), self._now()
        plan = decide(job, await self._observer.observe(job, view, now), view, now)
        for action in plan.actions:
            if said := await self._perform(key, job, action):
                plan = replace(plan, status=plan.status.model_copy(update={"message": bounded(said, job.name)}))
        self._links.follow(key, job, self._cluster.token(job), plan.follow)
        if plan.status == job.status:
            return plan.requeue_after
        return _next(plan.requeue_after, await self._write(key, raw, job.status, plan.status))

    async def _say_failed(self, key: Key, error: Exception) -> None:
        """A pass that fails is tried again with back-off; meanwhile the job's status says what stands in its way."""
        raw = self._watched.jobs.get(key)
        if raw is None or "deletionTimestamp" in raw["metadata"]:
            return
        try:
            job = RLHFJob.read(raw)
            said = f"{type(error).__name__}: {error}"
            if job.status.completion_time is None:
                message = bounded(f"the operator cannot go on: {said}", key[1])
                new = job.status.model_copy(update={"message": message})
            else:
                new = with_obstacle(job, said, self._now())
            if new != job.status:
                await self._write(key, raw, job.status, new)
        except Exception:
            log.exception("%s/%s: its status cannot be written either", *key)

    def _leave(self, key: Key) -> None:
        """The job is gone or going: its children go by their owner references, and nothing of it is remembered."""
        self._links.drop(key)
        self._throttle.forget(key)
        if (uid := self._uids.pop(key, None)) is not None:
            self._observer.forget(uid)

    async def _perform(self, key: Key, job: RLHFJob, action: Action) -> str:
        """Does it; what status is to say of it, where a head has not let it happen. Raises what Kubernetes says."""
        log.info("%s/%s: %s", *key, action)
        token = self._cluster.token(job)
        match action:
            case CreateSecret():
                await self._cluster.create_secret(job)
            case CreateConfigMap(code):
                await self._cluster.create_config_map(job, code)
            case CreateRayCluster(manifest):
                await self._cluster.create_ray_cluster(job, manifest)
            case Submit():
                # Tried again in every pass; the attempt's deadline ends it, and so its reports must be followed.
                try:
                    await self._ray.submit(token, job, action)
                except _NOT_DONE as error:
                    log.warning("%s/%s: %s was not submitted: %s", *key, action.submission_id, error)
                    return f"Ray on the head has not taken the submission: {str(error) or type(error).__name__}"
            case StopSubmission(ip, submission_id):
                try:
                    await self._ray.stop(ip, token, submission_id)
                except _NOT_DONE as error:
                    log.warning("%s/%s: %s was not stopped: %s", *key, submission_id, error)
            case Acknowledge():
                await self._links.acknowledge(key, action)
            case DeleteRayCluster(name):
                await self._cluster.delete_ray_cluster(job, name)
            case DeleteSecretAndCode():
                try:
                    await self._cluster.delete_secret_and_code(job)
                except ApiError as error:
                    log.warning("%s/%s: left behind until the job is deleted: %s", *key, error)
        return ""

    async def _write(self, key: Key, raw: Raw, old: RLHFJobStatus, new: RLHFJobStatus) -> float | None:
        """Writes the status if it is due; else says in how many seconds it will be."""
        wait = self._throttle.wait(key, old, new)
        if wait > 0:
            return wait
        return await self._put(key, raw, new.to_dict())

    async def _put(self, key: Key, raw: Raw, status: Raw) -> float | None:
        """Writes the status now; after how many seconds to look again when the object has changed meanwhile."""
        try:
            written = await self._cluster.write_status(raw, status)
        except NotFound:
            return None  # deleted meanwhile; the watch tells
        except Conflict:
            # Somebody touched the object, or this process has lost the lease: look again before anything else.
            log.info("%s/%s: the object has changed since it was read; looking again", *key)
            if (fresh := await self._cluster.read_job(*key)) is not None:
                self._watched.jobs.put(fresh)
            return AFTER_CONFLICT_SECONDS
        self._throttle.wrote(key)
        self._metrics.status_writes.inc()
        self._watched.jobs.put(written)
        self._links.written(key, ReportCursor.read(status.get("reports") or {}))
        if (raw.get("status") or {}).get("phase") != status.get("phase"):
            log.info("%s/%s: %s: %s", *key, status.get("phase"), status.get("message"))
        return None


def _next(wanted: float | None, due: float | None) -> float | None:
    """When to come back, if the plan wants to after ``wanted`` s and an unwritten status is ``due`` in so many.

    A plan that goes on at once (0) goes on from what it writes: as long as that is not due, neither is the rest.
    """
    if due is None or wanted is None:
        return wanted if due is None else due
    return due if wanted == 0 else min(wanted, due)
