"""The reconcile loop: every way a reconciliation can end leads to a next look, at the right time, and is counted."""

import asyncio
import random

import pytest

from forebay_operator.errors import (
    ApiCall,
    ApiConflictError,
    ApiError,
    ApiTerminatingError,
    ApiUnavailableError,
    LeaseLostError,
)
from forebay_operator.keys import ObjectKey, model_service_key
from forebay_operator.metrics import Metrics
from forebay_operator.queue import KeyedQueue, Pace
from forebay_operator.reconcile.loop import UNAVAILABLE_PAUSE_MAX_S, ReconcileLoop
from forebay_operator.reconcile.outcome import Outcome, Result
from tests.support.bounds import NEVER_S

KEY = model_service_key("team", "chat")
CALL = ApiCall("apply", "Deployment", "team", "chat-mixed")
PACE = Pace(backoff_first_s=20.0, backoff_max_s=60.0, resync_s=300.0)


class Scripted:
    """Ends each reconciliation as it was told."""

    def __init__(self, end: Outcome | Exception) -> None:
        self.end = end
        self.keys: list[ObjectKey] = []

    async def reconcile(self, key: ObjectKey) -> Outcome:
        self.keys.append(key)
        if isinstance(self.end, Exception):
            raise self.end
        return self.end


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def queue() -> KeyedQueue[ObjectKey]:
    return KeyedQueue(PACE, now=lambda: 0.0, rng=random.Random(1))


async def reconcile_once(queue: KeyedQueue[ObjectKey], metrics: Metrics, end: Outcome | Exception) -> float | None:
    """Seconds until the key is due again; None when it does not come back."""
    loop = ReconcileLoop(queue, {KEY.kind: Scripted(end)}, metrics)
    queue.put(KEY)
    await loop._reconcile(await queue.get())
    return queue._due_at.get(KEY)


def count(metrics: Metrics, result: str) -> float:
    value = metrics.registry.get_sample_value(
        "forebay_operator_reconciliations_total", {"kind": "ModelService", "result": result}
    )
    return value or 0.0


@pytest.mark.parametrize(
    ("end", "result", "least_s", "most_s"),
    [
        (Outcome(Result.CHANGED), "changed", 300, 360),
        (Outcome(Result.UNCHANGED), "unchanged", 300, 360),
        (Outcome(Result.CHANGED, retry_after_s=1.0), "changed", 1, 1),
        (ApiTerminatingError(CALL, "namespace team is being deleted", 403), "gone", 300, 360),
        (ApiUnavailableError(CALL, "connection refused"), "error", 0, UNAVAILABLE_PAUSE_MAX_S),
        (LeaseLostError("cannot apply"), "error", 0, UNAVAILABLE_PAUSE_MAX_S),
        (ApiConflictError(CALL, "changed", 409), "error", 0, UNAVAILABLE_PAUSE_MAX_S),
        (ApiError(CALL, "refused", 422), "error", 20, 24),
        (RuntimeError("a fault of ours"), "error", 20, 24),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_the_next_look_comes_when_it_should(queue, metrics, end, result, least_s, most_s):
    due_s = await reconcile_once(queue, metrics, end)
    assert due_s is not None
    assert least_s <= due_s <= most_s
    assert count(metrics, result) == 1


async def test_a_gone_object_does_not_come_back(queue, metrics):
    assert await reconcile_once(queue, metrics, Outcome(Result.GONE)) is None
    assert count(metrics, "gone") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [(ApiError(CALL, "refused", 422), "422"), (ApiUnavailableError(CALL, "connection refused"), "none")],
    ids=["422", "none"],
)
async def test_api_errors_are_counted_by_code(queue, metrics, error, code):
    await reconcile_once(queue, metrics, error)
    assert metrics.registry.get_sample_value("forebay_operator_api_errors_total", {"code": code}) == 1


async def test_a_fault_in_one_object_does_not_stop_the_others(metrics, caplog):
    """C142: a bad object must not keep good ones from being handled."""
    good, bad = model_service_key("team", "good"), model_service_key("team", "bad")
    seen = asyncio.Event()

    class Mixed:
        async def reconcile(self, key: ObjectKey) -> Outcome:
            if key == bad:
                raise RuntimeError("a fault of ours")
            seen.set()
            return Outcome(Result.UNCHANGED)

    queue: KeyedQueue[ObjectKey] = KeyedQueue(PACE, now=asyncio.get_running_loop().time, rng=random.Random(1))
    running = asyncio.create_task(ReconcileLoop(queue, {KEY.kind: Mixed()}, metrics).run(1))
    queue.put(bad)
    queue.put(good)
    async with asyncio.timeout(NEVER_S):
        await seen.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    repairs = {"namespace": good.namespace, "kind": "Deployment"}
    assert metrics.registry.get_sample_value("forebay_operator_drift_repairs_total", repairs) == 0
    assert "reconciliation failed unexpectedly" in caplog.text


async def test_the_queues_depth_is_told_while_every_worker_is_stuck(metrics):
    class Stuck:
        async def reconcile(self, _key: ObjectKey) -> Outcome:
            raise AssertionError(await asyncio.get_running_loop().create_future())

    queue: KeyedQueue[ObjectKey] = KeyedQueue(PACE, now=asyncio.get_running_loop().time, rng=random.Random(1))
    running = asyncio.create_task(ReconcileLoop(queue, {KEY.kind: Stuck()}, metrics).run(1))
    queue.put(KEY)
    await asyncio.sleep(0.01)
    for number in range(5):
        queue.put(model_service_key("team", f"waiting-{number}"))
    assert metrics.registry.get_sample_value("forebay_operator_queue_depth") == 5
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
