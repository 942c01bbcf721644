"""Places for requests, without connections: what becomes of workers that are tried."""

import asyncio
import time
from dataclasses import replace
from random import Random

import pytest

from forebay_api.modelservice import Role
from forebay_api.objective import Outcome
from forebay_router.accounting import Record
from forebay_router.endpoints import ENDPOINTS
from forebay_router.errors import FailureReason, RequestRefused, WorkerFailure
from forebay_router.health.breaker import Condition
from forebay_router.index.approximate import ApproximateIndex
from forebay_router.index.prefix_index import PrefixIndex
from forebay_router.parsing import ParsedRequest, parse_request
from forebay_router.place import Place
from forebay_router.placing import Placing
from forebay_router.reading import Received
from forebay_router.table import ServiceKey, ServiceSpec, Worker, WorkerSpec, WorkerState, WorkerTable, WorkerUid
from forebay_router.tried import Tried
from forebay_router.usage import Usage
from tests.router.harness import until
from tests.router.test_table import OBJECTIVE, TIMEOUTS
from tests.support.bounds import NEVER_S

KEY = ServiceKey("n", "s")
HELD_S = 3600.0
"""A request waits for a worker."""
PARSED = parse_request(ENDPOINTS[b"/v1/completions"], {}, b'{"model":"m","prompt":"hi","stream":true}')


def split(*uids: str) -> Placing:
    """Workers with p are for prefill, those with d decode."""
    placing = Placing(WorkerTable(), PrefixIndex(ApproximateIndex(100)), Random(1), 10, 1.0, 10_000)
    pools = (("prefill", Role.PREFILL), ("decode", Role.DECODE))
    placing.table.put_service(ServiceSpec(KEY, ("m",), OBJECTIVE, replace(TIMEOUTS, hold_s=HELD_S), 0, pools))
    for uid in uids:
        name, role = pools[uid.startswith("d")]
        spec = WorkerSpec(WorkerUid(uid), uid, "10.0.0.1", 8000, KEY, name, role, WorkerState.READY)
        placing.table.put_worker(spec, time.monotonic())
    return placing


def put_to_trial(placing: Placing, uid: str) -> None:
    """The next request that a worker gets will be its trial."""
    worker = placing.table.workers[uid]
    placing.guard.failed(worker, FailureReason.CONNECT, "refused", time.monotonic())
    placing.guard.sweep(worker.health.until_s)


def place_of(placing: Placing, tried: Tried | None = None, parsed: ParsedRequest = PARSED) -> Place | None:
    received = Received(
        b"POST", b"/v1/completions", [], {}, http_10=False, keep_alive=True, received_s=time.monotonic()
    )
    return placing.place_now(placing.table.services[KEY], parsed, received, tried)


def note(tried: Tried, uid: str, reason: FailureReason) -> None:
    now_s = time.monotonic()
    tried.note(uid, WorkerFailure(reason, "no"), lost=False, sent_s=now_s, now_s=now_s)


@pytest.mark.parametrize("reason", [FailureReason.CONNECT, FailureReason.WORKER_ERROR, FailureReason.DEADLINE])
def test_trial_of_a_worker_that_was_never_asked_is_made_again(reason):
    """The prefill leg fails, so nothing is learnt of the decode worker that was to come after it."""
    placing = split("p1", "p2", "d1")
    decoder = placing.table.workers["d1"]
    put_to_trial(placing, "d1")
    place = place_of(placing)
    assert place is not None
    assert place.prefill is not None
    assert decoder.health.condition is Condition.TRIAL
    prefiller = place.prefill.worker
    place.broke(prefiller, WorkerFailure(reason, "no"))
    place.release()
    assert decoder.health.condition is Condition.PROBING
    tried = Tried(HELD_S)
    note(tried, prefiller.spec.uid, reason)
    again = place_of(placing, tried)
    assert again is not None
    again.prefilled(time.monotonic())
    again.answered(decoder)
    again.release()
    assert decoder.health.sound


def test_request_counts_as_one_arrival_however_often_it_is_placed():
    placing, tried = split("d1", "d2"), Tried(HELD_S)
    body = b'{"model":"m","prompt":"%b"}' % (b"x" * 4000)
    parsed = parse_request(ENDPOINTS[b"/v1/completions"], {}, body)
    first = place_of(placing, parsed=parsed)
    assert first is not None
    first.broke(first.lease.worker, WorkerFailure(FailureReason.CONNECT, "refused"))
    first.release()
    note(tried, first.lease.worker.spec.uid, FailureReason.CONNECT)
    again = place_of(placing, tried, parsed)
    assert again is not None
    again.release()
    (known,) = placing.index.services.values()
    assert len(known.common.recent) == 1


