"""One order of service: the tenants that wait in it, by start-time fair queueing, each one's own in the order of arrival. Pure.

`fair_queue` has the theory; a lane is its innermost level.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Final, Generic, TypeVar

from forebay_router.admission.claim import Claim

Item = TypeVar("Item")

COST_MIN: Final = 1e-9
"""A request that costs nothing would be served for ever."""
_IDLE_KEPT: Final = 64


@dataclass(slots=True, eq=False)
class Entry(Generic[Item]):
    """One request that waits."""

    item: Item
    claim: Claim
    cost: float
    size_bytes: int
    number: int
    """In the order of arrival."""
    due_s: float = inf
    """From when on it goes before those of the other lane, once it is the first of its own."""
    waiting: bool = True
    """In the queue; false once served, removed or evicted."""
    late: bool = False
    """Cannot meet its objective any more, as far as is known."""


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
class Lane(Generic[Item]):
    """What waits at one priority and can still be in time, or what is late."""

    share: int
    end: float = 0.0
    """Where its last served request ended, in the band's virtual time."""
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
        """It waits here no more."""
        flow = self.flows[entry.claim.tenant]
        del flow.entries[entry.number]
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
        flow.end = flow.start + max(COST_MIN, entry.cost) / flow.weight
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
