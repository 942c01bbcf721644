"""What was learnt outlives both replicas, and what cannot be read again costs the knowledge and nothing else."""

import json
import math
import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_autoscaler.clock import EpochClock
from forebay_autoscaler.decide import decide
from forebay_autoscaler.errors import ClusterError, UnusableStateError
from forebay_autoscaler.forecast import ERRORS_MAX, PENDING_MAX, Method
from forebay_autoscaler.history import History
from forebay_autoscaler.loop import Alone, Loop
from forebay_autoscaler.memory import LAST_SAVE_S, SIZE_MAX, Memory
from forebay_autoscaler.metrics import Metrics
from forebay_autoscaler.observe import Look, Subject
from forebay_autoscaler.past import LENGTH_MAX, Level
from forebay_autoscaler.savedstate import VERSION, Saved, Unusable, digest_of, dump, load, resume
from forebay_autoscaler.state import ServiceState
from tests.autoscaler.plant import DEMO, KEY, Plant, pool_policy, service_policy
from tests.autoscaler.test_timelines import Script, load_of

DAY_S = 1_780_000_000.0
"""A time as clocks show it."""
NAME = ".".join(KEY)


def wave(now_s: float) -> float:
    return 8.0 + 6.0 * math.sin(2 * math.pi * now_s / 900)


def rhythmic() -> Plant:
    """A plant that has seen a rhythm for an hour."""
    plant = Plant(service_policy(), wave, step_s=0.1, interval_s=5, startup_s=20, now_s=DAY_S)
    return plant.run(DAY_S + 3600)


RHYTHMIC = rhythmic()


def saved(state: ServiceState = RHYTHMIC.state, at_s: float = RHYTHMIC.now_s, uid: str = "1") -> Saved:
    return Saved(uid, at_s, DEMO.rate_window_s, state)


class Maps:
    """ConfigMaps in memory."""

    def __init__(self, parts: int = 1) -> None:
        self.parts: list[dict[str, str]] = [{} for _ in range(parts)]
        self.failure: ClusterError | None = None
        self.failing: dict[int, ClusterError] = {}
        """Parts that cannot be read."""
        self.writes = 0

    async def read(self, number: int) -> dict[str, str]:
        if self.failure:
            raise self.failure
        if number in self.failing:
            raise self.failing[number]
        return self.parts[number]

    async def write(self, number: int, data: Mapping[str, str]) -> None:
        if self.failure:
            raise self.failure
        self.writes += 1
        self.parts[number] = dict(data)


def memory(maps: Maps, metrics: Metrics | None = None) -> Memory:
    return Memory(maps, metrics or Metrics(), parts=len(maps.parts), interval_s=30)


def counted(metrics: Metrics, outcome: str) -> float:
    return metrics.registry.get_sample_value("forebay_autoscaler_state_recalls_total", {"outcome": outcome}) or 0.0


def test_everything_learnt_is_there_again():
    state = load(dump(saved())).state
    before, after = RHYTHMIC.state.pools["mixed"], state.pools["mixed"]
    assert after.learnt.orders.startup_s == pytest.approx(before.learnt.orders.startup_s, rel=1e-4)
    assert after.learnt.orders.startup_s == pytest.approx(20, abs=6)
    assert after.learnt.work_s == pytest.approx(before.learnt.work_s, rel=1e-4)
    assert after.needs.points == tuple((pytest.approx(at_s, abs=1e-2), need) for at_s, need in before.needs.points)
    assert RHYTHMIC.state.forecast.method is Method.SEASON, "or this shows nothing"
    assert state.forecast.method is Method.SEASON
    assert state.forecast.season.period == pytest.approx(RHYTHMIC.state.forecast.season.period, rel=1e-4)
    assert [len(level.values) for level in state.forecast.past.levels] == [
        len(level.values) for level in RHYTHMIC.state.forecast.past.levels
    ]


def test_a_recalled_state_decides_as_the_lost_one_would_have():
    now_s = RHYTHMIC.now_s + 2
    state = resume(load(dump(saved())), RHYTHMIC.policy, now_s)
    observation = RHYTHMIC.observe()
    again = decide(RHYTHMIC.policy, state, observation, now_s).pools[0]
    kept = decide(RHYTHMIC.policy, RHYTHMIC.state, observation, now_s).pools[0]
    anew = decide(RHYTHMIC.policy, ServiceState(), observation, now_s).pools[0]
    assert again.desired == kept.desired
    assert again.demand.planned_per_s == pytest.approx(kept.demand.planned_per_s, rel=1e-3)
    assert anew.demand.lead_s != pytest.approx(again.demand.lead_s), "or this shows nothing"


