"""Simulated nodes on a real control plane: the real scheduler binds pods, controllers own them, kubectl looks at them.

A control plane of its own, since its nodes would run the pods of other tests too.
"""

import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from forebay_localcluster.cluster import Cluster
from forebay_localcluster.control_plane import Settings
from tests.support.eventually import always, eventually

from .node_process import Namespace, NodeProcess, find_nodes, is_ready, main_state, process_id

_numbers = itertools.count(1)
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.temporary("node", settings=Settings(prometheus=False, node_grace_s=15, pod_grace_s=300)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[NodeProcess]:
    node = NodeProcess(cluster, "node-0", octet=0, service_proxy=True)
    node.start()
    yield node
    node.kill()


@pytest.fixture
def namespace(cluster: Cluster, node: NodeProcess, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    told = request.node.name.removeprefix("test_").replace("_", "-").split("[")[0]
    name = f"t{next(_numbers)}-{told[:40].strip('-')}"
    cluster.kubectl("create", "namespace", name)
    namespace = Namespace(cluster, name)
    # After the outage that a test makes, controllers come back with growing pauses.
    eventually(lambda: namespace.get("serviceaccount", "default"), bool, within_s=90, what="a service account")
    yield namespace
    namespace.kubectl("delete", "deployments,jobs,pods", "--all", "--grace-period=1", "--wait=false")
    cluster.kubectl("delete", "namespace", name, "--wait=false")


def pod(name: str, script: str, *, volumes: list[dict] | None = None, **fields: Any) -> dict[str, Any]:
    """A pod whose only container runs a shell script; `spec_...` keyword arguments go to the pod's spec."""
    spec = {key.removeprefix("spec_"): fields.pop(key) for key in list(fields) if key.startswith("spec_")}
    container = {"name": "main", "image": "busybox", "command": ["sh", "-c", script], **fields}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], "volumes": volumes or [], "terminationGracePeriodSeconds": 5, **spec},
    }


def field_env(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


SERVER = "exec python -m http.server 8000 --bind $(POD_IP)"
SERVING = {
    "command": ["python", "-m", "http.server", "8000", "--bind", "$(POD_IP)"],
    "image": "python:3.11",
    "env": [field_env("POD_IP", "status.podIP")],
    "ports": [{"name": "http", "containerPort": 8000}],
    "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1},
}


def test_a_node_registers_with_its_gpus(cluster: Cluster, node: NodeProcess):
    found = find_nodes(cluster)["node-0"]
    labels, status = found["metadata"]["labels"], found["status"]
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert labels["nvidia.com/gpu.count"] == status["allocatable"]["nvidia.com/gpu"] == "8"
    conditions = {item["type"]: item["status"] for item in status["conditions"]}
    assert conditions == {"Ready": "True", "MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"}
    eventually(
        lambda: find_nodes(cluster)["node-0"]["spec"].get("taints", []), lambda taints: not taints, within_s=15,
        what="the taints of a new node go",
    )  # fmt: skip
    lease = cluster.kubectl("get", "lease", "node-0", "-n", "kube-node-lease", "-o", "jsonpath={.spec.holderIdentity}")
    assert lease == "node-0"


def test_a_pod_has_its_environment_and_volumes_and_they_follow_changes(namespace: Namespace, node: NodeProcess):
    script = (
        "echo env=$A,$PW,$ME,$CPU; cat /etc/cm/text /etc/sec/pw; echo; cat /etc/info/labels; echo;"
        "echo made > /data/x; cat /other/x; hostname; cat /etc/hosts | grep $(hostname);"
        "ls /var/run/secrets/kubernetes.io/serviceaccount; touch /etc/cm/y || echo read-only;"
        "while ! grep -q second /etc/cm/text; do sleep 0.1; done; echo followed; sleep 1000"
    )
    described = pod(
        "everything",
        script,
        env=[
            {"name": "PW", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "pw"}}},
            field_env("ME", "metadata.name"),
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}}},
        ],
        envFrom=[{"configMapRef": {"name": "cm"}}],
        resources={"requests": {"cpu": "250m"}},
        volumeMounts=[
            {"name": "cm", "mountPath": "/etc/cm"},
            {"name": "sec", "mountPath": "/etc/sec"},
            {"name": "info", "mountPath": "/etc/info"},
            {"name": "data", "mountPath": "/data"},
            {"name": "data", "mountPath": "/other", "readOnly": True},
        ],
        volumes=[
            {"name": "cm", "configMap": {"name": "cm"}},
            {"name": "sec", "secret": {"secretName": "sec"}},
            {
                "name": "info",
                "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]},
            },
            {"name": "data", "emptyDir": {}},
        ],
    )
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "cm"},
        "data": {"A": "1", "text": "first\n"},
    }
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "sec"}, "stringData": {"pw": "s3cret"}}
    namespace.apply(config_map, secret, described)
    status = namespace.await_ready("everything")
    assert status["qosClass"] == "Burstable"
    printed = eventually(
        lambda: node.log_of(namespace.name, "everything"), lambda text: "read-only" in text, within_s=20, what="output"
    )
    lines = printed.splitlines()
    assert lines[:4] == ["env=1,s3cret,everything,250", "first", "s3cret", 'app="everything"']
    assert "made" in lines
    assert f"{status['podIP']}\teverything" in lines
    assert {"ca.crt", "namespace", "token"} <= set(lines)
    namespace.apply(config_map | {"data": {"text": "second\n"}})
    eventually(
        lambda: node.log_of(namespace.name, "everything"),
        lambda text: "followed" in text,
        within_s=30,
        what="the change",
    )


