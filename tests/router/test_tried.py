"""Requests that failed on every worker there is: when they are given to the same one again."""

import asyncio
import time
from contextlib import ExitStack
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_router.errors import FailureReason, WorkerFailure
from forebay_router.health.breaker import RESTS, Cause, Condition, Rest
from forebay_router.judging import ENGINE_DEAD
from forebay_router.table import WorkerState
from forebay_router.tried import DOWN_MAX, Tried
from tests.router.harness import Running, ask, chat, routed, routed_pairs, running, until
from tests.router.scripted import ScriptedWorker, completion, hello, started, workers
from tests.router.test_failures import dropping
from tests.router.test_placing import HELD_S, KEY, PARSED, place_of, split

UNNOTICED = ("--probe-interval", "1h", "--hold-timeout", "60s")
"""Nobody but requests finds out that a worker is away, and a request that waits in vain outlasts any test."""
CONNECT_REST_S = RESTS[Cause.UNREACHABLE].first_s
ENDED_REST_S = RESTS[Cause.FAILING].first_s


@pytest.fixture
def short_rest(monkeypatch):
    """A worker whose connection ended is asked again soon."""
    monkeypatch.setitem(RESTS, Cause.FAILING, Rest(0.1, 0.2))


class FailsAtFirst:
    """A script that fails so many times, then answers."""

    def __init__(self, fails, times: int = 1) -> None:
        self.fails = fails
        self.times = times

    async def __call__(self, asked, wire) -> None:
        self.times -= 1
        await (self.fails if self.times >= 0 else hello)(asked, wire)


async def reset(_asked, wire):
    wire.reset()


async def break_within(_asked, wire):
    await wire.head(200, {"Content-Type": "application/json", "Content-Length": "1000"}, chunked=False)
    await wire.raw(b'{"id":')
    wire.reset()


async def silent(_asked, _wire):
    await asyncio.sleep(60)


def retried(router: Running) -> dict[str, int]:
    return {reason.value: count for reason, count in router.stats.retries.items() if count}


def become(router: Running, uid: str, state: WorkerState) -> None:
    """What the watch of a pod tells."""
    router.table.put_worker(replace(router.table.workers[uid].spec, state=state), time.monotonic())


def note(tried: Tried, uid: str, reason: FailureReason, *, lost: bool, now_s: float) -> None:
    """A failure of what was sent at that moment."""
    tried.note(uid, WorkerFailure(reason, "no"), lost=lost, sent_s=now_s, now_s=now_s)


# -- the rule ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "lost", "rest_s"),
    [
        (FailureReason.CONNECT, False, CONNECT_REST_S),
        (FailureReason.RESET, True, ENDED_REST_S),
        (FailureReason.CUT_OFF, True, ENDED_REST_S),
        (FailureReason.CUT_OFF, False, inf),
        (FailureReason.WORKER_ERROR, False, inf),
        (FailureReason.ABORTED, False, inf),
        (FailureReason.BAD_ANSWER, False, inf),
        (FailureReason.FROZEN, False, inf),
        (FailureReason.FIRST_BYTE_TIMEOUT, False, inf),
        (FailureReason.FIRST_BYTE_TIMEOUT, True, inf),
    ],
)
def test_only_what_was_the_connections_fault_is_asked_again_by_time_alone(reason, lost, rest_s):
    """A connection kept from an earlier request may have ended before one that is silent then was made."""
    tried = Tried(HELD_S)
    note(tried, "a", reason, lost=lost, now_s=10.0)
    assert tried.again_s(10.0) == rest_s
    assert tried.excluded({}, 10.0 + min(rest_s, 1e6) - 0.01) == {"a"}
    assert tried.excluded({}, 10.0 + min(rest_s, 1e6)) == (set() if rest_s < inf else {"a"})


@pytest.mark.parametrize("reason", list(FailureReason))
def test_worker_that_was_away_since_is_asked_again_whatever_it_failed_with(reason):
    tried = Tried(HELD_S)
    note(tried, "a", reason, lost=True, now_s=10.0)
    assert tried.excluded({"a": 9.9}, 10.1) == {"a"}, "it was away before"
    assert tried.excluded({"a": -inf}, 10.1) == {"a"}
    assert tried.excluded({"a": 10.05}, 10.1) == set()


