"""Two pools of one role on accelerators of different price: the cheapest per good request is filled first."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_api.acceleratorclass import AcceleratorClassSpec
from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_autoscaler.costs import Offer, portions_of
from forebay_autoscaler.decide import decide
from forebay_autoscaler.decision import Decision
from forebay_autoscaler.demand import Demand
from forebay_autoscaler.fitted import Fitted, Measured
from forebay_autoscaler.model import Capacity, carried_with_margin_per_s, need_of
from forebay_autoscaler.observation import PoolCounts, PoolObservation, PoolSignals, ServiceObservation
from forebay_autoscaler.policy import PoolPolicy, ServicePolicy, Tuning, policy_of
from forebay_autoscaler.schedules import Schedule
from forebay_autoscaler.state import ServiceState
from tests.autoscaler.manifests import model_service, pool_spec
from tests.autoscaler.plant import KEY, engine_readings, pool_policy, readings, service_policy


def offer(
    name: str,
    price: float | None,
    rate: float | None,
    *,
    most: int = 10,
    ready: int = 0,
    share: float = 0.5,
    least: int = 0,
) -> Offer:
    """`least` workers it has anyway; they count to keep for when they are ready."""
    each = rate or 0.0
    return Offer(name, share, price, rate, most * each, ready * each, least * each, min(least, ready) * each)


def shares(*offers: Offer, planned: float | None = 20.0) -> dict[str, tuple[float, float]]:
    made = portions_of(offers, planned, headroom=0.0)
    return {name: (round(one.to_grow, 3), round(one.to_keep, 3)) for name, one in made.items()}


@pytest.mark.parametrize(
    ("offers", "expected"),
    [
        # The second is cheaper per request though dearer per hour; nothing of it is ready, so the first keeps all.
        ((offer("a", 2, 1, ready=10), offer("b", 4, 5)), {"a": (0, 1), "b": (1, 1)}),
        ((offer("a", 2, 1, most=30, ready=20), offer("b", 4, 5, ready=2)), {"a": (0, 0.5), "b": (1, 1)}),
        ((offer("a", 2, 1, ready=10), offer("b", 4, 5, ready=4)), {"a": (0, 0), "b": (1, 1)}),
        # What the cheapest cannot do at its most is the next one's.
        ((offer("a", 2, 1), offer("b", 4, 5, most=3, ready=3)), {"a": (0.25, 0.25), "b": (0.75, 1)}),
        # What the dear pool's workers do that it has anyway is asked of no other, once they are ready.
        ((offer("a", 2, 1, least=5, ready=5), offer("b", 4, 5, ready=4)), {"a": (0.25, 0.25), "b": (0.75, 0.75)}),
        ((offer("a", 2, 1, least=5, ready=3), offer("b", 4, 5, ready=2)), {"a": (0.25, 0.5), "b": (0.75, 0.85)}),
        ((offer("a", 2, 1, least=30, ready=30), offer("b", 4, 5, least=1)), {"a": (1, 1), "b": (0, 0)}),
        ((offer("a", 2, 1, least=5, ready=5), offer("b", 4, 5, most=2, ready=2)), {"a": (0.5, 0.5), "b": (0.5, 0.75)}),
        # Hardly cheaper is not cheaper: the order of the spec.
        ((offer("a", 2.0, 1, most=40), offer("b", 1.9, 1)), {"a": (1, 1), "b": (0, 1)}),
        # Beyond what all can do together, the last one is asked.
        ((offer("a", 9, 1, most=1), offer("b", 1, 1, most=1)), {"a": (0.95, 1), "b": (0.05, 1)}),
        # Without a price or a rate, as the router splits, but for what one cannot do at its most.
        ((offer("a", None, 1, share=1.0, most=12), offer("b", None, 5, share=0.0)), {"a": (1, 1), "b": (0.4, 0.4)}),
        ((offer("a", None, 1, share=0.0), offer("b", None, 5, share=1.0, most=3)), {"a": (0.25, 0.25), "b": (1, 1)}),
        ((offer("a", None, None, share=1.0), offer("b", 4, 5, share=0.0)), {"a": (1, 1), "b": (0, 0)}),
        ((offer("a", None, 1, share=0.3), offer("b", 4, 5, share=0.7)), {"a": (0.3, 0.3), "b": (0.7, 0.7)}),
        ((offer("a", 1, None, share=0.3), offer("b", 4, 5, share=0.7)), {"a": (0.3, 0.3), "b": (0.7, 0.7)}),
        ((offer("a", 1, 1, share=1.0),), {"a": (1, 1)}),
    ],
)
def test_the_cheapest_is_filled_first_and_the_others_keep_what_it_cannot_do_yet(offers, expected):
    assert shares(*offers) == expected


@pytest.mark.parametrize(
    ("offers", "expected"),
    [
        ((offer("a", 2, 1), offer("b", 4, 5)), {"a": 0, "b": 1}),
        ((offer("a", 2, 1), offer("b", 4, 5, most=3)), {"a": 1, "b": 1}),
        # What the dear pool's own workers do is asked of it; what waits is not, while the cheap pool has room.
        ((offer("a", 2, 1, least=5, ready=5), offer("b", 4, 5)), {"a": 0, "b": 1}),
        ((offer("a", 2, 1), offer("b", 4, 5, most=1), offer("c", 3, 2, most=2)), {"a": 1, "b": 1, "c": 1}),
        ((offer("a", 2, 1), offer("b", 4, 5, most=1), offer("c", 3, 2, most=9)), {"a": 0, "b": 1, "c": 1}),
    ],
)
def test_what_waits_is_ordered_up_to_the_first_pool_with_room(offers, expected):
    made = portions_of(offers, 20.0, headroom=0.0)
    assert {name: one.backlog for name, one in made.items()} == expected


def test_of_three_pools_the_dearest_sleeps_while_the_cheapest_has_room_beside_one_that_is_full_anyway():
    """Its least number is its most: with headroom it could do less than it does."""
    pools = offer("a", 1, 1, most=40), offer("b", 2, 1, most=10, ready=10, least=10), offer("c", 3, 1)
    made = portions_of(pools, 20.0, headroom=0.1)
    assert {name: round(one.to_grow, 3) for name, one in made.items()} == {"a": 0.5, "b": 0.5, "c": 0}


def test_without_prices_too_what_is_kept_is_of_the_rate_to_keep():
    """At ten a second the first pool has just all that it can do; the room for chance is the other one's."""
    pools = offer("a", None, 1, share=1.0, most=10), offer("b", None, 1, share=0.0)
    made = portions_of(pools, 10.0, headroom=0.0, keep_per_s=12.0)
    assert made["b"].to_grow == 0
    assert made["b"].to_keep * 12.0 == pytest.approx(2.0)


