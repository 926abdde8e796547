"""One leader among the operator's replicas, by a Lease. The loser of a lease ends: it may not act any more."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import aiohttp

from rlhf_operator.clients.kube import ApiError, Conflict, Kube, NotFound, Raw

log = logging.getLogger(__name__)

LEASE = "rlhf-operator"
DURATION_SECONDS = 15
RENEW_EVERY_SECONDS = 5.0
#: Seconds without a renewal after which the leader ends: well before another may take over.
RENEW_WITHIN_SECONDS = 10.0


#: No answer, or an error that the next try may not meet.
_MAY_PASS = (ApiError, aiohttp.ClientError, TimeoutError, OSError)


class LeaseLost(Exception):
    """Another replica leads, or the lease could not be renewed in time."""


class Lease:
    """The lease of one replica. Clocks of others are not trusted, nor jumps of its own: a foreign lease counts as
    expired only when it has not changed for its whole duration while this replica watched it, in monotonic time.

    Own code: the elector of ``kubernetes.aio.leaderelection`` measures by the wall clock, ends the process with
    ``sys.exit`` and never releases its lease. ``now`` is the wall clock, written into the lease for people.
    """

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        identity: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._namespace = namespace
        self.identity = identity
        self._now = now
        self._monotonic = monotonic
        self._seen: tuple[str, float] | None = None
        self._held: Raw | None = None

    async def acquire(self) -> None:
        """Returns once this replica leads."""
        while True:
            try:
                if await self.try_once():
                    break
            except _MAY_PASS as error:
                log.warning("lease %s: %s", LEASE, error)
            await asyncio.sleep(RENEW_EVERY_SECONDS / 2)
        log.info("%s leads", self.identity)

    async def hold(self) -> None:
        """Renews for ever. Raises LeaseLost."""
        while True:
            await asyncio.sleep(RENEW_EVERY_SECONDS)
            try:
                async with asyncio.timeout(RENEW_WITHIN_SECONDS - RENEW_EVERY_SECONDS):
                    await self._renew()
            except TimeoutError as error:
                raise LeaseLost(f"lease {LEASE} was not renewed within {RENEW_WITHIN_SECONDS:.0f} s") from error

    async def _renew(self) -> None:
        """Tries until it is renewed. Raises LeaseLost when another replica holds it."""
        while True:
            try:
                # The second try reads the lease again: whoever touched it need not have taken it.
                if await self.try_once() or await self.try_once():
                    return
            except _MAY_PASS as error:
                log.warning("lease %s: not renewed: %s", LEASE, error)
                await asyncio.sleep(1)
            else:
                raise LeaseLost(f"lease {LEASE} is held by another replica")

    async def release(self) -> None:
        """Lets the next replica lead at once."""
        lease = await self._read()
        if lease is not None and lease["spec"].get("holderIdentity") == self.identity:
            lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
            await self._kube.call("update", "leases", f"{self._path}/{LEASE}", lease)

    async def try_once(self) -> bool:
        """Takes or renews the lease; whether this replica holds it now."""
        # The holder renews what it wrote last, unread: had another taken the lease, the version would not fit.
        lease, self._held = self._held or await self._read(), None
        if lease is None:
            return await self._write(self._kube.call("create", "leases", self._path, self._manifest({})))
        spec = lease.get("spec", {})
        holder = spec.get("holderIdentity") or ""
        if holder not in ("", self.identity) and not self._expired(lease):
            return False
        manifest = self._manifest(spec if holder == self.identity else {})
        manifest["metadata"]["resourceVersion"] = lease["metadata"]["resourceVersion"]
        return await self._write(self._kube.call("update", "leases", f"{self._path}/{LEASE}", manifest))

    def _expired(self, lease: Raw) -> bool:
        version = lease["metadata"]["resourceVersion"]
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, self._monotonic())
        duration = float(lease["spec"].get("leaseDurationSeconds", DURATION_SECONDS))
        return self._monotonic() - self._seen[1] > duration

    def _manifest(self, known: dict[str, Any]) -> Raw:
        now = self._now().isoformat(timespec="microseconds").replace("+00:00", "Z")
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": LEASE, "namespace": self._namespace},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": DURATION_SECONDS,
                "acquireTime": known.get("acquireTime", now),
                "renewTime": now,
                "leaseTransitions": known.get("leaseTransitions", 0),
            },
        }

    async def _read(self) -> Raw | None:
        try:
            return await self._kube.call("get", "leases", f"{self._path}/{LEASE}")
        except NotFound:
            return None

    async def _write(self, call: Awaitable[Raw]) -> bool:
        try:
            self._held = await call
        except Conflict:
            return False
        return True
