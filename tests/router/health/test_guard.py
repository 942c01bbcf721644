"""Who is left alone, and how many at most."""

import time
from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from forebay_api.modelservice import Role
from forebay_router.errors import FailureReason
from forebay_router.health.breaker import FAILURES_IN_ROW, Cause, Condition
from forebay_router.health.guard import NOT_THE_WORKERS, Guard
from forebay_router.table import ServiceKey, WorkerState, WorkerTable
from tests.router.test_table import service, worker

KEY = ServiceKey("n", "s")


def guarded(*uids: str) -> Guard:
    table = WorkerTable()
    table.put_service(service())
    for uid in uids:
        table.put_worker(worker(uid), 0.0)
    return Guard(table)


def offered(guard: Guard) -> str:
    return "".join(sorted(one.uid for one in guard.table.services[KEY].snapshot.mixed))


def fail(guard: Guard, uid: str, times: int = FAILURES_IN_ROW, reason: FailureReason = FailureReason.RESET) -> None:
    for _ in range(times):
        guard.failed(guard.table.workers[uid], reason, "broken", inf)


def rested(guard: Guard, uid: str) -> float:
    return guard.table.workers[uid].health.until_s


@pytest.mark.parametrize(
    "reason",
    [
        FailureReason.RESET,
        FailureReason.WORKER_ERROR,
        FailureReason.ABORTED,
        FailureReason.CUT_OFF,
        FailureReason.FIRST_BYTE_TIMEOUT,
        FailureReason.IDLE_TIMEOUT,
        FailureReason.BAD_ANSWER,
    ],
)
def test_worker_that_fails_again_and_again_is_left_alone(reason):
    guard = guarded("a", "b")
    fail(guard, "a", FAILURES_IN_ROW - 1, reason)
    assert offered(guard) == "ab"
    fail(guard, "a", 1, reason)
    assert offered(guard) == "b"
    assert reason.value in guard.table.workers["a"].health.detail


@pytest.mark.parametrize("reason", sorted(NOT_THE_WORKERS))
def test_what_says_nothing_of_the_worker_does_not_count(reason):
    guard = guarded("a", "b")
    fail(guard, "a", 100, reason)
    assert offered(guard) == "ab"


def test_refused_connection_is_enough():
    guard = guarded("a", "b")
    fail(guard, "a", 1, FailureReason.CONNECT)
    assert offered(guard) == "b"
    guard.sweep(rested(guard, "a"))
    assert offered(guard) == "ab"


def test_success_between_failures_keeps_a_worker_in():
    guard = guarded("a", "b")
    for _ in range(4):
        fail(guard, "a", FAILURES_IN_ROW - 1)
        for _ in range(60):
            guard.table.workers["a"].health.succeeded()
    assert offered(guard) == "ab"


def test_request_that_breaks_every_worker_ejects_none():
    """What they all fail at is not one worker's fault."""
    guard = guarded("a", "b", "c", "d")
    for _ in range(50):
        for uid in "abcd":
            fail(guard, uid, 1, FailureReason.WORKER_ERROR)
    assert offered(guard) == "abcd"


def test_the_last_worker_is_never_left_alone():
    guard = guarded("a")
    fail(guard, "a", 100)
    assert offered(guard) == "a"
    assert guard.counts_of(guard.table.services[KEY], "pool").spared > 0
    assert not guard.freeze(guard.table.workers["a"], "it hangs")
    assert offered(guard) == "a"


def test_at_most_half_are_left_alone():
    guard = guarded("a", "b", "c", "d", "e")
    for uid in "abcde":
        guard.freeze(guard.table.workers[uid], "it hangs")
    assert offered(guard) == "cde"


def test_ejected_worker_comes_back_when_the_others_leave():
    guard = guarded("a", "b", "c")
    fail(guard, "a")
    assert offered(guard) == "bc"
    guard.table.put_worker(worker("b", state=WorkerState.DRAINING), 0.0)
    guard.sweep(0.0)
    assert offered(guard) == "c", "one of two may be out"
    guard.table.drop_worker("c")
    guard.sweep(0.0)
    assert offered(guard) == "a"
    assert guard.table.workers["a"].health.sound, "it has to take everything: one at a time would not do"


