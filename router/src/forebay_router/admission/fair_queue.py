"""A bounded queue that serves priorities and tenants in proportion, and first who can still be in time. Pure: no loop, no clock.

Three levels of start-time fair queueing. Each priority has a share (`SHARES`); within a priority those that can still meet their
objective and those that cannot any more each have one (`TIMELY_SHARE`, the rest); each tenant within these another (its weight).
What is shared is cost: predicted seconds of a worker's time. A request's start tag is where its flow's last one ended, in virtual
time, but not before the virtual time that has been reached; the lowest start tag is served, the oldest request first among equal
ones; a served request ends at its start plus cost / share.

Laws (the tests state them):

- work conserving: whatever waits is served when nothing else does
- over any time in which two tenants of one priority both wait, both in time or both late, what they get, each divided by its
  weight, differs by at most the largest cost of the one over its weight plus the largest of the other over its own; so too for
  two priorities
- nobody starves: under any load each priority gets its share of what all those that wait have, those that are late the tenth
  part of that while others can be in time, and each tenant its share of either

Priorities are shares and not strict, so the last law needs no ageing. Ageing would undo priorities just when they matter: in a
long queue all are old. With 16 : 4 : 1 a high request that comes to a queue of normal ones is the next but one.

Who is late is not for the queue to know: whoever serves it finds out at the head and says `set_back`. First come, first served
makes everybody late once a queue is longer than the objective's time, for as long as it stays so; a place that a late request
takes from one that could be in time is lost to both.

Bounds are those of each priority: requests, and bytes of their bodies. A full queue refuses the newcomer, unless another tenant
has more waiting by its weight than the newcomer's would have: then that tenant's newest make room, late ones before others. So a
tenant that floods the queue refuses its own.

A priority may be passed over (`head` has `but`): it gets no credit for the time in which it could not be served.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Final, Generic

from forebay_router.admission.claim import Claim, Priority
from forebay_router.admission.lane import COST_MIN, Entry, Item, Lane

SHARES: Final = {Priority.HIGH: 16, Priority.NORMAL: 4, Priority.LOW: 1}
TIMELY_SHARE: Final = 9
"""Of what a priority gets, those that can still be in time have 9 parts, late ones 1."""


@dataclass(slots=True)
class Band(Generic[Item]):
    """What waits at one priority."""

    share: int
    end: float = 0.0
    """Where its last served request ended, in the queue's virtual time."""
    reached: float = 0.0
    """Its own virtual time: where the last that was served began."""
    timely: Lane[Item] = field(default_factory=lambda: Lane(TIMELY_SHARE))
    late: Lane[Item] = field(default_factory=lambda: Lane(1))

    @property
    def requests(self) -> int:
        """How many wait."""
        return self.timely.requests + self.late.requests

    @property
    def size_bytes(self) -> int:
        """Of their bodies."""
        return self.timely.size_bytes + self.late.size_bytes

    @property
    def cost(self) -> float:
        """Of all of them."""
        return self.timely.cost + self.late.cost

    def lane_of(self, entry: Entry[Item]) -> Lane[Item]:
        """Where it waits."""
        return self.late if entry.late else self.timely

    def tenants(self) -> dict[str, tuple[int, int, int]]:
        """Requests that wait, bytes of their bodies and weight, by tenant."""
        found: dict[str, tuple[int, int, int]] = {}
        for lane in (self.timely, self.late):
            for flow in lane.flows.values():
                requests, size_bytes, _ = found.get(flow.tenant, (0, 0, 0))
                if flow.entries:
                    found[flow.tenant] = (requests + len(flow.entries), size_bytes + flow.size_bytes, flow.weight)
        return found

    def newest(self, tenant: str) -> Iterator[Entry[Item]]:
        """All that a tenant has waiting, the newest first, late ones before others."""
        for lane in (self.late, self.timely):
            flow = lane.flows.get(tenant)
            if flow is not None:
                yield from reversed(flow.entries.values())

    def first(self, now_s: float) -> Entry[Item] | None:
        """Who is to be served next."""
        heads = [flow.head for flow in (self.timely.first(), self.late.first()) if flow is not None]
        if len(heads) < 2:
            return heads[0] if heads else None
        soonest = min(heads, key=lambda head: head.due_s)
        if soonest.due_s <= now_s:
            return soonest
        behind = max(self.reached, self.late.end) < max(self.reached, self.timely.end)
        return heads[1] if behind else heads[0]

    def serve(self, entry: Entry[Item]) -> None:
        """The first gets its turn."""
        lane = self.lane_of(entry)
        self.reached = max(self.reached, lane.end)
        lane.end = self.reached + max(COST_MIN, entry.cost) / lane.share
        lane.serve(entry)
        self._settle()

    def drop(self, entry: Entry[Item]) -> None:
        """It waits no more."""
        self.lane_of(entry).drop(entry)
        self._settle()

    def _settle(self) -> None:
        if not self.requests:
            self.reached = self.timely.end = self.late.end = 0.0