IN_CLUSTER = """
import os
from kubernetes import client, config
config.load_incluster_config()
api = client.CoreV1Api()
me = api.read_namespaced_pod(os.environ["HOSTNAME"], os.environ["NAMESPACE"])
print("pod", me.metadata.name, me.status.pod_ip, flush=True)
try:
    api.list_namespaced_secret(os.environ["NAMESPACE"])
except client.ApiException as error:
    print("secrets", error.status, flush=True)
"""


def test_an_unmodified_in_cluster_client_works_with_the_rights_of_its_account(namespace: Namespace, node: NodeProcess):
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    subjects = [{"kind": "ServiceAccount", "name": "reader"}]
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "reader"}}
    namespace.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}},
        rbac | {"kind": "Role", "rules": rules},
        rbac | {"kind": "RoleBinding", "roleRef": reference, "subjects": subjects},
        pod(
            "client",
            "",
            image="python:3.11",
            command=["python", "-c", IN_CLUSTER],
            env=[field_env("NAMESPACE", "metadata.namespace")],
            spec_serviceAccountName="reader",
            spec_restartPolicy="Never",
        ),
    )
    status = namespace.await_status("client", lambda found: found["phase"] in {"Succeeded", "Failed"}, "ends")
    printed = node.log_of(namespace.name, "client")
    assert status["phase"] == "Succeeded", printed
    assert printed == f"pod client {status['podIP']}\nsecrets 403\n"


def test_a_service_leads_to_ready_pods_by_name_and_by_environment(namespace: Namespace, node: NodeProcess):
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", **SERVING}]}}
    template["spec"]["terminationGracePeriodSeconds"] = 1  # type: ignore[index]
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 18080, "targetPort": "http"}]},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template},
        },
    )
    namespace.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    fetch = (
        "import sys, urllib.request as u; print([u.urlopen(url, timeout=5).status for url in sys.argv[1:]], flush=True)"
    )
    by_environment = "http://$(WEB_SERVICE_HOST):$(WEB_SERVICE_PORT)/"
    by_name = [f"http://{name}:18080/" for name in ("web", f"web.{namespace.name}.svc.cluster.local")]
    command = ["python", "-c", fetch, by_environment, *by_name]
    namespace.apply(pod("caller", "", image="python:3.11", command=command, spec_restartPolicy="Never"))
    namespace.await_status("caller", lambda found: found["phase"] in {"Succeeded", "Failed"}, "ends")
    assert node.log_of(namespace.name, "caller") == "[200, 200, 200]\n"
    address = namespace.get("service", "web")["metadata"]["annotations"]["simulator.forebay.dev/address"]
    assert address.endswith(":18080")


