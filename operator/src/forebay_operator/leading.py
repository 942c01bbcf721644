"""What the leader runs: Kopf's watches and the reconcilers, until told to stop.

Writes go through a cluster client that asks the elector before each one, so a leader that was suspended or cut off stops
writing at the moment its lease is no longer good, not when somebody notices.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import httpx
import kopf
from kubernetes.aio import client as kubernetes_client

from forebay_operator.attendance import Attendance, Follower
from forebay_operator.cluster import Cluster
from forebay_operator.control import Health
from forebay_operator.desired.deployment import WorkerContext
from forebay_operator.election import ClusterLease
from forebay_operator.errors import ApiError, ApiNotFoundError
from forebay_operator.events import Recorder
from forebay_operator.handlers import Waker, kopf_settings, register
from forebay_operator.keys import ObjectKey
from forebay_operator.login import register_login
from forebay_operator.metrics import Metrics
from forebay_operator.queue import KeyedQueue
from forebay_operator.reconcile.applying import Applier
from forebay_operator.reconcile.draining import Drainer
from forebay_operator.reconcile.loop import ReconcileLoop, Reconciler
from forebay_operator.reconcile.model_service import ModelServiceReconciler
from forebay_operator.reconcile.reporting import Reporter
from forebay_operator.reconcile.standing_in import StandIn
from forebay_operator.reconcile.worker_pool import WorkerPoolReconciler
from forebay_operator.resources import ACCELERATOR_CLASS, MODEL_SERVICE, WORKER_POOL, Resource
from forebay_operator.settings import Settings
from forebay_operator.status.autoscaler import explain

_log = logging.getLogger(__name__)

RETRY_S: Final = 2.0
"""Pause between two looks for the CRDs."""
KOPF_STOP_S: Final = 3.0
"""How long Kopf may take to close its watches; nothing depends on it."""


@dataclass(frozen=True, slots=True)
class Leader:
    """Everything the leader's work is made of."""

    settings: Settings
    configuration: kubernetes_client.Configuration
    cluster: Cluster
    metrics: Metrics
    health: Health
    on_watching: Callable[[], None]
    """Called once the watches run."""

    async def run(self, stop: asyncio.Event) -> None:
        """Lead until `stop` is set; raises what ended a watch or a reconciler unexpectedly."""
        if not await self._wait_for_kinds(stop):
            return
        queue: KeyedQueue[ObjectKey] = KeyedQueue(self.settings.pace, now=time.monotonic, rng=random.Random())  # noqa: S311 - jitter
        async with httpx.AsyncClient(timeout=self.settings.worker_timeout_s, trust_env=False) as http:
            waker = Waker(queue, self.metrics)
            follower = self._follower(waker)
            loop = ReconcileLoop(queue, self._reconcilers(http, follower), self.metrics)
            stop_kopf = asyncio.Event()
            reconciling = asyncio.create_task(loop.run(self.settings.reconcilers), name="reconcilers")
            watching = asyncio.create_task(self._watch(waker, stop_kopf), name="watches")
            stopping = asyncio.create_task(stop.wait(), name="stop")
            following = [asyncio.create_task(follower.run(), name="autoscaler")] if follower else []
            try:
                running = {reconciling, watching, stopping, *following}
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                stopping.cancel()
                for task in (*following, reconciling):
                    await _end(task)
                stop_kopf.set()
                with suppress(TimeoutError):
                    async with asyncio.timeout(KOPF_STOP_S):
                        await asyncio.wait({watching})

    def _follower(self, waker: Waker) -> Follower | None:
        """Who follows the autoscaler's Lease; None where its name is not known."""
        settings = self.settings
        if not settings.autoscaler_lease:
            return None
        place = f"{settings.lease_namespace}/{settings.autoscaler_lease}"
        attendance = Attendance(place, settings.autoscaler_gone_after_s)

        def on_change() -> None:
            absence = attendance.absence
            self.metrics.autoscaler_gone.set(int(absence is not None and absence.deployed))
            if absence is not None and absence.deployed:
                _log.warning("%s", explain(absence))
            waker.wake_services()

        lease = ClusterLease(self.cluster, settings.lease_namespace, settings.autoscaler_lease)
        return Follower(attendance, lease, on_change)

    async def _watch(self, waker: Waker, stop: asyncio.Event) -> None:
        registry = kopf.OperatorRegistry()
        register(registry, waker)
        register_login(registry, self.configuration)
        ready = asyncio.Event()
        noticing = asyncio.create_task(self._notice_watching(ready))
        try:
            await kopf.operator(
                registry=registry,
                settings=kopf_settings(),
                standalone=True,
                clusterwide=not self.settings.namespaces,
                namespaces=self.settings.namespaces,
                stop_flag=stop,
                ready_flag=ready,
            )
        finally:
            noticing.cancel()

    async def _notice_watching(self, ready: asyncio.Event) -> None:
        await ready.wait()
        self.on_watching()
        self.health.not_ready_because = None

    def _reconcilers(self, http: httpx.AsyncClient, follower: Follower | None) -> dict[str, Reconciler]:
        recorder = Recorder(self.cluster, identity=self.settings.identity, now=_utc_now)
        applier = Applier(self.cluster, recorder, self.metrics)
        reporter = Reporter(self.cluster, recorder)
        context = WorkerContext(
            host=self.settings.worker_host,
            probe_period_s=round(self.settings.probe_period_s),
            prestop_delay_s=round(self.settings.prestop_delay_s),
        )
        return {
            MODEL_SERVICE.kind: ModelServiceReconciler(
                self.cluster,
                applier,
                reporter,
                recorder,
                StandIn(self.cluster, recorder, follower, self.metrics, _utc_now),
                _utc_now,
            ),
            WORKER_POOL.kind: WorkerPoolReconciler(
                cluster=self.cluster,
                applier=applier,
                drainer=Drainer(self.cluster, recorder, self.metrics),
                reporter=reporter,
                recorder=recorder,
                http=http,
                context=context,
                drain_grace_s=self.settings.drain_grace_s,
                now=_utc_now,
            ),
        }

    async def _wait_for_kinds(self, stop: asyncio.Event) -> bool:
        """Wait until the three kinds are served, which Kopf would start without and never look for again.

        False when told to stop first.
        """
        namespace = self.settings.namespaces[0] if self.settings.namespaces else None
        for resource in (MODEL_SERVICE, WORKER_POOL, ACCELERATOR_CLASS):
            while not await self._is_served(resource, namespace):
                with suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_S):
                        await stop.wait()
                if stop.is_set():
                    return False
        return True

    async def _is_served(self, resource: Resource, namespace: str | None) -> bool:
        try:
            await self.cluster.find(resource, namespace, {})
        except ApiNotFoundError as e:
            self.health.not_ready_because = f"the {resource.kind} CRD is not installed"
            _log.error("the %s CRD is not installed, apply the chart's CRDs: %s", resource.kind, e)
        except ApiError as e:
            self.health.not_ready_because = str(e)
            _log.warning("cannot list %s: %s", resource.plural, e)
        else:
            return True
        return False


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end; its own error, if any, has been seen or does not matter any more."""
    task.cancel()
    await asyncio.wait({task})


def _utc_now() -> datetime:
    return datetime.now(UTC)
