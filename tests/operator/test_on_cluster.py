"""The operator on a real control plane with simulated nodes that run its pods.

What only the real thing can show: server-side apply with defaults and several managers, garbage collection, the Deployment and
ReplicaSet controllers, the scheduler's and a kubelet's own words, rights, leases, an API server that goes away.
"""

import itertools
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from forebay_cli.system import NodeOptions, simulated_nodes
from forebay_localcluster.cluster import Cluster
from forebay_localcluster.control_plane import Settings
from tests.operator.examples import model_service, pool
from tests.operator.process import OperatorProcess, running
from tests.support.eventually import always, eventually
from tests.support.rights import grant

pytestmark = pytest.mark.cluster
NUMBERS = itertools.count(1)
ROOT = Path(__file__).resolve().parents[2]
ACCELERATOR = {
    "apiVersion": "forebay.dev/v1alpha1",
    "kind": "AcceleratorClass",
    "metadata": {"name": "h100-sxm"},
    "spec": {"hardware": "h100-sxm"},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A control plane of its own, since tests here stop its API server; two nodes of eight GPUs."""
    nodes = simulated_nodes(NodeOptions(engine_startup_s=0.2))
    with Cluster.temporary("operator", settings=Settings(prometheus=False), extras=nodes) as made:
        made.kubectl("apply", "--server-side", "-f", str(ROOT / "charts/forebay/crds"))
        made.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(ROOT / "charts/forebay/crds"))
        eventually(
            lambda: made.kubectl("get", "msvc,wp,acc", "-A"), lambda _: True, within_s=15, what="CRDs are served"
        )
        made.kubectl("apply", "-f", "-", stdin=json.dumps(ACCELERATOR))
        yield made


@pytest.fixture(scope="module")
def kubeconfig(cluster: Cluster) -> Path:
    return grant(cluster, "operator", user="forebay-operator-under-test")


@pytest.fixture(scope="module")
def operator(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """One operator for the tests that need just one."""
    folder = tmp_path_factory.mktemp("operator")
    with running(kubeconfig, folder, port=free_port()) as made:
        yield made
        assert made.refused() == 0, "a right is missing in tests/support/rights.py"
        assert not [one for one in made.lines() if one["level"] == "ERROR"]


class Team:
    """One test's namespace, as a person with kubectl sees it."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.cluster.kubectl("--namespace", self.namespace, *arguments, stdin=stdin)

    def apply(self, name: str = "chat", **spec: Any) -> None:
        service = model_service(name, **{"autoscaling": {"mode": "Off"}, "rollout": {"drainTimeout": "20s"}, **spec})
        service["metadata"]["namespace"] = self.namespace
        self.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(service))

    def get(self, what: str, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", what, *arguments, "-o", "json"))
        return found

    def items(self, what: str, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get(what, *arguments)["items"]
        return found

    def pods(self, service: str = "chat") -> list[dict[str, Any]]:
        return self.items("pods", "-l", f"forebay.dev/model-service={service}")

    def conditions(self, name: str = "chat") -> dict[str, dict[str, Any]]:
        found = self.get(f"msvc/{name}").get("status", {}).get("conditions", [])
        return {one["type"]: one for one in found}

    def await_ready(self, name: str = "chat", *, within_s: float = 60) -> None:
        eventually(
            lambda: self.conditions(name),
            lambda found: found and {one["status"] for one in found.values()} == {"True"} and self.is_settled(name),
            within_s=within_s,
            what=f"every condition of {name} is True",
        )

    def is_settled(self, name: str) -> bool:
        service = self.get(f"msvc/{name}")
        return bool(
            service["status"]["observedGeneration"] == service["metadata"]["generation"]
            and self.conditions(name)["Progressing"]["reason"] == "Settled"
        )

    def await_reason(self, reason: str, *, condition: str = "Ready", within_s: float = 40) -> str:
        """Wait for a condition's reason; its message."""
        found = eventually(
            lambda: self.conditions().get(condition, {}),
            lambda one: one.get("reason") == reason,
            within_s=within_s,
            what=f"{condition} has reason {reason}",
        )
        return str(found["message"])

    def await_spec(self, path: str, spec: dict[str, Any]) -> None:
        eventually(
            lambda: self.get(path)["spec"], lambda found: found == spec, within_s=10, what=f"{path} is put right"
        )


@pytest.fixture
def team(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Team]:
    words = request.node.name.removeprefix("test_").translate(str.maketrans("_[", "--", "]"))
    namespace = f"{words[:40].strip('-')}-{next(NUMBERS)}"
    cluster.kubectl("create", "namespace", namespace)
    yield Team(cluster, namespace)
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_a_model_service_comes_up_and_a_person_can_see_how(team: Team, operator: OperatorProcess):
    team.apply()
    team.await_ready()
    conditions = team.conditions()
    assert list(conditions) == ["Accepted", "Fits", "Ready", "Routable", "Progressing"]
    table = team.kubectl("get", "msvc,wp")
    assert "AllWorkersReady" in table
    assert "1/1" in table
    described = team.kubectl("describe", "msvc/chat")
    assert "PoolCreated" in described
    assert "Ready" in described.split("Events:")[1]
    (one,) = team.pods()
    assert one["spec"]["automountServiceAccountToken"] is False
    assert one["metadata"]["labels"]["forebay.dev/revision"] == team.get("wp/chat-mixed")["status"]["revision"]


def test_kopf_leaves_no_trace_in_our_objects(team: Team, operator: OperatorProcess):
    """No finalizer (deletion never waits for a living operator), no annotation that grows with the object."""
    team.apply()
    team.await_ready()
    for one in team.items("msvc,wp,deployments,services,pdb,pods"):
        assert "finalizers" not in one["metadata"]
        assert not [key for key in one["metadata"].get("annotations", {}) if "kopf" in key]


EDITS: list[tuple[str, str, dict[str, Any]]] = [
    ("deployment", "Deployment", {"spec": {"replicas": 3}}),
    ("deployment", "Deployment", {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}}),
    ("service", "Service", {"spec": {"selector": {"forebay.dev/pool": "other"}}}),
    ("pdb", "PodDisruptionBudget", {"spec": {"maxUnavailable": 0}}),
    ("wp", "WorkerPool", {"spec": {"rollout": {"maxSurge": 7}}}),
]


def test_foreign_edits_are_repaired_within_ten_seconds_and_counted(team: Team, operator: OperatorProcess):
    team.apply()
    team.await_ready()
    counts = dict.fromkeys((kind for _, kind, _ in EDITS), 0)
    for what, kind, patch in EDITS:
        path = f"{what}/chat-mixed"
        before = team.get(path)["spec"]
        team.kubectl("patch", path, "--type=merge", "-p", json.dumps(patch))
        team.await_spec(path, before)
        counts[kind] += 1
        team.await_ready()
    for kind, count in counts.items():
        labels = {"namespace": team.namespace, "kind": kind}
        assert operator.metric("forebay_operator_drift_repairs_total", **labels) == count, kind
    assert "DriftRepaired" in team.kubectl("describe", "wp/chat-mixed")


def test_a_worker_pool_whose_labels_were_taken_is_put_right(team: Team, operator: OperatorProcess):
    team.apply()
    team.await_ready()
    before = team.get("wp/chat-mixed")["metadata"]["labels"]
    team.kubectl("label", "wp/chat-mixed", *(f"{key}-" for key in before))
    eventually(
        lambda: team.get("wp/chat-mixed")["metadata"].get("labels"),
        lambda labels: labels == before,
        within_s=10,
        what="the labels are back",
    )


def test_a_name_that_is_taken_is_told_at_the_top(team: Team, operator: OperatorProcess):
    team.kubectl("create", "deployment", "chat-mixed", "--image=busybox", "--replicas=0")
    team.apply()
    assert "delete or rename it" in team.await_reason("NotApplied")
    assert team.get("deployment/chat-mixed")["spec"]["replicas"] == 0, "it is left alone"


def test_a_deleted_child_is_made_again(team: Team, operator: OperatorProcess):
    team.apply()
    team.await_ready()
    before = team.get("deployment/chat-mixed")["metadata"]["uid"]
    team.kubectl("delete", "deployment/chat-mixed", "service/chat-mixed", "pdb/chat-mixed")
    eventually(
        lambda: team.get("deployment/chat-mixed")["metadata"]["uid"],
        lambda uid: uid != before,
        within_s=10,
        what="the Deployment is made again",
    )
    team.get("service/chat-mixed")
    team.get("pdb/chat-mixed")
    team.await_ready()


def stream(address: str, tokens: int) -> list[str]:
    """A streamed completion of a worker; its chunks."""
    body = {"model": "llama-3.1-8b", "prompt": "hello", "max_tokens": tokens, "stream": True, "ignore_eos": True}
    with httpx.stream(
        "POST", f"http://{address}:8000/v1/completions", json=body, timeout=60, trust_env=False
    ) as answer:
        return [line.removeprefix("data: ") for line in answer.iter_lines() if line]


def test_kubectl_scale_works_and_a_busy_worker_outlives_the_idle_ones(team: Team, operator: OperatorProcess):
    """Drain in order: the idle workers leave, the one with a stream stays, and the stream is whole."""
    team.apply(pools=[pool("mixed", replicas={"min": 3, "max": 4})])
    team.await_ready()
    busy = team.pods()[0]
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(stream, busy["status"]["podIP"], 1200)
        time.sleep(0.5)
        team.kubectl("scale", "wp/chat-mixed", "--replicas=1")
        eventually(team.pods, lambda found: len(found) == 1, within_s=30, what="two workers have gone")
        chunks = answer.result(timeout=60)
    (left,) = team.pods()
    assert left["metadata"]["name"] == busy["metadata"]["name"]
    assert json.loads(chunks[-2])["choices"][0]["finish_reason"] == "length"
    assert chunks[-1] == "[DONE]"
    eventually(
        lambda: team.get("wp/chat-mixed")["status"], lambda found: found["draining"] == 0, within_s=10, what="done"
    )
    assert team.get("wp/chat-mixed", "--subresource=scale")["status"]["replicas"] == 1
    reasons = {one["reason"] for one in team.items("events")}
    assert {"Draining", "Drained"} <= reasons


def test_a_wait_for_ready_after_an_edit_does_not_return_early(team: Team, operator: OperatorProcess):
    """C140: the old pods satisfy the count, and still the condition is not True until they are gone."""
    team.apply()
    team.await_ready()
    old = {one["metadata"]["name"] for one in team.pods()}
    team.apply(engine={"maxModelLen": 8192})
    generation = team.get("msvc/chat")["metadata"]["generation"]
    eventually(
        lambda: team.conditions()["Ready"],
        lambda one: one["observedGeneration"] == generation,
        within_s=10,
        what="seen",
    )
    team.kubectl("wait", "msvc/chat", "--for=condition=Ready", "--timeout=60s")
    now = {one["metadata"]["name"] for one in team.pods()}
    assert not now & old
    assert len(now) == 1


def test_going_back_in_the_middle_of_a_rollout_takes_the_new_workers_down_step_by_step(
    team: Team, operator: OperatorProcess
):
    """C137: what of the old revision still serves is kept, and at no time are there fewer workers than asked for."""
    four = [pool("mixed", replicas={"min": 4, "max": 4})]
    team.apply(pools=four)
    team.await_ready()
    old = {one["metadata"]["uid"] for one in team.pods()}
    with ThreadPoolExecutor() as threads:
        watching = threads.submit(
            always,
            lambda: team.get("deployment/chat-mixed")["status"].get("availableReplicas", 0),
            lambda available: available >= 4,
            for_s=12,
            what="four workers are there, as maxUnavailable 0 asks",
        )
        team.apply(pools=four, engine={"maxModelLen": 8192})
        eventually(
            lambda: team.get("deployment/chat-mixed")["status"].get("updatedReplicas", 4),
            lambda updated: updated in (2, 3),
            within_s=20,
            what="the rollout is half way",
            every_s=0.05,
        )
        team.apply(pools=four)
        watching.result()
    team.await_ready()
    now = team.pods()
    assert len(now) == 4
    assert {one["metadata"]["uid"] for one in now} & old, "workers that had not been replaced were kept"
    revision = team.get("wp/chat-mixed")["status"]["revision"]
    assert {one["metadata"]["labels"]["forebay.dev/revision"] for one in now} == {revision}


def test_many_edits_in_a_row_end_in_the_last_one(team: Team, operator: OperatorProcess):
    """C133."""
    team.apply()
    for surge in range(1, 21):
        patch = {"spec": {"rollout": {"maxSurge": surge}}}
        team.kubectl("patch", "msvc/chat", "--type=merge", "-p", json.dumps(patch))
    team.await_ready()
    assert team.get("deployment/chat-mixed")["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 20


def test_a_missing_accelerator_class_names_the_fix_and_its_creation_is_noticed(team: Team, operator: OperatorProcess):
    name = "rare-accelerator"
    team.apply(pools=[pool("mixed", accelerator=name)])
    message = team.await_reason("AcceleratorNotFound", condition="Accepted")
    assert name in message
    assert "create it" in message
    assert team.items("deployments") == []
    made = {**ACCELERATOR, "metadata": {"name": name}}
    team.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(made))
    team.await_ready()
    team.cluster.kubectl("delete", f"acceleratorclass/{name}")
    team.await_reason("AcceleratorNotFound", condition="Accepted")
    assert len(team.pods()) == 1, "what runs stays"


def test_the_schedulers_own_words_reach_the_top(team: Team, operator: OperatorProcess):
    team.apply(pools=[pool("mixed", parallelism={"tensor": 8, "pipeline": 2})])
    message = team.await_reason("Unschedulable")
    assert "Insufficient nvidia.com/gpu" in message
    assert "pool mixed" in message
    assert team.conditions()["Progressing"]["status"] == "False"
    assert "Unschedulable" in team.kubectl("describe", "msvc/chat").split("Events:")[1]


def test_a_missing_secret_reaches_the_top_and_its_creation_is_enough(team: Team, operator: OperatorProcess):
    model = {**model_service()["spec"]["model"], "secretRef": {"name": "hugging-face"}}
    team.apply(model=model)
    assert "hugging-face" in team.await_reason("ContainerConfigError")
    team.kubectl("create", "secret", "generic", "hugging-face", "--from-literal=HF_TOKEN=x")
    team.await_ready()


def test_a_crashing_engines_last_words_reach_the_top(team: Team, operator: OperatorProcess):
    team.apply(engine={"maxModelLen": 16384, "args": ["--max-num-seqs", "none"]})
    message = team.await_reason("WorkerCrashed")
    assert "engine exited with code" in message
    assert "max-num-seqs" in message


def test_deleting_the_service_removes_every_child(team: Team, operator: OperatorProcess):
    team.apply(pools=[pool("prefill", role="Prefill"), pool("decode", role="Decode")])
    team.await_ready()
    assert len(team.pods()) == 2
    team.kubectl("delete", "msvc/chat", "--wait=true")
    eventually(
        lambda: [one["kind"] for one in team.items("msvc,wp,deployments,replicasets,services,pdb,pods")],
        lambda kinds: not kinds,
        within_s=60,
        what="nothing is left",
    )


def test_children_of_a_service_that_was_made_again_are_adopted(team: Team, operator: OperatorProcess):
    """C139: same names, no new pods, and a later change rolls out as usual."""
    team.apply()
    team.await_ready()
    pods = [one["metadata"]["uid"] for one in team.pods()]
    team.kubectl("delete", "msvc/chat", "--cascade=orphan")
    team.apply()
    team.await_ready()
    assert [one["metadata"]["uid"] for one in team.pods()] == pods
    service = team.get("msvc/chat")["metadata"]["uid"]
    assert [one["uid"] for one in team.get("wp/chat-mixed")["metadata"]["ownerReferences"]] == [service]


def test_a_dropped_pool_is_drained_and_removed_when_the_new_one_serves(team: Team, operator: OperatorProcess):
    """C136, without an outage in between."""
    team.apply()
    team.await_ready()
    with ThreadPoolExecutor() as threads:
        watching = threads.submit(
            always,
            lambda: team.conditions()["Routable"],
            lambda one: one["status"] == "True",
            for_s=6,
            what="the service can be reached all the time",
        )
        team.apply(pools=[pool("other")])
        watching.result()
    team.await_ready()
    eventually(lambda: team.kubectl("get", "wp,deploy,svc,pdb", "-o", "name").split(), lambda names: len(names) == 4
               and all(name.endswith("chat-other") for name in names), within_s=30, what="only the new pool is left")  # fmt: skip


def test_an_object_of_300_kilobytes_is_handled(team: Team, operator: OperatorProcess):
    """C127, C134: neither the watch nor an annotation limit minds its size."""
    environment = [{"name": f"BIG_{number}", "value": "x" * 30_000} for number in range(10)]
    team.apply(engine={"maxModelLen": 16384, "env": environment})
    team.await_ready()


def leader(*operators: OperatorProcess) -> OperatorProcess | None:
    """Who leads, of those that answer."""
    for one in operators:
        try:
            if one.process.poll() is None and one.ready()["leading"]:
                return one
        except (httpx.HTTPError, ValueError):
            continue
    return None


def test_leadership_passes_on_however_the_leader_ends(team: Team, kubeconfig: Path, tmp_path: Path):
    """By SIGKILL, by SIGTERM, by another hand on the lease.

    SIGKILL: the standby leads within 15 s and does what was missed (C131). SIGTERM: the next leads sooner than the lease
    would run out, exit code 0. A lease in other hands: the process ends at once with 1.
    """
    lease = {"FOREBAY_LEASE_NAME": "passed-on", "FOREBAY_NAMESPACES": team.namespace}
    with (
        running(kubeconfig, tmp_path, port=free_port(), name="a", **lease) as first,
        running(kubeconfig, tmp_path, port=free_port(), name="b", **lease) as second,
    ):
        assert first.ready()["leading"]
        assert second.ready() == {"ready": True, "leading": False, "reason": None}
        team.apply("two")
        team.await_ready("two")
        first.process.send_signal(signal.SIGKILL)
        killed_s = time.monotonic()
        team.kubectl("scale", "wp/two-mixed", "--replicas=2")
        eventually(lambda: leader(second), lambda one: one is second, within_s=15, what="the second leads")
        assert time.monotonic() - killed_s < 15
        eventually(
            lambda: team.pods("two"), lambda pods: len(pods) == 2, within_s=20, what="the missed change is applied"
        )
        with running(kubeconfig, tmp_path, port=free_port(), name="c", **lease) as third:
            second.process.terminate()
            stopped_s = time.monotonic()
            eventually(lambda: leader(third), lambda one: one is third, within_s=9, what="the third leads")
            assert time.monotonic() - stopped_s < 9, "sooner than the lease would have run out"
            assert second.process.wait(timeout=15) == 0
            patch = json.dumps({"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 60}})
            team.cluster.kubectl("--namespace", "default", "patch", "lease/passed-on", "--type=merge", "-p", patch)
            try:
                assert third.process.wait(timeout=10) == 1
            except subprocess.TimeoutExpired:
                pytest.fail("it goes on without the lease")


def test_crds_that_an_upgrade_left_behind_show_in_readiness(
    cluster: Cluster, team: Team, kubeconfig: Path, tmp_path: Path
):
    """C151: with less in its CRD than the operator knows, the server would drop fields in silence."""
    path = ROOT / "charts/forebay/crds/modelservices.yaml"
    older = yaml.safe_load(path.read_text(encoding="utf-8"))
    spec = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["pools"]["items"]["properties"]["priorityClassName"]
    settings = {"FOREBAY_LEASE_NAME": "outdated", "FOREBAY_NAMESPACES": team.namespace}
    apply = ["apply", "--server-side", "--force-conflicts", "-f"]
    try:
        cluster.kubectl(*apply, "-", stdin=yaml.safe_dump(older))
        with running(kubeconfig, tmp_path, port=free_port(), until_ready=False, **settings) as made:
            found = eventually(
                made.ready, lambda one: "CRD" in str(one["reason"]), within_s=20, what="the old CRD is told"
            )
            assert "spec.pools[].priorityClassName" in found["reason"]
            cluster.kubectl(*apply, str(path))
            eventually(made.ready, lambda one: one["ready"], within_s=30, what="ready with the new CRD")
    finally:
        cluster.kubectl(*apply, str(path))


@pytest.mark.parametrize("outage_s", [2, 12], ids=["short", "longer than the lease"])
def test_the_operator_survives_an_api_server_that_goes_away(team: Team, operator: OperatorProcess, outage_s: int):
    """The process stays, even beyond its lease; the watches come back; what is changed first thing afterwards is acted upon."""
    team.apply()
    team.await_ready()
    refused = operator.refused()
    team.cluster.kill("kube-apiserver")
    time.sleep(outage_s)  # the outage itself; nothing to wait for
    team.cluster.start_program("kube-apiserver")
    team.kubectl("scale", "wp/chat-mixed", "--replicas=2")
    eventually(
        lambda: team.get("deployment/chat-mixed")["spec"]["replicas"],
        lambda replicas: replicas == 2,
        within_s=10,
        what="the change is acted upon",
    )
    assert operator.process.poll() is None, operator.log.read_text()[-3000:]
    team.await_ready(within_s=90)  # Kubernetes' own controllers take up to half a minute to reconnect
    operator.refused_at_start += operator.refused() - refused
