"""Starts the operator: watches at once, works once it leads, ends when told to or when the lease is lost."""

import asyncio
import logging
import os
import socket
import sys
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
from prometheus_client import start_http_server
from rlhf_api.conditions import Phase

from rlhf_operator import handlers
from rlhf_operator.clients.cluster import Cluster, operator_key
from rlhf_operator.clients.kube import Kube, connect
from rlhf_operator.clients.leadership import Lease, LeaseLost
from rlhf_operator.clients.rayjobs import RayJobs
from rlhf_operator.clients.reports import Links
from rlhf_operator.metrics import Metrics
from rlhf_operator.observe import Observer
from rlhf_operator.passes import Passes
from rlhf_operator.queue import Key, WorkQueue
from rlhf_operator.throttle import Throttle
from rlhf_operator.watched import Watched

log = logging.getLogger("rlhf_operator")

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
#: Passes that run at once: those that ask heads which do not answer wait for seconds, and others must not.
_PASSES_AT_ONCE = 32


@dataclass(frozen=True)
class Settings:
    """What the Deployment may set; each has a default that works on a laptop with a kubeconfig."""

    namespace: str
    """Where the lease and the operator's key are."""
    identity: str
    """Who holds the lease. A container restarted in the same pod is the same replica and leads again at once."""
    watch_namespaces: tuple[str, ...]
    """Namespaces whose jobs are served; none: all."""
    metrics_port: int
    health_port: int

    @classmethod
    def from_environment(cls) -> "Settings":
        """Raises ValueError for a port that is no number."""
        read = _NAMESPACE_FILE.read_text("utf-8").strip() if _NAMESPACE_FILE.exists() else "rlhf-system"
        watched = os.environ.get("RLHF_OPERATOR_WATCH_NAMESPACES", "")
        return cls(
            namespace=os.environ.get("RLHF_OPERATOR_NAMESPACE") or read,
            identity=os.environ.get("POD_NAME") or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}",
            watch_namespaces=tuple(name.strip() for name in watched.split(",") if name.strip()),
            metrics_port=int(os.environ.get("RLHF_OPERATOR_METRICS_PORT", "9090")),
            health_port=int(os.environ.get("RLHF_OPERATOR_HEALTH_PORT", "8080")),
        )


async def run(settings: Settings) -> None:
    """Until SIGTERM or SIGINT. Raises LeaseLost, or what broke one of the parts."""
    metrics = Metrics()
    start_http_server(settings.metrics_port, registry=metrics.registry)
    watched = Watched()
    _count_jobs(metrics, watched)
    # No proxy and no cookies: heads are addressed by pod IP. No limit: every running job holds a connection, and a
    # poll that waits for one would look like a supervisor's silence.
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        await connect(metrics) as kube,
        aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session,
    ):
        work = _Work(watched, kube, session, metrics, settings)
        leading = asyncio.create_task(work.lead(), name="leader")
        told = asyncio.Event()

        async def stop() -> None:
            told.set()
            leading.cancel()
            await asyncio.wait({leading})
            await work.release()

        endpoint = f"http://0.0.0.0:{settings.health_port}/healthz"
        watching = asyncio.create_task(
            handlers.watch(watched, work.enqueue, stop, settings.watch_namespaces, endpoint), name="watches"
        )
        await asyncio.wait({leading, watching}, return_when=asyncio.FIRST_COMPLETED)
        # Told to stop, kopf ends by itself, after ``stop``. Otherwise one part broke, and the other ends with it.
        if not told.is_set():
            watching.cancel()
        await asyncio.wait({watching})
        await stop()
        for task in (leading, watching):
            if not task.cancelled():
                task.result()


class _Work:
    """What only the leader does."""

    def __init__(
        self, watched: Watched, kube: Kube, session: aiohttp.ClientSession, metrics: Metrics, settings: Settings
    ) -> None:
        self._watched = watched
        self._kube = kube
        self._session = session
        self._metrics = metrics
        self._settings = settings
        self._lease = Lease(kube, settings.namespace, settings.identity)
        self._queue: WorkQueue | None = None
        self._released = False

    def enqueue(self, key: Key) -> None:
        """A follower only remembers what it sees: it looks at every job when it begins to lead."""
        if self._queue is not None:
            self._queue.add(key)

    async def lead(self) -> None:
        """Waits for the lease, then works the queue as long as it is held. Raises LeaseLost."""
        await self._lease.acquire()
        self._metrics.leader.set(1)
        cluster = Cluster(self._kube, await operator_key(self._kube, self._settings.namespace))
        ray = RayJobs(self._session)
        links = Links(self._session, self.enqueue)
        observer = Observer(self._watched, cluster, ray)
        passes = Passes(self._watched, observer, cluster, ray, links, self._metrics, Throttle())
        self._queue = WorkQueue(passes.process, workers=_PASSES_AT_ONCE, depth=self._metrics.queue_depth)
        for raw in self._watched.jobs:
            self.enqueue((raw["metadata"]["namespace"], raw["metadata"]["name"]))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._queue.run())
                group.create_task(self._lease.hold())
        finally:
            links.close()
            self._metrics.leader.set(0)

    async def release(self) -> None:
        """Best effort, once: a lease that is not given back expires."""
        if self._released:
            return
        self._released = True
        try:
            async with asyncio.timeout(3):
                await self._lease.release()
        except Exception as error:
            log.warning("the lease was not given back, it expires: %s", error)


def _count_jobs(metrics: Metrics, watched: Watched) -> None:
    def count(phase: str) -> float:
        return float(sum(raw.get("status", {}).get("phase") == phase for raw in watched.jobs))

    for phase in Phase:
        metrics.jobs.labels(phase).set_function(partial(count, phase))


def main() -> None:
    """The ``rlhf-operator`` command."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stdout)
    # A line for every probe would be most of the log.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    try:
        asyncio.run(run(Settings.from_environment()))
    except* LeaseLost as lost:
        log.error("%s; ending, so that there is one leader", lost.exceptions[0])
        sys.exit(1)


if __name__ == "__main__":
    main()
