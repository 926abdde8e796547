"""kopf's part: three watches that refresh what is known and enqueue the job. The only module that knows kopf.

Event handlers alone are used: they put no finalizer and no annotation on any object. Nothing is decided here.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import kopf
from rlhf_api.job import GROUP, PLURAL
from rlhf_api.names import JOB_UID_LABEL

from rlhf_operator.manifests.children import RAY_PLURAL
from rlhf_operator.queue import Key
from rlhf_operator.watched import Raw, Watched, job_key, key_of

RAY_GROUP = "ray.io"


def registry(watched: Watched, enqueue: Callable[[Key], None]) -> kopf.OperatorRegistry:
    """The watches of jobs, and of the RayClusters and pods that carry a job's label."""
    handlers = kopf.OperatorRegistry()
    ours = {JOB_UID_LABEL: kopf.PRESENT}

    def login(**kwargs: Any) -> Any:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    async def on_job(event: Any, **_: Any) -> None:
        raw = _raw(event)
        if event["type"] == "DELETED":
            watched.jobs.remove(key_of(raw), raw["metadata"]["uid"])
        else:
            watched.jobs.put(raw)
        enqueue(key_of(raw))

    async def on_cluster(event: Any, **_: Any) -> None:
        raw = _raw(event)
        if event["type"] == "DELETED":
            watched.clusters.remove(key_of(raw), raw["metadata"]["uid"])
        else:
            watched.clusters.put(raw)
        _enqueue_owner(raw)

    async def on_pod(event: Any, **_: Any) -> None:
        raw = _raw(event)
        if event["type"] == "DELETED":
            watched.remove_pod(raw)
        else:
            watched.put_pod(raw)
        _enqueue_owner(raw)

    def _enqueue_owner(raw: Raw) -> None:
        if (key := job_key(raw)) is not None:
            enqueue(key)

    kopf.on.login(registry=handlers)(login)
    kopf.on.event(GROUP, PLURAL, registry=handlers)(on_job)
    kopf.on.event(RAY_GROUP, RAY_PLURAL, labels=ours, registry=handlers)(on_cluster)
    kopf.on.event("", "v1", "pods", labels=ours, registry=handlers)(on_pod)
    return handlers


def settings() -> kopf.OperatorSettings:
    """Standalone (a lease decides who leads), no Events of kopf's own, only our pods watched, short timeouts."""
    result = kopf.OperatorSettings()
    result.peering.standalone = True
    result.posting.enabled = False
    result.networking.request_timeout = 30
    result.networking.connect_timeout = 10
    result.watching.connect_timeout = 10
    for resource in (("", "v1", "pods"), (RAY_GROUP, RAY_PLURAL)):
        result.watching.label_selectors[resource] = JOB_UID_LABEL
    # kopf tells of every event and every handler: at INFO it would be most of the log.
    for name in ("kopf.objects", "kopf.activities"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return result


async def watch(
    watched: Watched,
    enqueue: Callable[[Key], None],
    stopping: Callable[[], Awaitable[None]],
    namespaces: tuple[str, ...],
    liveness_endpoint: str,
) -> None:
    """Watches until the process is told to end (SIGTERM, SIGINT); no namespaces means all.

    ``stopping`` is called then, before kopf waits for whatever task is left in the loop.
    """
    handlers = registry(watched, enqueue)

    async def stop(**_: Any) -> None:
        await stopping()

    kopf.on.cleanup(registry=handlers)(stop)
    await kopf.operator(
        registry=handlers,
        settings=settings(),
        clusterwide=not namespaces,
        namespaces=namespaces,
        liveness_endpoint=liveness_endpoint,
    )


def _raw(event: Any) -> Raw:
    return dict(event["object"])