def test_next_look_is_when_the_next_one_has_rested_and_none_that_has_calls_for_one():
    """One that has rested may be left alone for everybody, longer: looking at it all the time would be no use."""
    tried = Tried(HELD_S)
    note(tried, "refused", FailureReason.CONNECT, lost=False, now_s=10.0)
    note(tried, "ended", FailureReason.RESET, lost=True, now_s=10.0)
    note(tried, "silent", FailureReason.FIRST_BYTE_TIMEOUT, lost=False, now_s=10.0)
    assert tried.again_s(10.0) == CONNECT_REST_S
    assert tried.again_s(10.0 + CONNECT_REST_S) == ENDED_REST_S - CONNECT_REST_S
    assert tried.again_s(10.0 + ENDED_REST_S) == inf


FAILURES = st.tuples(st.sampled_from("abc"), st.sampled_from(FailureReason), st.booleans(), st.floats(0, 10))


@given(st.lists(FAILURES, max_size=30), st.sampled_from([0.0, 5.0, inf]))
def test_every_failure_counts_but_of_connections_that_could_not_be_made(failures, hold_s):
    """Those do not move the time from which the wait is counted, so they cannot go on for ever."""
    tried, now_s = Tried(hold_s), 0.0
    for uid, reason, lost, later_s in failures:
        now_s += later_s
        before, known = (tried.attempts, tried.since_s), uid in tried.failed
        first = not tried.failed
        note(tried, uid, reason, lost=lost, now_s=now_s)
        if lost or reason is not FailureReason.CONNECT:
            assert (tried.attempts, tried.since_s) == (before[0] + 1, now_s)
        else:
            assert tried.since_s == (now_s if first else before[1])
            assert tried.attempts == before[0] + (not known and now_s >= tried.since_s + hold_s)
        assert uid in tried.excluded({}, now_s)
        assert tried.excluded({}, now_s) <= tried.workers


@pytest.mark.parametrize(
    ("reason", "lost", "died", "down"),
    [
        (FailureReason.RESET, True, False, True),
        (FailureReason.CUT_OFF, True, False, True),
        (FailureReason.CUT_OFF, False, False, False),
        (FailureReason.WORKER_ERROR, False, True, True),
        (FailureReason.WORKER_ERROR, False, False, False),
        (FailureReason.FIRST_BYTE_TIMEOUT, False, False, True),
        (FailureReason.FIRST_BYTE_TIMEOUT, True, False, True),
        (FailureReason.FROZEN, False, False, True),
        (FailureReason.CONNECT, False, False, False),
        (FailureReason.ABORTED, False, False, False),
        (FailureReason.BAD_ANSWER, False, False, False),
    ],
)
def test_workers_that_may_have_gone_down_under_a_request(reason, lost, died, down):
    tried = Tried(HELD_S)
    tried.note("a", WorkerFailure(reason, "no", died=died), lost=lost, sent_s=10.0, now_s=10.0)
    assert tried.down == down


def test_worker_that_came_back_before_its_failure_was_seen_is_asked_again():
    """It was sent the request at 10, was another process from 12 on, and the time limit of the old one's answer ended at 20."""
    tried = Tried(HELD_S)
    tried.note("a", WorkerFailure(FailureReason.FIRST_BYTE_TIMEOUT, "no"), lost=False, sent_s=10.0, now_s=20.0)
    assert tried.excluded({"a": 9.0}, 20.1) == {"a"}
    assert tried.excluded({"a": 12.0}, 20.1) == set()


