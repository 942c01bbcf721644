"""Carry out a drain plan on the pods. Each patch names the pod's UID, so a new pod of the same name is never touched."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from forebay_api.names import DELETION_COST_ANNOTATION, DRAIN_STARTED_ANNOTATION, DRAINING_LABEL
from forebay_operator.cluster import Cluster
from forebay_operator.drain import DrainPlan, Release
from forebay_operator.errors import ApiConflictError, ApiNotFoundError
from forebay_operator.events import Kind, Recorder
from forebay_operator.metrics import Metrics
from forebay_operator.pods import MARKED_COST, RELEASED_COST, Worker
from forebay_operator.resources import POD, WORKER_POOL, Manifest, namespace_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Drainer:
    """Marks, unmarks and releases workers."""

    cluster: Cluster
    recorder: Recorder
    metrics: Metrics

    async def carry_out(self, pool: Manifest, plan: DrainPlan, *, now: datetime) -> bool:
        """All of a plan but the Deployment's replicas; whether anything was written."""
        namespace = namespace_of(pool)
        for worker in plan.unmark:
            await self._patch(namespace, worker, label=None, started=None, cost=None)
            self.metrics.drains.labels("cancelled").inc()
        for worker in plan.mark:
            await self._patch(namespace, worker, label="true", started=_moment(now), cost=MARKED_COST)
        for release in plan.release:
            await self._release(namespace, release, now=now)
        await self._tell(pool, plan)
        return bool(plan.unmark or plan.mark or plan.release)

    async def _release(self, namespace: str, release: Release, *, now: datetime) -> None:
        started = release.worker.drain_started_at or now
        await self._patch(namespace, release.worker, label="true", started=_moment(started), cost=RELEASED_COST)
        self.metrics.drains.labels("timeout" if release.timed_out else "idle").inc()

    async def _patch(
        self, namespace: str, worker: Worker, *, label: str | None, started: str | None, cost: str | None
    ) -> None:
        metadata: dict[str, Any] = {
            "uid": worker.uid,
            "labels": {DRAINING_LABEL: label},
            "annotations": {DRAIN_STARTED_ANNOTATION: started, DELETION_COST_ANNOTATION: cost},
        }
        try:
            await self.cluster.patch(POD, namespace, worker.name, {"metadata": metadata})
        except (ApiNotFoundError, ApiConflictError):
            # The pod has gone, or another has its name; the next look plans without it.
            _log.info("worker %s has gone while it was to be patched", worker.name)

    async def _tell(self, pool: Manifest, plan: DrainPlan) -> None:
        if plan.mark:
            message = f"{_names(plan.mark)} finish their requests and get no new ones"
            await self.recorder.record(WORKER_POOL, pool, kind=Kind.NORMAL, reason="Draining", message=message)
        if plan.unmark:
            message = f"{_names(plan.unmark)} stay after all"
            await self.recorder.record(WORKER_POOL, pool, kind=Kind.NORMAL, reason="DrainCancelled", message=message)
        idle = [release.worker for release in plan.release if not release.timed_out]
        if idle:
            await self.recorder.record(
                WORKER_POOL,
                pool,
                kind=Kind.NORMAL,
                reason="Drained",
                message=f"{_names(idle)} have no request and leave",
            )
        cut = [release.worker for release in plan.release if release.timed_out]
        if cut:
            message = f"{_names(cut)} did not finish within rollout.drainTimeout and are cut off"
            await self.recorder.record(WORKER_POOL, pool, kind=Kind.WARNING, reason="DrainTimedOut", message=message)


def _moment(when: datetime) -> str:
    """RFC 3339 with milliseconds: in whole seconds a grace of two would at times be hardly more than one."""
    return when.isoformat(timespec="milliseconds")


def _names(workers: Sequence[Worker]) -> str:
    return ", ".join(sorted(worker.name for worker in workers))