def test_without_knowledge_of_demand_cost_decides_nothing():
    offers = offer("a", 2, 1, share=0.2), offer("b", 1, 5, share=0.8)
    assert shares(*offers, planned=None) == {"a": (0.2, 0.2), "b": (0.8, 0.8)}
    assert shares(*offers, planned=0.0) == shares(*offers, planned=1e-6), "as the first request would be"


@given(
    offers=st.lists(
        st.builds(
            Offer,
            name=st.uuids().map(str),
            share=st.floats(0, 1),
            price_per_hour=st.floats(0.1, 100),
            rate_per_s=st.floats(0.01, 100),
            most_per_s=st.one_of(st.just(0.0), st.floats(0.01, 5000)),
            ready_per_s=st.one_of(st.just(0.0), st.floats(0.01, 5000)),
        ),
        min_size=2,
        max_size=5,
    ),
    anyway=st.lists(st.sampled_from((0.0, 0.0, 0.3, 1.0)), min_size=5, max_size=5),
    planned=st.floats(0.01, 1000),
    chance=st.floats(0, 1),
)
def test_all_of_the_demand_is_given_out_once_and_what_is_kept_covers_it(offers, anyway, planned, chance):
    offers = [with_anyway(offer, part) for offer, part in zip(offers, anyway, strict=False)]
    keep = planned * (1 + chance)
    made = portions_of(offers, planned, headroom=0.1, keep_per_s=keep)
    assert sum(one.to_grow for one in made.values()) == pytest.approx(1.0)
    for one in made.values():
        assert 0 <= one.to_grow <= 1 + 1e-9
        assert one.to_grow * planned <= one.to_keep * keep + 1e-9
        assert one.to_keep <= 1 + 1e-9
        assert 0 <= one.running <= 1
    kept = sum(min(one.to_keep * keep, offer.most_per_s) for offer, one in zip_by(offers, made))
    could = sum(offer.most_per_s for offer in offers) / 1.1
    assert kept >= min(keep, could) - 1e-6, "together they suffice as far as they can"


