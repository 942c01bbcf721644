"""What the fleet simulator costs: CPU time of an hour of 64 workers. Results in build/bench/fleet.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_simulator.fleet.report import scores_of
from forebay_simulator.fleet.simulation import Setting, simulate
from forebay_simulator.fleet.spec import EngineSpec, FleetSpec, PoolSpec
from forebay_simulator.fleet.traces.files import read_mooncake
from forebay_simulator.fleet.traces.scaling import MOONCAKE_TICK_S, jittered, overlaid

pytestmark = pytest.mark.bench
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build/bench/fleet.json"
CONVERSATION = ROOT / "tests/data/traces/mooncake_fast25_conversation.jsonl.gz"


@pytest.mark.parametrize(("block_tokens", "factor"), [(16, 1), (512, 1), (512, 4)])
@pytest.mark.timeout(600)
def test_an_hour_of_64_workers_takes_less_than_a_minute_of_cpu(block_tokens, factor):
    trace = jittered(read_mooncake(CONVERSATION), tick_s=MOONCAKE_TICK_S, seed=1)
    if factor > 1:
        trace = overlaid(trace, factor, seed=1)
    pool = PoolSpec(name="mixed", role=Role.MIXED, replicas=64, engine=EngineSpec(block_tokens=block_tokens))
    fleet = FleetSpec(pools=(pool,), objective=Objective(ttft_s=2.0, tpot_s=0.025, target=0.95))
    scores = scores_of(simulate(Setting(fleet=fleet, trace=trace)))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[f"conversation x{factor}, 64 workers, blocks of {block_tokens}"] = {
        "cpu_s": round(scores.cpu_s, 2),
        "requests": scores.requests,
        "attainment": scores.attainment,
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(f"{scores.requests} requests in {scores.cpu_s:.1f} s of CPU")
    assert scores.cpu_s <= 60.0
