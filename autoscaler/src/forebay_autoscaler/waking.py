"""Which pools wake for requests that routers hold, seen by asking the routers themselves. Pure.

A role without any worker serves nobody, so a request that is held is proof enough for one worker, whatever else is known. Where
several pools have the role, one of them wakes: the first in the spec whose workers find a node. It gets one worker, no more: how
many are needed is for the metrics to say. Nothing is ever taken away for what routers say here.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from forebay_api.modelservice import AutoscalingMode
from forebay_autoscaler.demand import Demand
from forebay_autoscaler.observation import (
    PoolCounts,
    PoolObservation,
    ServiceKey,
    ServiceObservation,
    ServiceSignals,
)
from forebay_autoscaler.policy import ServicePolicy
from forebay_autoscaler.reading import Reading


def to_wake(policy: ServicePolicy, counts: Mapping[str, PoolCounts]) -> frozenset[str]:
    """Names of the pools that wake if requests are held; none when every role has a worker, or may not have one by us."""
    found = []
    for role in {pool.role for pool in policy.pools}:
        peers = [pool.name for pool in policy.pools if pool.role is role and pool.name in counts]
        if any(counts[name].wanted for name in peers):
            continue
        free = [name for name in peers if counts[name].rival is None]
        found += sorted(free, key=lambda name: counts[name].unschedulable)[:1]
    return frozenset(found)


def sleepers(looked_at: Iterable[tuple[ServicePolicy, ServiceObservation]]) -> frozenset[ServiceKey]:
    """Services of which a role has no worker, and that we scale."""
    return frozenset(
        policy.key
        for policy, observation in looked_at
        if policy.mode is AutoscalingMode.AUTO and to_wake(policy, counts_in(observation))
    )


def counts_in(observation: ServiceObservation) -> dict[str, PoolCounts]:
    """Numbers of the pools that exist."""
    return {pool.name: pool.counts for pool in observation.pools if pool.counts is not None}


def roused(seen: ServiceObservation, woken: Collection[str]) -> ServiceObservation:
    """What was seen, as it is since these pools woke: each has a worker that is on its way."""
    return replace(seen, pools=tuple(_with_a_worker(pool) if pool.name in woken else pool for pool in seen.pools))


def _with_a_worker(pool: PoolObservation) -> PoolObservation:
    counts = pool.counts
    return pool if counts is None else replace(pool, counts=replace(counts, wanted=max(1, counts.wanted)))


def observation_to_wake(seen: ServiceObservation, held: Reading) -> ServiceObservation:
    """What is known when only the routers were asked."""
    pools = tuple(PoolObservation(pool.name, pool.counts) for pool in seen.pools)
    return ServiceObservation(seen.key, ServiceSignals(held=held), pools, "only the routers were asked")


def with_held(demand: Demand | None, held: float) -> Demand:
    """The demand as it is told: at least what is held waits."""
    if demand is None:
        return Demand(rate_per_s=None, backlog=held, running=0.0)
    return replace(demand, backlog=max(demand.backlog, held))
