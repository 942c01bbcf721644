"""The autoscalers that Forebay is compared with do what their documentation says, with the numbers it would give."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from forebay_simulator.fleet.autoscaling import AutoscalerSpec
from forebay_simulator.fleet.horizontal import HorizontalPodAutoscaler, Pods, desired, pods_of
from forebay_simulator.fleet.members import State
from forebay_simulator.fleet.policies import SCALING
from forebay_simulator.fleet.scaling import FixedRatio, Knative, TokenVelocity, shares
from forebay_simulator.fleet.scenarios import SCENARIOS
from forebay_simulator.fleet.simulation import Run, Setting
from forebay_simulator.fleet.spec import FleetSpec

from .fleets import OBJECTIVE, chats, mixed, split

WITH_A_WINDOW = ("hpa-queue", "hpa-kv", "fixed-ratio")

# ---- Kubernetes' HPA


@pytest.mark.parametrize(
    ("pods", "current", "expected"),
    [
        (Pods((4.0,) * 4), 4, 8),  # twice the target
        (Pods((4.0,) * 4, missing=4), 8, 8),  # ordered already: those that start count as 0
        (Pods((4.0,) * 4, pending=4), 8, 8),
        (Pods((8.0,) * 4, missing=4), 8, 16),  # and it got worse
        (Pods((4.0,) * 4, missing=8), 12, 12),  # 0.67 with the new ones: not the other way, either
        (Pods((2.1,) * 4), 4, 4),  # within a tenth
        (Pods((2.25,) * 4), 4, 5),
        (Pods((1.85,) * 4), 4, 4),
        (Pods((0.5,) * 8), 8, 2),
        (Pods((0.5,) * 4, missing=4), 8, 5),  # those that start count as the target: (4 x 0.5 + 4 x 2) / 2
        (Pods((0.5,) * 4, pending=4), 8, 1),  # those without a node do not count when it shrinks
        (Pods((0.0,) * 3), 3, 0),  # what bounds are for
        (Pods((2.0,) * 2, missing=2), 4, 4),
        (Pods(()), 4, 4),
        (Pods((), missing=4), 4, 4),
    ],
)
def test_hpa_desires_what_the_replica_calculator_would(pods, current, expected):
    assert desired(pods, 2.0, current) == expected


def test_hpa_orders_for_an_overload_once():
    """4 workers with 4 waiting at each, aimed at 2: 8 are right, however long they take to start."""
    number, orders = 4, []
    for _ in range(6):
        number = desired(Pods((4.0,) * 4, missing=number - 4), 2.0, number)
        orders.append(number)
    assert orders == [8] * 6


def test_hpa_at_most_doubles_or_adds_four_and_remembers_its_highest_wish():
    scaling = HorizontalPodAutoscaler({}, stabilisation_s=300.0)
    number, numbers = 4, []
    for at_s, wish in ((0, 40), (15, 40), (30, 40), (45, 30), (300, 10), (330.1, 10), (346, 10), (361, 1)):
        number = scaling.limited("mixed", number, wish, at_s)
        numbers.append(number)
    assert numbers == [8, 16, 32, 32, 32, 30, 10, 10]
    assert HorizontalPodAutoscaler({}).limited("mixed", 1, 9, 0.0) == 5


def test_hpa_takes_nothing_away_in_its_first_window():
    """The number it finds counts as recommended, as in the controller."""
    scaling = HorizontalPodAutoscaler({}, stabilisation_s=300.0)
    assert [scaling.limited("mixed", 6, 1, at_s) for at_s in (15.0, 300.0, 315.0, 330.0)] == [6, 6, 6, 1]


def test_hpa_leaves_out_workers_that_leave():
    """A worker that drains has a metric still; it does not count, as a pod that is being deleted does not."""
    going = Run(Setting(fleet=replace(mixed(4), gpus=5), trace=chats(20, 200, output=500)))
    going._enter(0)
    going.agenda.run(60.0)
    going.members.scale("mixed", 2)
    pool = going.members.pools["mixed"]
    assert pool.count(State.DRAINING) == 2
    assert len(pods_of(going.watch, pool, "kv_usage").values) == 2
    going.members.scale("mixed", 5)
    now = pods_of(going.watch, pool, "kv_usage")
    assert (len(now.values), now.missing, now.pending) == (2, 1, 2)


# ---- Knative


class Situation:
    """What Knative's autoscaler looks at, set by hand; what it wants is ready at once unless told otherwise."""

    def __init__(self, **ready: int) -> None:
        self.front = SimpleNamespace(pool_in_flight=dict.fromkeys(ready, 0), counts=SimpleNamespace(pending=0))
        pools = {name: SimpleNamespace(wanted=number, count=self.counter(name)) for name, number in ready.items()}
        self.members = SimpleNamespace(pools=pools)
        self.ready = dict(ready)

    def counter(self, name: str):
        return lambda state: self.ready[name] if state is State.READY else 0

    def course(self, scaling: Knative, name: str, until_s: int, load) -> list[tuple[int, int]]:
        """(time, number) at each change of a pool's number while `load(time)` is in flight by pool."""
        found: list[tuple[int, int]] = []
        for at_s in range(0, until_s, 2):
            self.front.pool_in_flight.update(load(at_s))
            self.ready.update(wanted := scaling.decide(self, float(at_s)))
            if not found or found[-1][1] != wanted[name]:
                found.append((at_s, wanted[name]))
        return found


