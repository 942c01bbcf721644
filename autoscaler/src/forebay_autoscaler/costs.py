"""Pools of one role on accelerators of different price: the cheapest per good request is filled first. Pure.

    cost of a good request = price of a worker for an hour / (3600 * its good rate)

Where every pool of a role has a price and a rate, demand is not split as the router splits it now, but as it should:

    to grow for    the cheapest pool as much as its most workers can do, with the usual headroom; what is left, the next one
    to keep for    the same of the rate to keep, which has room for chance, and what the cheaper pools' *ready* workers cannot do

Workers that a pool has anyway (its least number, or a schedule's) cost nothing more: for what they do no other pool grows,
however cheap, and no other one keeps workers once they are ready.

So an expensive pool goes only when cheaper workers are there to take over, and a rise is ordered from one pool, not from two.
Elsewhere demand is split as the router splits it, and only what a pool's most workers cannot do is the others'.

A pool that cannot have more workers now (no node for them, ordered ones that do not come, another autoscaler) counts with those
it has. What an expensive worker runs now holds it only as far as cheaper ones could not do it: the router gives it work as long
as it is there.

Pools stay in the order of the spec unless a later one is cheaper by `CHEAPER` or more, by what the capacity model expects of
both, so that measurements which vary do not move workers to and fro.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SECONDS_PER_HOUR: Final = 3600.0
NEARLY_NONE_PER_S: Final = 1e-9
CHEAPER: Final = 0.9
"""Share of another pool's cost below which a pool goes before it."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What one pool of a role could do, and for how much."""

    name: str
    share: float
    """Of the role's requests that it gets now."""
    price_per_hour: float | None
    """Of one worker."""
    rate_per_s: float | None
    """Good rate of one worker, as the capacity model expects it; as known now where that does not know."""
    most_per_s: float
    """Requests a second that the most workers it could have carry."""
    ready_per_s: float
    """The same of those that are ready. One worker's times their number only where they do not share what they keep free."""
    least_per_s: float = 0.0
    """Requests a second for which the workers suffice, margin included, that it has anyway."""
    least_ready_per_s: float = 0.0
    """The same of those that are ready."""

    @property
    def cost(self) -> float | None:
        """Of one good request; None without a price or a rate."""
        if self.price_per_hour is None or not self.rate_per_s:
            return None
        return self.price_per_hour / SECONDS_PER_HOUR / self.rate_per_s


@dataclass(frozen=True, slots=True)
class Portion:
    """The part of a role's demand that a pool is sized for."""

    to_grow: float
    """Share to have workers for."""
    to_keep: float
    """Share of the rate to keep that workers must suffice for after shrinking."""
    backlog: float
    """Share of what routers hold that it is sized for. Of pools by cost each one up to the first with room left has all of it."""
    running: float = 1.0
    """Share of the requests in its workers that hold them."""
    told: str = ""
    """For people; empty where cost decides nothing."""


ALL: Final = Portion(to_grow=1.0, to_keep=1.0, backlog=1.0)
"""Of a pool that is alone in its role."""


def portions_of(
    offers: Sequence[Offer], planned_per_s: float | None, *, headroom: float, keep_per_s: float | None = None
) -> dict[str, Portion]:
    """Portions of several pools of one role, by name; as the router splits requests where cost cannot be told.

    `keep_per_s` is what must suffice after shrinking, the planned rate where it is left out. It is filled in like that one:
    as a share of it, a pool whose part is constant would keep fewer workers where demand rises.
    """
    costs = [offer.cost for offer in offers]
    if any(cost is None for cost in costs) or planned_per_s is None:
        return _as_split(offers, planned_per_s or 0.0, keep_per_s or 0.0, headroom=headroom)
    planned_per_s = planned_per_s or NEARLY_NONE_PER_S  # no demand is divided as the first request would be
    keep_per_s = max(planned_per_s, keep_per_s or 0.0)
    ordered = _by_cost(offers)
    grown = _grown(ordered, planned_per_s, headroom)
    kept = _kept(ordered, keep_per_s, headroom)
    full = True
    portions = {}
    for place, (offer, grow, keep) in enumerate(zip(ordered, grown, kept, strict=True), start=1):
        to_keep = keep / keep_per_s
        running = min(1.0, to_keep / offer.share) if offer.share > 0 else 1.0
        told = f"filled {place} of {len(ordered)} by cost, {1000 * (offer.cost or 0.0):.2g} for 1,000 requests"
        portions[offer.name] = Portion(grow / planned_per_s, to_keep, 1.0 if full else 0.0, running, told)
        full = full and grow >= _full_per_s(offer, headroom)
    return portions