def test_ejected_worker_comes_back_when_the_others_cannot_be_reached():
    guard = guarded("a", "b")
    fail(guard, "a")
    fail(guard, "b", 1, FailureReason.CONNECT)
    assert offered(guard) == ""
    guard.sweep(0.0)
    assert offered(guard) == "a"


def test_one_request_tries_a_worker_whose_rest_is_over():
    guard = guarded("a", "b")
    fail(guard, "a")
    guard.sweep(rested(guard, "a"))
    assert offered(guard) == "ab"
    tried = guard.table.workers["a"]
    guard.try_out(tried)
    assert offered(guard) == "b", "no second one before the first is answered"
    guard.answered(tried)
    assert offered(guard) == "ab"
    assert tried.health.sound


@pytest.mark.parametrize("others", ["", "b"])
def test_accepted_connection_ends_the_trial_of_a_worker_beside_which_there_is_none(others):
    """Others would have to wait for the end of what may be a long answer. With another one there, they need not."""
    guard = guarded("a", *others)
    tried = guard.table.workers["a"]
    tried.peer.accepted_s = time.monotonic()
    fail(guard, "a", 1, FailureReason.CONNECT)
    guard.sweep(rested(guard, "a"))
    guard.try_out(tried)
    guard.sweep(rested(guard, "a"))
    assert offered(guard) == others, "it accepted one before it was left alone"
    tried.peer.accepted_s = rested(guard, "a") + 0.01
    guard.sweep(rested(guard, "a") + 0.1)
    assert offered(guard) == (others or "a")


@pytest.mark.parametrize("cause", [Cause.FAILING, Cause.FROZEN])
def test_accepted_connection_says_nothing_of_a_worker_that_was_reached_before(cause):
    guard = guarded("a")
    tried = guard.table.workers["a"]
    tried.health.eject(cause, 0.0)
    tried.health.probe()
    guard.try_out(tried)
    tried.peer.accepted_s = rested(guard, "a") + 0.01
    guard.sweep(rested(guard, "a") + 0.1)
    assert offered(guard) == ""


@pytest.mark.parametrize("cause", list(Cause))
def test_rest_of_a_worker_is_over_when_it_was_away(cause):
    """A frozen one is asked for a sign of life first."""
    guard = guarded("a")
    health = guard.table.workers["a"].health
    health.eject(cause, 10.0)
    assert not health.due(10.1)
    for state in (WorkerState.NOT_READY, WorkerState.READY):
        guard.table.put_worker(worker("a", state=state), 10.1)
    assert health.until_s == 10.1
    assert offered(guard) == ("" if cause is Cause.FROZEN else "a")


def test_worker_that_was_only_draining_rests_on():
    guard = guarded("a")
    health = guard.table.workers["a"].health
    health.eject(Cause.FAILING, 10.0)
    until_s = health.until_s
    for state in (WorkerState.DRAINING, WorkerState.READY):
        guard.table.put_worker(worker("a", state=state), 10.1)
    assert health.until_s == until_s


def test_failed_trial_means_a_longer_rest():
    guard = guarded("a", "b")
    fail(guard, "a")
    tried = guard.table.workers["a"]
    guard.sweep(rested(guard, "a"))
    guard.try_out(tried)
    fail(guard, "a", 1)
    assert offered(guard) == "b"
    assert tried.health.ejections == 2


def test_trial_whose_client_leaves_decides_nothing():
    guard = guarded("a", "b")
    fail(guard, "a")
    tried = guard.table.workers["a"]
    guard.sweep(rested(guard, "a"))
    guard.try_out(tried)
    guard.undecided(tried)
    assert offered(guard) == "ab"
    assert tried.health.condition is Condition.PROBING


