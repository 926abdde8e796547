"""One leader: against an API server of a page, with leases that conflict as real ones do."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from rlhf_operator.clients import leadership
from rlhf_operator.clients.kube import ApiError, Conflict, NotFound
from rlhf_operator.clients.leadership import Lease, LeaseLost

G = Any


class Leases:
    """The leases of one namespace, with resource versions."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.calls: list[str] = []
        self.away = False

    async def call(self, verb: str, resource: str, path: str, body: Any = None, query: Any = None) -> dict[str, Any]:
        self.calls.append(verb)
        if self.away:
            raise ApiError(503, "ServiceUnavailable", "away", path)
        if verb == "get":
            if self.lease is None:
                raise NotFound(404, "NotFound", "no lease", path)
            return {**self.lease, "spec": dict(self.lease["spec"])}
        if verb == "create" and self.lease is not None:
            raise Conflict(409, "AlreadyExists", "exists", path)
        stale = self.lease and body["metadata"].get("resourceVersion") != self.lease["metadata"]["resourceVersion"]
        if verb == "update" and stale:
            raise Conflict(409, "Conflict", "changed", path)
        self.version += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        return self.lease

    def touch(self) -> None:
        assert self.lease is not None
        self.version += 1
        self.lease["metadata"] = {**self.lease["metadata"], "resourceVersion": str(self.version)}


class Clock:
    """A wall clock that may jump, and a monotonic one that does not."""

    def __init__(self, given: G) -> None:
        self.now = given.at(0)
        self.monotonic = 1000.0

    def __call__(self) -> Any:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        self.monotonic += seconds
        self.jump(seconds)

    def jump(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def leases() -> Leases:
    return Leases()


@pytest.fixture
def clock(given: G) -> Clock:
    return Clock(given)


@pytest.fixture
def replica(leases: Leases, clock: Clock) -> Callable[[str], Lease]:
    kube: Any = leases
    return lambda identity: Lease(kube, "rlhf-system", identity, now=clock, monotonic=lambda: clock.monotonic)


Replica = Callable[[str], Lease]


async def test_the_first_leads_and_the_second_waits(replica: Replica) -> None:
    one, two = replica("one"), replica("two")
    assert await one.try_once()
    assert not await two.try_once()
    assert await one.try_once()


async def test_a_lease_that_is_renewed_is_never_taken(replica: Replica, clock: Clock) -> None:
    one, two = replica("one"), replica("two")
    assert await one.try_once()
    for _ in range(10):
        clock.pass_seconds(5)
        assert await one.try_once()
        assert not await two.try_once()


async def test_a_dead_leader_s_lease_is_taken_after_its_duration_and_not_before(replica: Replica, clock: Clock) -> None:
    one, two = replica("one"), replica("two")
    assert await one.try_once()
    assert not await two.try_once()
    clock.pass_seconds(15)
    assert not await two.try_once()
    clock.pass_seconds(1)
    assert await two.try_once()
    with pytest.raises(LeaseLost, match="held by another replica"):
        await one._renew()


async def test_a_jump_of_the_wall_clock_takes_no_lease_and_gives_none_longer(replica: Replica, clock: Clock) -> None:
    one, two = replica("one"), replica("two")
    assert await one.try_once()
    assert not await two.try_once()
    clock.jump(3600)
    assert not await two.try_once()
    clock.jump(-7200)
    clock.pass_seconds(16)
    assert await two.try_once()


async def test_a_restarted_replica_of_the_same_name_leads_at_once(replica: Replica) -> None:
    assert await replica("pod-1").try_once()
    assert await replica("pod-1").try_once()


async def test_a_released_lease_is_taken_at_once(replica: Replica, leases: Leases) -> None:
    one, two = replica("one"), replica("two")
    assert await one.try_once()
    await one.release()
    assert await two.try_once()
    await one.release()
    assert leases.lease is not None
    assert leases.lease["spec"]["holderIdentity"] == "two", "another's lease is not given back"


async def test_somebody_touching_the_lease_does_not_take_it(replica: Replica, leases: Leases) -> None:
    one = replica("one")
    assert await one.try_once()
    leases.touch()
    await one._renew()


async def test_renewing_costs_one_call(replica: Replica, leases: Leases) -> None:
    one = replica("one")
    assert await one.try_once()
    leases.calls.clear()
    assert await one.try_once()
    assert leases.calls == ["update"]


async def test_a_leader_that_cannot_renew_ends(
    replica: Replica, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "RENEW_EVERY_SECONDS", 0.01)
    monkeypatch.setattr(leadership, "RENEW_WITHIN_SECONDS", 0.1)
    one = replica("one")
    await one.acquire()
    leases.away = True
    with pytest.raises(LeaseLost, match="not renewed"):
        await one.hold()