def test_other_worker_is_preferred_however_well_rested_those_are_that_failed():
    tried = Tried(HELD_S)
    placing = split("d1", "d2", "d3")
    for uid in ("d1", "d2"):
        note(tried, uid, FailureReason.CONNECT, lost=False, now_s=time.monotonic() - 100)
    for _ in range(10):
        place = place_of(placing, tried)
        assert place is not None
        assert place.lease.worker.spec.uid == "d3"
        place.release()
    placing.table.drop_worker("d3")
    again = place_of(placing, tried)
    assert again is not None
    again.release()
    note(tried, "d1", FailureReason.RESET, lost=True, now_s=time.monotonic())
    again = place_of(placing, tried)
    assert again is not None
    assert again.lease.worker.spec.uid == "d2", "the other has not rested yet"
    again.release()


def test_request_that_was_held_for_as_long_as_it_may_is_given_to_none_that_failed_on_it():
    """Counted from the last attempt that was one, however well rested they are."""
    placing = split("d1", "d2")
    for since_s, possible in ((HELD_S - 60, True), (HELD_S + 1, False)):
        tried = Tried(HELD_S)
        for uid, ago_s, sent in (("d1", 2 * HELD_S, False), ("d2", since_s, True), ("d1", 1.0, False)):
            reason = FailureReason.RESET if sent else FailureReason.CONNECT
            note(tried, uid, reason, lost=sent, now_s=time.monotonic() - ago_s)
        assert not tried.excluded({}, time.monotonic())
        assert placing.possible(placing.table.services[KEY], PARSED, tried) is possible
        place = place_of(placing, tried)
        assert (place is not None) is possible
        if place is not None:
            place.release()


def test_prefill_worker_that_failed_is_left_out_while_a_decode_worker_computes_prompts():
    placing, tried = split("p1", "d1"), Tried(HELD_S)
    note(tried, "p1", FailureReason.CONNECT, lost=False, now_s=time.monotonic() - 100)
    place = place_of(placing, tried)
    assert place is not None
    assert place.prefill is None
    place.release()


# -- before connections -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_rest")
@pytest.mark.parametrize(("fails", "reason"), [(reset, "reset"), (break_within, "cut_off")])
async def test_only_worker_whose_connection_broke_is_asked_again(fails, reason):
    async with workers(FailsAtFirst(fails)) as [worker], routed(worker, flags=UNNOTICED) as router:
        reply = await ask(router, chat())
        assert (reply.status, reply.json) == (200, completion("hello"))
        assert len(worker.asked) == 2
        assert retried(router) == {reason: 1}
        assert router.verdicts() == {"good": 1, "bad": 0, "abandoned": 0}


async def test_only_worker_that_refuses_connections_is_asked_again_until_it_accepts():
    """More often than there are attempts, since nothing is sent; by one request at a time, and rarer each time."""
    flags = (*UNNOTICED, "--attempts", "2")
    async with workers(hello) as [worker], routed(worker, flags=flags) as router:
        (uid,) = router.table.workers
        health = router.table.workers[uid].health
        await worker.stop()
        asking = [asyncio.create_task(ask(router, chat(stream=True))) for _ in range(10)]
        await until(lambda: router.stats.pending == 10 and health.ejections >= 3, "two more tries")
        assert router.stats.retries["connect"] <= 10 + health.ejections - 1
        await worker.start()
        replies = await asyncio.gather(*asking)
        assert [(reply.status, reply.text()) for reply in replies] == [(200, "hello")] * 10
        assert list(router.table.workers) == [uid]


async def test_connections_that_are_refused_do_not_make_the_wait_longer():
    flags = ("--probe-interval", "1h", "--hold-timeout", "1s")
    async with workers(hello) as [worker], routed(worker, flags=flags) as router:
        await worker.stop()
        reply = await ask(router, chat())
        assert (reply.status, reply.json["error"]["code"]) == (503, "no_ready_worker")
        assert 1 <= router.stats.retries["connect"] <= 3, "at 0, 0.25 and 0.75 s, and not at 1.75 s any more"
        assert router.verdicts() == {"good": 0, "bad": 1, "abandoned": 0}


