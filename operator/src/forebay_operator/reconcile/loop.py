"""From the queue to the reconciler of the key's kind, several at a time; the loop's boundary for unexpected errors."""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from forebay_operator.errors import (
    ApiConflictError,
    ApiError,
    ApiTerminatingError,
    ApiUnavailableError,
    LeaseLostError,
    OperatorError,
)
from forebay_operator.keys import ObjectKey
from forebay_operator.logs import about
from forebay_operator.metrics import Metrics
from forebay_operator.queue import KeyedQueue
from forebay_operator.reconcile.outcome import Outcome, Result

_log = logging.getLogger(__name__)

RECONCILE_TIMEOUT_S: Final = 60.0
UNAVAILABLE_PAUSE_MAX_S: Final = 5.0
"""Longest pause while the API server does not answer, so that work resumes soon after it is back."""


class Reconciler(Protocol):
    """What reconciles one kind."""

    async def reconcile(self, key: ObjectKey) -> Outcome:
        """Bring one object to its desired state; raises when it could not."""


@dataclass(frozen=True, slots=True)
class ReconcileLoop:
    """Takes keys and reconciles them until cancelled."""

    queue: KeyedQueue[ObjectKey]
    reconcilers: Mapping[str, Reconciler]
    """By kind."""
    metrics: Metrics

    def __post_init__(self) -> None:
        """Have scrapes see the queue as it is, also while every worker is stuck."""
        self.metrics.queue_depth.set_function(self.queue.__len__)

    async def run(self, workers: int) -> None:
        """Reconcile with a number of tasks; ends only by cancellation."""
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            self.metrics.watch_namespaces((key.namespace,))  # a cluster-wide operator learns of namespaces here
            started_s = time.perf_counter()
            await self._reconcile(key)
            self.metrics.reconcile_seconds.labels(key.kind).observe(time.perf_counter() - started_s)

    async def _reconcile(self, key: ObjectKey) -> None:
        place = about(key.kind, key.namespace, key.name)
        try:
            async with asyncio.timeout(RECONCILE_TIMEOUT_S):
                outcome = await self.reconcilers[key.kind].reconcile(key)
        except ApiTerminatingError as e:
            _log.info("nothing is done: %s", e, extra=place)
            self.metrics.reconciliations.labels(key.kind, Result.GONE.value).inc()
            self.queue.done(key)
        except (ApiUnavailableError, LeaseLostError) as e:
            self._failed(key, f"{e}", pause_max_s=UNAVAILABLE_PAUSE_MAX_S, error=e)
        except (OperatorError, TimeoutError) as e:
            text = str(e) or f"not done within {RECONCILE_TIMEOUT_S:.0f} s"
            pause_max_s = UNAVAILABLE_PAUSE_MAX_S if isinstance(e, ApiConflictError) else None
            self._failed(key, text, pause_max_s=pause_max_s, error=e)
        except Exception:  # noqa: BLE001 - the loop's boundary: a fault in one object's handling must not stop the others
            _log.exception("reconciliation failed unexpectedly", extra=place)
            self._failed(key, "unexpected error, see the line before", pause_max_s=None, error=None)
        else:
            self.metrics.reconciliations.labels(key.kind, outcome.result.value).inc()
            if outcome.result is Result.GONE:
                self.queue.forget(key)
            else:
                self.queue.done(key, retry_after_s=outcome.retry_after_s)

    def _failed(self, key: ObjectKey, text: str, *, pause_max_s: float | None, error: Exception | None) -> None:
        pause_s = self.queue.fail(key, pause_max_s=pause_max_s)
        self.metrics.reconciliations.labels(key.kind, "error").inc()
        if isinstance(error, ApiError):
            self.metrics.api_errors.labels(str(error.status) if error.status else "none").inc()
        place = about(key.kind, key.namespace, key.name, retry_after_s=round(pause_s, 3))
        _log.warning("reconciliation failed: %s", text, extra=place)
