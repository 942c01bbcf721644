"""Places for requests, without connections: what becomes of workers that are tried."""

import time
from dataclasses import replace
from random import Random

import pytest

from forebay_api.modelservice import Role
from forebay_api.objective import Outcome
from forebay_router.accounting import Record
from forebay_router.endpoints import ENDPOINTS
from forebay_router.errors import FailureReason, WorkerFailure
from forebay_router.health.breaker import Condition
from forebay_router.index.approximate import ApproximateIndex
from forebay_router.index.prefix_index import PrefixIndex
from forebay_router.parsing import ParsedRequest, parse_request
from forebay_router.placing import Place, Placing
from forebay_router.reading import Received
from forebay_router.table import ServiceKey, ServiceSpec, WorkerSpec, WorkerState, WorkerTable, WorkerUid
from forebay_router.tried import Tried
from forebay_router.usage import Usage
from tests.router.test_table import OBJECTIVE, TIMEOUTS

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
    placing.guard.failed(worker, FailureReason.CONNECT, "refused")
    placing.guard.sweep(worker.health.until_s)


def place_of(placing: Placing, tried: Tried | None = None, parsed: ParsedRequest = PARSED) -> Place | None:
    received = Received(
        b"POST", b"/v1/completions", [], {}, http_10=False, keep_alive=True, received_s=time.monotonic()
    )
    return placing.place_now(placing.table.services[KEY], parsed, received, tried)


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
    tried = Tried()
    tried.note(prefiller.spec.uid, reason, lost=False, now_s=time.monotonic())
    again = place_of(placing, tried)
    assert again is not None
    again.prefilled(time.monotonic())
    again.answered(decoder)
    again.release()
    assert decoder.health.sound


def test_request_counts_as_one_arrival_however_often_it_is_placed():
    placing, tried = split("d1", "d2"), Tried()
    body = b'{"model":"m","prompt":"%b"}' % (b"x" * 4000)
    parsed = parse_request(ENDPOINTS[b"/v1/completions"], {}, body)
    first = place_of(placing, parsed=parsed)
    assert first is not None
    first.broke(first.lease.worker, WorkerFailure(FailureReason.CONNECT, "refused"))
    first.release()
    tried.note(first.lease.worker.spec.uid, FailureReason.CONNECT, lost=False, now_s=time.monotonic())
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