async def test_workers_that_let_connections_wait_get_no_request_when_its_time_is_over(monkeypatch):
    """While one is waited for, the rest of the other ends: the request goes to and fro and never stands in the queue."""
    monkeypatch.setitem(RESTS, Cause.UNREACHABLE, Rest(0.05, 0.1))
    flags = ("--probe-interval", "1h", "--hold-timeout", "500ms", "--connect-timeout", "300ms")
    async with workers(hello, hello) as made, routed(*made, flags=flags) as router:
        for worker in made:
            await worker.stop()
        with dropping(made[0].port), dropping(made[1].port):
            reply = await ask(router, chat())
        assert (reply.status, reply.json["error"]["code"]) == (503, "no_ready_worker")
        assert 2 <= router.stats.retries["connect"] <= 4, "as many as begin within 0.5 s"


async def test_workers_that_all_refuse_connections_are_no_attempts():
    """More of them than attempts: none has anything of the request, so it waits as it would for one or two."""
    flags = (*UNNOTICED, "--attempts", "2")
    async with workers(hello, hello, hello, hello) as made, routed(*made, flags=flags) as router:
        for worker in made:
            await worker.stop()
        asking = asyncio.create_task(ask(router, chat()))
        await until(lambda: router.stats.retries["connect"] >= 6, "each was tried, and some again")
        await made[2].start()
        assert (await asking).status == 200
        assert router.verdicts() == {"good": 1, "bad": 0, "abandoned": 0}


async def test_workers_without_number_that_let_connections_wait_are_not_all_waited_for():
    """Each costs its connection's time. After the hold time each of them is an attempt."""
    flags = ("--probe-interval", "1h", "--hold-timeout", "500ms", "--connect-timeout", "300ms", "--attempts", "2")
    async with workers(*[hello] * 8) as made, routed(*made, flags=flags) as router:
        for worker in made:
            await worker.stop()
        with ExitStack() as ports:
            for worker in made:
                ports.enter_context(dropping(worker.port))
            reply = await ask(router, chat())
        assert reply.status in {502, 503}
        assert sum(router.stats.retries.values()) <= 4, "at 0.3 and 0.6 s, then two attempts"


@pytest.mark.parametrize("fails", [reset, silent])
async def test_worker_that_comes_back_under_the_same_uid_is_the_next(fails, monkeypatch):
    """A container that is restarted leaves its pod, and the pod's uid, what they were. Its rest alone would take an hour."""
    monkeypatch.setitem(RESTS, Cause.FAILING, Rest(3600, 3600))
    flags = (*UNNOTICED, "--first-byte-timeout", "300ms")
    async with workers(FailsAtFirst(fails)) as [worker], routed(worker, flags=flags) as router:
        (uid,) = router.table.workers
        asking = asyncio.create_task(ask(router, chat(stream=True)))
        await until(lambda: router.stats.pending == 1, "it has failed, and waits")
        become(router, uid, WorkerState.NOT_READY)
        become(router, uid, WorkerState.READY)
        reply = await asking
        assert (reply.status, reply.text()) == (200, "hello")
        assert len(worker.asked) == 2


async def test_worker_that_comes_back_is_tried_at_once_however_long_its_rest():
    async with workers(hello) as [worker], routed(worker, flags=UNNOTICED) as router:
        (uid,) = router.table.workers
        health = router.table.workers[uid].health
        await worker.stop()
        asking = asyncio.create_task(ask(router, chat()))
        await until(lambda: router.stats.pending == 1, "it has failed, and waits")
        become(router, uid, WorkerState.NOT_READY)
        health.until_s = time.monotonic() + 3600
        await worker.start()
        become(router, uid, WorkerState.READY)
        assert health.condition is not Condition.EJECTED, "the waiting request is under way"
        assert (await asking).status == 200


async def test_worker_that_fell_silent_gets_the_request_no_more_though_it_serves_others():
    flags = ("--probe-interval", "1h", "--hold-timeout", "300ms", "--first-byte-timeout", "300ms")
    async with workers(FailsAtFirst(silent)) as [worker], routed(worker, flags=flags) as router:
        asking = asyncio.create_task(ask(router, chat(stream=True)))
        await until(lambda: worker.asked, "it has been sent")
        assert (await ask(router, chat())).status == 200
        reply = await asking
        assert (reply.status, reply.json["error"]["code"]) == (503, "no_ready_worker")
        assert len(worker.asked) == 2


