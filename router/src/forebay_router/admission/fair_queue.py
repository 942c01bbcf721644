"""A bounded queue that serves priorities and tenants in proportion. Pure: no loop, no clock.

Two levels of start-time fair queueing. Each priority has a share (`SHARES`), each tenant within a priority another (its
weight). What is shared is cost: predicted seconds of a worker's time. A request's start tag is where its flow's last one ended,
in virtual time, but not before the virtual time that has been reached; the lowest start tag is served, the oldest request first
among equal ones; a served request ends at its start plus cost / share.

Laws (the tests state them):

- work conserving: whatever waits is served when nothing else does
- over any time in which two tenants of one priority both wait, what they get, each divided by its weight, differs by at most the
  largest cost of the one over its weight plus the largest of the other over its own; so too for two priorities
- nobody starves: under any load each priority gets its share of what all those that wait have, and each tenant of that

Priorities are shares and not strict, so the last law needs no ageing. Ageing would undo priorities just when they matter: in a
long queue all are old. With 16 : 4 : 1 a high request that comes to a queue of normal ones is the next but one.

Bounds are those of each priority: requests, and bytes of their bodies. A full queue refuses the newcomer, unless another tenant
has more waiting by its weight than the newcomer's would have: then that tenant's newest make room. So a tenant that floods the
queue refuses its own.

A priority may be passed over (`head` has `but`): it gets no credit for the time in which it could not be served.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

from forebay_router.admission.claim import Claim, Priority

Item = TypeVar("Item")

SHARES: Final = {Priority.HIGH: 16, Priority.NORMAL: 4, Priority.LOW: 1}
_IDLE_KEPT: Final = 64
_COST_MIN: Final = 1e-9
"""A request that costs nothing would be served for ever."""


@dataclass(slots=True, eq=False)
class Entry(Generic[Item]):
    """One request that waits."""

    item: Item
    claim: Claim
    cost: float
    size_bytes: int
    number: int
    """In the order of arrival."""
    waiting: bool = True
    """In the queue; false once served, removed or evicted."""


@dataclass(slots=True, eq=False)
class Flow(Generic[Item]):
    """What waits of one tenant at one priority."""

    tenant: str
    weight: int
    start: float = 0.0
    """Start tag of the first that waits."""
    end: float = 0.0
    """Where the last served one ended."""
    entries: dict[int, Entry[Item]] = field(default_factory=dict)
    """By number, oldest first."""
    cost: float = 0.0
    size_bytes: int = 0
    place: int = 0
    """Which of its places in the band's order counts."""

    @property
    def head(self) -> Entry[Item]:
        """The oldest."""
        return next(iter(self.entries.values()))


