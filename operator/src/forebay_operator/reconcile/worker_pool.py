"""One WorkerPool: Deployment, Service and PodDisruptionBudget, the drain on scale-down, and the status.

A pool whose AcceleratorClass is gone cannot be built anew, so its workers stay as they are; but it can still shrink, or a pool
that is to be removed would keep its accelerators for ever.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import httpx
from pydantic import ValidationError

from forebay_api.acceleratorclass import AcceleratorClass, AcceleratorClassSpec
from forebay_api.fields import violations
from forebay_api.workerpool import WorkerPoolSpec
from forebay_operator.cluster import Cluster
from forebay_operator.desired.deployment import WorkerContext, build_deployment, selector_labels
from forebay_operator.desired.disruption_budget import build_disruption_budget
from forebay_operator.desired.revision import revision_of
from forebay_operator.desired.service import build_service
from forebay_operator.desired.vllm import drain_timeout_s
from forebay_operator.drain import DrainPlan, DrainTimes, Loads, plan_drain
from forebay_operator.drift import REPLICAS_ANNOTATION, is_scaled_by_others
from forebay_operator.events import Kind, Recorder
from forebay_operator.keys import ObjectKey
from forebay_operator.pods import TEMPLATE_ANNOTATION, Worker, read_worker
from forebay_operator.reconcile.applying import REFUSALS, Applier, Owner, check_ours, is_ours
from forebay_operator.reconcile.draining import Drainer
from forebay_operator.reconcile.outcome import Outcome, Result
from forebay_operator.reconcile.reporting import Reporter
from forebay_operator.resources import (
    ACCELERATOR_CLASS,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    POD,
    SERVICE,
    WORKER_POOL,
    Manifest,
    annotations_of,
    is_terminating,
    name_of,
    namespace_of,
)
from forebay_operator.rootcause import Cause, Reason
from forebay_operator.status.worker_pool import PoolState, build_pool_status, build_refused_status
from forebay_operator.workers import read_loads


@dataclass(frozen=True, slots=True)
class WorkerPoolReconciler:
    """Reconciles one WorkerPool at a time."""

    cluster: Cluster
    applier: Applier
    drainer: Drainer
    reporter: Reporter
    recorder: Recorder
    http: httpx.AsyncClient
    context: WorkerContext
    drain_grace_s: float
    now: Callable[[], datetime]

    async def reconcile(self, key: ObjectKey) -> Outcome:
        """Read, plan the drain, apply, report."""
        pool = await self.cluster.get(WORKER_POOL, key.namespace, key.name)
        if pool is None or is_terminating(pool):
            self.applier.metrics.forget_pool(key.namespace, key.name)
            return Outcome(Result.GONE)
        spec = _parse(pool)
        if isinstance(spec, Cause):
            return _outcome(changed=await self._report(pool, build_refused_status(pool, spec, now=self.now())))
        accelerator = await read_accelerator(self.cluster, spec.pool.accelerator)
        deployment = await self.cluster.get(DEPLOYMENT, key.namespace, key.name)
        workers = await self._read_workers(key.namespace, spec)
        if isinstance(accelerator, Cause):
            return await self._only_shrink(pool, spec, workers, deployment=deployment, blocked=accelerator)
        plan = await self._plan(pool, spec, workers, deployment=deployment, wanted=spec.replicas)
        manifest = build_deployment(pool, spec, accelerator, context=self.context, replicas=plan.replicas)
        try:
            check_ours(DEPLOYMENT, deployment, owner=Owner(WORKER_POOL, pool))
            drained = await self.drainer.carry_out(pool, plan, now=self.now())
            stored, applied = await self._apply(pool, spec, manifest, deployment=deployment)
        except REFUSALS as e:
            state = _state(spec, workers, deployment=manifest, blocked=Cause(Reason.NOT_APPLIED, str(e)))
            await self._report(pool, build_pool_status(pool, state, now=self.now()))
            raise
        if drained:
            workers = await self._read_workers(key.namespace, spec)
        state = _state(spec, workers, deployment=stored, blocked=None)
        reported = await self._report(pool, build_pool_status(pool, state, now=self.now()))
        return _outcome(changed=drained or applied or reported, retry_after_s=plan.retry_after_s)

    async def _only_shrink(
        self,
        pool: Manifest,
        spec: WorkerPoolSpec,
        workers: list[Worker],
        *,
        deployment: Manifest | None,
        blocked: Cause,
    ) -> Outcome:
        """What can be done for a pool that cannot be built."""
        changed, retry_after_s = False, None
        if deployment is not None and is_ours(deployment, resource=WORKER_POOL, owner=pool):
            current = deployment["spec"]["replicas"]
            wanted = min(spec.replicas, current)
            plan = await self._plan(pool, spec, workers, deployment=deployment, wanted=wanted)
            changed = await self.drainer.carry_out(pool, plan, now=self.now())
            if plan.replicas < current:
                noted = {"annotations": {REPLICAS_ANNOTATION: str(plan.replicas)}}
                patch: Manifest = {"metadata": noted, "spec": {"replicas": plan.replicas}}
                await self.cluster.patch(DEPLOYMENT, namespace_of(pool), name_of(pool), patch)
                changed = True
            if changed:
                workers = await self._read_workers(namespace_of(pool), spec)
            retry_after_s = plan.retry_after_s
        state = _state(spec, workers, deployment=deployment, blocked=blocked)
        reported = await self._report(pool, build_pool_status(pool, state, now=self.now()))
        return _outcome(changed=changed or reported, retry_after_s=retry_after_s)

    async def _read_workers(self, namespace: str, spec: WorkerPoolSpec) -> list[Worker]:
        pods = await self.cluster.find(POD, namespace, selector_labels(spec))
        return [read_worker(pod) for pod in pods]

    async def _plan(
        self,
        pool: Manifest,
        spec: WorkerPoolSpec,
        workers: Sequence[Worker],
        *,
        deployment: Manifest | None,
        wanted: int,
    ) -> DrainPlan:
        """The drain plan; workers are asked for their load only when somebody has to leave."""
        current = deployment["spec"].get("replicas") if deployment else None
        loads: Loads = {}
        if current is not None and wanted < current:
            loads = await read_loads(self.http, [worker for worker in workers if not worker.is_terminating])
        if current is not None and wanted > current:
            message = f"from {current} to {wanted} workers"
            await self.recorder.record(WORKER_POOL, pool, kind=Kind.NORMAL, reason="ScalingUp", message=message)
        times = DrainTimes(grace_s=self.drain_grace_s, timeout_s=drain_timeout_s(spec))
        return plan_drain(wanted=wanted, current=current, workers=workers, loads=loads, times=times, now=self.now())

    async def _apply(
        self, pool: Manifest, spec: WorkerPoolSpec, manifest: Manifest, *, deployment: Manifest | None
    ) -> tuple[Manifest, bool]:
        """The stored Deployment, and whether it or another child changed."""
        wanted = {SERVICE: build_service(pool, spec), DISRUPTION_BUDGET: build_disruption_budget(pool, spec)}
        name, namespace = name_of(pool), namespace_of(pool)
        found = {resource: await self.cluster.get(resource, namespace, name) for resource in wanted}
        # Children are made together, so an absent one beside an existing one was deleted by somebody.
        was_applied = deployment is not None or all(found.values())
        owner = Owner(WORKER_POOL, pool, was_applied=was_applied)
        if is_scaled_by_others(deployment, manifest):
            what = "had been scaled by others and is put right"
            await self.applier.report_drift(DEPLOYMENT, manifest, owner=owner, what=what)
        changed = False
        for resource, child in wanted.items():
            _, written = await self.applier.apply_over(found[resource], resource, child, owner=owner)
            changed = changed or written
        stored, written = await self.applier.apply_over(deployment, DEPLOYMENT, manifest, owner=owner)
        return stored, changed or written

    async def _report(self, pool: Manifest, wanted: Manifest) -> bool:
        missing = max(0, int(pool["spec"].get("replicas", 0)) - int(wanted["status"].get("ready", 0)))
        self.applier.metrics.workers_missing.labels(namespace_of(pool), name_of(pool)).set(missing)
        return await self.reporter.report(WORKER_POOL, pool, wanted)


async def read_accelerator(cluster: Cluster, name: str) -> AcceleratorClassSpec | Cause:
    """The AcceleratorClass, or why there is none."""
    found = await cluster.get(ACCELERATOR_CLASS, None, name)
    if found is None:
        message = f"AcceleratorClass {name} does not exist: create it, or name an existing one (kubectl get acc)"
        return Cause(Reason.ACCELERATOR_NOT_FOUND, message)
    try:
        return AcceleratorClass.model_validate(found).spec
    except ValidationError as e:
        message = f"AcceleratorClass {name} is not valid: {'; '.join(violations(e))}"
        return Cause(Reason.INVALID_SPEC, message)


def _parse(pool: Manifest) -> WorkerPoolSpec | Cause:
    try:
        return WorkerPoolSpec.model_validate(pool["spec"])
    except ValidationError as e:
        where = f"{namespace_of(pool)}/{name_of(pool)}"
        return Cause(Reason.INVALID_SPEC, f"WorkerPool {where} is not valid: {'; '.join(violations(e))}")


def _state(
    spec: WorkerPoolSpec, workers: Sequence[Worker], *, deployment: Manifest | None, blocked: Cause | None
) -> PoolState:
    template = deployment["spec"]["template"] if deployment else {"metadata": {}}
    return PoolState(
        wanted=spec.replicas,
        template=annotations_of(template).get(TEMPLATE_ANNOTATION, ""),
        revision=revision_of(spec.model, spec.engine),
        selector=",".join(f"{key}={value}" for key, value in selector_labels(spec).items()),
        workers=workers,
        deployment=deployment,
        blocked=blocked,
    )


def _outcome(*, changed: bool, retry_after_s: float | None = None) -> Outcome:
    return Outcome(Result.CHANGED if changed else Result.UNCHANGED, retry_after_s=retry_after_s)