def test_frozen_worker_waits_for_a_sign_of_life():
    """C064: it comes back only after a real success."""
    guard = guarded("a", "b")
    frozen = guard.table.workers["a"]
    assert guard.freeze(frozen, "it hangs")
    for second in range(0, 10_000, 100):
        guard.sweep(float(second) + rested(guard, "a"))
    assert offered(guard) == "b"
    guard.rest_on(frozen, 0.0)
    assert offered(guard) == "b"
    guard.revive(frozen)
    assert offered(guard) == "ab"
    guard.try_out(frozen)
    guard.answered(frozen)
    assert frozen.health.sound


def test_workers_of_one_role_do_not_stand_in_for_another():
    """C067: the only prefill worker stays, however many decode workers there are."""
    guard = guarded()
    for uid, role in (("p", Role.PREFILL), ("d", Role.DECODE), ("e", Role.DECODE)):
        guard.table.put_worker(_of_role(uid, role), 0.0)
    fail(guard, "p")
    fail(guard, "d")
    snapshot = guard.table.services[KEY].snapshot
    assert [one.uid for one in snapshot.prefill] == ["p"]
    assert [one.uid for one in snapshot.decode] == ["e"]


def _of_role(uid: str, role: Role):
    from dataclasses import replace

    return replace(worker(uid), role=role, pool=role.value)


class GuardMachine(RuleBasedStateMachine):
    """Whatever happens, enough workers are offered, and nobody is forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.guard = guarded("a", "b", "c", "d")
        self.now_s = 0.0

    @rule(uid=st.sampled_from("abcd"), reason=st.sampled_from(FailureReason), times=st.integers(1, 6))
    def fails(self, uid, reason, times):
        if uid in self.guard.table.workers:
            fail(self.guard, uid, times, reason)

    @rule(uid=st.sampled_from("abcd"))
    def freezes(self, uid):
        if uid in self.guard.table.workers:
            self.guard.freeze(self.guard.table.workers[uid], "it hangs")

    @rule(uid=st.sampled_from("abcd"), well=st.booleans())
    def is_tried(self, uid, well):
        one = self.guard.table.workers.get(uid)
        if one is not None and one.health.offered(self.now_s) and not one.health.sound:
            self.guard.try_out(one)
            if well:
                self.guard.answered(one)
                one.health.succeeded()
            else:
                self.guard.undecided(one)

    @rule(uid=st.sampled_from("abcd"), state=st.sampled_from(WorkerState))
    def changes(self, uid, state):
        self.guard.table.put_worker(worker(uid, state=state), self.now_s)

    @rule(uid=st.sampled_from("abcd"))
    def goes(self, uid):
        self.guard.table.drop_worker(uid)

    @rule(seconds=st.floats(0, 300))
    def time_passes(self, seconds):
        self.now_s += seconds

    @invariant()
    def enough_are_offered(self):
        self.guard.sweep(self.now_s)
        ready = [one for one in self.guard.table.workers.values() if one.spec.state is WorkerState.READY]
        reachable = [
            one
            for one in ready
            if one.health.condition is not Condition.EJECTED or one.health.cause is not Cause.UNREACHABLE
        ]
        out = [one for one in reachable if one.health.condition is Condition.EJECTED]
        assert len(out) <= len(ready) // 2
        if reachable:
            assert len(out) < len(reachable), "one that can be reached is left"
        offered_now = {one.uid for one in self.guard.table.services[KEY].snapshot.mixed}
        assert offered_now == {one.spec.uid for one in ready if one.health.offered(self.now_s)}


GuardMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestGuard = GuardMachine.TestCase


def test_shares_of_failures_compare_with_the_others():
    """A worker that fails a third of its requests is found, though never five in a row."""
    guard = guarded("a", "b", "c")
    for number in range(60):
        for uid in "abc":
            one = guard.table.workers[uid]
            if uid == "a" and number % 3 == 0:
                fail(guard, "a", 1)
            else:
                one.health.succeeded()
        if offered(guard) != "abc":
            break
    assert offered(guard) == "bc"
    assert number >= 20, "not before there is enough to tell"
    assert guard.table.workers["b"].health.ejections == 0