async def test_request_waits_on_when_the_worker_that_failed_on_it_is_deleted():
    flags = (*UNNOTICED, "--first-byte-timeout", "300ms")
    async with workers(silent, hello) as made, routed(*made, flags=flags) as router:
        first, second = router.table.workers
        become(router, second, WorkerState.NOT_READY)
        asking = asyncio.create_task(ask(router, chat(stream=True)))
        await until(lambda: router.stats.pending == 1, "it has failed, and waits")
        router.table.drop_worker(first)
        become(router, second, WorkerState.READY)
        reply = await asking
        assert (reply.status, reply.text()) == (200, "hello")


@pytest.mark.usefixtures("short_rest")
async def test_request_that_breaks_its_worker_each_time_is_given_up():
    async with workers(reset) as [worker], routed(worker, flags=UNNOTICED) as router:
        reply = await ask(router, chat())
        assert (reply.status, reply.json["error"]["code"]) == (502, "reset")
        assert len(worker.asked) == DOWN_MAX


async def hang_up(_asked, wire):
    """What an engine says whose core has died; its process follows."""
    await wire.json({"error": {"message": ENGINE_DEAD + ". See stack trace.", "code": 500}}, status=500)


async def hang_up_streaming(_asked, wire):
    await wire.events_head()
    await wire.event({"error": {"message": ENGINE_DEAD + ". See stack trace.", "code": 500}})
    await wire.event("[DONE]")
    await wire.end_chunks()


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        (reset, 502, "reset"),
        (silent, 504, "first_byte_timeout"),
        (hang_up, 502, "worker_error"),
        (hang_up_streaming, 502, "worker_error"),
    ],
)
async def test_request_that_takes_workers_down_takes_no_third(script, status, code):
    """Whatever a worker that goes down looks like from here: fewer than the attempts."""
    flags = (*UNNOTICED, "--attempts", "5", "--first-byte-timeout", "300ms")
    async with workers(*[script] * 4) as made, routed(*made, flags=flags) as router:
        reply = await ask(router, chat(stream=True))
        assert (reply.status, reply.json["error"]["code"]) == (status, code)
        assert sum(len(worker.asked) for worker in made) == DOWN_MAX


async def test_request_that_hangs_the_only_worker_each_time_is_given_up():
    """The engine hangs, its container is begun anew, and the router sees only silence and that it was away."""
    flags = (*UNNOTICED, "--attempts", "5", "--first-byte-timeout", "300ms")
    async with workers(silent) as [worker], routed(worker, flags=flags) as router:
        (uid,) = router.table.workers
        asking = asyncio.create_task(ask(router, chat(stream=True)))
        await until(lambda: router.stats.pending == 1, "it has failed, and waits")
        become(router, uid, WorkerState.NOT_READY)
        become(router, uid, WorkerState.READY)
        reply = await asking
        assert (reply.status, reply.json["error"]["code"]) == (504, "first_byte_timeout")
        assert len(worker.asked) == DOWN_MAX


async def leave(_asked, wire):
    """What an engine says that ends in order, to a new request."""
    message = "cannot schedule new futures after shutdown"
    await wire.json({"error": {"message": message, "code": 500}}, status=500)


async def test_only_worker_that_is_about_to_end_is_waited_for():
    """It answers so for as long as its last requests take, /health is green meanwhile, and then it is begun anew."""
    async with workers(leave) as [worker], routed(worker, flags=UNNOTICED) as router:
        (uid,) = router.table.workers
        asking = asyncio.create_task(ask(router, chat()))
        await until(lambda: router.stats.pending == 1, "it has failed, and waits")
        become(router, uid, WorkerState.NOT_READY)
        worker.script = hello
        become(router, uid, WorkerState.READY)
        assert (await asking).status == 200
        assert len(worker.asked) == 2