def test_a_job_completes_and_its_pod_tells_how(namespace: Namespace):
    template = pod("unused", "echo done > /dev/termination-log; exit 0", spec_restartPolicy="Never")
    namespace.apply(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "job"},
            "spec": {"template": {"spec": template["spec"]}},
        }
    )
    namespace.kubectl("wait", "--for=condition=complete", "job/job", "--timeout=60s")
    name = namespace.kubectl("get", "pods", "-l", "job-name=job", "-o", "jsonpath={.items[0].metadata.name}")
    terminated = main_state(namespace.status(name))["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"], terminated["message"]) == (0, "Completed", "done\n")


def test_a_crashing_pod_backs_off_and_shows_its_last_lines(namespace: Namespace, node: NodeProcess):
    namespace.apply(pod("crash", "echo it broke; exit 3", terminationMessagePolicy="FallbackToLogsOnError"))
    status = namespace.await_status(
        "crash",
        lambda found: main_state(found)["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff",
        "is in CrashLoopBackOff",
    )
    last = main_state(status)["lastState"]["terminated"]
    assert (last["exitCode"], last["reason"], last["message"]) == (3, "Error", "it broke\n")
    assert status["phase"] == "Running"
    namespace.await_status("crash", lambda found: main_state(found)["restartCount"] >= 3, "is restarted")
    assert node.log_of(namespace.name, "crash", previous=True) == "it broke\n"
    eventually(lambda: namespace.events("crash"), lambda found: "BackOff" in found, within_s=20, what="an event")


@pytest.mark.parametrize(
    ("described", "reason", "message"),
    [
        (pod("x", "", image="nosuch/image:1"), "ErrImagePull", "matches no entry of the node's image table"),
        (
            pod("x", "true", envFrom=[{"secretRef": {"name": "gone"}}]),
            "CreateContainerConfigError",
            'secret "gone" not found',
        ),
        (
            pod("x", "true", volumes=[{"name": "h", "hostPath": {"path": "/etc"}}]),
            "CreateContainerConfigError",
            "hostPath, which a simulated node has not got: use emptyDir",
        ),
        (pod("x", "", command=["no-such-program"]), "StartError", "executable file not found in $PATH"),
    ],
    ids=["image", "secret", "hostPath", "program"],
)
def test_what_keeps_a_pod_from_starting_is_in_its_status(
    namespace: Namespace, described: dict, reason: str, message: str
):
    described["spec"]["restartPolicy"] = "Never"
    namespace.apply(described)

    def told(status: dict[str, Any]) -> dict[str, Any]:
        state = main_state(status)["state"]
        found: dict[str, Any] = state.get("waiting") or state.get("terminated") or {}
        return found

    status = namespace.await_status("x", lambda found: told(found).get("reason") == reason, f"shows {reason}")
    assert message in told(status)["message"]


def test_kubectl_shows_logs(namespace: Namespace):
    namespace.apply(
        pod("talks", "for line in one two three; do echo $line; done; sleep 2; echo four", spec_restartPolicy="Never")
    )
    namespace.await_ready("talks")
    assert namespace.kubectl("logs", "talks", "--tail=2") == "two\nthree\n"
    assert namespace.kubectl("logs", "talks", "--follow") == "one\ntwo\nthree\nfour\n"


def test_init_containers_come_first_and_a_sidecar_stays(namespace: Namespace, node: NodeProcess):
    described = pod("staged", "cat /scratch/order; sleep 1000", volumeMounts=[{"name": "w", "mountPath": "/scratch"}])
    described["spec"]["volumes"] = [{"name": "w", "emptyDir": {}}]
    shared = {"image": "busybox", "volumeMounts": [{"name": "w", "mountPath": "/scratch"}]}
    described["spec"]["initContainers"] = [
        {"name": "one", "command": ["sh", "-c", "echo one >> /scratch/order"], **shared},
        {
            "name": "side",
            "restartPolicy": "Always",
            "command": ["sh", "-c", "echo side >> /scratch/order; sleep 1000"],
            **shared,
        },
        {"name": "two", "command": ["sh", "-c", "sleep 0.5; echo two >> /scratch/order"], **shared},
    ]
    namespace.apply(described)
    status = namespace.await_ready("staged")
    eventually(
        lambda: node.log_of(namespace.name, "staged"),
        lambda text: text == "one\nside\ntwo\n",
        within_s=10,
        what="order",
    )
    side = next(item for item in status["initContainerStatuses"] if item["name"] == "side")
    assert side["started"]
    assert "running" in side["state"]


def test_probes_decide_readiness_and_restarts(namespace: Namespace):
    described = pod(
        "probed",
        "touch /flags/live; sleep 1; touch /flags/ready; sleep 1000",
        volumeMounts=[{"name": "flags", "mountPath": "/flags"}],
        readinessProbe={"exec": {"command": ["test", "-e", "/flags/ready"]}, "periodSeconds": 1},
        livenessProbe={"exec": {"command": ["test", "-e", "/flags/live"]}, "periodSeconds": 1, "failureThreshold": 2},
        volumes=[{"name": "flags", "emptyDir": {}}],
    )
    described["spec"]["terminationGracePeriodSeconds"] = 1
    namespace.apply(described)
    namespace.await_status("probed", lambda found: "running" in main_state(found)["state"], "runs")
    status = namespace.await_ready("probed")
    # The probe's own view of the volume is the container's.
    flags = Path(f"/proc/{process_id(status)}/root/flags")
    (flags / "ready").unlink()
    namespace.await_status("probed", lambda found: not is_ready(found), "is unready")
    (flags / "live").unlink()
    status = namespace.await_status("probed", lambda found: main_state(found)["restartCount"] == 1, "is restarted")
    assert main_state(status)["lastState"]["terminated"]["exitCode"] == 137, "process 1 of a container ignores SIGTERM"
    events = eventually(
        lambda: namespace.events("probed"), lambda found: "Killing" in found, within_s=20, what="events"
    )
    assert events["Killing"] == "Container main failed liveness probe, will be restarted"
    assert "Unhealthy" in events


def test_a_deleted_pod_gets_hook_signal_and_time(namespace: Namespace, node: NodeProcess):
    script = "trap 'echo asked; sleep 0.5; echo left; exit 0' TERM; echo here; while :; do sleep 0.05; done"
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "sleep 0.5; echo hook >> /proc/1/fd/1"]}}}
    deaf = pod("deaf", "echo here; sleep 1000", spec_terminationGracePeriodSeconds=2)
    namespace.apply(pod("polite", script, lifecycle=hook, spec_terminationGracePeriodSeconds=20), deaf)
    for name in ("polite", "deaf"):
        namespace.await_ready(name)
    process = psutil.Process(process_id(namespace.status("deaf")))
    begun_s = time.monotonic()
    namespace.delete("polite", "deaf")
    assert time.monotonic() - begun_s < 15
    assert node.log_of(namespace.name, "polite").splitlines() == ["here", "hook", "asked", "left"]
    assert not process.is_running()


