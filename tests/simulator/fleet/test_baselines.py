"""What other autoscalers ask for, from their documentation, step by step."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from forebay_simulator.fleet.members import State
from forebay_simulator.fleet.scaling import (
    FixedRatio,
    HorizontalPodAutoscaler,
    Knative,
    TokenVelocity,
    recommended,
)


class Played:
    """A fleet as a test wants it: workers by pool, of which some are seen, and what they report."""

    answering = True

    def __init__(self, **wanted: int) -> None:
        self.members = SimpleNamespace(pools={name: Ready(count) for name, count in wanted.items()})
        self.front = SimpleNamespace(pool_in_flight=dict.fromkeys(wanted, 0), counts=SimpleNamespace(pending=0))
        self.seen = dict(wanted)
        self.rates: dict[str, float | None] = {}

    def seen_workers(self, pool: str) -> list[None]:
        return [None] * self.seen[pool]

    def rate(self, _pool: str, name: str, _length_s: float) -> float | None:
        return self.rates[name]

    def router_rate(self, name: str, _length_s: float) -> float | None:
        return self.rates[name]

    def step(self, policy, now_s: float) -> dict[str, int]:
        wanted = policy.decide(self, now_s)
        for name, count in wanted.items():
            self.members.pools[name].wanted = count
        return {name: pool.wanted for name, pool in self.members.pools.items()}


class Ready:
    """A pool whose workers are all ready."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted

    @property
    def members(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(state=State.READY)] * self.wanted


# ---- HPA


@pytest.mark.parametrize(
    ("current", "ratio", "seen", "expected"),
    [
        (4, 2.0, 4, 8),  # all seen: ceil(current x ratio)
        (4, 1.09, 4, 4),  # within the tolerance of a tenth
        (4, 1.11, 4, 5),
        (4, 0.5, 4, 2),
        (8, 2.0, 4, 8),  # the four that start count as idle: 16 of 16
        (8, 3.0, 4, 12),  # still too few with them
        (8, 1.5, 4, 8),  # with them it would shrink: the direction turns round, so nothing changes
        (8, 0.5, 4, 6),  # shrinking, the four count as exactly at the target: (2 + 4) / 8
        (8, 0.95, 4, 8),
        (3, 2.0, 5, 6),  # some that leave are seen as well
        (0, 2.0, 0, 0),
    ],
)
def test_an_hpa_fills_up_what_has_no_metric(current, ratio, seen, expected):
    """Its documentation: 0 % of the target in case of a scale up, 100 % of it in case of a scale down."""
    assert recommended(current, ratio, seen=seen) == expected


def hpa(value: float, **fields: float) -> HorizontalPodAutoscaler:
    return HorizontalPodAutoscaler({"mixed": (lambda _watch, _pool: value, 2.0)}, **fields)


def test_an_hpa_does_not_order_again_what_has_not_started():
    """4 workers with 4 requests waiting on each, target 2: 8 are right, until they are ready and after."""
    fleet, policy = Played(mixed=4), hpa(4.0)
    assert [fleet.step(policy, 15.0 * look)["mixed"] for look in range(6)] == [8] * 6
    fleet.seen["mixed"] = 8
    policy.metrics = hpa(2.0).metrics
    assert fleet.step(policy, 90.0) == {"mixed": 8}


def test_an_hpa_grows_by_the_double_or_four_at_a_look_and_shrinks_to_the_most_of_its_window():
    fleet, policy = Played(mixed=1), hpa(100.0, stabilisation_s=30.0)
    numbers = []
    for look in range(3):
        numbers.append(fleet.step(policy, 15.0 * look)["mixed"])
        fleet.seen["mixed"] = numbers[-1]
    assert numbers == [5, 10, 20]
    policy.metrics = hpa(0.2).metrics
    assert [fleet.step(policy, at_s)["mixed"] for at_s in (45.0, 60.0, 75.0)] == [20, 20, 2]


def test_an_hpa_without_a_metric_changes_nothing():
    fleet = Played(mixed=3)
    assert hpa(None).decide(fleet, 0.0) == {}
    fleet.answering = False
    assert hpa(9.0).decide(fleet, 0.0) == {}


# ---- Knative


def test_knative_takes_the_mean_of_a_minute_and_halves_at_most():
    fleet, policy = Played(mixed=8), Knative({"mixed": 1.0})
    fleet.front.pool_in_flight["mixed"] = 2
    assert [fleet.step(policy, 2.0 * look)["mixed"] for look in range(4)] == [4, 2, 2, 2]
    fleet.front.counts.pending = 1
    assert fleet.step(policy, 100.0) == {"mixed": 3}, "what waits in front of it counts"


def test_knative_in_panic_only_grows_for_a_minute():
    fleet, policy = Played(mixed=2), Knative({"mixed": 1.0})
    fleet.front.pool_in_flight["mixed"] = 10
    assert fleet.step(policy, 0.0) == {"mixed": 10}, "five times what the ready workers take"
    fleet.front.pool_in_flight["mixed"] = 1
    assert {fleet.step(policy, float(at_s))["mixed"] for at_s in range(2, 60, 2)} == {10}
    numbers = [fleet.step(policy, float(at_s))["mixed"] for at_s in range(60, 130, 2)]
    assert numbers[0] == 5
    assert numbers[-1] == 1


def test_knative_panics_for_each_pool_by_itself():
    courses = []
    for burst in (1, 100):
        fleet, policy = Played(prefill=2, decode=8), Knative({"prefill": 1.0, "decode": 1.0})
        course = []
        for look in range(60):
            fleet.front.pool_in_flight = {"prefill": burst if look < 3 else 1, "decode": 2}
            course.append(fleet.step(policy, 2.0 * look)["decode"])
        courses.append(course)
    assert courses[0] == courses[1]
    assert courses[0][:3] == [4, 2, 2]


# ---- HeteroScale, TokenScale


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
