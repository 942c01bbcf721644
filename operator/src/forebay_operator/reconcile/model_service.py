"""One ModelService: a WorkerPool for each of its pools, the removal of pools that it no longer names, and the status.

A spec that is refused (not valid, an unknown accelerator, a model that does not fit) is not acted on at all: nothing is
applied and nothing is pruned, so whatever runs stays up until the spec is put right.

Replicas have one owner, who is not this reconciler. A new WorkerPool is applied with `replicas.min`, and at once a second
field manager applies the same number, so that it keeps the field when the next apply of ours stops naming it. Should the
process end between the two writes, the next reconciliation finds our manager still owning the field and repeats the second
one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pydantic import ValidationError

from forebay_api.acceleratorclass import AcceleratorClassSpec
from forebay_api.conditions import Condition, ConditionStatus
from forebay_api.fields import violations
from forebay_api.modelservice import ModelServiceSpec, Pool, Role
from forebay_api.names import (
    FITS,
    INITIAL_REPLICAS_MANAGER,
    MODEL_SERVICE_LABEL,
    OPERATOR_MANAGER,
    PROGRESSING,
    worker_pool_name,
)
from forebay_operator.cluster import Cluster
from forebay_operator.desired.worker_pool import build_worker_pool
from forebay_operator.events import Kind, Recorder
from forebay_operator.fits import judge_fit
from forebay_operator.keys import ObjectKey
from forebay_operator.reconcile.applying import REFUSALS, Applier, Owner, is_ours
from forebay_operator.reconcile.outcome import Outcome, Result
from forebay_operator.reconcile.reporting import Reporter
from forebay_operator.reconcile.standing_in import StandIn
from forebay_operator.reconcile.worker_pool import read_accelerator
from forebay_operator.resources import (
    MODEL_SERVICE,
    WORKER_POOL,
    Manifest,
    is_terminating,
    name_of,
    namespace_of,
)
from forebay_operator.rootcause import Cause, Reason
from forebay_operator.status.model_service import PoolView, ServiceState, build_service_status, view_pool

UNJUDGED = Condition(FITS, ConditionStatus.UNKNOWN, "NotJudged", "judged once the spec is accepted")


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What is to be made of a spec."""

    spec: ModelServiceSpec | None
    refused: Cause | None
    fits: Condition