@pytest.mark.usefixtures("short_rest")
@pytest.mark.parametrize("fails", [hang_up, hang_up_streaming])
async def test_only_worker_whose_engine_died_is_asked_again_when_it_is_back(fails):
    """That answer is no better for the client than a connection that ended."""
    async with workers(FailsAtFirst(fails)) as [worker], routed(worker, flags=UNNOTICED) as router:
        reply = await ask(router, chat(stream=True))
        assert (reply.status, reply.text()) == (200, "hello")


@pytest.mark.usefixtures("short_rest")
async def test_only_decode_worker_that_broke_gets_the_request_with_a_fresh_transfer():
    """The parameters of a transfer are used once: the prompt is computed again."""
    legs, handed_over = 0, []

    async def prefill(_asked, wire):
        nonlocal legs
        legs += 1
        await wire.json(completion("", kv_transfer_params={"do_remote_prefill": True, "remote_block_ids": [legs]}))

    decode = FailsAtFirst(reset)

    async def remember(asked, wire):
        handed_over.append(asked.json["kv_transfer_params"]["remote_block_ids"])
        await decode(asked, wire)

    async with workers(prefill, remember) as [first, second], routed_pairs([first], [second], UNNOTICED) as router:
        assert (await ask(router, chat())).status == 200
        assert handed_over == [[1], [2]]


async def test_workers_whose_rest_ends_at_once_get_a_waiting_request_each():
    """A trial changes who is offered, which makes the router look again, within the look that is placing this very request."""
    gate = asyncio.Event()

    async def script(asked, wire):
        await gate.wait()
        await hello(asked, wire)

    async with workers(script, script) as made, routed(*made, flags=UNNOTICED) as router:
        found = list(router.table.workers.values())
        for worker in found:
            worker.health.eject(Cause.FAILING, time.monotonic() + 3600)
            router.table.regroup(router.service, time.monotonic())
        asking = [asyncio.create_task(ask(router, chat())) for _ in range(3)]
        await until(lambda: router.stats.pending == 3, "they wait")
        for worker in found:
            worker.health.until_s = time.monotonic()
        await until(lambda: all(worker.asked for worker in made), "each has its trial")
        assert [worker.load.requests for worker in found] == [1, 1]
        assert router.stats.pending == 1
        gate.set()
        assert [reply.status for reply in await asyncio.gather(*asking)] == [200] * 3


async def test_long_answer_that_tries_the_only_worker_keeps_nobody_waiting():
    """What was in doubt is whether it can be reached. A plain answer says that when it is complete, its connection before."""
    gate = asyncio.Event()

    async def script(asked, wire):
        if asked.json.get("seed") == 1:
            await gate.wait()
        await hello(asked, wire)

    worker = ScriptedWorker(script)
    async with started(worker), running("--workers", worker.url, *UNNOTICED) as router:
        await worker.stop()
        long = asyncio.create_task(ask(router, chat(seed=1)))
        await until(lambda: router.stats.pending == 1, "it has failed, and waits")
        await worker.start()
        await until(lambda: worker.asked, "it tries the worker")
        assert (await ask(router, chat(seed=2))).status == 200
        gate.set()
        assert (await long).status == 200


async def test_trial_of_the_only_worker_makes_a_connection_though_one_was_kept():
    """Or it would tell whether the worker can be reached only with its answer, which may take minutes."""
    gate = asyncio.Event()

    async def script(asked, wire):
        if asked.json.get("seed") == 1:
            await gate.wait()
        await hello(asked, wire)

    async with workers(script) as [worker], routed(worker, flags=UNNOTICED) as router:
        (known,) = router.table.workers.values()
        assert (await ask(router, chat(seed=2))).status == 200
        assert known.peer.idle, "kept"
        router.process.router.tools.placing.guard.failed(known, FailureReason.CONNECT, "full", time.monotonic())
        long = asyncio.create_task(ask(router, chat(seed=1)))
        await until(lambda: len(worker.asked) == 2, "it tries the worker")
        assert (await ask(router, chat(seed=2))).status == 200
        gate.set()
        assert (await long).status == 200
