"""The ramp through Dynamo's own replay with its planner, and through Forebay's simulator with its autoscaler, side by side.

Both get the same requests (1 to 24 a second and back in 900 s, for 35 minutes; 8,000 tokens in that nobody shares, 1,000 out),
the same objective (3 s to the first token, 35 ms a token), the same start-up time, the same budget of 24 workers, 2 + 2 workers
at the beginning, and one timing of the engine: the default of Dynamo's mocker, of which Forebay's `MockerTimer` is a fit
(fleet/timers.py states it); KV moves in no time in both. A static fleet of 5 + 7 through both shows how well the fit holds.
Dynamo's planner gets a warm-up trace of the same load with another seed; its performance model learns as it goes, as it does
without a profile.

    python -m tests.bench.dynamo                # three seeds, all modes; about ten minutes of CPU
    python -m tests.bench.dynamo --quick        # five minutes of the load, one seed

Installs Dynamo into a cache outside the checkout at the first run. Writes build/bench/dynamo.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from forebay_simulator.fleet.report import interval, scores_of
from forebay_simulator.fleet.scenarios import SCENARIOS
from forebay_simulator.fleet.simulation import Setting, simulate
from forebay_simulator.fleet.spec import mocker_engine
from forebay_simulator.fleet.traces.trace import Trace

from .environment import RELEASE, install, replay

ROOT = Path(__file__).parents[3]
RAMPS = {120.0: SCENARIOS["ramp"], 30.0: SCENARIOS["ramp-quick-start"]}
STATIC = {"prefill": 5, "decode": 7}
PLANNER: Mapping[str, Any] = {
    "mode": "disagg",
    "backend": "mocker",
    "max_gpu_budget": 24,
    "live_dashboard_port": 0,
    "report_interval_hours": None,
    "pre_deployment_sweeping_mode": "none",
}
MODES: Mapping[str, Mapping[str, Any]] = {
    "throughput (its default)": {"optimization_target": "throughput"},
    "latency": {"optimization_target": "latency"},
    "sla, predictive": {"optimization_target": "sla", "enable_throughput_scaling": True, "enable_load_scaling": False},
    "sla, reactive": {"optimization_target": "sla", "enable_throughput_scaling": False, "enable_load_scaling": True},
    "sla, both": {"optimization_target": "sla", "enable_throughput_scaling": True, "enable_load_scaling": True},
}
WARM_UP_SEED = 1000
Figures = dict[str, float]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both, print a table, write the figures."""
    parser = argparse.ArgumentParser(prog="dynamo-side-by-side")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=("dynamo", "forebay"), help="one of the two; the other's figures are kept")
    given = parser.parse_args(arguments)
    out = ROOT / "build" / "bench" / ("quick" if given.quick else "") / "dynamo.json"
    seeds, seconds = ((1,), 300.0) if given.quick else (tuple(range(1, given.seeds + 1)), 2100.0)
    rows: dict[str, list[Figures]] = json.loads(out.read_text()) if out.exists() else {}
    out.parent.mkdir(parents=True, exist_ok=True)
    for name, figures in _all_runs(given.only, seeds, seconds, out.parent):
        rows[name] = [one for one in rows.get(name, []) if one["seed"] != figures["seed"]] + [figures]
        print(f"{name}, seed {figures['seed']:.0f}: {figures}", file=sys.stderr, flush=True)
        out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(table(rows))


def _all_runs(only: str | None, seeds: Sequence[int], seconds: float, folder: Path) -> Iterator[tuple[str, Figures]]:
    for seed in seeds:
        if only != "dynamo":
            yield from _forebay(seed, seconds)
        if only != "forebay":
            yield from _dynamo(seed, seconds, folder)


# ---- Forebay


def _forebay(seed: int, seconds: float) -> Iterator[tuple[str, Figures]]:
    ramp = RAMPS[120.0]
    yield (
        "Forebay, static 5P7D",
        _run(_setting(ramp.fleet.sized(**STATIC), seed, seconds, startup_s=120.0, scaling="static")),
    )
    for startup_s, scenario in RAMPS.items():
        setting = _setting(scenario.fleet, seed, seconds, startup_s=startup_s, scaling="forebay")
        yield f"Forebay, autoscaler, start-up {startup_s:g} s", _run(setting)


