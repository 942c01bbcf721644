"""Several routers before one fleet: with the mesh as good as one, without it not."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from forebay_simulator.fleet.faults import WorkerLoss
from forebay_simulator.fleet.report import Scores, scores_of
from forebay_simulator.fleet.simulation import Setting, simulate
from forebay_simulator.fleet.spec import EngineSpec, FleetSpec
from forebay_simulator.fleet.traces.generators import constant, hot_prefixes
from forebay_simulator.fleet.traces.trace import Trace

from .fleets import chats, mixed, run, split
from .test_routing import conversation, pool_with

TOLERANCE = 0.03


def fleet_of(workers: int, routers: int, *, mesh: bool = True) -> FleetSpec:
    one = mixed(workers, routers=routers, **({} if mesh else {"mesh_delay_s": None}))
    return replace(one, pools=(pool_with(one.pools[0], EngineSpec(block_tokens=512)),))


def scores(trace: Trace, workers: int, routers: int, *, mesh: bool = True, seed: int = 1) -> Scores:
    fleet = fleet_of(workers, routers, mesh=mesh)
    return scores_of(simulate(Setting(fleet=fleet, trace=trace, routing="forebay", seed=seed)))


@pytest.mark.timeout(400)  # five runs
@pytest.mark.slow
def test_three_replicas_are_as_good_as_one_on_conversations_and_without_the_mesh_are_not():
    """The seed decides ties only, of which several routers have more: their mean over three."""
    part = conversation().first(400)
    one, apart = scores(part, 8, 1), scores(part, 8, 3, mesh=False)
    three = [scores(part, 8, 3, seed=seed) for seed in (1, 2, 3)]
    assert fmean(run.hit_share for run in three) > (1 - TOLERANCE) * one.hit_share
    assert fmean(run.attainment for run in three) > (1 - TOLERANCE) * one.attainment
    assert fmean(run.ttft_mean_s for run in three) < (1 + TOLERANCE) * one.ttft_mean_s
    assert apart.hit_share < 0.8 * one.hit_share
    assert apart.ttft_mean_s > 1.2 * one.ttft_mean_s


def test_three_replicas_spread_a_hot_prefix_as_one_does():
    trace = hot_prefixes(constant(6.5), duration_s=200, seed=2)
    one, three = scores(trace, 4, 1), scores(trace, 4, 3)
    assert three.hit_share > (1 - TOLERANCE) * one.hit_share
    assert three.attainment > (1 - TOLERANCE) * one.attainment
    assert three.imbalance < 1.3


@pytest.mark.parametrize("fleet", [mixed(3, routers=3), split(2, 2, routers=3)], ids=["mixed", "split"])
def test_when_all_has_ended_and_been_told_nobody_knows_of_any_load(fleet):
    done = run(fleet, chats(6, 30), faults=(WorkerLoss(at_s=10.0, pool=fleet.pools[0].name),))
    done.agenda.run(done.agenda.now_s + 1)
    replicas = done.front.routers._replicas
    assert len(replicas) == 3
    for one in replicas:
        assert one.leases == {}
        assert one.peers.claims.count == 0
        for load in one.peers.claims.loads.values():
            assert (load.requests, load.prompt_tokens, load.output_tokens, load.backlog.tokens) == (0, 0, 0, 0)
    assert sum(job.outcome is not None for job in done.jobs) == len(done.jobs)


def test_every_router_gets_its_share():
    done = run(mixed(3, routers=3), chats(6, 30))
    counts = [0, 0, 0]
    for job in done.jobs:
        counts[done.front.routers._at(job)] += 1
    assert min(counts) > 0.8 * len(done.jobs) / 3