@given(
    anyway=st.lists(st.sampled_from((0.0, 0.3, 1.0)), min_size=3, max_size=3),
    planned=st.floats(0.01, 30),
    chance=st.floats(0, 3),
    more=st.floats(1, 3),
)
def test_more_demand_lets_no_pool_keep_less(anyway, planned, chance, more):
    """What must suffice is the planned rate and a few deviations, which grow slower than it."""
    pools = [offer("a", 1, 1, most=4, ready=2), offer("b", 2, 1, most=5, ready=5), offer("c", 3, 1, most=9, ready=1)]
    pools = [with_anyway(one, part) for one, part in zip(pools, anyway, strict=True)]

    def kept(rate: float) -> list[float]:
        keep = rate + chance * rate**0.5
        return [one.to_keep * keep for one in portions_of(pools, rate, headroom=0.1, keep_per_s=keep).values()]

    for less, after in zip(kept(planned), kept(more * planned), strict=True):
        assert after >= less - 1e-9


def with_anyway(offer: Offer, part: float) -> Offer:
    """A part of the most it could have, which is there anyway as far as it is ready."""
    least = part * offer.most_per_s
    return replace(offer, least_per_s=least, least_ready_per_s=min(least, offer.ready_per_s))


@given(
    role=st.sampled_from(list(Role)),
    workers=st.integers(0, 40),
    capacity=st.builds(
        Capacity,
        work_s=st.floats(0.05, 60),
        limit=st.floats(0.4, 300),
        measured=st.booleans(),
        amplification=st.floats(1, 6),
    ),
    dispersion=st.floats(0.5, 5),
)
def test_what_workers_suffice_for_needs_them_and_a_hair_more_needs_another(role, workers, capacity, dispersion):
    tuning, objective = Tuning(), Objective(2.0, 0.05, 0.95)
    if role is Role.PREFILL:
        capacity = replace(capacity, limit=0.9, work_s=capacity.work_s / 60)
    carried = carried_with_margin_per_s(role, workers, capacity, objective, dispersion=dispersion, tuning=tuning)

    def needed(rate_per_s: float) -> int:
        demand = Demand(rate_per_s, 0.0, 0.0, planned_per_s=rate_per_s, keep_per_s=rate_per_s, dispersion=dispersion)
        return need_of(role, demand, capacity, to_work_off=0.0, objective=objective, tuning=tuning).workers

    assert needed(carried * (1 - 1e-6)) <= workers
    assert needed(carried * (1 + 1e-6) + 1e-6) > workers


def zip_by(offers, made):
    return [(one, made[one.name]) for one in offers]


LONG_PROMPT_S = 0.33
"""Work of a prompt that takes a third of the TTFT: one worker alone must be idle for 60 %."""


def prefill_sizes(rate_per_s: float, *, cheap: int, dear: int) -> tuple[int, int]:
    """What two pools of prefill workers settle at, of which the router uses all alike."""
    pools = (
        pool_policy("cheap", Role.PREFILL, replicas_max=cheap, price_per_hour=1.0, replicas_min=0, concurrency_max=64),
        pool_policy("dear", Role.PREFILL, replicas_max=dear, price_per_hour=4.0, replicas_min=0, concurrency_max=64),
    )
    policy = service_policy(*pools, objective=Objective(1.0, 0.05, 0.95))
    state, sizes = ServiceState(), (cheap, dear)
    for second in range(0, 240, 2):
        ready = sum(sizes)
        busy = min(0.95, rate_per_s * LONG_PROMPT_S / max(1, ready))
        service_s = LONG_PROMPT_S / (1 - busy)
        seen = []
        for pool, size in zip(pools, sizes, strict=True):
            own = rate_per_s * size / max(1, ready)
            numbers = {"running": own * service_s, "running_mean": own * service_s, "finished_per_s": own}
            own_readings = engine_readings(**numbers, **({"service_time_s": service_s} if size else {}))
            seen.append(PoolObservation(pool.name, PoolCounts(size, size), own_readings))
        signals = readings(policy, arrived_per_s=rate_per_s, burst_per_s=rate_per_s)
        decision = decide(policy, state, ServiceObservation(KEY, signals, tuple(seen)), float(second))
        state, sizes = decision.state, tuple(one.desired for one in decision.pools)
    return sizes


