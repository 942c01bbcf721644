"""Workers that nobody asks for now: warm spares, schedules, and those that may not leave yet."""

from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_api.modelservice import Role
from forebay_api.schedules import Schedule as ScheduleSpec
from forebay_autoscaler.constraints import Constraint
from forebay_autoscaler.decide import decide
from forebay_autoscaler.observation import PoolCounts, PoolObservation, ServiceObservation, ServiceSignals
from forebay_autoscaler.policy import Tuning, policy_of
from forebay_autoscaler.reading import UNKNOWN
from forebay_autoscaler.schedules import Schedule, schedule_in_force, schedule_of
from forebay_autoscaler.state import ServiceState
from tests.autoscaler.manifests import model_service, pool_spec
from tests.autoscaler.plant import KEY, known, pool_policy, readings, service_policy
from tests.autoscaler.test_timelines import Script, load_of


def spared(spare: int, **changes) -> Script:
    return Script(service_policy(pool_policy(spare=spare, replicas_max=20), **changes))


@pytest.mark.parametrize("rate_per_s", [0, 2, 9, 20])
@pytest.mark.parametrize("spare", [1, 3])
def test_spares_come_on_top_of_what_demand_needs_and_stay_there(rate_per_s, spare):
    without, script = spared(0), spared(spare)
    without.go(120, rate_per_s)
    script.go(120, rate_per_s)
    assert script.wanted == max(1, without.last.pools[0].need.with_backlog + spare)
    script.go(600, rate_per_s)
    assert script.wanted == max(1, without.last.pools[0].need.with_backlog + spare), "nothing adds to it with time"
    assert f"{spare} kept as warm spares" in script.last.pools[0].reason


def test_spares_are_not_added_again_while_a_pool_is_held():
    """What holds the present number holds the spares in it."""
    script = spared(2)
    script.go(120, 9)
    before = script.wanted
    for _ in range(50):
        script.now_s += 2
        seen = load_of(9, wanted=script.wanted)
        script.see(replace(seen, signals=replace(seen.signals, arrived_per_s=UNKNOWN)))
    assert script.wanted == before
    for _ in range(50):
        script.now_s += 2
        script.see(ServiceObservation(KEY, ServiceSignals(), (PoolObservation("mixed", PoolCounts(before, before)),)))
    assert script.wanted == before
    without = spared(0)
    for one in (without, script):
        one.go(200, 9, ttft_share=0.5)
    assert script.wanted <= without.wanted + 2, "a missed objective asks for more by itself, with and without"


def test_a_pool_with_spares_does_not_sleep():
    script = Script(service_policy(pool_policy(replicas_min=0, spare=1)))
    script.go(120, 0)
    assert script.wanted == 1


def test_spares_stay_within_bounds_and_budget():
    script = Script(service_policy(pool_policy(spare=5, replicas_max=4)))
    script.go(60, 9)
    assert script.wanted == 4
    assert script.last.pools[0].rejected[-1].constraint is Constraint.MAXIMUM
    script = Script(service_policy(pool_policy(spare=5), budget_gpus=3))
    script.go(60, 9)
    assert script.wanted == 3


BERLIN = ZoneInfo("Europe/Berlin")
OFFICE = Schedule("office", (0, 1, 2, 3, 4), 8 * 60, 18 * 60, "Europe/Berlin", 4)
NIGHT = Schedule("night", (4,), 22 * 60, 6 * 60, "Europe/Berlin", 3)


def at(*date: int, zone=BERLIN) -> float:
    return datetime(*date, tzinfo=zone).timestamp()


