"""How good the router's choice is, beside what other routers do, in virtual time. Results in build/bench/choosing.json.

Public traces over fleets of simulated engines, and chats that share system prompts over mock engines (shared_prompts.py).
`pytest -s tests/bench/test_choosing.py` prints the table that docs/router.md has.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from random import Random

import pytest

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_router import predicting
from forebay_router.choose import Choice
from forebay_router.index.prefix_index import Dispatch, LookUp
from forebay_router.learning import Trip
from forebay_simulator.fleet import choosing
from forebay_simulator.fleet.cache_replay import Found, affinity, common_blocks, replay
from forebay_simulator.fleet.policies import ROUTING
from forebay_simulator.fleet.report import Scores, scores_of
from forebay_simulator.fleet.scenarios import SCENARIOS
from forebay_simulator.fleet.simulation import Setting, simulate
from forebay_simulator.fleet.spec import EngineSpec, FleetSpec, PoolSpec
from forebay_simulator.fleet.traces.files import read_lmcache, read_mooncake
from forebay_simulator.fleet.traces.scaling import MOONCAKE_TICK_S, jittered
from forebay_simulator.fleet.traces.trace import Trace

from .shared_prompts import Forebay, run

pytestmark = pytest.mark.bench
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build/bench/choosing.json"
DATA = ROOT / "tests/data/traces"
LONG = Objective(ttft_s=2.0, tpot_s=0.025, target=0.95)


@dataclass(frozen=True, slots=True)
class Case:
    """A trace over a fleet."""

    trace: Callable[[], Trace]
    workers: int
    engine: EngineSpec

    @property
    def fleet(self) -> FleetSpec:
        """One pool that does both."""
        pool = PoolSpec(name="mixed", role=Role.MIXED, replicas=self.workers, engine=self.engine)
        return FleetSpec(pools=(pool,), objective=LONG)

    def bound(self, trace: Trace) -> Found:
        """What affinity finds without time: docs/fleet-simulator.md."""
        scheduler = self.engine.served().scheduler
        blocks = scheduler.usable_blocks * scheduler.block_size // trace.block_tokens
        return replay(trace, affinity(common_blocks(trace), Random(1)), workers=self.workers, blocks=blocks)


def whole_conversation(stretch: float = 1.0) -> Trace:
    """All of the chats, the recorder's ticks spread; stretched, with as much more time between them."""
    recorded = read_mooncake(DATA / "mooncake_fast25_conversation.jsonl.gz")
    whole = jittered(recorded, tick_s=MOONCAKE_TICK_S, seed=1)
    moved = [replace(one, at_s=one.at_s * stretch) for one in whole.arrivals]
    return Trace.of(whole.name, moved, block_tokens=whole.block_tokens, duration_s=whole.duration_s * stretch)


def whole_synthetic() -> Trace:
    """All of the long prompts."""
    return read_mooncake(DATA / "mooncake_fast25_synthetic.jsonl.gz")


def conversation() -> Trace:
    """A quarter of an hour of chats."""
    return whole_conversation().first(900)


def synthetic() -> Trace:
    """Ten minutes of long prompts."""
    return whole_synthetic().first(600)


def agents() -> Trace:
    """Sessions of agents."""
    return read_lmcache(DATA / "lmcache_agent_llama3_blk16.jsonl.gz", sessions_per_s=0.3, seed=1)


CASES = {
    "conversation, 8 workers": Case(conversation, 8, EngineSpec(block_tokens=512)),
    "conversation, 16 workers": Case(conversation, 16, EngineSpec(block_tokens=512)),
    "synthetic, 8 workers": Case(synthetic, 8, EngineSpec(block_tokens=512)),
    "agents, 4 workers": Case(agents, 4, EngineSpec(block_tokens=16)),
}


WHOLE = {
    "conversation, 8 workers": Case(whole_conversation, 8, EngineSpec(block_tokens=512)),
    "conversation, 16 workers": Case(whole_conversation, 16, EngineSpec(block_tokens=512)),
    "the same at a quarter of the rate": Case(partial(whole_conversation, 4.0), 16, EngineSpec(block_tokens=512)),
    "synthetic, 8 workers": Case(whole_synthetic, 8, EngineSpec(block_tokens=512)),
    "agents, 4 workers": Case(agents, 4, EngineSpec(block_tokens=16)),
}
TIMED = ("conversation, 8 workers", "conversation, 16 workers", "synthetic, 8 workers")
AGAIN = (0.0, 0.5, 1.0, 2.0, 4.0)
"""What is tried of `predicting.AGAIN`."""