def test_place_that_is_given_back_unused_ends_both_trials():
    """Its client left before it could be told."""
    placing = split("p1", "d1")
    for uid in ("p1", "d1"):
        put_to_trial(placing, uid)
    place = place_of(placing)
    assert place is not None
    place.release()
    assert [one.health.condition for one in placing.table.workers.values()] == [Condition.PROBING] * 2
    assert not placing.table.leases


def test_both_workers_of_a_pair_are_on_trial_before_those_that_wait_are_told():
    """Or one of them, tried with the first, would be offered beside another worker."""
    placing = split("p1", "d1")
    for uid in ("p1", "d1"):
        put_to_trial(placing, uid)
    offered: list[set[str]] = []
    placing.table.on_change.append(lambda service: offered.append(set(service.snapshot.by_uid)))
    place = place_of(placing)
    assert offered == [set()]
    assert place is not None
    place.release()


def test_older_request_does_not_end_a_trial():
    placing = split("p1", "d1")
    older = place_of(placing)
    put_to_trial(placing, "d1")
    newer = place_of(placing)
    assert older is not None
    assert newer is not None
    older.release()
    assert placing.table.workers["d1"].health.condition is Condition.TRIAL
    newer.broke(placing.table.workers["d1"], WorkerFailure(FailureReason.CONNECT, "refused"))
    newer.release()
    assert placing.table.workers["d1"].health.condition is Condition.EJECTED


UNDIVIDED = parse_request(ENDPOINTS[b"/v1/completions"], {}, b'{"model":"m","prompt":"hi","prompt_logprobs":1}')


def put_mixed(placing: Placing, uid: str = "m1") -> Worker:
    spec = WorkerSpec(WorkerUid(uid), uid, "10.0.0.2", 8000, KEY, "mixed", Role.MIXED, WorkerState.READY)
    placing.table.put_worker(spec, time.monotonic())
    return placing.table.workers[uid]


def test_what_cannot_be_split_goes_to_the_mixed_worker_beside_pairs():
    """C095: and never to a decode worker, however free that is."""
    placing = split("p1", "d1", "d2")
    mixed = put_mixed(placing)
    mixed.load.requests = 50
    for _ in range(10):
        place = place_of(placing, parsed=UNDIVIDED)
        assert place is not None
        assert place.lease.worker is mixed


@pytest.mark.parametrize("prefill_is_there", [True, False])
async def test_what_cannot_be_split_waits_for_a_mixed_worker_that_is_left_alone(prefill_is_there):
    """It is the worker's doing, not the client's. Nobody waits behind it, nor is it given to a decode worker that comes."""
    placing = split(*(("p1",) if prefill_is_there else ()), "d1")
    mixed = put_mixed(placing)
    placing.guard.failed(mixed, FailureReason.CONNECT, "refused", time.monotonic())
    assert place_of(placing, parsed=UNDIVIDED) is None
    received = Received(b"POST", b"/", [], {}, http_10=False, keep_alive=True, received_s=time.monotonic())
    service = placing.table.services[KEY]
    waiting = asyncio.create_task(placing.place(service, UNDIVIDED, received, None))
    await until(lambda: service.stats.pending == 1, "it waits")
    assert not placing.pending.waiting(service)
    other = place_of(placing)
    assert other is not None
    later = WorkerSpec(WorkerUid("d2"), "d2", "10.0.0.3", 8000, KEY, "decode", Role.DECODE, WorkerState.READY)
    placing.table.put_worker(later, time.monotonic())
    await asyncio.sleep(0)
    assert not waiting.done()
    placing.guard.sweep(mixed.health.until_s)
    assert (await waiting).lease.worker is mixed


async def test_what_cannot_be_split_steps_aside_when_the_mixed_worker_that_it_waits_for_goes():
    """Else all that pairs could take would stand behind it for as long as a first byte may take."""
    placing = split("p1", "d1")
    placing.table.worker_limit = 1
    mixed = put_mixed(placing)
    service = placing.table.services[KEY]
    received = Received(b"POST", b"/", [], {}, http_10=False, keep_alive=True, received_s=time.monotonic())
    running = place_of(placing, parsed=UNDIVIDED)
    assert running is not None
    waiting = asyncio.create_task(placing.place(service, UNDIVIDED, received, None))
    behind = asyncio.create_task(placing.place(service, PARSED, received, None))
    await until(lambda: service.stats.pending == 2, "they wait for room")
    placing.guard.failed(mixed, FailureReason.CONNECT, "refused", time.monotonic())
    await until(behind.done, "it has its turn")
    assert (await behind).prefill is not None
    running.release()
    assert not waiting.done()
    placing.guard.sweep(mixed.health.until_s)
    assert (await waiting).lease.worker is mixed


