"""The control plane as its users meet it: the real programs."""

import base64
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from forebay_localcluster.cluster import Cluster
from forebay_localcluster.control_plane import Settings
from forebay_localcluster.errors import ClusterStartError, CommandError
from forebay_localcluster.pins import Program
from forebay_localcluster.plan import ExtraProgram, FileCheck
from tests.support.eventually import eventually

pytestmark = pytest.mark.cluster

START_S = 15.0
"""The bound of the project's plan; an idle machine needs about 4 s, one under load more."""
WITHOUT_PROMETHEUS = Settings(prometheus=False)
WIDGETS: Mapping[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.test.forebay.dev"},
    "spec": {
        "group": "test.forebay.dev",
        "scope": "Namespaced",
        "names": {"kind": "Widget", "plural": "widgets", "singular": "widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}},
                                "x-kubernetes-validations": [
                                    {"rule": "self.min <= self.max", "message": "min: must not be above max"}
                                ],
                            }
                        },
                    }
                },
            }
        ],
    },
}


def widget(minimum: int, maximum: int) -> str:
    return json.dumps(
        {
            "apiVersion": "test.forebay.dev/v1",
            "kind": "Widget",
            "metadata": {"name": "w"},
            "spec": {"min": minimum, "max": maximum},
        }
    )


def pod(name: str) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "c", "image": "none"}]},
        }
    )