def test_a_state_that_is_as_full_as_it_gets_fits_many_times():
    dice = random.Random(1)
    past = RHYTHMIC.state.forecast.past
    levels = tuple(Level(tuple(dice.uniform(0, 500) for _ in range(LENGTH_MAX)), one.end) for one in past.levels)
    pending = tuple(
        (number, (dice.random(), dice.random(), dice.random(), dice.random())) for number in range(PENDING_MAX)
    )
    errors = tuple(dice.gauss(0, 9) for _ in range(ERRORS_MAX))
    forecast = replace(RHYTHMIC.state.forecast, past=replace(past, levels=levels), pending=pending, errors=errors)
    size = len(dump(saved(replace(RHYTHMIC.state, forecast=forecast))).encode())
    print(f"{size} bytes")
    assert size * 65 < SIZE_MAX, "about 70"


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda _: "", Unusable.CORRUPT),
        (lambda text: text[:-100], Unusable.CORRUPT),
        (lambda _: "[]", Unusable.CORRUPT),
        (lambda _: "{}", Unusable.CORRUPT),
        (lambda text: text.replace('"startup_s":', '"startup_s":1'), Unusable.CORRUPT),
        (lambda text: text.replace(f'"version":{VERSION}', '"version":999'), Unusable.VERSION),
        (lambda text: edited(text, "pools", "mixed", "learnt", "limit", to=-5.0), Unusable.CORRUPT),
        (lambda text: edited(text, "pools", "mixed", "learnt", "speed", to=1e9), Unusable.CORRUPT),
        (lambda text: edited(text, "pools", "mixed", "learnt", "orders", "startup_s", to="NaN"), Unusable.CORRUPT),
        (lambda text: edited(text, "pools", "mixed", "learnt", "orders", to=[]), Unusable.CORRUPT),
        (lambda text: edited(text, "mix", to={"prompt": 0, "cached": 0, "output": 0}), Unusable.CORRUPT),
        (lambda text: edited(text, "credit", "patience_s", to=0.0), Unusable.CORRUPT),
        (lambda text: edited(text, "forecast", "past", "levels", to=[]), Unusable.CORRUPT),
        (lambda text: edited(text, "forecast", "past", "levels", 0, "values", 3, to="Infinity"), Unusable.CORRUPT),
        (lambda text: edited(text, "forecast", "season", "period", to=0.0), Unusable.CORRUPT),
        (lambda text: edited(text, "forecast", "losses", to=["NaN", 0.0, 0.0, 0.0]), Unusable.CORRUPT),
    ],
)
def test_a_state_that_cannot_be_is_none(change, cause):
    with pytest.raises(UnusableStateError) as refused:
        load(change(dump(saved())))
    assert refused.value.cause == cause


def edited(text: str, *path: str | int, to: object) -> str:
    found = json.loads(text)
    inner = found["state"]
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = to
    return json.dumps(found | {"digest": digest_of(found["state"])})


@given(place=st.integers(0, 6000), length=st.integers(0, 40), put=st.text(max_size=5))
def test_a_mutilated_state_is_refused_or_usable_and_nothing_else(place, length, put):
    text = dump(saved())
    try:
        state = resume(load(text[:place] + put + text[place + length :]), RHYTHMIC.policy, RHYTHMIC.now_s)
    except UnusableStateError:
        return
    decide(RHYTHMIC.policy, state, RHYTHMIC.observe(), RHYTHMIC.now_s)


def test_a_state_from_the_future_is_none():
    with pytest.raises(UnusableStateError) as refused:
        resume(saved(at_s=RHYTHMIC.now_s + 3600), RHYTHMIC.policy, RHYTHMIC.now_s)
    assert refused.value.cause == Unusable.FUTURE
    resume(saved(at_s=RHYTHMIC.now_s + 5), RHYTHMIC.policy, RHYTHMIC.now_s)


def test_with_another_rate_window_only_the_past_of_demand_is_lost():
    other = replace(RHYTHMIC.policy, tuning=replace(DEMO, rate_window_s=60))
    state = resume(saved(), other, RHYTHMIC.now_s)
    assert state.forecast.past.fine.values == ()
    assert state.pools["mixed"].learnt.orders.startup_s > 0