def test_what_cannot_be_split_goes_back_to_the_mixed_worker_that_failed_on_it_and_to_no_other():
    placing = split("p1", "d1")
    put_mixed(placing)
    service = placing.table.services[KEY]
    for ago_s, possible in ((0.0, False), (100.0, True)):
        tried, failed_s = Tried(HELD_S), time.monotonic() - ago_s
        failure = WorkerFailure(FailureReason.CONNECT, "refused")
        tried.note("m1", failure, lost=False, sent_s=failed_s, now_s=failed_s)
        assert placing.possible(service, UNDIVIDED, tried) is possible
        place = place_of(placing, tried, UNDIVIDED)
        assert (None if place is None else place.lease.worker.spec.uid) == ("m1" if possible else None)


async def test_what_cannot_be_split_is_held_no_longer_than_what_has_no_worker_at_all():
    """Though others are there, for whose room it might wait as long as a first byte may take."""
    placing = split("p1", "d1")
    placing.guard.failed(put_mixed(placing), FailureReason.CONNECT, "refused", time.monotonic())
    service = placing.table.services[KEY]
    service.spec = replace(service.spec, timeouts=replace(service.spec.timeouts, hold_s=0.05, first_byte_s=HELD_S))
    received = Received(b"POST", b"/", [], {}, http_10=False, keep_alive=True, received_s=time.monotonic())
    with pytest.raises(RequestRefused) as refused:
        async with asyncio.timeout(NEVER_S):
            await placing.place(service, UNDIVIDED, received, None)
    assert refused.value.reason is FailureReason.NO_WORKER


async def test_so_many_wait_for_a_mixed_worker_and_no_more():
    placing = split("p1", "d1")
    placing.guard.failed(put_mixed(placing), FailureReason.CONNECT, "refused", time.monotonic())
    service = placing.table.services[KEY]
    received = Received(b"POST", b"/", [], {}, http_10=False, keep_alive=True, received_s=time.monotonic())
    async with asyncio.TaskGroup() as tasks:
        waiting = [
            tasks.create_task(placing.place(service, UNDIVIDED, received, None)) for _ in range(placing.hold_limit)
        ]
        await until(lambda: service.stats.pending == placing.hold_limit, "they wait")
        with pytest.raises(RequestRefused) as refused:
            await placing.place(service, UNDIVIDED, received, None)
        assert refused.value.reason is FailureReason.QUEUE_FULL
        for one in waiting:
            one.cancel()


def test_trial_is_ended_by_its_own_request_only():
    """Two trials later, the first one's request leaves: a third request must not go to a worker that is being tried."""
    placing = split("d1")
    health = placing.table.workers["d1"].health
    put_to_trial(placing, "d1")
    first = place_of(placing)
    assert first is not None
    first.answered(placing.table.workers["d1"])
    put_to_trial(placing, "d1")
    second = place_of(placing)
    assert second is not None
    first.release()
    assert health.condition is Condition.TRIAL
    second.release()
    assert health.condition is Condition.PROBING


@pytest.mark.parametrize("reason", list(FailureReason))
def test_failure_of_what_was_sent_before_says_nothing_of_a_trial(reason):
    """The requests that waited in a worker when it hung fail one by one, long after; and of one that is back, no more."""
    placing = split("d1", "d2")
    worker = placing.table.workers["d1"]
    older = []
    while not older or older[-1].lease.worker is not worker:
        place = place_of(placing)
        assert place is not None
        older.append(place)
    put_to_trial(placing, "d1")
    placing.guard.try_out(worker)
    older[-1].broke(worker, WorkerFailure(reason, "no"))
    assert worker.health.condition is Condition.TRIAL
    placing.guard.answered(worker)
    older[-1].broke(worker, WorkerFailure(reason, "no"))
    assert worker.health.sound


def test_what_was_learnt_of_a_service_goes_with_it():
    """Names of services come and go for as long as the router runs. What still runs ends as ever."""
    placing = split("d1")
    body = b'{"model":"m","prompt":"%b"}' % (b"x" * 4000)
    place = place_of(placing, parsed=parse_request(ENDPOINTS[b"/v1/completions"], {b"x-session-id": b"one"}, body))
    assert place is not None
    assert list(placing.index.services) == ["n/s"]
    placing.table.drop_service(KEY)
    record = Record(time.monotonic())
    record.outcome, record.usage = Outcome.FINISHED, Usage(1000, 5, 0)
    placing.learn(place, record)
    place.release()
    assert (placing.index.services, placing.index.bounds) == ({}, {})