@pytest.mark.parametrize(("rate_per_s", "dear"), [(3.0, 2), (4.0, 3), (4.8, 3)])
def test_prompts_that_cheap_prefill_workers_cannot_answer_in_time_are_the_dear_pools(rate_per_s, dear):
    """Two workers are busy for 0.4 each at most by the laws of the need, however much of them is idle: 2.4 requests a second."""
    assert prefill_sizes(rate_per_s, cheap=2, dear=8) == (2, dear)


@pytest.mark.parametrize("rate_per_s", [1.0, 6.0, 10.0, 14.0])
def test_a_cheap_prefill_pool_with_room_has_all_of_the_load(rate_per_s):
    cheap, dear = prefill_sizes(rate_per_s, cheap=12, dear=8)
    assert dear == 0
    assert cheap == prefill_sizes(rate_per_s, cheap=20, dear=8)[0]


def looked_at(
    pools: tuple[PoolPolicy, ...], *engines: PoolSignals, rate_per_s: float, ttft_s: float = 2.0, **numbers: float
) -> Decision:
    """The decision after some looks at two workers of each pool."""
    policy = service_policy(*pools, objective=Objective(ttft_s, 0.05, 0.95))
    signals = readings(policy, **{f"{name}_per_s": rate_per_s for name in ("arrived", "burst", "tpot")}, **numbers)
    seen = tuple(PoolObservation(pool.name, PoolCounts(2, 2), own) for pool, own in zip(pools, engines, strict=True))
    state = ServiceState()
    for second in range(0, 60, 2):
        decision = decide(policy, state, ServiceObservation(KEY, signals, seen), float(second))
        state = decision.state
    return decision


def test_measurements_that_differ_do_not_change_which_of_two_like_pools_is_filled_first():
    """Both are expected to do the same at the same price; the first one's workers are measured to take three times as long."""
    steps = ((0, 0.01), (1000, 0.02))
    worker = Fitted(Measured(steps, ((0, 0.0), (1000, 0.05))), kv_tokens=10**6)
    pools = tuple(pool_policy(name, worker=worker, price_per_hour=1.0) for name in ("a", "b"))
    slow, fast = (
        engine_readings(running=took_s, running_mean=took_s, finished_per_s=1.0, service_time_s=took_s)
        for took_s in (3.0, 1.0)
    )
    decision = looked_at(pools, slow, fast, rate_per_s=2.0, prompt_tokens_per_s=200, output_tokens_per_s=100)
    first, second = decision.pools
    assert first.capacity.work_s > 2 * second.capacity.work_s
    assert "filled 1 of 2" in first.reason
    assert "filled 2 of 2" in second.reason


def test_a_pool_of_many_prefill_workers_does_more_with_each_for_its_price_than_one_alone():
    pools = tuple(
        pool_policy(name, Role.PREFILL, replicas_max=most, price_per_hour=1.0)
        for name, most in (("one", 1), ("many", 12))
    )
    own = engine_readings(finished_per_s=2.0, service_time_s=LONG_PROMPT_S / (1 - LONG_PROMPT_S))
    one, many = looked_at(pools, own, own, rate_per_s=4.0, ttft_s=1.0).pools
    assert "filled 2 of 2" in one.reason
    assert "filled 1 of 2" in many.reason


SLOTS, START_S = 8, 60.0


