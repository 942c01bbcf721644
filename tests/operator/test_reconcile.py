"""The reconcilers on a cluster in memory: apply, adopt, repair, prune, drain, report."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import httpx
import pytest

from forebay_api.names import (
    DRAINING_LABEL,
    INITIAL_REPLICAS_MANAGER,
    MANAGED_BY_LABEL,
    OPERATOR_MANAGER,
)
from forebay_operator.desired.deployment import WorkerContext
from forebay_operator.drain import DrainPlan, Release
from forebay_operator.errors import ApiForbiddenError, ApiInvalidError, ApiUnavailableError
from forebay_operator.events import Recorder
from forebay_operator.keys import model_service_key, worker_pool_key
from forebay_operator.metrics import Metrics
from forebay_operator.reconcile.applying import Applier, NameTakenError
from forebay_operator.reconcile.draining import Drainer
from forebay_operator.reconcile.model_service import ModelServiceReconciler
from forebay_operator.reconcile.outcome import Result
from forebay_operator.reconcile.reporting import Reporter
from forebay_operator.reconcile.standing_in import StandIn
from forebay_operator.reconcile.worker_pool import WorkerPoolReconciler
from forebay_operator.resources import (
    ACCELERATOR_CLASS,
    CHILDREN,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    EVENT,
    MODEL_SERVICE,
    POD,
    SERVICE,
    WORKER_POOL,
    Manifest,
    name_of,
)
from tests.operator.examples import ACCELERATOR, NOW, model_service, pod, pool, worker
from tests.operator.fake_cluster import FakeCluster


@dataclass
class Operator:
    """Both reconcilers over one fake cluster, with a clock that tests move and loads that tests set."""

    cluster: FakeCluster
    metrics: Metrics
    services: ModelServiceReconciler
    pools: WorkerPoolReconciler
    now: datetime = NOW
    loads: dict[str, float] = field(default_factory=dict)

    async def settle(self, rounds: int = 6) -> None:
        """Reconcile everything until nothing changes."""
        for _ in range(rounds):
            results = [
                *[
                    await self.services.reconcile(model_service_key("team", name))
                    for name in self.cluster.names(MODEL_SERVICE)
                ],
                *[
                    await self.pools.reconcile(worker_pool_key("team", name))
                    for name in self.cluster.names(WORKER_POOL)
                ],
            ]
            if all(one.result is Result.UNCHANGED for one in results):
                return
        raise AssertionError(f"still changing after {rounds} rounds: {self.cluster.writes()[-10:]}")

    def run_pods(self, deployment: str = "chat-mixed", *, ready: bool = True) -> list[str]:
        """Do the Deployment controller's and the kubelet's work; the names of the pods."""
        stored = self.cluster.see(DEPLOYMENT, deployment)
        alive = [name for name in self.cluster.names(POD) if name.startswith(deployment)]
        template = stored["spec"]["template"]["metadata"]["annotations"]["forebay.dev/template"]
        for name in alive:
            if self.cluster.see(POD, name)["metadata"]["annotations"]["forebay.dev/template"] != template:
                self.cluster.remove(POD, "team", name)
        alive = [name for name in alive if name in self.cluster.names(POD)]
        number = 0
        while len(alive) < stored["spec"]["replicas"]:
            number += 1
            name = f"{deployment}-{template[:4]}-{number}"
            if name not in alive:
                self.cluster.add(POD, pod(stored, name, ready=ready))
                alive.append(name)
        costs = {name: self.cost(name) for name in alive}
        for name in sorted(alive, key=lambda one: costs[one])[: len(alive) - stored["spec"]["replicas"]]:
            self.cluster.remove(POD, "team", name)
            alive.remove(name)
        return sorted(alive)

    def cost(self, name: str) -> int:
        annotations = self.cluster.see(POD, name)["metadata"].get("annotations") or {}
        return int(annotations.get("controller.kubernetes.io/pod-deletion-cost", "0"))

    def events(self) -> list[tuple[str, str]]:
        stored = [self.cluster.see(EVENT, name) for name in self.cluster.names(EVENT)]
        return [(one["involvedObject"]["kind"], one["reason"]) for one in stored]

    def condition(self, condition_type: str, name: str = "chat") -> tuple[str, str]:
        conditions = self.cluster.see(MODEL_SERVICE, name)["status"]["conditions"]
        found = next(one for one in conditions if one["type"] == condition_type)
        return found["status"], found["reason"]

    def message(self, condition_type: str, name: str = "chat") -> str:
        conditions = self.cluster.see(MODEL_SERVICE, name)["status"]["conditions"]
        return str(next(one for one in conditions if one["type"] == condition_type)["message"])

    def repairs(self, kind: str) -> float:
        value = self.metrics.registry.get_sample_value(
            "forebay_operator_drift_repairs_total", {"namespace": "team", "kind": kind}
        )
        return value or 0.0

    def scale(self, replicas: int, name: str = "chat-mixed") -> None:
        self.cluster.edit(WORKER_POOL, "team", name, {"spec": {"replicas": replicas}})


def page(request: httpx.Request, loads: dict[str, float]) -> httpx.Response:
    load = loads.get(request.url.host, 0.0)
    text = (
        "# TYPE vllm:num_requests_running gauge\n"
        f"vllm:num_requests_running {load}\n"
        "# TYPE vllm:num_requests_waiting gauge\n"
        "vllm:num_requests_waiting 0.0\n"
    )
    return httpx.Response(200, text=text)


@pytest.fixture
async def operator() -> AsyncIterator[Operator]:
    cluster, metrics = FakeCluster(), Metrics()
    cluster.add(ACCELERATOR_CLASS, ACCELERATOR)
    made: Operator

    def now() -> datetime:
        return made.now

    recorder = Recorder(cluster, identity="test", now=now)
    applier, reporter = Applier(cluster, recorder, metrics), Reporter(cluster, recorder)
    loads: dict[str, float] = {}
    transport = httpx.MockTransport(lambda request: page(request, loads))
    async with httpx.AsyncClient(transport=transport) as client:
        pools = WorkerPoolReconciler(
            cluster=cluster,
            applier=applier,
            drainer=Drainer(cluster, recorder, metrics),
            reporter=reporter,
            recorder=recorder,
            http=client,
            context=WorkerContext(host="0.0.0.0", probe_period_s=5, prestop_delay_s=5),
            drain_grace_s=2.0,
            now=now,
        )
        services = ModelServiceReconciler(
            cluster, applier, reporter, recorder, StandIn(cluster, recorder, None, metrics, now), now
        )
        made = Operator(cluster, metrics, services, pools, loads=loads)
        yield made


async def serve(operator: Operator, **spec) -> None:
    """A model service whose workers run."""
    operator.cluster.add(MODEL_SERVICE, model_service(**spec))
    await operator.settle()
    for name in operator.cluster.names(DEPLOYMENT):
        operator.run_pods(name)
    await operator.settle()


async def test_missing_workers_are_counted_until_their_pool_is_gone(operator):
    labels = {"namespace": "team", "worker_pool": "chat-mixed"}

    def missing() -> float | None:
        return operator.metrics.registry.get_sample_value("forebay_operator_workers_missing", labels)

    operator.cluster.add(MODEL_SERVICE, model_service())
    await operator.settle()
    assert missing() == 1
    operator.run_pods("chat-mixed")
    await operator.settle()
    assert missing() == 0
    operator.cluster.remove(WORKER_POOL, "team", "chat-mixed")
    await operator.pools.reconcile(worker_pool_key("team", "chat-mixed"))
    assert missing() is None


async def test_a_model_service_becomes_pools_deployments_services_and_budgets(operator):
    await serve(operator)
    assert operator.cluster.names(WORKER_POOL) == ["chat-mixed"]
    for resource in CHILDREN:
        assert operator.cluster.names(resource) == ["chat-mixed"]
    assert operator.condition("Ready") == ("True", "AllWorkersReady")
    assert operator.condition("Routable") == ("True", "Serving")
    assert ("ModelService", "PoolCreated") in operator.events()
    assert ("ModelService", "Ready") in operator.events()


async def test_children_belong_to_their_owner(operator):
    await serve(operator)
    service = operator.cluster.see(MODEL_SERVICE, "chat")
    worker_pool = operator.cluster.see(WORKER_POOL, "chat-mixed")
    assert worker_pool["metadata"]["ownerReferences"][0]["uid"] == service["metadata"]["uid"]
    for resource in CHILDREN:
        reference = operator.cluster.see(resource, "chat-mixed")["metadata"]["ownerReferences"][0]
        assert (reference["uid"], reference["controller"]) == (worker_pool["metadata"]["uid"], True)


async def test_nothing_is_written_when_nothing_changed(operator):
    await serve(operator)
    operator.cluster.calls.clear()
    await operator.settle()
    assert operator.cluster.writes() == []


async def test_a_restarted_operator_writes_nothing_new_either(operator):
    """Without its memory it applies again, and the server finds that nothing differs."""
    await serve(operator)
    versions = {key: one["metadata"]["resourceVersion"] for key, one in operator.cluster.objects.items()}
    operator.pools.applier._settled.clear()
    await operator.settle()
    assert versions == {key: one["metadata"]["resourceVersion"] for key, one in operator.cluster.objects.items()}
    assert operator.repairs("Deployment") == 0


async def test_replicas_are_set_once_and_then_left_to_whoever_scales(operator):
    await serve(operator, pools=[pool("mixed", replicas={"min": 2, "max": 4})])
    assert operator.cluster.see(WORKER_POOL, "chat-mixed")["spec"]["replicas"] == 2
    managers = {
        one["manager"]: one["fieldsV1"]["f:spec"]
        for one in operator.cluster.see(WORKER_POOL, "chat-mixed")["metadata"]["managedFields"]
    }
    assert "f:replicas" in managers[INITIAL_REPLICAS_MANAGER]
    assert "f:replicas" not in managers[OPERATOR_MANAGER]
    operator.scale(3)
    operator.cluster.edit(MODEL_SERVICE, "team", "chat", {"spec": {"engine": {"maxModelLen": 8192}}})
    await operator.settle()
    assert operator.cluster.see(WORKER_POOL, "chat-mixed")["spec"]["replicas"] == 3


async def test_an_interrupted_creation_hands_the_replicas_over_later(operator):
    operator.cluster.add(MODEL_SERVICE, model_service(pools=[pool("mixed", replicas={"min": 3, "max": 4})]))
    failures = iter([None, ApiUnavailableError])

    def fail(call):
        if (call.operation, call.kind) != ("apply", "WorkerPool"):
            return None
        error = next(failures, None)
        return error(call, "connection reset") if error else None

    operator.cluster.fail = fail
    with pytest.raises(ApiUnavailableError):
        await operator.services.reconcile(model_service_key("team", "chat"))
    await operator.settle()
    assert operator.cluster.see(WORKER_POOL, "chat-mixed")["spec"]["replicas"] == 3


@pytest.mark.parametrize(
    ("resource", "patch", "path"),
    [
        (DEPLOYMENT, {"spec": {"progressDeadlineSeconds": 1}}, ("spec", "progressDeadlineSeconds")),
        (DEPLOYMENT, {"metadata": {"labels": {"app.kubernetes.io/name": "x"}}}, ("metadata", "labels")),
        (SERVICE, {"spec": {"clusterIP": "10.0.0.1"}}, ("spec", "clusterIP")),
        (DISRUPTION_BUDGET, {"spec": {"maxUnavailable": 0}}, ("spec", "maxUnavailable")),
        (WORKER_POOL, {"spec": {"rollout": {"maxSurge": 9}}}, ("spec", "rollout")),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
async def test_a_foreign_edit_is_put_right_counted_once_and_told(operator, resource, patch, path):
    await serve(operator)
    before = operator.cluster.see(resource, "chat-mixed")
    kept = before[path[0]][path[1]]
    operator.cluster.edit(resource, "team", "chat-mixed", patch)
    await operator.settle()
    assert operator.cluster.see(resource, "chat-mixed")[path[0]][path[1]] == kept
    assert operator.repairs(resource.kind) == 1
    owner = "ModelService" if resource is WORKER_POOL else "WorkerPool"
    assert (owner, "DriftRepaired") in operator.events()


@pytest.mark.parametrize("resource", [*CHILDREN, WORKER_POOL], ids=lambda resource: resource.kind)
async def test_a_deleted_child_is_made_again_and_counted(operator, resource):
    await serve(operator)
    operator.cluster.remove(resource, "team", "chat-mixed")
    await operator.settle()
    assert operator.cluster.names(resource) == ["chat-mixed"]
    assert operator.repairs(resource.kind) == 1


@pytest.mark.parametrize("replicas", [0, 5])
async def test_foreign_scaling_of_the_deployment_is_put_right_and_counted_once(operator, replicas):
    await serve(operator)
    operator.cluster.edit(DEPLOYMENT, "team", "chat-mixed", {"spec": {"replicas": replicas}})
    await operator.settle()
    assert operator.cluster.see(DEPLOYMENT, "chat-mixed")["spec"]["replicas"] == 1
    assert operator.repairs("Deployment") == 1


async def test_an_update_of_the_spec_is_no_drift(operator):
    await serve(operator)
    operator.cluster.edit(MODEL_SERVICE, "team", "chat", {"spec": {"engine": {"image": "vllm/vllm-openai:v0.33.0"}}})
    await operator.settle()
    assert operator.condition("Ready") == ("False", "RolloutInProgress")
    operator.run_pods()
    await operator.settle()
    assert operator.condition("Ready") == ("True", "AllWorkersReady")
    assert [operator.repairs(kind.kind) for kind in (*CHILDREN, WORKER_POOL)] == [0, 0, 0, 0]


async def test_scaling_down_marks_waits_and_lets_exactly_the_drained_worker_go(operator):
    await serve(operator, pools=[pool("mixed", replicas={"min": 3, "max": 4})])
    names = operator.run_pods()
    for number, name in enumerate(names):
        operator.cluster.edit(POD, "team", name, {"status": {"podIP": f"10.0.0.{number}"}})
        operator.loads[f"10.0.0.{number}"] = 5.0 - number
    victim = names[-1]
    operator.scale(2)
    outcome = await operator.pools.reconcile(worker_pool_key("team", "chat-mixed"))
    assert outcome.retry_after_s is not None
    assert operator.cluster.see(POD, victim)["metadata"]["labels"][DRAINING_LABEL] == "true"
    assert operator.cluster.see(DEPLOYMENT, "chat-mixed")["spec"]["replicas"] == 3
    operator.now += timedelta(seconds=10)
    await operator.pools.reconcile(worker_pool_key("team", "chat-mixed"))
    assert operator.cluster.see(DEPLOYMENT, "chat-mixed")["spec"]["replicas"] == 3, "it still has requests"
    operator.loads["10.0.0.2"] = 0.0
    await operator.pools.reconcile(worker_pool_key("team", "chat-mixed"))
    assert operator.cluster.see(DEPLOYMENT, "chat-mixed")["spec"]["replicas"] == 2
    assert operator.run_pods() == names[:-1]
    await operator.settle()
    assert operator.cluster.see(WORKER_POOL, "chat-mixed")["status"]["draining"] == 0
    assert {("WorkerPool", "Draining"), ("WorkerPool", "Drained")} <= set(operator.events())


async def test_scaling_up_again_keeps_the_victim(operator):
    await serve(operator, pools=[pool("mixed", replicas={"min": 2, "max": 4})])
    operator.scale(1)
    await operator.pools.reconcile(worker_pool_key("team", "chat-mixed"))
    operator.scale(2)
    await operator.settle()
    for name in operator.run_pods():
        metadata = operator.cluster.see(POD, name)["metadata"]
        assert DRAINING_LABEL not in metadata["labels"]
        assert "controller.kubernetes.io/pod-deletion-cost" not in metadata["annotations"]
    assert operator.cluster.see(DEPLOYMENT, "chat-mixed")["spec"]["replicas"] == 2


async def test_a_new_pod_of_a_victims_name_is_not_touched(operator):
    await serve(operator)
    (name,) = operator.run_pods()
    victim = worker(name, uid="of the pod that had the name before")
    made = DrainPlan(unmark=(), mark=(victim,), release=(Release(victim, timed_out=False),), replicas=0)
    await operator.pools.drainer.carry_out(operator.cluster.see(WORKER_POOL, "chat-mixed"), made, now=NOW)
    assert DRAINING_LABEL not in operator.cluster.see(POD, name)["metadata"]["labels"]
    assert operator.cost(name) == 0


async def test_an_idle_worker_is_given_its_whole_grace(operator):
    """The time of the mark is not cut to seconds."""
    await serve(operator, pools=[pool("mixed", replicas={"min": 2, "max": 4})])
    operator.now += timedelta(milliseconds=900)
    operator.scale(1)
    for waited_s, replicas in ((0.0, 2), (1.9, 2), (0.2, 1)):
        operator.now += timedelta(seconds=waited_s)
        await operator.pools.reconcile(worker_pool_key("team", "chat-mixed"))
        assert operator.cluster.see(DEPLOYMENT, "chat-mixed")["spec"]["replicas"] == replicas


async def test_a_worker_that_does_not_finish_is_cut_off_after_the_timeout(operator):
    await serve(operator, pools=[pool("mixed", replicas={"min": 2, "max": 4})], rollout={"drainTimeout": "30s"})
    operator.loads["127.0.0.1"] = 7.0
    operator.scale(1)
    await operator.pools.reconcile(worker_pool_key("team", "chat-mixed"))
    operator.now += timedelta(seconds=30)
    await operator.pools.reconcile(worker_pool_key("team", "chat-mixed"))
    assert operator.cluster.see(DEPLOYMENT, "chat-mixed")["spec"]["replicas"] == 1
    assert ("WorkerPool", "DrainTimedOut") in operator.events()


async def test_a_pool_that_the_spec_drops_is_drained_and_then_removed(operator):
    """C136, and no outage on the way: it goes only when what stays can serve."""
    await serve(operator)
    operator.cluster.edit(MODEL_SERVICE, "team", "chat", {"spec": {"pools": [pool("other")]}})
    await operator.services.reconcile(model_service_key("team", "chat"))
    await operator.pools.reconcile(worker_pool_key("team", "chat-other"))
    await operator.services.reconcile(model_service_key("team", "chat"))
    assert operator.cluster.see(WORKER_POOL, "chat-mixed")["spec"]["replicas"] == 1, "nothing serves in its place yet"
    assert operator.condition("Routable") == ("True", "Serving")
    operator.run_pods("chat-other")
    await operator.pools.reconcile(worker_pool_key("team", "chat-other"))
    await operator.services.reconcile(model_service_key("team", "chat"))
    assert operator.cluster.see(WORKER_POOL, "chat-mixed")["spec"]["replicas"] == 0
    await operator.pools.reconcile(worker_pool_key("team", "chat-mixed"))
    assert len(operator.run_pods("chat-mixed")) == 1, "marked, not deleted"
    operator.now += timedelta(seconds=5)
    await operator.pools.reconcile(worker_pool_key("team", "chat-mixed"))
    assert operator.run_pods("chat-mixed") == []
    await operator.settle()
    assert operator.cluster.names(WORKER_POOL) == ["chat-other"]
    assert ("ModelService", "PoolRemoved") in operator.events()
    assert operator.condition("Ready") == ("True", "AllWorkersReady")


async def test_a_missing_accelerator_is_told_and_what_runs_stays(operator):
    await serve(operator)
    operator.cluster.edit(MODEL_SERVICE, "team", "chat", {"spec": {"pools": [pool("mixed", accelerator="h900")]}})
    before = operator.cluster.see(DEPLOYMENT, "chat-mixed")["metadata"]["resourceVersion"]
    await operator.settle()
    assert operator.condition("Accepted") == ("False", "AcceleratorNotFound")
    assert operator.condition("Routable") == ("True", "Serving")
    assert operator.cluster.see(DEPLOYMENT, "chat-mixed")["metadata"]["resourceVersion"] == before
    operator.cluster.add(ACCELERATOR_CLASS, {"metadata": {"name": "h900"}, "spec": {"hardware": "h100-sxm"}})
    await operator.settle()
    assert operator.condition("Accepted") == ("True", "Valid")
    assert [operator.repairs(kind.kind) for kind in CHILDREN] == [0, 0, 0]


async def test_a_dropped_pool_leaves_although_its_accelerator_class_is_gone(operator):
    """It cannot be built anew, and must not keep its accelerators for that."""
    operator.cluster.add(ACCELERATOR_CLASS, {"metadata": {"name": "rare"}, "spec": {"hardware": "h100-sxm"}})
    await serve(operator, pools=[pool("mixed"), pool("extra", accelerator="rare")])
    operator.cluster.remove(ACCELERATOR_CLASS, None, "rare")
    operator.cluster.edit(MODEL_SERVICE, "team", "chat", {"spec": {"pools": [pool("mixed")]}})
    await operator.settle()
    assert operator.cluster.see(DEPLOYMENT, "chat-extra")["spec"]["replicas"] == 1, "drained first"
    operator.now += timedelta(seconds=5)
    await operator.pools.reconcile(worker_pool_key("team", "chat-extra"))
    assert operator.run_pods("chat-extra") == []
    await operator.settle()
    assert operator.cluster.names(WORKER_POOL) == ["chat-mixed"]
    assert operator.condition("Ready") == ("True", "AllWorkersReady")
    assert operator.repairs("Deployment") == 0


async def test_a_pool_without_its_accelerator_class_shrinks_and_does_not_grow(operator):
    await serve(operator, pools=[pool("mixed", replicas={"min": 2, "max": 4})])
    operator.cluster.remove(ACCELERATOR_CLASS, None, "h100-sxm")
    operator.scale(3)
    await operator.settle()
    assert operator.cluster.see(DEPLOYMENT, "chat-mixed")["spec"]["replicas"] == 2
    assert ("WorkerPool", "ScalingUp") not in operator.events()
    operator.scale(1)
    await operator.settle()
    operator.now += timedelta(seconds=5)
    await operator.settle()
    operator.run_pods()
    operator.cluster.add(ACCELERATOR_CLASS, ACCELERATOR)
    await operator.settle()
    assert len(operator.run_pods()) == 1
    assert operator.condition("Ready") == ("True", "AllWorkersReady")
    assert operator.repairs("Deployment") == 0


async def test_a_model_that_does_not_fit_starts_no_pod(operator):
    model = {"name": "llama-70b", "source": "hf://meta-llama/Llama-3.1-70B-Instruct"}
    operator.cluster.add(MODEL_SERVICE, model_service(model=model))
    await operator.settle()
    assert operator.condition("Fits") == ("False", "DoesNotFit")
    assert operator.condition("Accepted") == ("True", "Valid")
    assert operator.cluster.names(WORKER_POOL) == []
    assert operator.cluster.names(DEPLOYMENT) == []
    assert ("ModelService", "DoesNotFit") in operator.events()


async def test_a_change_that_does_not_fit_leaves_what_runs(operator):
    await serve(operator)
    model = {"name": "llama-70b", "source": "hf://meta-llama/Llama-3.1-70B-Instruct"}
    operator.cluster.edit(MODEL_SERVICE, "team", "chat", {"spec": {"model": model}})
    await operator.settle()
    assert operator.condition("Fits") == ("False", "DoesNotFit")
    assert operator.cluster.see(WORKER_POOL, "chat-mixed")["spec"]["model"]["name"] == "llama-3.1-8b"


async def test_a_stored_spec_that_is_not_valid_is_told_and_leaves_what_runs(operator):
    """C142: stored by an older CRD."""
    await serve(operator)
    bad = pool("mixed", replicas={"min": 8, "max": 2})
    operator.cluster.edit(MODEL_SERVICE, "team", "chat", {"spec": {"pools": [bad]}})
    await operator.settle()
    assert operator.condition("Accepted") == ("False", "InvalidSpec")
    conditions = operator.cluster.see(MODEL_SERVICE, "chat")["status"]["conditions"]
    assert "replicas" in next(one["message"] for one in conditions if one["type"] == "Accepted")
    assert operator.cluster.names(DEPLOYMENT) == ["chat-mixed"]


async def test_children_of_a_lost_owner_are_adopted_without_new_pods(operator):
    """C139: the service was re-created from a backup; its children lost their owner and kept their labels."""
    await serve(operator)
    names = operator.run_pods()
    for resource in (WORKER_POOL, *CHILDREN):
        operator.cluster.objects[(resource.kind, "team", "chat-mixed")]["metadata"]["ownerReferences"] = []
    operator.cluster.remove(MODEL_SERVICE, "team", "chat")
    operator.cluster.add(MODEL_SERVICE, model_service())
    await operator.settle()
    assert operator.run_pods() == names
    service = operator.cluster.see(MODEL_SERVICE, "chat")
    adopted = operator.cluster.see(WORKER_POOL, "chat-mixed")["metadata"]["ownerReferences"]
    assert [one["uid"] for one in adopted] == [service["metadata"]["uid"]]


def foreign(**metadata) -> Manifest:
    return {"metadata": {"name": "chat-mixed", "namespace": "team", **metadata}, "spec": {"replicas": 7}}


@pytest.mark.parametrize(
    "existing",
    [
        foreign(),
        foreign(labels={MANAGED_BY_LABEL: "Helm"}),
        foreign(
            labels={MANAGED_BY_LABEL: OPERATOR_MANAGER},
            ownerReferences=[{"kind": "X", "name": "x", "uid": "other", "controller": True}],
        ),
    ],
)
async def test_an_object_of_somebody_else_keeps_its_name(operator, existing):
    operator.cluster.add(DEPLOYMENT, existing)
    operator.cluster.add(MODEL_SERVICE, model_service())
    await operator.services.reconcile(model_service_key("team", "chat"))
    with pytest.raises(NameTakenError, match="Deployment chat-mixed exists and is not managed by Forebay"):
        await operator.pools.reconcile(worker_pool_key("team", "chat-mixed"))
    assert operator.cluster.see(DEPLOYMENT, "chat-mixed")["spec"]["replicas"] == 7
    await operator.services.reconcile(model_service_key("team", "chat"))
    assert operator.condition("Ready") == operator.condition("Progressing") == ("False", "NotApplied")
    assert "delete or rename it" in operator.message("Ready")
    assert ("ModelService", "NotApplied") in operator.events()


async def test_a_worker_pools_name_that_is_taken_is_told_by_the_service(operator):
    operator.cluster.add(WORKER_POOL, {**foreign(), "spec": {"replicas": 7, "pool": {"name": "mixed"}}})
    operator.cluster.add(MODEL_SERVICE, model_service())
    with pytest.raises(NameTakenError):
        await operator.services.reconcile(model_service_key("team", "chat"))
    assert operator.condition("Accepted") == operator.condition("Ready") == ("False", "NotApplied")
    assert operator.cluster.see(WORKER_POOL, "chat-mixed")["spec"]["replicas"] == 7


@pytest.mark.parametrize(
    ("error", "status"), [(ApiInvalidError, 422), (ApiForbiddenError, 403)], ids=["webhook", "quota or right"]
)
async def test_a_refused_write_is_told_and_an_edit_does_not_seem_rolled_out(operator, error, status):
    await serve(operator)
    operator.cluster.fail = lambda call: (
        error(call, "no such image is allowed here", status)
        if (call.operation, call.kind) == ("apply", "Deployment")
        else None
    )
    operator.cluster.edit(MODEL_SERVICE, "team", "chat", {"spec": {"engine": {"image": "vllm/vllm-openai:v0.33.0"}}})
    await operator.services.reconcile(model_service_key("team", "chat"))
    for _ in range(2):
        with pytest.raises(error):
            await operator.pools.reconcile(worker_pool_key("team", "chat-mixed"))
        await operator.services.reconcile(model_service_key("team", "chat"))
        assert operator.condition("Ready") == ("False", "NotApplied")
    assert "no such image is allowed here" in operator.message("Ready")
    operator.cluster.fail = lambda _call: None
    await operator.settle()
    operator.run_pods()
    await operator.settle()
    assert operator.condition("Ready") == ("True", "AllWorkersReady")


@pytest.mark.parametrize("key", [model_service_key("team", "gone"), worker_pool_key("team", "gone")])
async def test_a_deleted_object_is_let_go(operator, key):
    reconciler = operator.services if key.kind == "ModelService" else operator.pools
    outcome = await reconciler.reconcile(key)
    assert outcome.result is Result.GONE
    assert operator.cluster.writes() == []


async def test_nothing_is_made_for_an_object_that_is_being_deleted(operator):
    """C130: no child is created after the delete."""
    service = model_service()
    service["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    operator.cluster.add(MODEL_SERVICE, service)
    outcome = await operator.services.reconcile(model_service_key("team", "chat"))
    assert outcome.result is Result.GONE
    assert operator.cluster.names(WORKER_POOL) == []


async def test_other_writers_of_the_status_keep_their_part(operator):
    """The autoscaler's conditions and pool fields live beside the operator's."""
    await serve(operator)
    theirs = {
        "metadata": {"name": "chat", "namespace": "team"},
        "status": {
            "attainment": "99.0%",
            "conditions": [{"type": "ScalingActive", "status": "True", "reason": "Auto", "message": "on"}],
            "pools": [{"name": "mixed", "desired": 3}],
        },
    }
    operator.cluster._apply(MODEL_SERVICE, theirs, manager="forebay-autoscaler", part="status")
    operator.scale(2)
    await operator.settle()
    status = operator.cluster.see(MODEL_SERVICE, "chat")["status"]
    assert status["attainment"] == "99.0%"
    assert "ScalingActive" in [one["type"] for one in status["conditions"]]
    assert status["pools"][0]["desired"] == 3
    assert status["workers"] == "1/2"


async def test_a_fault_in_events_does_not_fail_a_reconciliation(operator):
    operator.cluster.fail = lambda call: ApiUnavailableError(call, "no") if call.kind == "Event" else None
    await serve(operator)
    assert operator.condition("Ready") == ("True", "AllWorkersReady")


async def test_the_autoscalers_part_is_told_after_the_work_even_when_the_spec_is_refused(operator):
    seen = []

    class Speaker:
        async def speak(self, service):
            conditions = operator.cluster.see(MODEL_SERVICE, name_of(service))["status"]["conditions"]
            seen.append((operator.cluster.names(WORKER_POOL), len(conditions)))
            return False

    operator.services = replace(operator.services, stand_in=Speaker())
    await serve(operator)
    assert seen
    assert seen[0] == (["chat-mixed"], 5)
    count = len(seen)
    operator.cluster.fail = lambda call: (
        ApiInvalidError(call, "no", 422) if (call.kind, call.operation) == ("WorkerPool", "apply") else None
    )
    operator.cluster.edit(MODEL_SERVICE, "team", "chat", {"spec": {"pools": [pool("mixed"), pool("more")]}})
    with pytest.raises(ApiInvalidError):
        await operator.services.reconcile(model_service_key("team", "chat"))
    assert len(seen) > count