@dataclass(frozen=True, slots=True)
class ModelServiceReconciler:
    """Reconciles one ModelService at a time."""

    cluster: Cluster
    applier: Applier
    reporter: Reporter
    recorder: Recorder
    stand_in: StandIn
    now: Callable[[], datetime]

    async def reconcile(self, key: ObjectKey) -> Outcome:
        """Read, judge, apply, prune, report."""
        service = await self.cluster.get(MODEL_SERVICE, key.namespace, key.name)
        if service is None or is_terminating(service):
            return Outcome(Result.GONE)
        labelled = await self.cluster.find(WORKER_POOL, key.namespace, {MODEL_SERVICE_LABEL: key.name})
        pools = {name_of(pool): pool for pool in labelled if is_ours(pool, resource=MODEL_SERVICE, owner=service)}
        verdict = await self._judge(service)
        changed = False
        try:
            if verdict.spec and not verdict.refused:
                pools, changed = await self._act(service, verdict.spec, pools)
        except REFUSALS as e:
            verdict = replace(verdict, refused=Cause(Reason.NOT_APPLIED, str(e)))
            await self._report(service, verdict, pools)
            await self.stand_in.speak(service)
            raise
        changed = await self._report(service, verdict, pools) or changed
        changed = await self.stand_in.speak(service) or changed
        return Outcome(Result.CHANGED if changed else Result.UNCHANGED)

    async def _act(
        self, service: Manifest, spec: ModelServiceSpec, pools: Mapping[str, Manifest]
    ) -> tuple[dict[str, Manifest], bool]:
        """Make the WorkerPools as they should be; those that there are then, and whether any changed."""
        present, changed = dict(pools), False
        for wanted in spec.pools:
            name = worker_pool_name(name_of(service), wanted.name)
            present[name], applied = await self._ensure(service, spec, wanted, existing=pools.get(name))
            changed = changed or applied
        left, pruned = await self._prune(service, spec, present)
        return left, changed or pruned

    async def _report(self, service: Manifest, verdict: _Verdict, pools: Mapping[str, Manifest]) -> bool:
        state = ServiceState(verdict.spec, verdict.refused, verdict.fits, _views(verdict.spec, pools.values()))
        return await self.reporter.report(MODEL_SERVICE, service, build_service_status(service, state, now=self.now()))

    async def _judge(self, service: Manifest) -> _Verdict:
        """Whether the spec can be acted on."""
        try:
            spec = ModelServiceSpec.model_validate(service["spec"])
        except ValidationError as e:
            return _Verdict(None, Cause(Reason.INVALID_SPEC, "; ".join(violations(e))), UNJUDGED)
        accelerators: dict[str, AcceleratorClassSpec] = {}
        for pool in spec.pools:
            found = await read_accelerator(self.cluster, pool.accelerator)
            if isinstance(found, Cause):
                return _Verdict(spec, Cause(found.reason, f"pool {pool.name}: {found.message}"), UNJUDGED)
            accelerators[pool.accelerator] = found
        fits = judge_fit(spec, accelerators)
        refused = Cause(Reason.DOES_NOT_FIT, fits.message) if fits.status is ConditionStatus.FALSE else None
        return _Verdict(spec, refused, fits)

    async def _ensure(
        self, service: Manifest, spec: ModelServiceSpec, pool: Pool, *, existing: Manifest | None
    ) -> tuple[Manifest, bool]:
        """Make one WorkerPool as it should be; the stored one and whether it changed."""
        manifest = build_worker_pool(service, spec, pool)
        if existing is None:
            existing = await self.cluster.get(WORKER_POOL, namespace_of(manifest), name_of(manifest))
        owner = Owner(MODEL_SERVICE, service, was_applied=_was_reported(service, pool.name))
        if existing is None:
            return await self._create(service, manifest, replicas=pool.replicas.min, owner=owner)
        if _owns_replicas(existing):
            await self._hand_over_replicas(existing, existing["spec"]["replicas"])
        return await self.applier.apply_over(existing, WORKER_POOL, manifest, owner=owner)

    async def _create(
        self, service: Manifest, manifest: Manifest, *, replicas: int, owner: Owner
    ) -> tuple[Manifest, bool]:
        first = {**manifest, "spec": {**manifest["spec"], "replicas": replicas}}
        stored, _ = await self.applier.apply_over(None, WORKER_POOL, first, owner=owner)
        await self._hand_over_replicas(stored, replicas)
        message = f"WorkerPool {name_of(stored)}, replicas to start with: {replicas}"
        await self.recorder.record(MODEL_SERVICE, service, kind=Kind.NORMAL, reason="PoolCreated", message=message)
        return await self.applier.apply_over(stored, WORKER_POOL, manifest, owner=owner)

    async def _hand_over_replicas(self, pool: Manifest, replicas: int) -> None:
        metadata = {"name": name_of(pool), "namespace": namespace_of(pool)}
        body = {"metadata": metadata, "spec": {"replicas": replicas}}
        await self.cluster.apply(WORKER_POOL, body, manager=INITIAL_REPLICAS_MANAGER)

    async def _prune(
        self, service: Manifest, spec: ModelServiceSpec, pools: Mapping[str, Manifest]
    ) -> tuple[dict[str, Manifest], bool]:
        """Drain and then delete the pools that the spec does not name; the pools that are left, and whether any changed."""
        left, changed = dict(pools), False
        wanted = {worker_pool_name(name_of(service), pool.name) for pool in spec.pools}
        staying = [view_pool(pool, leaving=False) for name, pool in pools.items() if name in wanted]
        leaving = {name: pool for name, pool in pools.items() if name not in wanted}
        if not leaving or not can_prune(staying):
            return left, changed
        for name, pool in leaving.items():
            view = view_pool(pool, leaving=True)
            if view.wanted:
                scale = {"spec": {"replicas": 0}}
                await self.cluster.patch(WORKER_POOL, namespace_of(pool), name, scale, subresource="scale")
                changed = True
            elif not view.is_stale and not view.replicas and not is_terminating(pool):
                await self.cluster.delete(WORKER_POOL, namespace_of(pool), name, uid=pool["metadata"]["uid"])
                del left[name]
                changed = True
                message = f"WorkerPool {name} is drained and removed: the spec no longer names it"
                await self.recorder.record(
                    MODEL_SERVICE, service, kind=Kind.NORMAL, reason="PoolRemoved", message=message
                )
        return left, changed


def can_prune(staying: Sequence[PoolView]) -> bool:
    """Whether pools that the spec no longer names may be drained now.

    They wait until the pools that stay can serve without them: every needed role has a ready worker. They do not wait when that
    cannot come about by waiting: the staying pools want no worker, or lack room that the leaving ones take.
    """
    if all(view.wanted == 0 for view in staying):
        return True
    if any(view.condition(PROGRESSING).get("reason") == Reason.UNSCHEDULABLE.value for view in staying):
        return True
    ready: dict[Role, int] = {}
    for view in staying:
        ready[view.role] = ready.get(view.role, 0) + view.ready
    return all(ready.values())


def _views(spec: ModelServiceSpec | None, pools: Iterable[Manifest]) -> list[PoolView]:
    named = {pool.name for pool in spec.pools} if spec else None
    return [view_pool(pool, leaving=named is not None and pool["spec"]["pool"]["name"] not in named) for pool in pools]


def _was_reported(service: Manifest, pool: str) -> bool:
    """Whether the service's status counts a pool, so that its WorkerPool has existed."""
    pools = (service.get("status") or {}).get("pools") or []
    return any(one["name"] == pool and "replicas" in one for one in pools)


def _owns_replicas(pool: Manifest) -> bool:
    """Whether our apply still names spec.replicas: the second write of a creation is missing."""
    return any(
        entry.get("manager") == OPERATOR_MANAGER
        and entry.get("operation") == "Apply"
        and "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
        for entry in pool["metadata"].get("managedFields") or []
    )