@pytest.fixture
def namespace(kubernetes_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = "lc-" + re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_"))[:40].strip("-")
    kubernetes_cluster.kubectl("create", "namespace", name)
    yield name
    kubernetes_cluster.kubectl("delete", "namespace", name, "--wait=false")


def processes_below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    alive = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
    return alive


def asked_with_token(cluster: Cluster, token: str, path: str) -> int:
    """Ask the API server as whoever the token is; return the status code."""
    authority = yaml.safe_load(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["certificate-authority-data"]
    import ssl

    context = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
    with httpx.Client(verify=context, trust_env=False, timeout=10) as client:
        return client.get(f"{cluster.server}{path}", headers={"Authorization": f"Bearer {token}"}).status_code


def claims_of(token: str) -> dict[str, Any]:
    payload = token.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return claims


def test_everything_is_up_in_time_and_nothing_survives_down(tmp_path: Path):
    cluster = Cluster("whole", data=tmp_path / "data")
    started = time.monotonic()
    assert cluster.up()
    try:
        took_s = time.monotonic() - started
        assert {status.name: status.state for status in cluster.programs_status()} == {
            "etcd": "ready",
            "kube-apiserver": "ready",
            "kube-controller-manager": "ready",
            "kube-scheduler": "ready",
            "bootstrap": "done",
            "prometheus": "ready",
        }
        assert took_s < START_S or os.getloadavg()[0] > 2 * (os.cpu_count() or 1), f"up after {took_s:.1f} s"
        assert not cluster.up(), "it is up already"
        supervisor = psutil.Process(cluster.supervisor_pid())
        everything = [supervisor, *processes_below(supervisor.pid)]
        assert len(everything) == 6
    finally:
        started = time.monotonic()
        assert cluster.down()
    assert time.monotonic() - started < 10
    assert not living(everything)
    assert not cluster.data.exists()
    assert not cluster.down(), "down again is no error"


def test_two_clusters_run_side_by_side_and_know_nothing_of_each_other(kubernetes_cluster: Cluster):
    with Cluster.temporary("second", settings=WITHOUT_PROMETHEUS) as second:
        second.kubectl("create", "namespace", "only-here")
        assert "only-here" not in kubernetes_cluster.kubectl("get", "namespaces", "-o", "name")
        assert second.number != kubernetes_cluster.number
        ports = [{status.port for status in each.programs_status()} for each in (second, kubernetes_cluster)]
        assert not ports[0] & ports[1]
        with pytest.raises(CommandError, match="certificate signed by unknown authority"):
            second.kubectl("--server", kubernetes_cluster.server, "get", "namespaces")


OWNER = """
import time
from pathlib import Path
from forebay_localcluster.cluster import Cluster
from forebay_localcluster.control_plane import Settings
with Cluster.temporary("owned", settings=Settings(prometheus=False)) as cluster:
    print(cluster.supervisor_pid(), cluster.data, flush=True)
    time.sleep(600)
"""


def test_a_killed_owner_leaves_no_process_and_no_data():
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        pid, data = owner.stdout.readline().split()
        everything = [psutil.Process(int(pid)), *processes_below(int(pid))]
        assert len(everything) == 5
        owner.kill()
    eventually(lambda: living(everything), lambda left: not left, within_s=10, what="all end", every_s=0.05)
    assert not Path(data).exists()


def test_a_killed_supervisor_leaves_no_process_and_the_cluster_can_be_started_again(tmp_path: Path):
    cluster = Cluster("again", data=tmp_path / "data")
    cluster.up(WITHOUT_PROMETHEUS)
    try:
        server = cluster.server
        cluster.kubectl("create", "configmap", "kept", "--from-literal=a=b")
        token = cluster.kubectl("create", "token", "default").strip()
        everything = processes_below(cluster.supervisor_pid())
        os.kill(cluster.supervisor_pid(), signal.SIGKILL)
        eventually(lambda: living(everything), lambda left: not left, within_s=10, what="all end", every_s=0.05)
        assert cluster.up(WITHOUT_PROMETHEUS)
        assert cluster.kubectl("get", "configmap", "kept", "-o", "jsonpath={.data.a}") == "b"
        assert cluster.server == server, "kubeconfigs that were handed out stay good"
        assert asked_with_token(cluster, token, "/api/v1/namespaces/default/pods") == 403, (
            "so do tokens, in their rights"
        )
    finally:
        cluster.down()


def test_a_bad_flag_is_answered_with_the_program_s_own_words(tmp_path: Path):
    cluster = Cluster("bad", data=tmp_path / "data")
    with pytest.raises(ClusterStartError) as failure:
        cluster.up(Settings(prometheus=False, flags={"kube-apiserver": ("--no-such-flag",)}))
    assert failure.value.program == "kube-apiserver"
    assert "unknown flag: --no-such-flag" in "\n".join(failure.value.last_lines)
    assert failure.value.command.endswith("--no-such-flag")
    assert failure.value.log.exists()
    assert not cluster.running
    cluster.down()


def test_a_killed_api_server_comes_back_with_its_data_and_its_clients(kubernetes_cluster: Cluster, namespace: str):
    cluster = kubernetes_cluster
    cluster.kubectl("create", "configmap", "kept", "-n", namespace, "--from-literal=a=b")
    server = cluster.server
    cluster.kill(Program.API_SERVER)
    try:
        with pytest.raises(CommandError, match=r"refused|EOF|reset"):
            cluster.kubectl("get", "configmap", "kept", "-n", namespace)
        others = {status.name: status.state for status in cluster.programs_status() if status.name != "kube-apiserver"}
        assert set(others.values()) == {"ready"}
    finally:
        cluster.start_program(Program.API_SERVER)
    assert cluster.server == server
    assert cluster.kubectl("get", "configmap", "kept", "-n", namespace, "-o", "jsonpath={.data.a}") == "b"
    cluster.kubectl("create", "deployment", "d", "--image=none", "-n", namespace)
    eventually(
        lambda: cluster.kubectl("get", "pods", "-n", namespace, "-o", "name"),
        bool,
        within_s=30,
        what="the controller manager works again",
    )


def test_a_new_namespace_takes_pods_and_has_the_authority(kubernetes_cluster: Cluster, namespace: str):
    eventually(
        lambda: kubernetes_cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=pod("p")),
        lambda said: "created" in said,
        within_s=10,
        what="the service account exists",
    )
    authority = eventually(
        lambda: kubernetes_cluster.kubectl(
            "get", "configmap", "kube-root-ca.crt", "-n", namespace, "-o", r"jsonpath={.data.ca\.crt}"
        ),
        bool,
        within_s=10,
        what="the root authority is published",
    )
    assert authority.encode() == kubernetes_cluster.layout.pem("authority").read_bytes()


def test_a_token_has_its_service_account_s_rights_and_no_more(kubernetes_cluster: Cluster, namespace: str):
    cluster = kubernetes_cluster
    cluster.kubectl("create", "serviceaccount", "reader", "-n", namespace)
    token = cluster.kubectl("create", "token", "reader", "-n", namespace).strip()
    assert claims_of(token)["sub"] == f"system:serviceaccount:{namespace}:reader"
    pods = f"/api/v1/namespaces/{namespace}/pods"
    assert asked_with_token(cluster, token, pods) == 403
    cluster.kubectl("create", "role", "reader", "--verb=list", "--resource=pods", "-n", namespace)
    cluster.kubectl(
        "create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={namespace}:reader", "-n", namespace
    )
    eventually(
        lambda: asked_with_token(cluster, token, pods), lambda code: code == 200, within_s=10, what="the role counts"
    )
    assert asked_with_token(cluster, token, f"/api/v1/namespaces/{namespace}/secrets") == 403
    assert asked_with_token(cluster, "made-up", pods) == 401


def test_an_issued_user_is_who_the_certificate_says(kubernetes_cluster: Cluster):
    kubeconfig = kubernetes_cluster.issue("alice", ["developers"])
    who = json.loads(kubernetes_cluster.kubectl("--kubeconfig", str(kubeconfig), "auth", "whoami", "-o", "json"))
    assert who["status"]["userInfo"]["username"] == "alice"
    assert "developers" in who["status"]["userInfo"]["groups"]
    with pytest.raises(CommandError, match='User "alice" cannot list resource "pods"'):
        kubernetes_cluster.kubectl("--kubeconfig", str(kubeconfig), "get", "pods")


def test_a_node_may_write_itself_and_no_other(kubernetes_cluster: Cluster):
    """The Node authoriser and NodeRestriction, as a kubelet meets them."""
    node = kubernetes_cluster.issue("system:node:node-a", ["system:nodes"])

    def register(name: str) -> str:
        body = json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        return kubernetes_cluster.kubectl("--kubeconfig", str(node), "create", "-f", "-", stdin=body)

    try:
        assert "node-a created" in register("node-a")
        with pytest.raises(CommandError, match='node "node-a" is not allowed to modify node "node-b"'):
            register("node-b")
    finally:
        kubernetes_cluster.kubectl("delete", "node", "node-a", "--ignore-not-found")


def test_a_rule_across_fields_is_enforced(kubernetes_cluster: Cluster, namespace: str):
    cluster = kubernetes_cluster
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(WIDGETS))
    try:
        cluster.kubectl("wait", "--for=condition=Established", "crd/widgets.test.forebay.dev", "--timeout=20s")
        with pytest.raises(CommandError, match="min: must not be above max"):
            cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=widget(2, 1))
        assert "created" in cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=widget(1, 2))
    finally:
        cluster.kubectl("delete", "crd", "widgets.test.forebay.dev", "--wait=false")