def test_knative_panics_in_the_pool_that_has_the_burst_only():
    """Each revision has a panic mode of its own: a burst of prompts keeps no decode worker that has nothing to do."""

    def course(burst: int) -> list[tuple[int, int]]:
        load = lambda at_s: {"prefill": burst if at_s in range(62, 66) else 1, "decode": 2}  # noqa: E731
        situation = Situation(prefill=1, decode=8)
        return situation.course(Knative({"prefill": 1.0, "decode": 1.0}), "decode", 200, load)

    assert course(burst=100) == course(burst=1) == [(0, 8), (62, 4), (64, 2)]


def test_knative_keeps_a_panics_peak_for_a_stable_window_after_it():
    """A burst of 30 for 4 s at 62 s. Until 60 s after it began nothing is taken away."""
    load = lambda at_s: {"mixed": 30 if at_s in (62, 64) else 2}  # noqa: E731
    course = Situation(mixed=2).course(Knative({"mixed": 1.0}), "mixed", 200, load)
    peak_s, peak = max(course, key=lambda one: one[1])
    assert peak == 21  # two of three looks of the panic window: (30 + 30 + 2) / 3
    assert peak_s == 64
    falls_s = next(at_s for (at_s, number), (_, before) in zip(course[1:], course, strict=False) if number < before)
    assert falls_s == 62 + 60 + 2  # it began with the first look at the burst
    assert course[-1][1] == 2


def test_knative_begins_in_panic_where_there_are_several_workers():
    course = Situation(mixed=6).course(Knative({"mixed": 10.0}), "mixed", 100, lambda _: {"mixed": 5})
    assert course == [(0, 6), (62, 3), (64, 1)]


# ---- HeteroScale, TokenScale


class Played:
    """A fleet as a test wants it: workers by pool, and the rates that Prometheus tells."""

    answering = True

    def __init__(self, **wanted: int) -> None:
        self.members = SimpleNamespace(pools={name: SimpleNamespace(wanted=count) for name, count in wanted.items()})
        self.rates: dict[str, float | None] = {}

    def rate(self, _pool: str, name: str, _length_s: float) -> float | None:
        return self.rates[name]

    def router_rate(self, name: str, _length_s: float) -> float | None:
        return self.rates[name]

    def step(self, policy, now_s: float) -> dict[str, int]:
        wanted = policy.decide(self, now_s)
        for name, count in wanted.items():
            self.members.pools[name].wanted = count
        return {name: pool.wanted for name, pool in self.members.pools.items()}