@dataclass(slots=True)
class Account:
    """Prompt tokens that some worker was thought to hold and another one than it got: why, and how many requests had no hope."""

    late: int = 0
    """Where they were held the first token would have been too late."""
    cheaper: int = 0
    """It would have been in time, and cost more."""
    hopeless: int = 0
    """Requests that would have been late on any worker that had nothing else to do."""

    def note(self, choice: Choice) -> None:
        """A request was placed. Looks at every worker's prediction, so it has to be before the lease is taken."""
        demand, objective = choice.demand, choice.demand.objective
        predictions = choice.considered
        self.hopeless += min(one.ttft_s - one.wait_s for one in predictions) > objective.ttft_s
        holder = max(predictions, key=lambda one: demand.cached.get(one.uid, 0))
        held = demand.cached.get(holder.uid, 0)
        if held > demand.common_tokens:
            given_up = held - demand.cached.get(choice.worker.uid, 0)
            if holder.ttft_s > objective.ttft_s:
                self.late += given_up
            else:
                self.cheaper += given_up


def with_answers(trace: Trace) -> Trace:
    """Each prompt with the blocks of its answer, which an engine's cache holds too; nobody asks for them."""
    ids = count(-1, -1)
    size = trace.block_tokens
    moved = []
    for one in trace.arrivals:
        more = -(-(one.prompt_tokens + one.output_tokens) // size) - len(one.block_ids)
        moved.append(replace(one, block_ids=(*one.block_ids, *islice(ids, max(0, more)))))
    return Trace.of(trace.name, moved, block_tokens=size, duration_s=trace.duration_s)


def keep(name: str, figures: object) -> None:
    """Add to the results."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps(results | {name: figures}, indent=1) + "\n")


def scored(fleet: FleetSpec, trace: Trace, policy: str, seed: int = 1) -> Scores:
    """What a policy comes to."""
    return scores_of(simulate(Setting(fleet=fleet, trace=trace, routing=policy, seed=seed)))


def line(name: str, one: Scores) -> str:
    """A row of the table."""
    ttft = " | ".join(f"{value:.2f}" for value in (one.ttft_p50_s, one.ttft_p90_s, one.ttft_p99_s))
    return f"| {name} | {one.hit_share:.1%} | {one.imbalance:.2f} | {ttft} | {one.tpot_p99_s * 1e3:.1f} | {one.attainment:.1%} |"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CASES)
def test_traces_beside_other_policies(name):
    case = CASES[name]
    trace = case.trace()
    bound = case.bound(trace)
    print(f"\n{name}: affinity without time finds {bound.hit_share:.1%}, imbalance {bound.imbalance:.2f}")
    print("| policy | hit share | busiest/mean | TTFT p50 s | p90 | p99 | TPOT p99 ms | attainment |")
    print("|---|---|---|---|---|---|---|---|")
    scores = {}
    for policy in ROUTING:
        scores[policy] = scored(case.fleet, trace, policy)
        print(line(policy, scores[policy]), flush=True)
    keep(name, {"bound": bound.hit_share} | {one: line(one, score) for one, score in scores.items()})
    ours, others = scores.pop("forebay"), scores.values()
    assert ours.hit_share >= 0.85 * bound.hit_share
    assert ours.imbalance <= max(1.3, bound.imbalance + 0.1)
    assert ours.ttft_mean_s <= 1.05 * min(one.ttft_mean_s for one in others) + 1e-3
    assert ours.attainment >= max(one.attainment for one in others) - 0.002


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", WHOLE)
def test_whole_traces_beside_always_the_longest_match(name):
    case = WHOLE[name]
    trace = case.trace()
    bound = case.bound(trace)

    def means(policy: str) -> list[float]:
        runs = [scored(case.fleet, trace, policy, seed) for seed in (1, 2, 3)]
        figures = [(one.hit_share, one.imbalance, one.ttft_mean_s, one.attainment) for one in runs]
        return [statistics.fmean(values) for values in zip(*figures, strict=True)]

    ours, longest = means("forebay"), means("precise-prefix")
    shares = (f"{one[0] / bound.hit_share:.0%}" for one in (ours, longest))
    row = (
        f"| {name} | {bound.hit_share:.1%} | {ours[0]:.1%} | {' | '.join(shares)} | {ours[1]:.2f} "
        f"| {ours[2]:.3f}, {longest[2]:.3f} s | {ours[3]:.1%}, {longest[3]:.1%} |"
    )
    print(f"\n{row}", flush=True)
    keep(f"whole: {name}", row)
    assert ours[0] >= 0.9 * bound.hit_share
    assert ours[2] <= 1.05 * longest[2] + 1e-3
    assert ours[3] >= longest[3] - 0.002


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", TIMED)
def test_what_more_hits_would_cost(name, monkeypatch):
    """The price of computing again what might have been held: more hits for it, then later first tokens."""
    case = WHOLE[name]
    trace = case.trace()
    bound = case.bound(trace)
    rows, scores = {}, {}
    for price in AGAIN:
        monkeypatch.setattr(predicting, "AGAIN", price)
        one = scores[price] = scored(case.fleet, trace, "forebay")
        rows[price] = f"{one.hit_share / bound.hit_share:.1%}, {one.ttft_mean_s:.4f} s, {one.attainment:.1%}"
        print(f"{name}: {price}: {rows[price]}", flush=True)
    keep(f"price of computing again: {name}", rows)
    assert scores[1.0].attainment >= max(scores[0.0].attainment, scores[4.0].attainment) - 0.002
    assert scores[4.0].hit_share >= scores[0.0].hit_share


def arrivals_anew(name: str, seed: int) -> Trace:
    """A trace of `TIMED` with its arrivals spread in another way; those that were recorded without ticks by up to a second."""
    kind = name.split(",", maxsplit=1)[0]
    tick_s = MOONCAKE_TICK_S if kind == "conversation" else 1.0
    return jittered(read_mooncake(DATA / f"mooncake_fast25_{kind}.jsonl.gz"), tick_s=tick_s, seed=seed)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", TIMED)
def test_more_hits_for_the_highest_price_cost_goodput_in_the_mean(name, monkeypatch):
    """Means over three spreads of the arrivals, which tell smaller differences than one run does."""
    fleet, means = WHOLE[name].fleet, {}
    for price in (1.0, 4.0):
        monkeypatch.setattr(predicting, "AGAIN", price)
        runs = []
        for seed in (2, 3, 4):
            trace = arrivals_anew(name, seed)
            one = scored(fleet, trace, "forebay", seed)
            runs.append((one.hit_share / WHOLE[name].bound(trace).hit_share, one.ttft_mean_s, one.attainment))
        means[price] = [statistics.fmean(values) for values in zip(*runs, strict=True)]
        print(f"{name}: {price}: {means[price][0]:.1%}, {means[price][1]:.4f} s, {means[price][2]:.2%}", flush=True)
    keep(f"mean price of computing again: {name}", means)
    assert means[4.0][0] > means[1.0][0] + 0.01
    assert means[1.0][2] >= means[4.0][2]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", TIMED)
def test_account_of_the_hits_that_are_missing(name, monkeypatch):
    """What affinity finds without time, and where it goes: answers in the cache, queues, choices, evictions."""
    case, account = WHOLE[name], Account()
    trace = case.trace()
    found = case.bound(trace).hit_share
    answers = case.bound(with_answers(trace)).hit_share
    longest = scored(case.fleet, trace, "precise-prefix")

    class Noted(Trip):
        """An attempt that is accounted for."""

        @classmethod
        def begin(cls, choice: Choice, look_up: LookUp | None, dispatch: Dispatch | None, now_s: float) -> Trip:
            account.note(choice)
            return super().begin(choice, look_up, dispatch, now_s)

    monkeypatch.setattr(choosing, "Trip", Noted)
    ours = scored(case.fleet, trace, "forebay")
    tokens = sum(one.prompt_tokens for one in trace.arrivals)
    late, cheaper = account.late / tokens, account.cheaper / tokens
    gone = found - ours.hit_share - late - cheaper
    shares = [f"{share / found:.1%}" for share in (answers, ours.hit_share, late, cheaper, gone)]
    row = f"| {name} | {' | '.join(shares)} | {ours.late_first_tokens} | {account.hopeless} | {longest.late_first_tokens} |"
    print(f"\n{row}", flush=True)
    keep(f"account: {name}", row)
    assert ours.late_first_tokens <= 1.05 * account.hopeless
    assert ours.late_first_tokens < longest.late_first_tokens


@pytest.mark.timeout(900)
def test_pairs_are_at_least_as_good_as_always_splitting():
    """Chats, then code: prefill on the decode worker where that costs less, its stall charged."""
    scenario = SCENARIOS["switch"]
    scores = {}
    for policy in ("least-load", "precise-prefix", "forebay"):
        scores[policy] = scored(scenario.fleet, scenario.trace(1).first(900), policy)
        print(line(policy, scores[policy]), flush=True)
    keep("pairs", {one: line(one, score) for one, score in scores.items()})
    ours = scores.pop("forebay")
    assert ours.attainment >= max(one.attainment for one in scores.values()) - 0.002


@pytest.mark.timeout(900)
def test_shared_system_prompts_over_small_caches():
    found = []
    for seed in (1, 2, 3, 4):
        one = run(lambda engines: Forebay(engines, 5), seed=seed)
        ttft = [round(one.ttft_ms(percent), 1) for percent in (50, 90, 99)]
        figures = (one.cached_share, *ttft, one.spread, one.work_spread)
        print(
            f"seed {seed}: cached {figures[0]:.3f}, TTFT ms {ttft}, requests {one.spread:.2f}, work {one.work_spread:.2f}"
        )
        found.append(figures)
    means = [round(statistics.fmean(values), 3) for values in zip(*found, strict=True)]
    keep("shared system prompts: cached share, TTFT p50 p90 p99 ms, spread of requests, of work", means)
    assert means[0] >= 0.885
    assert means[4] < 1.5
    assert means[1] <= 9.5
    assert means[2] <= 35
    assert means[3] <= 80
