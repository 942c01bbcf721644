"""Spares, schedules and prices of a fleet: they reach the autoscaler as a ModelService's do, and do what they are for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay_api.acceleratorclass import AcceleratorClassSpec
from forebay_api.modelservice import Role
from forebay_api.objective import Objective, Verdict
from forebay_api.schedules import Schedule
from forebay_autoscaler import policy as autoscaler
from forebay_capacity.worker import ENGINE_UTILIZATION
from forebay_simulator.fleet.autoscaling import AutoscalerSpec, policy_of
from forebay_simulator.fleet.courses import course_of
from forebay_simulator.fleet.metrics import Scraping
from forebay_simulator.fleet.report import Line, scores_of, table
from forebay_simulator.fleet.simulation import Run
from forebay_simulator.fleet.spec import EngineSpec, FleetSpec, PoolSpec
from forebay_simulator.fleet.traces.generators import fixed, generate, steps
from forebay_simulator.fleet.traces.trace import Trace
from tests.autoscaler.manifests import model_service, pool_spec

from .fleets import chats, run

OBJECTIVE = Objective(ttft_s=1.0, tpot_s=0.05, target=0.95)
CHEAP = EngineSpec(accelerator="l40s", block_tokens=128, prefix_caching=False)
DEAR = replace(CHEAP, accelerator="h100-sxm")
MORNING = {"name": "morning", "days": ["Thu"], "from": "08:05", "to": "08:15", "min": 3, "timeZone": "UTC"}
BEGINS_S = 8 * 3600.0
"""The clock at which runs begin: 08:00 on a Thursday."""


def pool(name: str, engine: EngineSpec = CHEAP, **changes: object) -> PoolSpec:
    fields: dict[str, object] = {"replicas": 1, "startup_s": (60.0, 60.0), **changes}
    return PoolSpec(name=name, role=Role.MIXED, engine=engine, **fields)


def fleet(*pools: PoolSpec) -> FleetSpec:
    return FleetSpec(pools=pools, objective=OBJECTIVE)


def scaled(of: FleetSpec, trace: Trace, **autoscaler: object) -> Run:
    spec = AutoscalerSpec(begins_s=BEGINS_S, scale_down_window_s=120.0, **autoscaler)
    return run(of, trace, scaling="forebay", routing="forebay", autoscaler=spec, scraping=Scraping(interval_s=5.0))


def wanted(of: Run, name: str, at_s: float) -> int:
    return [count for since_s, count in of.members.pools[name].numbers if since_s <= at_s][-1]


# ---- what reaches the autoscaler


@pytest.mark.parametrize("hardware", ["h100-sxm", "a100-80gb", "l40s"])
def test_the_autoscaler_is_told_what_it_would_read_of_a_model_service(hardware):
    """The policy that the autoscaler makes of the objects on a cluster, beside the one that a fleet makes."""
    replicas = {"min": 2, "max": 7, "spare": 1, "schedules": [MORNING]}
    stored = model_service(
        "fleet",
        [pool_spec(accelerator="gpu", replicas=replicas, parallelism={"tensor": 2})],
        engine={},
        objective={"ttft": "1s", "tpot": "50ms", "target": "0.95"},
        autoscaling={"mode": "Auto", "scaleDownLimit": 2, "budget": {"gpus": 12}},
    )
    stored["metadata"] |= {"namespace": "default", "uid": "fleet", "generation": 1}
    accelerator = AcceleratorClassSpec(hardware=hardware, price_per_hour="2.5")
    told = autoscaler.policy_of(stored, autoscaler.Tuning(), {"gpu": accelerator})
    engine = EngineSpec(accelerator=hardware, tensor=2, memory_utilization=ENGINE_UTILIZATION)
    own = pool(
        "mixed",
        engine,
        replicas_min=2,
        replicas_max=7,
        spare=1,
        schedules=(Schedule.model_validate(MORNING),),
        price_per_hour=2.5,
    )
    made = policy_of(replace(fleet(own), budget_gpus=12), AutoscalerSpec(scale_down_limit=2))
    (expected,), (found,) = told.pools, made.pools
    # The price is in the hardware as well, where nothing reads it.
    priced = expected.worker.accelerator.at_price(found.worker.accelerator.price_usd_per_hour)
    assert found == replace(expected, worker=replace(expected.worker, accelerator=priced))
    assert replace(made, pools=()) == replace(told, key=made.key, pools=())


def test_a_price_is_told_only_where_prices_are_known():
    priced = fleet(pool("mixed", price_per_hour=2.0))
    assert policy_of(priced, AutoscalerSpec()).pools[0].price_per_hour == 2.0
    assert policy_of(priced, AutoscalerSpec(prices_known=False)).pools[0].price_per_hour is None


# ---- what it costs


def test_cost_is_price_times_gpu_hours():
    """Of every pool at its own price, and of each accelerator of a worker."""
    pools = pool("cheap", replicas=2, price_per_hour=1.0), pool("dear", replace(DEAR, tensor=2), price_per_hour=4.0)
    done = run(fleet(*pools), chats(4, 30))
    assert scores_of(done).cost == pytest.approx((2 * 1.0 + 2 * 4.0) * done.duration_s / 3600)
    assert scores_of(done).gpu_hours == pytest.approx(4 * done.duration_s / 3600)


def test_there_is_no_cost_where_a_pool_has_no_price():
    half = run(fleet(pool("cheap", price_per_hour=1.0), pool("dear", DEAR)), chats(2, 10))
    assert scores_of(half).cost is None
    whole = run(fleet(pool("cheap", price_per_hour=1.0)), chats(2, 10))
    lines = [Line("a", (scores_of(half),)), Line("b", (scores_of(whole),))]
    headings, *rows = table(lines)
    assert [row[headings.index("cost")] for row in rows] == ["-", "0.00"]
    assert "cost" not in table(lines[:1])[0]


# ---- schedules

PEAK_S = 300.0
"""When the load comes: 08:05."""


def peak(seed: int = 1) -> Trace:
    rates = steps((0.0, 3.0), (PEAK_S, 14.0), (PEAK_S + 120, 3.0))
    return generate("peak", rates, fixed(1000, 100), duration_s=480, seed=seed)


def with_schedule(begins: str, ends: str) -> Run:
    schedule = Schedule.model_validate({**MORNING, "from": begins, "to": ends})
    return scaled(fleet(pool("mixed", schedules=(schedule,))), peak())


def test_a_schedule_that_ends_before_the_peak_is_worth_nothing_to_it():
    covering, early = with_schedule("08:05", "08:15"), with_schedule("08:01", "08:03")
    assert wanted(covering, "mixed", PEAK_S - 30) >= 3
    assert wanted(early, "mixed", PEAK_S - 1) < 3, "gone before the peak"
    assert scores_of(covering).attainment > 0.97
    assert scores_of(early).attainment < scores_of(covering).attainment - 0.1


def test_workers_of_a_schedule_are_ready_when_it_begins_and_go_after_its_end():
    """A start-up time early where that is known; of one that was never measured, two minutes."""
    schedule = Schedule.model_validate({**MORNING, "from": "08:04", "to": "08:05"})
    quiet = chats(1, 600, prompt=500, output=20)
    spec = pool("mixed", startup_s=(90.0, 90.0), schedules=(schedule,))
    done = scaled(fleet(spec), quiet, startups_known=True)
    assert [wanted(done, "mixed", at_s) for at_s in (130.0, 160.0, 299.0, 590.0)] == [1, 3, 3, 1]
    came = [one for one in done.members.pools["mixed"].gone if one.placed_s]
    assert len(came) == 2
    assert all(one.placed_s + 90.0 <= 240.0 + 10.0 for one in came)
    unknown = scaled(fleet(spec), quiet)
    assert wanted(unknown, "mixed", 131.0) == 3
    other_day = Schedule.model_validate({**MORNING, "from": "08:04", "to": "08:05", "days": ["Fri"]})
    never = scaled(fleet(replace(spec, schedules=(other_day,))), quiet)
    assert scores_of(never).scaling_steps == 0


# ---- spares


@pytest.mark.parametrize(("size", "seed"), [(12.0, 1), (12.0, 2), (16.0, 3)])
def test_a_spare_never_lowers_attainment(size, seed):
    """One worker does 8 requests a second in time."""
    rates = steps((0.0, 3.0), (60.0, size), (110.0, 3.0))
    trace = generate("step", rates, fixed(1000, 100), duration_s=180, seed=seed)
    found = [scores_of(scaled(fleet(pool("mixed", replicas=1 + spare, spare=spare)), trace)) for spare in (0, 1, 2)]
    attained = [one.attainment for one in found]
    assert attained == sorted(attained)
    assert attained[1] > attained[0]


# ---- prices


def of_two(*, cheap_max: int = 3, **dear: object) -> FleetSpec:
    """The dear pool is the first of the spec."""
    fields: dict[str, object] = {"replicas": 0, "replicas_min": 0, "replicas_max": 4, "price_per_hour": 3.0, **dear}
    cheap = pool("cheap", replicas=2, replicas_max=cheap_max, price_per_hour=0.8)
    return fleet(pool("dear", DEAR, **fields), cheap)


def waves(high_per_s: float) -> Trace:
    rates = steps((0.0, 3.0), (120.0, high_per_s), (330.0, 3.0))
    return generate("waves", rates, fixed(1000, 100), duration_s=400, seed=2)


def test_nothing_is_bought_of_the_dear_pool_while_the_cheap_one_has_room():
    """Four cheap workers do more than is ever planned for; they take their time to come, and are waited for."""
    done = scaled(of_two(cheap_max=4), waves(9.0), startups_known=True)
    assert max(count for _, count in done.members.pools["cheap"].numbers) >= 3
    assert not done.members.pools["dear"].numbers


@pytest.mark.parametrize("told", [True, False])
def test_the_dear_pool_wakes_for_what_the_cheap_one_cannot_do(told):
    """Also where nobody knows which is dear."""
    done = scaled(of_two(cheap_max=2), waves(17.0), startups_known=True, prices_known=told)
    numbers = done.members.pools["dear"].numbers
    assert max((count for _, count in numbers), default=0) >= 1
    course = course_of(done)
    assert sum(course.wanted["dear"]) > 0
    late = [job for job in done.jobs if 270 < job.at_s < 330]
    assert sum(job.verdict is Verdict.GOOD for job in late) > 0.95 * len(late)


def test_what_dear_workers_do_that_are_there_anyway_is_not_bought_once_more():
    done = scaled(of_two(replicas=1, replicas_min=1), waves(9.0), startups_known=True)
    assert wanted(done, "cheap", 329.0) <= 2
    assert max(count for _, count in done.members.pools["dear"].numbers) == 1
    assert scores_of(done).attainment > 0.99