def test_a_fixed_ratio_follows_decode_tokens_with_both_pools():
    fleet, policy = Played(prefill=1, decode=2), FixedRatio("decode", "prefill", tokens_per_s=100.0, ratio=0.5)
    courses = {}
    for at_s, rate in ((0.0, 210.0), (15.0, 400.0), (30.0, 100.0), (329.0, 100.0), (345.0, 100.0), (360.0, None)):
        fleet.rates["output_tokens"] = rate
        courses[at_s] = tuple(fleet.step(policy, at_s).values())
    assert courses == {
        0.0: (1, 2),  # within a tenth of what two workers do
        15.0: (2, 4),
        30.0: (2, 4),  # the most of the last 300 s
        329.0: (1, 1),
        345.0: (1, 1),
        360.0: (1, 1),  # unknown
    }


def test_token_velocity_is_arrivals_times_mean_length_over_what_a_worker_takes():
    fleet = Played(prefill=1, decode=1)
    policy = TokenVelocity({"prefill": ("prompt_tokens", 5000.0), "decode": ("output_tokens", 1000.0)})
    fleet.rates = {"arrived": 20.0, "good": 9.0, "bad": 1.0, "prompt_tokens": 10_000.0, "output_tokens": 1000.0}
    assert fleet.step(policy, 0.0) == {"prefill": 4, "decode": 2}
    fleet.rates["arrived"] = 5.0
    assert fleet.step(policy, 59.0) == {"prefill": 4, "decode": 2}
    assert fleet.step(policy, 61.0) == {"prefill": 1, "decode": 1}
    fleet.rates["good"] = fleet.rates["bad"] = 0.0
    assert policy.decide(fleet, 70.0) == {}


# ---- all of them


def test_all_who_wait_before_they_shrink_wait_equally_long():
    """A scenario's stabilisation window is every policy's."""
    scenario, trace = SCENARIOS["ramp"], chats(1, 20)
    assert scenario.autoscaler.scale_down_window_s == 30.0
    queue, kv, ratio = (SCALING[name](scenario.fleet, trace, scenario.autoscaler).policy for name in WITH_A_WINDOW)
    assert queue.stabilisation_s == kv.stabilisation_s == ratio.past.length_s == 30.0
    assert SCALING["hpa-kv"](mixed(1), trace, AutoscalerSpec()).stabilisation_s == 300.0


@pytest.mark.parametrize(
    ("prefill_gpus", "budget", "expected"),
    [
        (1, 24, {"prefill": 10, "decode": 14}),  # 50 requests a second, and 49
        (4, 24, {"prefill": 4, "decode": 8}),  # prefill limits, but what is left is too little for a fifth
        (1, 1, {"prefill": 1, "decode": 1}),  # a pool has a worker
    ],
)
def test_a_budget_is_shared_as_the_mean_request_needs_it(prefill_gpus, budget, expected):
    prefill, decode = split(1, 1).pools
    wide = replace(prefill, engine=replace(prefill.engine, tensor=prefill_gpus))
    fleet = FleetSpec(pools=(wide, decode), objective=OBJECTIVE)
    assert shares(fleet, {"prefill": 5.0, "decode": 3.5}, budget) == expected


def test_a_burst_of_one_pool_takes_no_gpu_from_another():
    """Without a largest number for each pool, whoever asks first holds what the other needs."""
    scenario, trace = SCENARIOS["ramp"], chats(10, 20, prompt=8000, output=1000)
    scaling = SCALING["kpa"](scenario.fleet, trace, scenario.autoscaler)
    situation = Situation(prefill=2, decode=2)
    situation.front.pool_in_flight["prefill"] = 400
    wanted = scaling.decide(situation, 0.0)
    assert wanted["prefill"] == scaling.most["prefill"]
    assert sum(scaling.most.values()) == scenario.fleet.budget_gpus == 24
    assert scaling.most["decode"] >= 12