def _grown(ordered: Sequence[Offer], rate_per_s: float, headroom: float) -> list[float]:
    """Requests a second that each is to have workers for: all of the rate together."""
    left, grown = rate_per_s, []
    for place, offer in enumerate(ordered, start=1):
        others = ordered[place:]
        most = min(left - sum(one.least_per_s for one in others), _full_per_s(offer, headroom))
        grown.append(max(0.0, most) if others else left)
        left -= grown[-1]
    return grown


def _full_per_s(offer: Offer, headroom: float) -> float:
    """Requests a second beyond which others are asked: what its most workers do with headroom, or what its least suffice for."""
    return max(offer.most_per_s / (1.0 + headroom), offer.least_per_s)


def _kept(ordered: Sequence[Offer], rate_per_s: float, headroom: float) -> list[float]:
    """Requests a second that each is to keep workers for: as many, and what the cheaper ones' ready workers cannot do.

    Not bounded by what it could do: as a share that would fall where demand rises beyond it.
    """
    uncovered, kept = rate_per_s, []
    for place, (offer, grow) in enumerate(zip(ordered, _grown(ordered, rate_per_s, headroom), strict=True), start=1):
        kept.append(max(grow, uncovered - sum(one.least_ready_per_s for one in ordered[place:])))
        uncovered = max(0.0, uncovered - offer.ready_per_s / (1.0 + headroom))
    return kept


def _as_split(
    offers: Sequence[Offer], planned_per_s: float, keep_per_s: float, *, headroom: float
) -> dict[str, Portion]:
    """As the router splits requests; what a pool's most workers cannot do is the others', in the order of the spec."""
    grow = _split(offers, planned_per_s, headroom)
    keep = _split(offers, max(planned_per_s, keep_per_s), headroom)
    return {
        offer.name: Portion(to_grow, to_keep, to_grow)
        for offer, to_grow, to_keep in zip(offers, grow, keep, strict=True)
    }


def _split(offers: Sequence[Offer], rate_per_s: float, headroom: float) -> list[float]:
    """Shares of a rate. A pool without a worker is sent nothing, so its share alone would never order the first one."""
    rooms = [_most_per_s(offer) / (1.0 + headroom) - offer.share * rate_per_s for offer in offers]
    left = sum(max(0.0, -one) for one in rooms)
    shares = []
    for offer, room in zip(offers, rooms, strict=True):
        more = min(left, max(0.0, room))
        shares.append(offer.share + (more / rate_per_s if more else 0.0))
        left -= more
    return shares


def _most_per_s(offer: Offer) -> float:
    """Without end while nobody knows what a worker does."""
    return offer.most_per_s if offer.rate_per_s else math.inf


def _by_cost(offers: Sequence[Offer]) -> list[Offer]:
    """Insertion into the order of the spec: a pool goes before those that it is clearly cheaper than."""
    ordered: list[Offer] = []
    for offer in offers:
        place = len(ordered)
        while place and (offer.cost or 0.0) <= CHEAPER * (ordered[place - 1].cost or 0.0):
            place -= 1
        ordered.insert(place, offer)
    return ordered
