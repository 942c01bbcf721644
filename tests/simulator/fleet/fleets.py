"""Small fleets and loads for tests: few requests, so that a run takes a fraction of a second."""

from __future__ import annotations

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_simulator.fleet.simulation import Run, Setting, simulate
from forebay_simulator.fleet.spec import EngineSpec, FleetSpec, PoolSpec
from forebay_simulator.fleet.traces.generators import constant, fixed, generate
from forebay_simulator.fleet.traces.trace import Trace

OBJECTIVE = Objective(ttft_s=1.0, tpot_s=0.025, target=0.95)
ENGINE = EngineSpec(block_tokens=64)


def mixed(replicas: int, *, engine: EngineSpec = ENGINE, **fields: object) -> FleetSpec:
    pool = PoolSpec(name="mixed", role=Role.MIXED, replicas=replicas, engine=engine, startup_s=(20.0, 20.0))
    return FleetSpec(pools=(pool,), objective=OBJECTIVE, **fields)


def split(prefill: int, decode: int, **fields: object) -> FleetSpec:
    pools = tuple(
        PoolSpec(name=name, role=role, replicas=replicas, engine=ENGINE, startup_s=(20.0, 20.0))
        for name, role, replicas in (("prefill", Role.PREFILL, prefill), ("decode", Role.DECODE, decode))
    )
    return FleetSpec(pools=pools, objective=OBJECTIVE, **fields)


def chats(rate_per_s: float, seconds: float, *, seed: int = 1, prompt: int = 1000, output: int = 50) -> Trace:
    return generate("chats", constant(rate_per_s), fixed(prompt, output), duration_s=seconds, seed=seed)


def run(fleet: FleetSpec, trace: Trace, **fields: object) -> Run:
    return simulate(Setting(fleet=fleet, trace=trace, **fields))