def _setting(fleet: Any, seed: int, seconds: float, *, startup_s: float, scaling: str) -> Setting:
    # Blocks of 64 tokens and a prefix cache, as in the mocker.
    pools = tuple(replace(pool, engine=mocker_engine()) for pool in fleet.pools)
    scenario = RAMPS[startup_s]
    return Setting(
        fleet=replace(fleet, pools=pools),
        trace=scenario.trace(seed).first(seconds),
        routing="forebay",
        scaling=scaling,
        autoscaler=scenario.autoscaler,
        scraping=scenario.scraping,
        seed=seed,
    )


def _run(setting: Setting) -> Figures:
    scores = scores_of(simulate(setting))
    return {
        "seed": setting.seed,
        "requests": scores.requests,
        "good": (scores.attainment or 0.0),
        "gpu_hours": scores.gpu_hours,
        "ttft_p50_s": scores.ttft_p50_s or 0.0,
        "ttft_p99_s": scores.ttft_p99_s or 0.0,
        "tpot_p50_ms": 1000 * (scores.tpot_p50_s or 0.0),
        "tpot_p99_ms": 1000 * (scores.tpot_p99_s or 0.0),
        "cpu_s": scores.cpu_s,
    }


# ---- Dynamo


def _dynamo(seed: int, seconds: float, folder: Path) -> Iterator[tuple[str, Figures]]:
    python = install()
    scenario = RAMPS[120.0]
    trace = written(scenario.trace(seed).first(seconds), folder / "ramp.jsonl")
    warm_up = written(scenario.trace(WARM_UP_SEED).first(seconds), folder / "warm-up.jsonl")
    objective = scenario.fleet.objective
    job = {"trace": str(trace), "ttft_ms": 1000 * objective.ttft_s, "tpot_ms": 1000 * objective.tpot_s}
    yield "Dynamo, static 5P7D", _figures(seed, replay(python, job | STATIC | {"startup_s": 120.0, "planner": None}))
    limits = {"ttft_ms": job["ttft_ms"], "itl_ms": job["tpot_ms"], "load_predictor_warmup_trace": str(warm_up)}
    for startup_s in RAMPS:
        for mode, settings in MODES.items():
            whole = job | {"prefill": 2, "decode": 2, "startup_s": startup_s, "planner": PLANNER | limits | settings}
            yield f"Dynamo, planner {mode}, start-up {startup_s:g} s", _figures(seed, replay(python, whole))


def written(trace: Trace, path: Path) -> Path:
    """The trace in Mooncake's form, every block a new one."""
    block = 0
    with path.open("w", encoding="utf-8") as file:
        for one in trace.arrivals:
            blocks = -(-one.prompt_tokens // 512)
            row = {
                "timestamp": round(one.at_s * 1000),
                "input_length": one.prompt_tokens,
                "output_length": one.output_tokens,
                "hash_ids": list(range(block, block + blocks)),
            }
            block += blocks
            file.write(json.dumps(row) + "\n")
    return path


def _figures(seed: int, found: Mapping[str, float]) -> Figures:
    return {
        "seed": seed,
        "requests": found["num_requests"],
        "good": found["goodput_completed_requests"] / found["num_requests"],
        "gpu_hours": found["gpu_hours"],
        "ttft_p50_s": found["median_ttft_ms"] / 1000,
        "ttft_p99_s": found["p99_ttft_ms"] / 1000,
        "tpot_p50_ms": found["median_tpot_ms"],
        "tpot_p99_ms": found["p99_tpot_ms"],
        "cpu_s": found["cpu_s"],
    }


def table(rows: Mapping[str, Sequence[Figures]]) -> str:
    """A row a way of sizing, means over seeds with their 95 % intervals."""
    lines = [
        f"Dynamo {RELEASE} and Forebay on the ramp",
        f"{'':52} {'good %':>12} {'GPU-hours':>12}  TTFT p99 s  TPOT p99 ms  seeds",
    ]
    for name, runs in rows.items():
        good, hours = interval([100 * one["good"] for one in runs]), interval([one["gpu_hours"] for one in runs])
        ttft_s, tpot_ms = (interval([one[field] for one in runs]).mean for field in ("ttft_p99_s", "tpot_p99_ms"))
        shown = f"{good.mean:6.1f} ±{good.half_width:4.1f} {hours.mean:6.2f} ±{hours.half_width:4.2f}"
        lines.append(f"{name:52} {shown}  {ttft_s:10.2f}  {tpot_ms:11.1f}  {len(runs):5}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