def test_a_forced_deletion_kills_at_once(namespace: Namespace):
    namespace.apply(
        pod("stubborn", "trap '' TERM; while :; do sleep 0.1; done", spec_terminationGracePeriodSeconds=300)
    )
    process = psutil.Process(process_id(namespace.await_ready("stubborn")))
    namespace.delete("stubborn", "--force", "--grace-period=0")
    eventually(process.is_running, lambda alive: not alive, within_s=10, what="the process is killed")


def test_gpus_are_counted_and_shared_out(namespace: Namespace, node: NodeProcess):
    for name in ("one", "two", "three"):
        resources = {"limits": {"nvidia.com/gpu": "4"}}
        namespace.apply(pod(name, "echo $CUDA_VISIBLE_DEVICES; sleep 1000", resources=resources))
        if name != "three":
            namespace.await_ready(name)
    held = sorted(node.log_of(namespace.name, name).strip() for name in ("one", "two"))
    assert held == ["0,1,2,3", "4,5,6,7"]
    refused = namespace.await_status("three", lambda found: found.get("conditions"), "is refused")
    assert "Insufficient nvidia.com/gpu" in refused["conditions"][0]["message"]
    namespace.delete("one", "--grace-period=1")
    namespace.await_ready("three")


def mark(node: NodeProcess) -> list[dict[str, str]]:
    """An environment by which a node's pod processes are found, wherever they are."""
    return [{"name": "FOREBAY_TEST_NODE", "value": str(node.data)}]


