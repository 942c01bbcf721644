"""What the autoscalers are compared on: two ramps, a step, a recorded week, a switch of traffic, and long conversations.

    ramp             the load of Dynamo's issue 10528 with Dynamo's engine timing; also with a quick start-up
    step             chats that quadruple at once
    azure-code-week  the published rate of the Azure 2024 coding week, compressed to two hours (a day to 17 minutes), at a sixth
                     of the rate, on Llama 3.1 70B with TP4: a prefill worker does about 4 such requests a second, so it
                     takes about as many workers as the whole rate would of 8B, at a sixth of the requests. Lengths are drawn like
                     those of the Azure 2023 code trace. Compression makes it harder than life: the morning's rise takes a minute.
    conv-to-code     the Azure 2023 traces' requests at 45 a second, conversation for 450 s and then code
    morning, surges, two-prices
                     what a schedule, a warm spare and prices are worth: each with and without (standing.py of the fleet
                     simulator). Forebay's autoscaler alone, and a fixed fleet: the others know none of the three
    mooncake-x4      the first half hour of Mooncake's conversation trace, four copies over one another; 10 s to the first
                     token, since a prompt of 85,000 tokens alone takes 7 s

Every policy gets the same requests, start-up times and router. Where prompts share nothing the router goes by load, since a
prefix index would find nothing; on Mooncake, and where workers differ, it is Forebay's. `static` is sized for the peak.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from forebay_api.objective import Objective
from forebay_simulator.fleet.autoscaling import AutoscalerSpec
from forebay_simulator.fleet.comparing import Policy, Task, tasks_of
from forebay_simulator.fleet.horizontal import STABILISATION_S
from forebay_simulator.fleet.policies import SCALING
from forebay_simulator.fleet.scenarios import SCENARIOS, Scenario, split
from forebay_simulator.fleet.spec import EngineSpec, FleetSpec
from forebay_simulator.fleet.standing import CHAT
from forebay_simulator.fleet.traces.files import lengths_of, read_azure, read_mooncake, read_week
from forebay_simulator.fleet.traces.generators import code, constant, curve, drawn_from, generate, switching
from forebay_simulator.fleet.traces.scaling import MOONCAKE_TICK_S, jittered, overlaid
from forebay_simulator.fleet.traces.trace import Trace

TRACES = Path(__file__).parents[2] / "data" / "traces"
WEEK_S = 7 * 86_400.0
WEEK_RUNS_S = 7200.0
WEEK_SHARE = 1 / 6
WEEK_WINDOW_S = 60.0
"""Of every policy that waits before it shrinks. The default of 300 s would be seven hours of the compressed week."""
SWITCH_S = 450.0
SWITCH_RATE_PER_S = 45.0
MOONCAKE_S = 1800.0


POLICIES = tuple(SCALING)
"""All of them, the bound included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A scenario, and what a fixed fleet for its peak is."""

    scenario: Scenario
    peak: Mapping[str, int]
    routing: str = "least-load"
    policies: tuple[str, ...] = POLICIES
    """Those that it says something of."""

    def tasks(self, policies: tuple[str, ...], seeds: tuple[int, ...]) -> list[Task]:
        """Every run."""
        tasks = []
        for name in policies:
            if name not in self.policies:
                continue
            fleet = self.scenario.fleet.sized(**self.peak) if name == "static" else self.scenario.fleet
            scenario = replace(self.scenario, fleet=fleet)
            tasks += tasks_of(scenario, [Policy(self.routing, name)], seeds)
        return tasks

    def shortened(self, seconds: float) -> Situation:
        """The beginning only."""
        trace = self.scenario.trace
        return replace(self, scenario=replace(self.scenario, trace=lambda seed: trace(seed).first(seconds)))


def _week(seed: int) -> Trace:
    points = read_week(TRACES / "azure_llm_2024_weekly_rate_digitised.csv.gz", "coding")
    rate = curve(points, speed=WEEK_S / WEEK_RUNS_S, scale=WEEK_SHARE)
    return generate("azure-code-week", rate, code, duration_s=WEEK_RUNS_S, seed=seed)


def _week_fleet() -> FleetSpec:
    # Apart: beside a prompt of 2,000 tokens an answer of 13 tokens, the median, misses any TPOT.
    engine = EngineSpec(model="llama-3.1-70b", tensor=4, block_tokens=128, prefix_caching=False)
    return split(2, 1, engine=engine, objective=Objective(ttft_s=1.0, tpot_s=0.05, target=0.95), budget_gpus=64)


@cache
def _recorded(name: str) -> tuple[tuple[int, int], ...]:
    return tuple(lengths_of(read_azure(TRACES / f"azure_llm_2023_{name}.csv.gz").arrivals))


def _switch(seed: int) -> Trace:
    lengths = switching(drawn_from(_recorded("conv")), drawn_from(_recorded("code")), SWITCH_S)
    return generate("conv-to-code", constant(SWITCH_RATE_PER_S), lengths, duration_s=2 * SWITCH_S, seed=seed)


@cache
def _conversation() -> Trace:
    return read_mooncake(TRACES / "mooncake_fast25_conversation.jsonl.gz")


def _mooncake(seed: int) -> Trace:
    spread = jittered(_conversation(), tick_s=MOONCAKE_TICK_S, seed=seed)
    return overlaid(spread, 4, seed=seed).first(MOONCAKE_S)


def _scenario(
    name: str,
    about: str,
    fleet: FleetSpec,
    trace: Callable[[int], Trace],
    *,
    scale_down_window_s: float = STABILISATION_S,
) -> Scenario:
    spec = AutoscalerSpec(scale_down_window_s=scale_down_window_s)
    return Scenario(name=name, about=about, fleet=fleet, trace=trace, autoscaler=spec)


def _standing(name: str, **peak: int) -> Situation:
    return Situation(scenario=SCENARIOS[name], peak=peak, routing="forebay", policies=("static", "forebay"))


SITUATIONS: Mapping[str, Situation] = {
    one.scenario.name: one
    for one in (
        Situation(scenario=SCENARIOS["ramp"], peak={"prefill": 5, "decode": 7}),
        Situation(scenario=SCENARIOS["ramp-quick-start"], peak={"prefill": 5, "decode": 7}),
        Situation(scenario=SCENARIOS["step"], peak={"mixed": 5}),
        Situation(
            scenario=_scenario(
                "azure-code-week",
                "the Azure 2024 coding week in two hours at a sixth of its rate, Llama 3.1 70B on 4 GPUs a worker",
                _week_fleet(),
                _week,
                scale_down_window_s=WEEK_WINDOW_S,
            ),
            peak={"prefill": 7, "decode": 1},
        ),
        Situation(
            scenario=_scenario(
                "conv-to-code",
                "45 req/s of Azure 2023 conversation for 450 s, then of Azure 2023 code",
                split(2, 2, objective=CHAT, budget_gpus=16),
                _switch,
            ),
            peak={"prefill": 4, "decode": 2},
        ),
        Situation(
            scenario=_scenario(
                "mooncake-x4",
                "half an hour of Mooncake's conversation trace at four times its rate",
                split(
                    8,
                    5,
                    engine=EngineSpec(block_tokens=512),
                    objective=Objective(ttft_s=10.0, tpot_s=0.025, target=0.95),
                    budget_gpus=32,
                ),
                _mooncake,
            ),
            peak={"prefill": 10, "decode": 6},
            routing="forebay",
        ),
        _standing("morning", mixed=8),
        _standing("morning-scheduled", mixed=8),
        _standing("surges", mixed=2),
        _standing("surges-spare", mixed=2),
        _standing("two-prices", l40s=3, h100=1),
        _standing("two-prices-untold", l40s=3, h100=1),
        _standing("two-prices-kept", l40s=1, h100=2),
    )
}
"""By name."""
