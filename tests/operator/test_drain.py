"""The drain plan: a table of situations, and laws over any sequence of wishes against a model of the ReplicaSet controller."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_operator.drain import DrainPlan, DrainTimes, plan_drain
from forebay_operator.pods import Worker
from forebay_operator.rootcause import Cause, Reason
from tests.operator.examples import NOW, draining, worker

TIMES = DrainTimes(grace_s=2.0, timeout_s=30.0)


def plan(wanted: int, current: int | None, workers: list[Worker], **loads: float | None) -> DrainPlan:
    return plan_drain(wanted=wanted, current=current, workers=workers, loads=loads, times=TIMES, now=NOW)


def names(workers: tuple[Worker, ...]) -> list[str]:
    return [one.name for one in workers]


def released(made: DrainPlan) -> dict[str, bool]:
    return {one.worker.name: one.timed_out for one in made.release}


def test_a_new_deployment_gets_its_size_at_once():
    assert plan(3, None, []) == DrainPlan((), (), (), 3)


def test_growing_is_immediate():
    assert plan(5, 2, [worker("a"), worker("b")]).replicas == 5


def test_the_worker_with_the_fewest_requests_is_marked_and_nothing_is_deleted_yet():
    made = plan(2, 3, [worker("a"), worker("b"), worker("c")], a=4, b=1, c=7)
    assert names(made.mark) == ["b"]
    assert made.replicas == 3
    assert made.is_waiting
    assert made.retry_after_s == pytest.approx(1.0)


def test_of_equally_loaded_workers_the_youngest_leaves():
    old, young = (
        worker("old", created_at=NOW - timedelta(hours=2)),
        worker("young", created_at=NOW - timedelta(minutes=1)),
    )
    assert names(plan(1, 2, [young, old], old=0, young=0).mark) == ["young"]


def test_an_unknown_load_counts_as_busy():
    made = plan(1, 2, [worker("unknown"), worker("busy")], unknown=None, busy=50)
    assert names(made.mark) == ["busy"]


def test_a_worker_without_an_address_is_released_at_once():
    pending = worker("pending", is_ready=False, pod_ip=None)
    made = plan(1, 2, [worker("a"), pending], a=0)
    assert released(made) == {"pending": False}
    assert made.replicas == 1


def test_a_crashing_worker_leaves_before_a_serving_one():
    crashing = worker("crashing", is_ready=False, cause=Cause(Reason.WORKER_CRASHED, "boom"))
    made = plan(1, 2, [worker("idle"), crashing], idle=0)
    assert released(made) == {"crashing": False}


@pytest.mark.parametrize(
    ("since_s", "load", "expected"),
    [
        (1.0, 0.0, None),  # idle, but a router may just have sent something
        (2.0, 0.0, False),
        (10.0, 3.0, None),
        (10.0, None, None),  # unknown is busy
        (30.0, 3.0, True),
        (30.0, None, True),
        (30.0, 0.0, False),
    ],
)
def test_a_victim_is_released_when_it_is_idle_or_its_time_is_over(since_s, load, expected):
    made = plan(1, 2, [worker("a"), draining("b", since_s=since_s)], a=0, b=load)
    assert released(made) == ({} if expected is None else {"b": expected})
    assert made.replicas == (2 if expected is None else 1)


def test_the_choice_is_kept_while_it_drains():
    made = plan(1, 2, [worker("idle"), draining("busy", since_s=5)], idle=0, busy=9)
    assert made.mark == ()
    assert made.unmark == ()


def test_released_workers_go_one_by_one_without_waiting_for_the_others():
    workers = [worker("a"), draining("b", since_s=5), draining("c", since_s=5)]
    made = plan(1, 3, workers, a=1, b=0, c=4)
    assert released(made) == {"b": False}
    assert made.replicas == 2
    assert made.is_waiting


def test_growing_again_keeps_the_draining_worker():
    made = plan(2, 2, [worker("a"), draining("b", since_s=5)], b=3)
    assert names(made.unmark) == ["b"]


def test_growing_halfway_keeps_as_many_draining_workers_as_are_wanted():
    workers = [worker("a"), draining("b", since_s=5), draining("c", since_s=5), draining("d", since_s=5)]
    made = plan(3, 4, workers, a=0, b=1, c=2, d=3)
    assert names(made.unmark) == ["c", "d"]


def test_released_workers_stay_marked_until_they_are_deleted():
    """Unmarked too early, the ReplicaSet controller would take other workers in their place."""
    gone = draining("b", since_s=9, is_released=True)
    made = plan(1, 1, [worker("a"), gone])
    assert made.unmark == ()


def test_a_released_worker_leaves_rather_than_one_that_is_only_marked():
    """Kept in its place, the marked one would be deleted by the ReplicaSet controller before it has drained."""
    gone = draining("gone", since_s=9, is_released=True, created_at=NOW - timedelta(hours=2))
    marked = draining("marked", since_s=3, created_at=NOW - timedelta(minutes=1))
    assert names(plan(2, 2, [worker("a"), gone, marked], gone=4, marked=0).unmark) == ["marked"]


def test_a_further_step_down_does_not_count_workers_that_are_about_to_be_deleted():
    workers = [worker("a"), draining("b", since_s=9, is_released=True), draining("c", since_s=5)]
    made = plan(1, 2, workers, a=0, c=4)
    assert released(made) == {}
    assert made.replicas == 2


def test_what_does_not_exist_goes_first():
    """The Deployment asks for four, a quota allows two: lowering to two costs nobody anything."""
    made = plan(2, 4, [worker("a"), worker("b")], a=9, b=9)
    assert made.mark == ()
    assert made.replicas == 2


def test_a_worker_that_somebody_else_labelled_is_left_as_it_is():
    theirs = worker("theirs", is_labelled_draining=True)
    assert plan(2, 2, [worker("a"), theirs]) == DrainPlan((), (), (), 2)


def test_scaling_to_zero_drains_every_worker():
    made = plan(0, 2, [worker("a"), worker("b")], a=1, b=2)
    assert names(made.mark) == ["a", "b"]
    assert made.replicas == 2


class Pool:
    """Workers, a Deployment and a ReplicaSet controller, in steps of a second."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.loads: dict[str, float | None] = {}
        self.replicas: int | None = None
        self.second = 0
        self.made = 0
        self.deleted: list[tuple[Worker, float | None]] = []

    def control(self, wanted: int) -> None:
        """One look of the operator."""
        now = NOW + timedelta(seconds=self.second)
        made = plan_drain(
            wanted=wanted, current=self.replicas, workers=self.workers, loads=self.loads, times=TIMES, now=now
        )
        change = {
            one.name: {"drain_started_at": None, "is_labelled_draining": False, "is_released": False}
            for one in made.unmark
        }
        change |= {one.name: {"drain_started_at": now, "is_labelled_draining": True} for one in made.mark}
        for one in made.release:
            started = one.worker.drain_started_at or now
            change[one.worker.name] = {"drain_started_at": started, "is_labelled_draining": True, "is_released": True}
        self.workers = [replace(one, **change.get(one.name, {})) for one in self.workers]
        self.replicas = made.replicas

    def replicate(self) -> None:
        """The ReplicaSet controller: creates, or deletes in its documented order."""
        assert self.replicas is not None
        while len(self.workers) < self.replicas:
            self.made += 1
            name = f"w{self.made}"
            created = NOW + timedelta(seconds=self.second)
            self.workers.append(worker(name, uid=name, created_at=created, is_ready=False, pod_ip=None))
        surplus = len(self.workers) - self.replicas
        order = sorted(self.workers, key=self.deletion_rank)
        for one in order[:surplus] if surplus > 0 else []:
            self.workers.remove(one)
            self.deleted.append((one, self.loads.get(one.name)))

    @staticmethod
    def deletion_rank(one: Worker) -> tuple[bool, bool, int, float]:
        cost = -1_000_000 if one.is_released else -1000 if one.drain_started_at else 0
        return one.pod_ip is not None, one.is_ready, cost, -one.created_at.timestamp()

    def start(self) -> None:
        """Workers become ready."""
        self.workers = [replace(one, is_ready=True, pod_ip="10.0.0.1") for one in self.workers]