def test_a_killed_agent_leaves_nothing_and_its_successor_starts_the_pods_again(namespace: Namespace, node: NodeProcess):
    completed = pod("completed", "exit 0", spec_restartPolicy="Never")
    once = pod("once", "setsid sleep 1000 & sleep 1000", env=mark(node), spec_restartPolicy="Never")
    namespace.apply(pod("again", "setsid sleep 1000 & sleep 1000", env=mark(node)), once, completed)
    before = namespace.await_ready("again")
    namespace.await_ready("once")
    namespace.await_status("completed", lambda found: found["phase"] == "Succeeded", "completes")
    assert len(node.processes()) >= 4
    node.kill()
    eventually(node.processes, lambda found: not found, within_s=5, what="no process is left")
    node.start()
    after = namespace.await_status(
        "again", lambda found: main_state(found)["restartCount"] == 1 and is_ready(found), "again"
    )
    assert after["podIP"] == before["podIP"]
    assert main_state(after)["lastState"]["terminated"]["reason"] == "ContainerStatusUnknown"
    failed = namespace.await_status("once", lambda found: found["phase"] == "Failed", "has failed")
    assert main_state(failed)["state"]["terminated"]["exitCode"] == 137
    assert namespace.status("completed")["phase"] == "Succeeded"


def test_pods_outlive_an_api_server_that_is_away(cluster: Cluster, namespace: Namespace, node: NodeProcess):
    namespace.apply(*(pod(name, "exec sleep 1000", env=mark(node)) for name in ("steady", "crashes")))
    before = {name: process_id(namespace.await_ready(name)) for name in ("steady", "crashes")}
    cluster.kill("kube-apiserver")
    try:
        os.kill(before["crashes"], signal.SIGKILL)
        # Longer than the node may be silent.
        always(lambda: psutil.pid_exists(before["steady"]), bool, for_s=18, what="the pod runs on")
        programs = [process for process in node.processes() if process.info["cmdline"] == ["sleep", "1000"]]
        assert len(programs) == 2, "the other was started again meanwhile"
    finally:
        cluster.start_program("kube-apiserver")
    status = namespace.await_status(
        "crashes", lambda found: main_state(found)["restartCount"] == 1 and is_ready(found), "runs again"
    )
    assert main_state(status)["lastState"]["terminated"]["signal"] == 9
    namespace.await_ready("steady")
    assert process_id(namespace.status("steady")) == before["steady"]

    def node_ready() -> bool:
        conditions = find_nodes(cluster)["node-0"]["status"]["conditions"]
        return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)

    eventually(node_ready, bool, within_s=40, what="the node is Ready")
    namespace.apply(pod("new", "exec sleep 1000"))
    namespace.await_ready("new")


def test_a_pod_that_others_call_unready_is_ready_again(namespace: Namespace):
    """The node controller does so when a node seems gone."""
    namespace.apply(pod("steady", "exec sleep 1000"))
    namespace.await_ready("steady")
    patch = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    namespace.kubectl("patch", "pod", "steady", "--subresource=status", "-p", json.dumps(patch))
    namespace.await_ready("steady")


def test_a_node_that_shuts_down_ends_its_pods_and_says_so(cluster: Cluster, namespace: Namespace, node: NodeProcess):
    leaving = NodeProcess(cluster, "node-leaving", octet=1)
    leaving.start()
    try:
        on_it = {"kubernetes.io/hostname": "node-leaving"}
        # It ignores SIGTERM, so that the shutdown takes long enough for further heartbeats.
        namespace.apply(pod("guest", "sleep 1000", env=mark(leaving), spec_nodeSelector=on_it))
        namespace.await_ready("guest")
        assert leaving.shut_down() == 0
        assert not leaving.processes()
        status = namespace.status("guest")
        assert (status["phase"], status["reason"]) == ("Failed", "Terminated")
        conditions = find_nodes(cluster)["node-leaving"]["status"]["conditions"]
        ready = next(item for item in conditions if item["type"] == "Ready")
        assert (ready["status"], ready["message"]) == ("False", "node is shutting down")
    finally:
        leaving.kill()
        cluster.kubectl("delete", "node", "node-leaving")


def test_a_second_agent_on_the_same_folder_is_refused(node: NodeProcess):
    second = subprocess.run(node._argv, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 1
    assert "is in use by another forebay-node: give this one its own" in second.stderr
    assert "Traceback" not in second.stderr