@dataclass(slots=True)
class Band(Generic[Item]):
    """What waits at one priority."""

    share: int
    end: float = 0.0
    """Where its last served request ended, in the queue's virtual time."""
    reached: float = 0.0
    """Its own virtual time: the start tag of the last that was served."""
    flows: dict[str, Flow[Item]] = field(default_factory=dict)
    """By tenant; one that has nothing waiting is kept while it is ahead of its share."""
    order: list[tuple[float, int, int, Flow[Item]]] = field(default_factory=list)
    """Heap of (start tag, number, place, flow); outdated ones are passed over."""
    requests: int = 0
    size_bytes: int = 0
    cost: float = 0.0

    def first(self) -> Flow[Item] | None:
        """The flow to be served next."""
        order = self.order
        while order:
            _, _, place, flow = order[0]
            if flow.entries and flow.place == place:
                return flow
            heappop(order)
        return None

    def add(self, entry: Entry[Item]) -> None:
        """One more waits."""
        claim = entry.claim
        flow = self.flows.get(claim.tenant)
        if flow is None:
            flow = self.flows[claim.tenant] = Flow(claim.tenant, claim.weight)
        flow.weight = claim.weight
        flow.entries[entry.number] = entry
        if len(flow.entries) == 1:
            self._put(flow, max(self.reached, flow.end))
        self._count(flow, entry, 1)

    def drop(self, entry: Entry[Item]) -> None:
        """It waits no more."""
        flow = self.flows[entry.claim.tenant]
        del flow.entries[entry.number]
        entry.waiting = False
        self._count(flow, entry, -1)
        if not self.requests:
            self.flows.clear()
            self.order.clear()
            self.reached = 0.0
        elif not flow.entries and flow.end <= self.reached:
            del self.flows[flow.tenant]

    def serve(self, entry: Entry[Item]) -> None:
        """The first of the first flow gets its turn."""
        flow = self.flows[entry.claim.tenant]
        self.reached = flow.start
        flow.end = flow.start + max(_COST_MIN, entry.cost) / flow.weight
        self.drop(entry)
        if flow.entries:
            self._put(flow, flow.end)
        elif len(self.flows) > self.requests + _IDLE_KEPT:
            self._forget_idle()

    def _put(self, flow: Flow[Item], start: float) -> None:
        flow.start = start
        flow.place += 1
        heappush(self.order, (start, flow.head.number, flow.place, flow))

    def _count(self, flow: Flow[Item], entry: Entry[Item], sign: int) -> None:
        self.requests += sign
        self.size_bytes += sign * entry.size_bytes
        self.cost = self.cost + sign * entry.cost if self.requests else 0.0
        flow.size_bytes += sign * entry.size_bytes
        flow.cost = flow.cost + sign * entry.cost if flow.entries else 0.0

    def _forget_idle(self) -> None:
        """Tenants' names may be made up: of those with nothing waiting, only those most ahead of their share are kept."""
        idle = sorted((flow for flow in self.flows.values() if not flow.entries), key=lambda flow: flow.end)
        for flow in idle[: -_IDLE_KEPT // 2]:
            del self.flows[flow.tenant]


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
            for flow in band.flows.values():
                yield from flow.entries.values()

    def add(self, item: Item, claim: Claim, *, cost: float, size_bytes: int) -> Entry[Item] | None:
        """Let a request wait; None when the queue is full for it. `make_room` first may help."""
        band = self.bands[claim.priority]
        if band.requests >= self.requests_max or band.size_bytes + size_bytes > self.size_bytes_max:
            return None
        self._arrivals += 1
        entry = Entry(item, claim, cost, size_bytes, self._arrivals)
        band.add(entry)
        self.requests += 1
        return entry

    def make_room(self, claim: Claim, size_bytes: int) -> list[Entry[Item]]:
        """Evict the newest of the tenant that has most waiting, where that is more than the newcomer's would have."""
        band = self.bands[claim.priority]
        over = band.requests + 1 - self.requests_max
        over_bytes = band.size_bytes + size_bytes - self.size_bytes_max
        if over <= 0 and over_bytes <= 0:
            return []
        by_bytes = over <= 0

        def held(flow: Flow[Item]) -> int:
            return flow.size_bytes if by_bytes else len(flow.entries)

        most = max(band.flows.values(), key=lambda flow: held(flow) / flow.weight, default=None)
        own = band.flows.get(claim.tenant)
        if most is None or most is own:
            return []
        wanted = (size_bytes if by_bytes else 1) + (held(own) if own else 0)
        to_give = held(most) - wanted * most.weight / claim.weight
        victims: list[Entry[Item]] = []
        for entry in reversed(most.entries.values()):
            if (over <= 0 and over_bytes <= 0) or to_give <= 0:
                break
            victims.append(entry)
            over -= 1
            over_bytes -= entry.size_bytes
            to_give -= entry.size_bytes if by_bytes else 1
        if over > 0 or over_bytes > 0:
            return []
        for entry in victims:
            self.remove(entry)
        return victims

    def head(self, but: Collection[Priority] = ()) -> Entry[Item] | None:
        """Who is next, some priorities passed over."""
        best: tuple[float, int] | None = None
        found = None
        for priority, band in self.bands.items():
            if band.requests and priority not in but:
                rank = (max(self.reached, band.end), -priority)
                if best is None or rank < best:
                    best, found = rank, band
        flow = found.first() if found is not None else None
        return flow.head if flow is not None else None

    def serve(self, entry: Entry[Item]) -> None:
        """The head gets its turn."""
        band = self.bands[entry.claim.priority]
        self.reached = max(self.reached, band.end)
        band.end = self.reached + max(_COST_MIN, entry.cost) / band.share
        band.serve(entry)
        self._one_less()

    def remove(self, entry: Entry[Item]) -> None:
        """It does not wait any longer: nothing is charged."""
        if entry.waiting:
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
        total = sum(one.cost for one in self.bands.values())
        own = band.flows.get(claim.tenant)
        if own is None or not own.entries:
            return 0.0
        shares = sum(one.share for one in self.bands.values() if one.requests)
        weights = sum(flow.weight for flow in band.flows.values() if flow.entries)
        return min(total, own.cost * (shares / band.share) * (weights / own.weight))