@settings(max_examples=60, deadline=None)
@given(
    wishes=st.lists(st.integers(min_value=0, max_value=5), min_size=1, max_size=25),
    data=st.data(),
)
def test_only_released_workers_are_ever_deleted_and_the_wish_is_reached(wishes, data):
    """Whatever is wished when, and however slowly the ReplicaSet controller follows.

    No serving worker is deleted that was not chosen, drained and released; and once wishes stop changing, the pool has the
    wanted size and nothing is marked.
    """
    pool = Pool()
    load = st.one_of(st.none(), st.integers(min_value=0, max_value=3).map(float))
    for wanted in wishes:
        pool.second += data.draw(st.integers(min_value=1, max_value=12))
        pool.loads = {
            one.name: 0.0 if one.is_labelled_draining and data.draw(st.booleans()) else data.draw(load)
            for one in pool.workers
        }
        pool.control(wanted)
        if data.draw(st.booleans()):
            pool.replicate()
        if data.draw(st.booleans()):
            pool.start()
    for _ in range(2 * int(TIMES.timeout_s)):
        pool.second += 1
        pool.loads = {one.name: None for one in pool.workers}
        pool.control(wishes[-1])
        pool.replicate()
        pool.start()
    assert pool.replicas == wishes[-1] == len(pool.workers)
    assert not [one for one in pool.workers if one.drain_started_at or one.is_released]
    assert all(one.is_released for one, _ in pool.deleted if one.is_ready)