@dataclass
class Fleet:
    """A fluid: the router splits requests by what ready workers can do; a worker of a pool takes `service_s` for one."""

    policy: ServicePolicy
    rate_per_s: Callable[[float], float]
    service_s: dict[str, float]
    wanted: dict[str, int]
    never_ready: frozenset[str] = frozenset()
    unschedulable: frozenset[str] = frozenset()
    now_s: float = 0.0
    state: ServiceState = field(default_factory=ServiceState)
    starting: list[tuple[float, str]] = field(default_factory=list)
    short_s: float = 0.0
    """Time with fewer ready workers than the load takes."""
    sizes: list[tuple[int, ...]] = field(default_factory=list)
    told: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.ready = dict(self.wanted)

    def run(self, for_s: float, *, every_s: float = 10.0) -> "Fleet":
        for _ in range(round(for_s / every_s)):
            self.now_s += every_s
            for _at_s, name in [one for one in self.starting if one[0] <= self.now_s]:
                self.ready[name] += 1
            self.starting = [one for one in self.starting if one[0] > self.now_s]
            self._look(every_s)
        return self

    def _look(self, every_s: float) -> None:
        rate = self.rate_per_s(self.now_s)
        could = {name: self.ready[name] * SLOTS / self.service_s[name] for name in self.ready}
        total = sum(could.values())
        self.short_s += every_s if total < rate else 0.0
        seen = []
        for pool in self.policy.pools:
            own = rate * could[pool.name] / total if total else 0.0
            running = min(own * self.service_s[pool.name], self.ready[pool.name] * SLOTS)
            numbers = {"running": running, "running_mean": running, "finished_per_s": min(own, could[pool.name])}
            numbers |= {"service_time_s": self.service_s[pool.name]} if own else {}
            waits = pool.name in self.unschedulable
            counts = PoolCounts(self.wanted[pool.name], self.ready[pool.name], unschedulable=waits)
            seen.append(PoolObservation(pool.name, counts, engine_readings(**numbers)))
        service = {f"{name}_per_s": rate for name in ("arrived", "burst", "latest", "ttft", "ttft_within", "tpot")}
        signals = readings(self.policy, **service, tpot_within_per_s=rate, scrapes=3)
        decision = decide(self.policy, self.state, ServiceObservation(KEY, signals, tuple(seen)), self.now_s)
        self.state = decision.state
        for one in decision.pools:
            self.told.add(one.reason)
            self._scale(one.name, one.desired)
        self.sizes.append(tuple(self.wanted.values()))

    def _scale(self, name: str, size: int) -> None:
        while self.wanted[name] < size:
            self.wanted[name] += 1
            if name not in self.never_ready:
                self.starting.append((self.now_s + START_S, name))
        while self.wanted[name] > size:
            waiting = [one for one in self.starting if one[1] == name]
            if waiting:
                self.starting.remove(waiting[-1])
            elif self.ready[name] >= self.wanted[name]:
                self.ready[name] -= 1
            self.wanted[name] -= 1


def fleet(
    rate: Callable[[float], float], *, prices=(4.0, 1.0), most=(10, 6), least=(0, 0), wanted=(4, 1), **changes
) -> Fleet:
    """Big workers, 16 slots' worth of speed, at four times the price of small ones of half their speed."""
    pools = tuple(
        pool_policy(name, replicas_min=low, replicas_max=top, price_per_hour=price, concurrency_max=SLOTS)
        for name, price, low, top in zip(("big", "small"), prices, least, most, strict=True)
    )
    tuning = Tuning(rate_window_s=60, burst_window_s=35, drain_horizon_s=15, startup_s=60)
    policy = service_policy(*pools, scale_down_window_s=300, tuning=tuning)
    return Fleet(policy, rate, {"big": 1.0, "small": 2.0}, dict(zip(("big", "small"), wanted, strict=True)), **changes)


def test_load_moves_to_the_cheap_pool_without_a_gap():
    """10 req/s: 20 slots of small workers' time, which three small workers hold."""
    made = fleet(lambda _: 10.0).run(3600)
    big, small = made.sizes[-1]
    assert big == 0
    assert 3 <= small <= 5
    assert made.short_s == 0
    assert any("filled 1 of 2 by cost" in reason for reason in made.told)
    assert any("filled 2 of 2 by cost" in reason for reason in made.told)


def test_without_prices_both_pools_stay_as_the_router_uses_them():
    made = fleet(lambda _: 10.0, prices=(None, None)).run(3600)
    assert made.sizes[-1][0] >= 1


def test_without_prices_a_pool_that_sleeps_wakes_for_what_the_other_one_cannot_do():
    """The router sends nothing to a pool without a worker, and nothing finishes there."""
    made = fleet(lambda now_s: 8.0 if now_s <= 600 else 30.0, prices=(None, None), most=(10, 3), wanted=(0, 3))
    made.run(600)
    assert made.sizes[-1][0] == 0, "not before it has to"
    made.run(600)
    assert made.sizes[-1][0] >= 3
    made.short_s = 0
    made.run(600)
    assert made.short_s == 0


def test_what_the_cheap_pool_cannot_do_is_the_expensive_ones():
    made = fleet(lambda _: 40.0, wanted=(8, 1)).run(3600)
    big, small = made.sizes[-1]
    assert small == 6
    assert 2 <= big <= 4
    assert made.short_s == 0
    plain = fleet(lambda _: 40.0, prices=(None, None), wanted=(8, 1)).run(3600)
    assert 4 * big + small < 4 * plain.sizes[-1][0] + plain.sizes[-1][1]


