"""The election's laws: one leader at a time, takeover in bounded time, handover without waiting."""

import asyncio
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest

from forebay_api.election import Elector, LeaseConflictError, Sighting, Terms, plan_attempt

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
TERMS = Terms(duration_s=10, renew_deadline_s=7, retry_s=1.5)


class FakeLease:
    """A Lease in memory with optimistic locking, which can refuse or hang."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.fails: set[int] = set()
        self.hangs: set[int] = set()

    def store(self, client: int) -> "FakeStore":
        return FakeStore(self, client)


class FakeStore:
    def __init__(self, server: FakeLease, client: int) -> None:
        self.server, self.client = server, client

    async def _network(self) -> None:
        await asyncio.sleep(0.01)
        if self.client in self.server.hangs:
            await asyncio.sleep(1e6)
        if self.client in self.server.fails:
            raise ConnectionRefusedError("no API server")

    async def read(self) -> dict[str, Any] | None:
        await self._network()
        return deepcopy(self.server.lease)

    async def create(self, spec: dict[str, Any]) -> None:
        await self._network()
        if self.server.lease is not None:
            raise LeaseConflictError
        self._put(spec)

    async def replace(self, lease: dict[str, Any]) -> None:
        await self._network()
        if lease["metadata"]["resourceVersion"] != str(self.server.version):
            raise LeaseConflictError
        self._put(lease["spec"])

    def _put(self, spec: dict[str, Any]) -> None:
        self.server.version += 1
        self.server.lease = {"metadata": {"resourceVersion": str(self.server.version)}, "spec": spec}


def electors(server: FakeLease, count: int) -> list[Elector]:
    clock = asyncio.get_running_loop().time
    return [Elector(server.store(n), f"replica-{n}", TERMS, clock) for n in range(count)]


async def leaders_over(replicas: list[Elector], duration_s: float) -> list[list[int]]:
    """Who leads, sampled every 50 ms."""
    samples = []
    for _ in range(round(duration_s / 0.05)):
        await asyncio.sleep(0.05)
        samples.append([n for n, one in enumerate(replicas) if one.leading])
    return samples


pytestmark = pytest.mark.looptime


async def test_exactly_one_of_three_replicas_leads() -> None:
    server = FakeLease()
    replicas = electors(server, 3)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.run()) for one in replicas]
        samples = await leaders_over(replicas, 60)
        for task in tasks:
            task.cancel()
    assert all(len(one) == 1 for one in samples[2:])
    assert len({one[0] for one in samples[2:]}) == 1
    assert all(one.holder == replicas[samples[-1][0]].identity for one in replicas)


@pytest.mark.parametrize("trouble", ["refused", "hangs"])
async def test_another_replica_takes_over_within_15_s_and_never_beside_the_first(trouble: str) -> None:
    server = FakeLease()
    replicas = electors(server, 2)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.run()) for one in replicas]
        samples = await leaders_over(replicas, 10)
        (first,) = samples[-1]
        (server.fails if trouble == "refused" else server.hangs).add(first)
        samples = await leaders_over(replicas, 15)
        for task in tasks:
            task.cancel()
    assert all(len(one) <= 1 for one in samples)
    assert samples[-1] == [1 - first]
    assert server.lease is not None
    assert server.lease["spec"]["leaseTransitions"] == 1


async def test_an_api_server_that_restarts_does_not_change_the_leader() -> None:
    server = FakeLease()
    replicas = electors(server, 2)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.run()) for one in replicas]
        (first,) = (await leaders_over(replicas, 10))[-1]
        server.fails = {0, 1}
        samples = await leaders_over(replicas, 6)
        server.fails = set()
        samples += await leaders_over(replicas, 20)
        for task in tasks:
            task.cancel()
    assert all(one in ([first], []) for one in samples)
    assert samples[-1] == [first]


async def test_a_replica_that_stops_hands_over_within_two_attempts() -> None:
    server = FakeLease()
    replicas = electors(server, 2)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.run()) for one in replicas]
        (first,) = (await leaders_over(replicas, 10))[-1]
        tasks[first].cancel()
        samples = await leaders_over(replicas, 2 * TERMS.retry_s)
        assert samples[-1] == [1 - first]
        tasks[1 - first].cancel()


async def test_waiting_for_leadership_and_for_its_loss() -> None:
    server = FakeLease()
    (one,) = electors(server, 1)
    task = asyncio.create_task(one.run())
    await asyncio.wait_for(one.until_leading(), 1)
    server.fails.add(0)
    await asyncio.wait_for(one.until_lost(), TERMS.renew_deadline_s + TERMS.retry_s)
    assert not one.leading
    task.cancel()


def lease(holder: str, version: str = "7", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": holder, **spec}}


def attempt(found: dict[str, Any] | None, sighting: Sighting | None, now_s: float) -> Any:
    return plan_attempt(found, sighting, identity="me", terms=TERMS, now_s=now_s, moment=MOMENT)


def test_a_lease_held_by_another_is_respected_for_its_duration_since_it_was_seen_to_change() -> None:
    assert attempt(lease("other"), None, 100).spec is None
    assert attempt(lease("other"), Sighting("7", 100), 109.9).spec is None
    assert attempt(lease("other"), Sighting("7", 100), 110).spec["holderIdentity"] == "me"
    assert attempt(lease("other", version="8"), Sighting("7", 100), 110).spec is None


def test_a_longer_promise_of_the_holder_is_respected() -> None:
    held = lease("other", leaseDurationSeconds=30)
    assert attempt(held, Sighting("7", 100), 120).spec is None
    assert attempt(held, Sighting("7", 100), 130).spec is not None


def test_an_absent_or_released_lease_is_taken_at_once() -> None:
    assert attempt(None, None, 0).spec["holderIdentity"] == "me"
    assert attempt(lease("", leaseTransitions=3), None, 0).spec["leaseTransitions"] == 4


def test_a_renewal_keeps_the_time_of_acquisition() -> None:
    renewed = attempt(lease("me", acquireTime="2025-12-31T00:00:00.000000Z", leaseTransitions=2), None, 0).spec
    assert renewed["acquireTime"] == "2025-12-31T00:00:00.000000Z"
    assert renewed["renewTime"] == "2026-01-01T00:00:00.000000Z"
    assert renewed["leaseTransitions"] == 2


def test_times_that_would_allow_two_leaders_are_refused() -> None:
    with pytest.raises(ValueError, match="renew deadline < duration"):
        Terms(duration_s=5, renew_deadline_s=6, retry_s=1)