def test_a_deleted_owner_s_objects_are_collected(kubernetes_cluster: Cluster, namespace: str):
    cluster = kubernetes_cluster
    cluster.kubectl("create", "deployment", "d", "--image=none", "-n", namespace)

    def names() -> str:
        return cluster.kubectl("get", "replicasets,pods", "-n", namespace, "-o", "name")

    eventually(names, lambda found: "pod/" in found, within_s=15, what="the Deployment has a pod")
    cluster.kubectl("delete", "deployment", "d", "-n", namespace)
    eventually(names, lambda found: not found, within_s=20, what="its objects are gone")


def test_helm_installs_into_this_cluster_and_leaves_the_user_s_helm_alone(
    kubernetes_cluster: Cluster, namespace: str, tmp_path: Path
):
    chart = tmp_path / "chart"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: tiny\nversion: 0.1.0\n")
    (chart / "templates" / "map.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}\ndata:\n  a: b\n"
    )
    kubernetes_cluster.helm("install", "tiny", str(chart), "-n", namespace)
    assert "configmap/tiny" in kubernetes_cluster.kubectl("get", "configmap", "-n", namespace, "-o", "name")
    for kind in ("CACHE", "CONFIG", "DATA"):
        assert Path(kubernetes_cluster.environment()[f"HELM_{kind}_HOME"]).is_relative_to(kubernetes_cluster.data)


EXPORTER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Type", "text/plain"); self.end_headers()
        self.wfile.write(b'a_measure{namespace="of-the-service"} 42\\n')
    def log_message(self, *arguments): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def forebay_pod(name: str, component: str, port_name: str, port: int) -> str:
    labels = {
        "app.kubernetes.io/name": "forebay",
        "app.kubernetes.io/component": component,
        "forebay.dev/model-service": "llama",
        "forebay.dev/pool": "decode",
        "forebay.dev/role": "Decode",
    }
    ports = [{"name": port_name, "containerPort": port}, {"name": "other", "containerPort": 1}]
    containers = [{"name": "c", "image": "none", "ports": ports}]
    spec = {"nodeName": "nowhere", "containers": containers, "tolerations": [{"operator": "Exists"}]}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec})


def test_prometheus_finds_pods_and_keeps_what_it_knows_when_it_is_killed():
    """A worker by its port `http`, a router by its port `metrics`; here one exporter of the test's own stands behind both."""
    settings = Settings(scrape_interval_s=0.2)

    def extras(cluster: Cluster) -> list[ExtraProgram]:
        port = str(18_000 + cluster.number)
        return [ExtraProgram(name="exporter", argv=(sys.executable, "-c", EXPORTER, port), ready=FileCheck("/"))]

    with Cluster.temporary("measured", settings=settings, extras=extras) as cluster:
        port = 18_000 + cluster.number

        def value(query: str) -> list[dict[str, Any]]:
            answer = httpx.get(f"{cluster.prometheus_url}/api/v1/query", params={"query": query}, trust_env=False)
            found: list[dict[str, Any]] = answer.json()["data"]["result"]
            return found

        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "nowhere"}}
        cluster.kubectl("create", "-f", "-", stdin=json.dumps(node))
        for name, component, port_name in (("w", "worker", "http"), ("r", "router", "metrics")):
            cluster.kubectl("create", "-f", "-", stdin=forebay_pod(name, component, port_name, port))
            status = {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
            patch = json.dumps({"status": status})
            cluster.kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "-p", patch)
        both = eventually(
            lambda: value("a_measure"), lambda found: len(found) == 2, within_s=20, what="both pods are scraped"
        )
        labels = {series["metric"]["pod"]: series["metric"] for series in both}
        target = {"model_service": "llama", "pool": "decode", "role": "Decode"}
        assert target.items() <= labels["w"].items()
        assert (labels["w"]["job"], labels["w"]["namespace"]) == ("forebay-workers", "default")
        assert labels["w"]["exported_namespace"] == "of-the-service"
        assert (labels["r"]["job"], labels["r"]["namespace"]) == ("forebay", "of-the-service")
        assert "exported_namespace" not in labels["r"]
        before = time.time()
        cluster.kill(Program.PROMETHEUS)
        cluster.start_program(Program.PROMETHEUS)
        assert value(f"a_measure @ {before:.3f}"), "what was measured before the kill is still known"