def flip(script: Script, until_s: float, high: float = 20, low: float = 2) -> None:
    while script.now_s < until_s:
        script.go(60, high if script.now_s // 60 % 2 else low)


def restarted(script: Script, gap_s: float) -> Script:
    """Another pair of replicas, after both were gone."""
    text = dump(saved(script.state, script.now_s))
    other = Script(script.policy, wanted=script.wanted)
    other.now_s = script.now_s + gap_s
    other.state = resume(load(text), script.policy, other.now_s)
    return other


@pytest.mark.parametrize("gap_s", [5.0, 200.0])
def test_a_need_that_flips_does_not_flap_across_the_restart_of_both_replicas(gap_s):
    """C118: one rise, no fall while it flips, also across the restart, and the fall a window after the last rise."""
    script = Script(service_policy(scale_down_window_s=300))
    script.now_s = DAY_S
    flip(script, DAY_S + 430)
    high = script.wanted
    assert high >= 5
    again = restarted(script, gap_s)
    flip(again, again.now_s + 480)
    assert set(again.sizes) == {high}
    again.go(60, 20)
    again.go(280, 2)
    assert again.wanted == high
    again.go(60, 2)
    assert again.wanted == 1


def test_after_a_short_restart_the_shrink_window_goes_on_and_after_a_long_one_it_begins_anew():
    """C107: never below what is there until a window of data supports it; a window that was seen is not seen twice."""
    took = {}
    for gap_s in (5.0, 200.0):
        script = Script(service_policy(scale_down_window_s=300))
        script.now_s = DAY_S
        script.go(120, 20)
        script.go(200, 2)
        high = script.wanted
        assert high >= 5
        again = restarted(script, gap_s)
        began_s = again.now_s
        while again.wanted == high:
            again.go(2, 2)
        took[gap_s] = again.now_s - began_s
    assert took[5.0] < 120
    assert took[200.0] >= 290


def test_workers_that_came_while_nobody_looked_teach_no_start_up_time():
    script = Script(service_policy())
    script.now_s = DAY_S
    script.go(60, 2)
    script.go(4, 20, ready=1)
    again = restarted(script, 600)
    again.go(10, 20)
    assert again.state.pools["mixed"].learnt.orders.lead_s(again.now_s, 30) <= 30


def test_a_crowd_from_before_a_gap_has_not_waited_all_that_time_for_workers_that_start():
    script = Script(service_policy(pool_policy(concurrency_max=10, replicas_max=20)), wanted=2)
    script.now_s = DAY_S
    script.go(20, 12, service_s=1.0)
    script.go(2, 20, service_s=1.0, running=35, ready=2)
    assert script.go(20, 20, service_s=1.0, running=80, ready=2) == 4, (
        "what runs is what two on their way were ordered for"
    )
    again = restarted(script, 600)
    assert again.go(10, 20, service_s=1.0, running=80, ready=2) == 4


class Observer:
    """Sees these services, without load."""

    def __init__(self, *names: str, policy=None) -> None:
        self.policy = policy or service_policy()
        self.names = names
        self.unreadable: dict = {}

    async def look(self) -> Look:
        subjects = []
        for name in self.names:
            policy = replace(self.policy, key=("default", name))
            subjects.append(Subject(policy, replace(load_of(2, wanted=1), key=policy.key), {}))
        return Look(tuple(subjects), {}, self.unreadable)


class Actor:
    """Does nothing."""

    async def act(self, decision, stored, *, routers) -> None:
        pass

    def forget(self, keys) -> None:
        pass


def loop_with(maps: Maps, observer: Observer, *, leading: bool = True, now_s: float = DAY_S) -> Loop:
    metrics = Metrics()
    made = Loop(observer, Actor(), Alone(leading), metrics, History(10), interval_s=2, memory=memory(maps, metrics))
    made.clock = lambda: now_s
    return made


async def test_the_leader_saves_and_the_next_replica_begins_there():
    maps = Maps()
    await loop_with(maps, Observer("a", "b")).cycle()
    assert set(maps.parts[0]) == {"default.a", "default.b"}
    following = loop_with(maps, Observer("a", "b"), leading=False, now_s=DAY_S + 2)
    await following.cycle()
    assert counted(following.metrics, "used") == 2
    (record,) = following.history.select(namespace="default", model_service="a", limit=1)
    assert record.state.pools["mixed"].needs.points, "the recalled state is what it decided with"
    assert maps.writes == 1, "one that does not lead saves nothing"


async def test_states_are_saved_at_their_interval_and_all_at_the_end():
    maps = Maps(parts=4)
    names = [f"service{number}" for number in range(12)]
    made = loop_with(maps, Observer(*names))
    for second in range(0, 20, 2):
        made.clock = lambda second=second: DAY_S + second
        await made.cycle()
    assert maps.writes == 4, "each part once in thirty seconds"
    assert sorted(name for part in maps.parts for name in part) == sorted(f"default.{name}" for name in names)
    await made.save()
    assert maps.writes == 8


async def test_a_service_that_is_gone_is_forgotten_and_one_that_cannot_be_read_is_not():
    maps = Maps()
    await loop_with(maps, Observer("a", "b", "c")).cycle()
    later = loop_with(maps, observer := Observer("a"), now_s=DAY_S + 40)
    observer.unreadable = {("default", "b"): "no"}
    await later.cycle()
    assert set(maps.parts[0]) == {"default.a", "default.b"}


async def test_a_state_of_a_deleted_resource_is_not_its_successors():
    maps = Maps()
    await loop_with(maps, Observer("a")).cycle()
    later = loop_with(maps, Observer("a", policy=service_policy(uid="2")), now_s=DAY_S + 5)
    await later.cycle()
    assert counted(later.metrics, "used") == 0
    assert counted(later.metrics, "absent") == 1


async def test_a_corrupt_state_is_ignored_with_a_log_line_and_a_count(caplog):
    maps = Maps()
    maps.parts[0] = {"default.a": '{"version": 1, "state": ', "default.b": '{"version": 7}'}
    made = loop_with(maps, Observer("a", "b"))
    await made.cycle()
    assert (counted(made.metrics, "corrupt"), counted(made.metrics, "version")) == (1, 1)
    assert "saved state of default/a is not used" in caplog.text
    assert "it is of version 7, this program reads 1" in caplog.text
    assert len(list(made.history.select(namespace=None, model_service=None, limit=9))) == 2
    assert load(maps.parts[0]["default.a"]).state.pools, "the next save is whole again"


async def test_a_state_with_which_deciding_fails_is_dropped(monkeypatch):
    maps = Maps()
    await loop_with(maps, Observer("a")).cycle()
    made = loop_with(maps, Observer("a"), now_s=DAY_S + 5)

    def picky(policy, state, observation, now_s):
        if state != ServiceState():
            raise ZeroDivisionError
        return decide(policy, state, observation, now_s)

    monkeypatch.setattr("forebay_autoscaler.loop.decide", picky)
    await made.cycle()
    assert list(made.history.select(namespace=None, model_service=None, limit=9)) == []
    await made.cycle()
    assert len(list(made.history.select(namespace=None, model_service=None, limit=9))) == 1


async def test_without_the_right_to_read_it_learns_anew_and_without_an_answer_it_waits(caplog):
    maps = Maps()
    maps.failure = ClusterError("GET configmaps", status=403, why="403 Forbidden")
    made = loop_with(maps, Observer("a"))
    await made.cycle()
    await made.cycle()
    assert made.cycled_s is not None
    assert len(list(made.history.select(namespace=None, model_service=None, limit=9))) == 2
    assert counted(made.metrics, "unreadable") == 1
    assert caplog.text.count("saved states cannot be read") == 1
    maps.failure = ClusterError("GET configmaps", status=0, why="TimeoutError")
    with pytest.raises(ClusterError):
        await loop_with(maps, Observer("a")).cycle()


async def test_a_save_that_fails_is_told_once_and_counted(caplog):
    maps = Maps()
    made = loop_with(maps, Observer("a"))
    await made.cycle()
    maps.failure = ClusterError("PATCH configmaps", status=403, why="403 Forbidden")
    for second in (40, 80):
        made.clock = lambda second=second: DAY_S + second
        await made.cycle()
    assert caplog.text.count("what was learnt is not saved") == 1
    assert made.metrics.registry.get_sample_value("forebay_autoscaler_write_failures_total", {"kind": "state"}) == 2


@pytest.mark.parametrize("parts", [1, 4])
async def test_what_could_not_be_read_at_first_is_not_saved_over_and_used_when_it_can(parts):
    maps = Maps(parts)
    key = ("default", "a")
    kept = memory(maps)
    await kept.recall()
    policy = replace(RHYTHMIC.policy, key=key)
    await kept.save_all({(key, policy.uid): RHYTHMIC.state}, [policy], now_s=DAY_S - 5)
    before = [dict(part) for part in maps.parts]
    made = loop_with(maps, Observer("a", policy=RHYTHMIC.policy))
    maps.failing = {0: ClusterError("GET configmaps", status=503, why="etcd: leader changed")}
    await made.cycle()
    await made.save()
    assert maps.parts == before
    maps.failing = {}
    made.clock = lambda: DAY_S + 2
    await made.cycle()
    assert counted(made.metrics, "used") == 1
    (record, *_) = made.history.select(namespace="default", model_service="a", limit=1)
    assert record.state.pools["mixed"].learnt.orders.startup_s > 0, "it goes on from what was saved"
    await made.cycle()
    assert counted(made.metrics, "used") == 1


@pytest.mark.parametrize(("many", "few"), [(4, 1), (8, 3)])
async def test_of_copies_in_several_maps_the_one_that_was_saved_last_is_read(many, few):
    maps = Maps(many)
    policies = [service_policy(key=("default", f"service{number}")) for number in range(12)]
    for turn, parts in enumerate((many, few, many)):
        now_s = DAY_S + 100 * turn
        one = Memory(maps, Metrics(), parts=parts, interval_s=30)
        await one.recall()
        found = [one.state_of(policy, now_s) for policy in policies]
        states = {(policy.key, policy.uid): ServiceState(queued_s=100.0 * turn) for policy in policies}
        await one.save_all(states, policies, now_s=now_s)
    assert [state.queued_s for state in found] == [100.0] * 12
    names = [name for part in maps.parts for name in part]
    assert len(names) == len(set(names)), "old copies go with the next save"


@pytest.mark.parametrize("newer", [0, 1])
async def test_of_two_copies_the_newer_one_is_read_whichever_map_has_it(newer):
    """One of more maps ended before it had written those that an earlier one of fewer had used."""
    maps, policy = Maps(2), service_policy()
    for number, part in enumerate(maps.parts):
        at_s = DAY_S if number == newer else DAY_S - 100
        part[".".join(policy.key)] = dump(Saved(policy.uid, at_s, 15.0, ServiceState(queued_s=float(number))))
    one = memory(maps)
    await one.recall()
    assert one.state_of(policy, DAY_S).queued_s == newer


async def test_at_the_end_what_fits_into_the_time_is_saved_and_the_rest_stays_as_it_was(monkeypatch):
    maps = Maps(parts=8)
    policies = [service_policy(key=("default", f"service{number}")) for number in range(64)]
    one = memory(maps)
    await one.recall()
    await one.save_all({(one.key, one.uid): ServiceState(queued_s=1.0) for one in policies}, policies, now_s=DAY_S)
    clock = iter(range(1000))
    monkeypatch.setattr("forebay_autoscaler.memory.monotonic", lambda: next(clock) * LAST_SAVE_S / 64)
    later_s = DAY_S + 50
    await one.save_all({(one.key, one.uid): ServiceState(queued_s=2.0) for one in policies}, policies, now_s=later_s)
    found = [load(text).state.queued_s for part in maps.parts for text in part.values()]
    assert len(found) == 64, "none is lost"
    assert 16 < found.count(2.0) < 64


async def test_what_does_not_fit_is_left_out_and_counted(monkeypatch):
    monkeypatch.setattr("forebay_autoscaler.memory.SIZE_MAX", 2000)
    maps = Maps()
    made = loop_with(maps, Observer(*"abcdefgh"))
    await made.cycle()
    kept = maps.parts[0]
    assert 0 < len(kept) < 8
    assert sum(len(name) + len(text) for name, text in kept.items()) <= 2000
    assert made.metrics.registry.get_sample_value("forebay_autoscaler_states_left_out") == 8 - len(kept)


def test_times_of_two_processes_are_of_one_clock():
    one, other = EpochClock(wall_s=DAY_S, monotonic_s=0.0), EpochClock(wall_s=DAY_S + 100, monotonic_s=100.0)
    assert one() == pytest.approx(other(), abs=0.1)
    times = [one() for _ in range(100)]
    assert all(before <= after for before, after in pairwise(times))