@pytest.mark.parametrize(
    ("schedule", "when", "is_on"),
    [
        (OFFICE, at(2026, 6, 1, 8, 0), True),  # a Monday
        (OFFICE, at(2026, 6, 1, 7, 59), False),
        (OFFICE, at(2026, 6, 1, 17, 59), True),
        (OFFICE, at(2026, 6, 1, 18, 0), False),
        (OFFICE, at(2026, 6, 6, 12, 0), False),  # a Saturday
        (OFFICE, at(2026, 6, 1, 6, 0, zone=UTC), True),  # 08:00 in summer
        (OFFICE, at(2026, 1, 5, 6, 0, zone=UTC), False),  # 07:00 in winter
        (OFFICE, at(2026, 1, 5, 7, 0, zone=UTC), True),
        (NIGHT, at(2026, 6, 5, 22, 0), True),  # a Friday
        (NIGHT, at(2026, 6, 6, 5, 59), True),  # begun on Friday
        (NIGHT, at(2026, 6, 6, 6, 0), False),
        (NIGHT, at(2026, 6, 6, 23, 0), False),  # Saturday's does not exist
        (NIGHT, at(2026, 6, 5, 3, 0), False),  # nor Thursday's
        (replace(OFFICE, to_min=24 * 60), at(2026, 6, 1, 23, 59), True),
        (replace(OFFICE, from_min=0, to_min=24 * 60, days=(6,)), at(2026, 3, 29, 2, 30), True),  # an hour that is not
    ],
)
def test_a_schedule_follows_the_clock_of_its_zone(schedule, when, is_on):
    assert schedule.is_on(when) is is_on


@given(minute=st.integers(0, 7 * 24 * 60 - 1), from_min=st.integers(0, 1439), to_min=st.integers(0, 1440))
def test_a_window_and_the_rest_of_the_day_make_a_whole_week(minute, from_min, to_min):
    """Where there is no summer time: every minute is in a window or in its complement, never in both."""
    if from_min == to_min or (from_min == 0 and to_min == 1440):
        return
    window = Schedule("in", tuple(range(7)), from_min, to_min, "UTC", 1)
    rest = Schedule("out", tuple(range(7)), to_min % 1440, from_min or 1440, "UTC", 1)
    now_s = at(2026, 6, 1, zone=UTC) + 60 * minute
    assert window.is_on(now_s) != rest.is_on(now_s)


def test_of_several_schedules_the_one_that_asks_for_most_counts():
    more = replace(OFFICE, name="rush", from_min=9 * 60, to_min=10 * 60, replicas_min=9)
    assert schedule_in_force([OFFICE, more], at(2026, 6, 1, 9, 30), lead_s=60) == more
    assert schedule_in_force([OFFICE, more], at(2026, 6, 1, 11, 0), lead_s=60) == OFFICE
    assert schedule_in_force([OFFICE, more], at(2026, 6, 1, 20, 0), lead_s=60) is None


@pytest.mark.parametrize("minutes", [1, 5, 10, 60, 1440 - 600])
@pytest.mark.parametrize("lead_s", [0.0, 30.0, 600.0, 899.5])
def test_a_window_counts_from_a_start_up_time_before_it_without_a_gap(minutes, lead_s):
    short = Schedule("short", tuple(range(7)), 600, 600 + minutes, "UTC", 3)
    begins_s = at(2026, 6, 1, 10, 0, zone=UTC)
    counts = [
        second
        for second in range(-1200, 60 * minutes + 60)
        if schedule_in_force([short], begins_s + second, lead_s=lead_s) is not None
    ]
    assert counts == list(range(-int(lead_s), 60 * minutes))


def test_a_scheduled_pool_is_there_when_its_window_begins_and_goes_after_it_ends():
    policy = service_policy(pool_policy(schedules=(OFFICE,)), scale_down_window_s=60)
    script = Script(policy)
    script.now_s = at(2026, 6, 1, 7, 50)
    sizes = {}
    while script.now_s < at(2026, 6, 1, 18, 10):
        script.go(30, 2, every_s=30)
        sizes[script.now_s] = script.wanted
    ordered_s = min(when for when, size in sizes.items() if size == 4)
    assert 0 < at(2026, 6, 1, 8, 0) - ordered_s <= 60, "a start-up time before, no more"
    within = [size for when, size in sizes.items() if at(2026, 6, 1, 8, 0) <= when < at(2026, 6, 1, 18, 0)]
    assert set(within) == {4}
    assert script.wanted == 1


def test_a_reason_names_the_schedule():
    policy = service_policy(pool_policy(schedules=(OFFICE,)))
    script = Script(policy)
    script.now_s = at(2026, 6, 1, 12, 0)
    script.go(2, 2)
    assert script.last.pools[0].reason.endswith("; 1 needed, but schedule office keeps 4")
    script.go(400, 2)
    assert script.last.pools[0].reason.startswith("4 kept, 1 needed: schedule office keeps 4; ")