@dataclass(slots=True)
class FairQueue(Generic[Item]):
    """The requests that wait for one service's workers."""

    requests_max: int
    """At one priority."""
    size_bytes_max: int
    """Of bodies, at one priority."""
    bands: dict[Priority, Band[Item]] = field(
        default_factory=lambda: {priority: Band(share) for priority, share in SHARES.items()}
    )
    reached: float = 0.0
    """Virtual time: the start of the last that was served."""
    requests: int = 0
    _arrivals: int = 0

    def __iter__(self) -> Iterator[Entry[Item]]:
        """All that wait, in no particular order."""
        for band in self.bands.values():
            for lane in (band.timely, band.late):
                for flow in lane.flows.values():
                    yield from flow.entries.values()

    def add(self, item: Item, claim: Claim, *, cost: float, size_bytes: int, due_s: float = inf) -> Entry[Item] | None:
        """Let a request wait; None when the queue is full for it. `make_room` first may help."""
        band = self.bands[claim.priority]
        if band.requests >= self.requests_max or band.size_bytes + size_bytes > self.size_bytes_max:
            return None
        self._arrivals += 1
        entry = Entry(item, claim, cost, size_bytes, self._arrivals, due_s)
        band.timely.add(entry)
        self.requests += 1
        return entry

    def make_room(self, claim: Claim, size_bytes: int) -> list[Entry[Item]]:
        """Evict the newest of the tenant that has most waiting, where that is more than the newcomer's would have."""
        band = self.bands[claim.priority]
        over = band.requests + 1 - self.requests_max
        over_bytes = band.size_bytes + size_bytes - self.size_bytes_max
        if over <= 0 and over_bytes <= 0:
            return []
        by = 1 if over <= 0 else 0
        held = band.tenants()
        most = max(held, key=lambda tenant: held[tenant][by] / held[tenant][2], default=None)
        if most is None or most == claim.tenant:
            return []
        own = held.get(claim.tenant, (0, 0))[by]
        to_give = held[most][by] - ((size_bytes if by else 1) + own) * held[most][2] / claim.weight
        victims: list[Entry[Item]] = []
        for entry in band.newest(most):
            if (over <= 0 and over_bytes <= 0) or to_give <= 0:
                break
            victims.append(entry)
            over -= 1
            over_bytes -= entry.size_bytes
            to_give -= entry.size_bytes if by else 1
        if over > 0 or over_bytes > 0:
            return []
        for entry in victims:
            self.remove(entry)
        return victims

    def head(self, but: Collection[Priority] = (), now_s: float = -inf) -> Entry[Item] | None:
        """Who is next, some priorities passed over. The first of either lane goes before the other once it is due."""
        best: tuple[float, int] | None = None
        found = None
        for priority, band in self.bands.items():
            if band.requests and priority not in but:
                rank = (max(self.reached, band.end), -priority)
                if best is None or rank < best:
                    best, found = rank, band
        return found.first(now_s) if found is not None else None

    def due_s(self, priority: Priority) -> float:
        """When the first of its lane becomes due at a priority; infinite while nobody waits there."""
        band = self.bands[priority]
        flows = (band.timely.first(), band.late.first())
        return min((flow.head.due_s for flow in flows if flow is not None), default=inf)

    def set_back(self, entry: Entry[Item]) -> None:
        """It turned out that it cannot be in time any more: from now on it waits with those that are late."""
        band = self.bands[entry.claim.priority]
        band.timely.drop(entry)
        entry.late = True
        band.late.add(entry)

    def serve(self, entry: Entry[Item]) -> None:
        """The head gets its turn."""
        band = self.bands[entry.claim.priority]
        self.reached = max(self.reached, band.end)
        band.end = self.reached + max(COST_MIN, entry.cost) / band.share
        entry.waiting = False
        band.serve(entry)
        self._one_less()

    def remove(self, entry: Entry[Item]) -> None:
        """It does not wait any longer: nothing is charged."""
        if entry.waiting:
            entry.waiting = False
            self.bands[entry.claim.priority].drop(entry)
            self._one_less()

    def _one_less(self) -> None:
        self.requests -= 1
        if not self.requests:
            self.reached = 0.0
            for band in self.bands.values():
                band.end = 0.0

    def cost_ahead(self, claim: Claim) -> float:
        """What will be served before a newcomer with this claim, at the shares of those who wait now."""
        band = self.bands[claim.priority]
        lane = band.timely
        own = lane.flows.get(claim.tenant)
        if own is None or not own.entries:
            return 0.0
        total = sum(one.cost for one in self.bands.values())
        shares = sum(one.share for one in self.bands.values() if one.requests)
        lanes = (TIMELY_SHARE + 1) / TIMELY_SHARE if band.late.requests else 1.0
        weights = sum(flow.weight for flow in lane.flows.values() if flow.entries)
        return min(total, own.cost * (shares / band.share) * lanes * (weights / own.weight))