def test_workers_that_are_there_anyway_are_used_before_cheaper_ones_are_bought():
    """Five big workers that the spec keeps do most of 44 req/s; without them it takes more than eleven small ones."""
    made = fleet(lambda _: 44.0, wanted=(5, 6), least=(5, 0), most=(10, 20)).run(3600)
    big, small = made.sizes[-1]
    assert big == 5
    assert 1 <= small <= 6
    assert made.short_s == 0
    made = fleet(lambda _: 20.0, wanted=(5, 6), least=(5, 0)).run(3600)
    assert made.sizes[-1] == (5, 0)


def test_workers_that_a_schedule_keeps_are_there_anyway_while_it_lasts():
    """By the clock the run begins at midnight; five big workers are kept from 00:30 to 01:30."""
    made = fleet(lambda _: 20.0, wanted=(0, 6))
    big, small = made.policy.pools
    window = Schedule("half past", tuple(range(7)), 30, 90, "UTC", 5)
    made.policy = replace(made.policy, pools=(replace(big, schedules=(window,)), small))
    made.run(1500)
    assert made.sizes[-1] == (0, 6)
    made.run(3600)
    assert made.sizes[-1] == (5, 0)
    made.run(2400)
    assert made.sizes[-1] == (0, 6), "and take over again before the others go"
    assert made.short_s == 0


def test_workers_that_the_spec_keeps_and_no_node_takes_are_not_counted_on():
    """Five big workers do most of 20 req/s, until their nodes are gone; the small pool grows for all of it at once."""
    made = fleet(lambda _: 20.0, wanted=(5, 1), least=(5, 0)).run(600)
    assert made.sizes[-1] == (5, 0)
    made.ready["big"] = 0
    made.unschedulable = frozenset({"big"})
    made.run(10)
    assert made.sizes[-1] == (5, 6), "as many as it may have"


def test_a_rise_is_ordered_from_one_pool():
    made = fleet(lambda now_s: 6.0 if now_s < 1800 else 12.0, wanted=(0, 3))
    made.run(1800)
    before = made.sizes[-1]
    made.run(1200)
    assert max(big for big, _ in made.sizes) == before[0] == 0


def test_a_steady_load_settles_for_good():
    made = fleet(lambda _: 25.0, wanted=(5, 3)).run(3600)
    assert len(set(made.sizes[-180:])) == 1


def test_where_cheap_workers_do_not_come_the_expensive_pool_grows():
    made = fleet(lambda now_s: 6.0 if now_s < 1200 else 30.0, wanted=(2, 2), never_ready=frozenset({"small"}))
    made.run(1200)
    made.run(3000)
    big, _ = made.sizes[-1]
    assert big >= 3
    made.short_s = 0
    made.run(600)
    assert made.short_s == 0


def test_where_cheap_workers_find_no_node_the_expensive_pool_grows():
    policy = fleet(lambda _: 30.0).policy

    def sizes(*, wanted: int = 2, unschedulable: bool) -> tuple[int, ...]:
        pools = []
        for pool, service_s in zip(policy.pools, (1.0, 2.0), strict=True):
            numbers = {"running": 10, "running_mean": 10, "finished_per_s": 10 / service_s, "service_time_s": service_s}
            small = pool.name == "small"
            counts = PoolCounts(wanted if small else 2, 2, unschedulable=unschedulable and small)
            pools.append(PoolObservation(pool.name, counts, engine_readings(**numbers)))
        signals = readings(policy, arrived_per_s=30, burst_per_s=30)
        decision = decide(policy, ServiceState(), ServiceObservation(KEY, signals, tuple(pools)), 0.0)
        return tuple(one.desired for one in decision.pools)

    assert sizes(unschedulable=False)[1] > 2
    assert sizes(unschedulable=True) > (2, 2)
    assert sizes(unschedulable=True)[1] == 2
    assert sizes(wanted=6, unschedulable=True)[0] > sizes(wanted=6, unschedulable=False)[0], "ordered is not there"


def priced(price: str | None) -> AcceleratorClassSpec:
    return AcceleratorClassSpec(hardware="h100-sxm", price_per_hour=price)


def pool_of(price: str | None) -> PoolPolicy:
    stored = model_service(pools=[pool_spec(parallelism={"tensor": 2})])
    stored["metadata"] |= {"namespace": "default", "uid": "1", "generation": 1}
    return policy_of(stored, Tuning(), {"h100-sxm": priced(price)}).pools[0]


def test_the_price_of_a_worker_is_that_of_its_accelerators():
    assert pool_of("2.50").price_per_hour == 5.0
    assert pool_of(None).price_per_hour is None