def test_a_schedule_holds_without_data_and_never_beyond_bounds_and_budget():
    now_s, blind = at(2026, 6, 1, 12, 0), PoolObservation("mixed", PoolCounts(1, 1))
    seen = ServiceObservation(KEY, ServiceSignals(), (blind,))

    def size(**changes):
        pool = pool_policy(schedules=(OFFICE,), replicas_max=changes.pop("most", 6))
        return decide(service_policy(pool, **changes), ServiceState(), seen, now_s).pools[0].desired

    assert size() == 4
    assert size(most=3) == 3
    assert size(budget_gpus=2) == 2


def leaving(limit: int | None, wanted: int, draining: int) -> int:
    policy = service_policy(
        pool_policy(replicas_max=20), scale_down_window_s=0, scale_down_limit=limit, tuning=Tuning(rate_window_s=15)
    )
    script = Script(policy, wanted=wanted)
    script.go(120, 0.5 * wanted * 8 / 1.5)  # half used, forecasts tested
    script.wanted = wanted
    seen = load_of(0, wanted=wanted)
    (pool,) = seen.pools
    script.now_s += 2
    script.see(replace(seen, pools=(replace(pool, counts=replace(pool.counts, draining=draining)),)))
    return script.wanted


@pytest.mark.parametrize(
    ("limit", "draining", "left"),
    [(None, 0, 8), (None, 5, 8), (3, 0, 13), (3, 2, 15), (3, 3, 16), (3, 9, 16), (100, 0, 8)],
)
def test_no_more_workers_leave_at_once_than_the_limit(limit, draining, left):
    assert leaving(limit, 16, draining) == left


def test_a_limit_of_leaving_workers_is_told():
    script = Script(service_policy(pool_policy(), scale_down_limit=1), wanted=6)
    script.go(200, 2, every_s=2)
    told = [size for size in script.sizes if size < 6]
    assert told[:3] == [5, 4, 3], "one at a look, since they drain at once here"


def test_the_budget_moves_no_more_workers_than_may_leave():
    pools = (pool_policy("prefill", Role.PREFILL, replicas_max=20), pool_policy("decode", Role.DECODE, replicas_max=20))

    def taken(limit: int | None) -> int:
        policy = service_policy(*pools, budget_gpus=12, scale_down_limit=limit, scale_down_window_s=0)
        signals = readings(policy, arrived_per_s=30, burst_per_s=30)
        engines = load_of(30, wanted=10).pools[0].signals
        prefill = replace(engines, service_time_s=known(0.01), running=known(1), running_mean=known(1))
        decode = replace(engines, service_time_s=known(8.0), running=known(240), running_mean=known(240))
        seen = (
            PoolObservation("prefill", PoolCounts(10, 10), prefill),
            PoolObservation("decode", PoolCounts(2, 2), decode),
        )
        decision = decide(policy, ServiceState(), ServiceObservation(KEY, signals, seen), 0.0)
        return 10 - decision.pools[0].desired

    assert taken(None) > 2, "or this shows nothing"
    assert taken(2) <= 2


def test_a_spec_says_all_of_it():
    schedule = {
        "name": "office",
        "days": ["Mon", "Fri"],
        "from": "08:00",
        "to": "24:00",
        "timeZone": "Asia/Tokyo",
        "min": 3,
    }
    stored = model_service(
        pools=[pool_spec(replicas={"min": 1, "max": 6, "spare": 2, "schedules": [schedule]})],
        autoscaling={"mode": "Auto", "scaleDownLimit": 2},
    )
    stored["metadata"] |= {"namespace": "default", "uid": "1", "generation": 1}
    policy = policy_of(stored, Tuning(), {})
    assert policy.scale_down_limit == 2
    assert policy.pools[0].spare == 2
    assert policy.pools[0].schedules == (Schedule("office", (0, 4), 480, 1440, "Asia/Tokyo", 3),)
    every_day = schedule_of(ScheduleSpec.model_validate({"name": "x", "from": "22:00", "to": "06:00", "min": 1}))
    assert every_day.days == (0, 1, 2, 3, 4, 5, 6)
    assert every_day.time_zone == "UTC"
