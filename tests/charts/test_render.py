"""What the chart renders, variant by variant, without a cluster."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from forebay_api import names
from forebay_autoscaler.settings import parse_settings as parse_autoscaler
from forebay_capacity.accelerators import ACCELERATORS
from forebay_operator.settings import load_settings as parse_operator
from forebay_router.settings import parse_settings as parse_router
from forebay_simulator.node import registration
from tests.charts.helm import CHART, NAMESPACE, RELEASE, ChartError, Helm, of_component, of_kind
from tests.charts.variants import COMPONENTS, PROMETHEUS, TEAMS, VARIANTS

pytestmark = [pytest.mark.cluster, pytest.mark.tables]  # needs the helm program, though no cluster
POD_IP = "10.1.2.3"
SELECTOR_KEYS = {names.NAME_LABEL, "app.kubernetes.io/instance", names.COMPONENT_LABEL}
variants = pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS.keys())


def pod_of(deployment: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def container_of(deployment: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod_of(deployment)["containers"]
    made: dict[str, Any] = container
    return made


def expanded(text: str) -> str:
    """$(NAME) as the kubelet expands it; $$ escapes."""
    known = {"$(POD_IP)": POD_IP, "$(POD_NAME)": "pod-1", "$(POD_NAMESPACE)": NAMESPACE}
    for name, value in known.items():
        text = text.replace(f"${name}", "\0").replace(name, value).replace("\0", name)
    return text


def arguments_of(deployment: dict[str, Any]) -> list[str]:
    return [expanded(argument) for argument in container_of(deployment)["args"]]


def environment_of(deployment: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: expanded(one["value"]) for one in container_of(deployment)["env"] if "value" in one}


@variants
def test_lint_has_nothing_to_say(helm: Helm, values: dict[str, Any]):
    assert "0 chart(s) failed" in helm.run("lint", "--strict", str(CHART), values=values)


@variants
def test_every_object_is_labelled_and_nothing_is_rendered_twice(helm: Helm, values: dict[str, Any]):
    objects = helm.template(values)
    keys = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in objects]
    assert len(keys) == len(set(keys))
    for one in objects:
        assert one["metadata"]["labels"][names.NAME_LABEL] == names.APPLICATION


@variants
def test_selectors_hold_nothing_that_a_release_changes(helm: Helm, values: dict[str, Any]):
    """C152: a selector cannot be changed, so a version in it would make the next upgrade fail."""
    objects = helm.template(values)
    for deployment in of_kind(objects, "Deployment"):
        selector = deployment["spec"]["selector"]["matchLabels"]
        assert selector.keys() == SELECTOR_KEYS
        assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    for budget in of_kind(objects, "PodDisruptionBudget"):
        assert budget["spec"]["selector"]["matchLabels"].keys() == SELECTOR_KEYS
    for service in of_kind(objects, "Service"):
        assert service["spec"]["selector"].keys() == SELECTOR_KEYS


def test_another_version_of_the_chart_has_the_same_selectors_and_restarts_nothing_but_for_the_image(
    helm: Helm, tmp_path: Path
):
    """C152: chart and app version change, the pods' labels and annotations do not."""
    newer = tmp_path / "forebay"
    shutil.copytree(CHART, newer)
    about = yaml.safe_load((newer / "Chart.yaml").read_text(encoding="utf-8"))
    (newer / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": "9.9.9", "appVersion": "9.9.9"}))
    pinned = {**PROMETHEUS, "image": {"tag": "0.1.0"}}
    before, after = (of_kind(helm.template(pinned, chart=chart), "Deployment") for chart in (CHART, newer))
    assert [one["spec"] for one in before] == [one["spec"] for one in after]


@variants
def test_the_programs_accept_the_flags_that_the_chart_gives_them(helm: Helm, values: dict[str, Any]):
    objects = helm.template(values)
    router = of_component(objects, "Deployment", "router")
    operator = of_component(objects, "Deployment", "operator")
    namespaces = tuple(values.get("watchNamespaces", []))
    of_router = parse_router(arguments_of(router), environment_of(router))
    of_operator = parse_operator(arguments_of(operator), environment_of(operator))
    assert of_router.kubernetes
    assert of_router.namespaces == of_operator.namespaces == namespaces
    assert (of_router.listen.port, of_router.control.port) == (names.ROUTER_PORT, names.CONTROL_PORT)
    assert of_operator.control[1] == names.CONTROL_PORT
    assert (of_operator.identity, of_operator.lease_namespace) == ("pod-1", NAMESPACE)
    grace_s = pod_of(router)["terminationGracePeriodSeconds"]
    assert grace_s == of_router.shutdown_delay_s + of_router.drain_limit_s + 10
    leases = {one["metadata"]["name"] for one in of_kind(objects, "Lease")}
    wanted = {of_operator.lease_name}
    if values.get("autoscaler", {}).get("enabled", True):
        autoscaler = of_component(objects, "Deployment", "autoscaler")
        of_autoscaler = parse_autoscaler(arguments_of(autoscaler), environment_of(autoscaler))
        assert of_autoscaler.namespaces == namespaces
        assert of_autoscaler.control_port == names.CONTROL_PORT
        assert (of_autoscaler.identity, of_autoscaler.lease_namespace) == ("pod-1", NAMESPACE)
        assert of_autoscaler.prometheus_url == values["prometheus"]["url"]
        wanted.add(of_autoscaler.lease_name)
    assert leases == wanted


@pytest.mark.parametrize("values", [VARIANTS["default"], VARIANTS["local cluster"]], ids=["default", "local cluster"])
def test_programs_and_workers_listen_where_the_values_say(helm: Helm, values: dict[str, Any]):
    objects = helm.template(values)
    local = "listenHost" in values
    operator = of_component(objects, "Deployment", "operator")
    router = of_component(objects, "Deployment", "router")
    settings = parse_operator(arguments_of(operator), environment_of(operator))
    assert settings.control[0] == (POD_IP if local else "0.0.0.0")
    assert settings.worker_host == ("$(POD_IP)" if local else "0.0.0.0"), "a worker's own address, not the operator's"
    assert parse_router(arguments_of(router), {}).listen.host == (POD_IP if local else "0.0.0.0")


@variants
def test_ports_are_named_as_others_look_for_them(helm: Helm, values: dict[str, Any]):
    """Prometheus finds pods by their component label and port names."""
    for deployment in of_kind(helm.template(values), "Deployment"):
        component = deployment["metadata"]["labels"][names.COMPONENT_LABEL]
        ports = {one["name"]: one["containerPort"] for one in container_of(deployment)["ports"]}
        expected = {names.METRICS_PORT_NAME: names.CONTROL_PORT}
        if component == "router":
            expected[names.HTTP_PORT_NAME] = names.ROUTER_PORT
            if values.get("router", {}).get("mesh", {}).get("enabled", True):
                expected[names.MESH_PORT_NAME] = names.MESH_PORT
        assert ports == expected
        probes = [container_of(deployment)[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
        assert {one["httpGet"]["port"] for one in probes} == {names.METRICS_PORT_NAME}


@variants
def test_a_busy_loop_is_let_be_and_one_that_never_turns_again_is_ended_within_three_minutes(
    helm: Helm, values: dict[str, Any]
):
    """C149: every page of the control port shares the loop with the work; eight seconds of it are no reason for a restart."""
    for deployment in of_kind(helm.template(values), "Deployment"):
        probe = container_of(deployment)["livenessProbe"]
        assert probe["periodSeconds"] * (probe["failureThreshold"] - 1) > 8
        assert probe["periodSeconds"] * (probe["failureThreshold"] + 1) + probe["timeoutSeconds"] < 180


@variants
def test_tokenizers_are_where_the_router_is_told_to_look(helm: Helm, values: dict[str, Any]):
    wanted = values.get("router", {}).get("tokenizers", [])
    deployment = of_component(helm.template(values), "Deployment", "router")
    router = container_of(deployment)
    told = dict(parse_router(arguments_of(deployment), environment_of(deployment)).tokenizers)
    mounts = {one["mountPath"]: one for one in router["volumeMounts"]}
    volumes = {one["name"]: one for one in deployment["spec"]["template"]["spec"]["volumes"]}
    assert list(told) == [one["model"] for one in wanted]
    for one in wanted:
        mount = mounts[str(told[one["model"]])]
        assert mount["readOnly"]
        assert mount.get("subPath") == one.get("subPath")
        assert volumes[mount["name"]] == {"name": mount["name"], **one["volume"]}


@variants
def test_router_replicas_find_each_other_and_nobody_else(helm: Helm, values: dict[str, Any]):
    objects = helm.template(values)
    router = of_component(objects, "Deployment", "router")
    settings = parse_router(arguments_of(router), environment_of(router)).replica
    assert settings.processes == values.get("router", {}).get("processes", 1)
    policies = [one for one in of_kind(objects, "NetworkPolicy") if one["metadata"]["name"].endswith("-router")]
    rules = {rule["ports"][0]["port"]: rule for one in policies for rule in one["spec"]["ingress"]}
    if not values.get("router", {}).get("mesh", {}).get("enabled", True):
        assert settings.mesh is None
        assert "mesh" not in rules
        return
    assert settings.mesh is not None
    assert settings.mesh.port == names.MESH_PORT
    assert (settings.name, settings.peer_namespace) == ("pod-1", NAMESPACE)
    selected = dict(one.split("=") for one in (settings.peer_pods or "").split(","))
    assert selected == router["spec"]["selector"]["matchLabels"]
    if policies:
        assert rules["mesh"]["from"] == [{"podSelector": {"matchLabels": selected}}]
    peers = [one for one in of_kind(objects, "Role") if one["metadata"]["name"].endswith("-router-peers")]
    needs_role = values.get("rbac", {}).get("create", True) and bool(values.get("watchNamespaces"))
    assert [one["metadata"]["namespace"] for one in peers] == [NAMESPACE] * needs_role


@variants
def test_no_pod_of_the_chart_is_taken_for_a_worker(helm: Helm, values: dict[str, Any]):
    for deployment in of_kind(helm.template(values), "Deployment"):
        labels = {**deployment["metadata"]["labels"], **deployment["spec"]["template"]["metadata"]["labels"]}
        assert not [key for key in labels if key.startswith(f"{names.GROUP}/")]
        assert labels[names.COMPONENT_LABEL] in COMPONENTS


@pytest.mark.parametrize(
    ("values", "operator", "router", "autoscaler"),
    [
        ({}, "forebay/operator:0.1.0", "forebay/router:0.1.0", "forebay/autoscaler:0.1.0"),
        (
            VARIANTS["private registry"],
            "registry.example.com/mirror/forebay/operator@sha256:" + "a" * 64,
            "registry.example.com/mirror/own/router:v10",
            "registry.example.com/mirror/forebay/autoscaler:v9",
        ),
    ],
    ids=["default", "private registry"],
)
def test_images_are_put_together(helm: Helm, values: dict[str, Any], operator: str, router: str, autoscaler: str):
    objects = helm.template({**PROMETHEUS, **values})
    made = [container_of(of_component(objects, "Deployment", one))["image"] for one in COMPONENTS]
    assert made == [operator, router, autoscaler]


def test_a_number_of_routers_is_written_unless_it_is_null(helm: Helm):
    """C119: a number beside a HorizontalPodAutoscaler would throw the router back at each upgrade."""
    without = of_component(
        helm.template(VARIANTS["load balancer and own autoscaling of the router"]), "Deployment", "router"
    )
    assert "replicas" not in without["spec"]
    assert of_component(helm.template(PROMETHEUS), "Deployment", "router")["spec"]["replicas"] == 2


@pytest.mark.parametrize("name", ["monitors", "monitors of named namespaces"])
def test_a_monitor_names_a_port_that_its_pods_have_exactly_once(helm: Helm, name: str):
    """C155: a port number, or a name that no pod has, leaves the list of targets empty without an error."""
    objects = helm.template(VARIANTS[name])
    own, workers = of_kind(objects, "PodMonitor")
    for deployment in of_kind(objects, "Deployment"):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert own["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert not workers["spec"]["selector"]["matchLabels"].items() <= labels.items()
        (endpoint,) = own["spec"]["podMetricsEndpoints"]
        assert [one["name"] for one in container_of(deployment)["ports"]].count(endpoint["port"]) == 1
    worker = names.worker_labels(model_service="chat", pool="decode", role="Decode")
    assert workers["spec"]["selector"]["matchLabels"].items() <= worker.items()
    assert not own["spec"]["selector"]["matchLabels"].items() <= worker.items()
    (endpoint,) = workers["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == names.HTTP_PORT_NAME
    assert {one["targetLabel"] for one in endpoint["relabelings"]} == {"model_service", "pool", "role"}


def test_monitors_stand_where_and_carry_what_prometheus_selects_by(helm: Helm):
    """C154."""
    for monitor in of_kind(helm.template(VARIANTS["monitors"]), "PodMonitor"):
        assert monitor["metadata"]["namespace"] == "monitoring"
        assert monitor["metadata"]["labels"]["release"] == "kube-prometheus-stack"
        assert monitor["spec"]["podMetricsEndpoints"][0]["interval"] == "15s"


def test_monitors_cover_the_namespaces_of_the_workers(helm: Helm):
    everywhere = of_kind(helm.template(VARIANTS["monitors"]), "PodMonitor")
    named = of_kind(helm.template(VARIANTS["monitors of named namespaces"]), "PodMonitor")
    assert [one["spec"]["namespaceSelector"] for one in everywhere] == [{"matchNames": [NAMESPACE]}, {"any": True}]
    assert [one["spec"]["namespaceSelector"] for one in named] == [{"matchNames": [NAMESPACE]}, {"matchNames": TEAMS}]


@pytest.mark.parametrize(("name", "kind"), [("podMonitors", "PodMonitor"), ("prometheusRules", "PrometheusRule")])
def test_without_their_kind_monitors_and_alerts_are_left_out_and_the_notes_say_so(helm: Helm, name: str, kind: str):
    """C154."""
    values = {**PROMETHEUS, name: {"enabled": True}}
    assert not of_kind(helm.template(values), kind)
    assert of_kind(helm.template(values, "--api-versions", f"monitoring.coreos.com/v1/{kind}"), kind)
    shown = helm.run("install", RELEASE, str(CHART), "--dry-run=client", values=values)
    assert f"WARNING: {name}.enabled is set, and this cluster has no {kind}s" in shown


def test_alerts_link_to_the_teams_runbook(helm: Helm):
    (rule,) = of_kind(helm.template(VARIANTS["alerts"]), "PrometheusRule")
    assert rule["metadata"]["namespace"] == "monitoring"
    assert rule["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    alerts = {one["alert"]: one for group in rule["spec"]["groups"] for one in group["rules"]}
    links = {one["annotations"]["runbook_url"] for one in alerts.values()}
    assert all(link.startswith("https://example.com/runbooks/forebay#") for link in links)
    assert '{job=~".*forebay.*"}' in alerts["ForebayTargetsDown"]["expr"], "jobs written by hand, as in docs/install.md"
    assert "{{ $labels.namespace }}" in alerts["ForebayNoWorkers"]["annotations"]["summary"]
    assert "ForebayAutoscalerNoDecision" in alerts
    (without,) = of_kind(helm.template(VARIANTS["alerts without an autoscaler"]), "PrometheusRule")
    assert not [one for group in without["spec"]["groups"] for one in group["rules"] if "utoscal" in one["alert"]]


@pytest.mark.parametrize(
    ("monitors", "set_by_hand", "jobs"),
    [
        ({"podMonitors": {"enabled": True, "assumeKinds": True}}, "", ".*serving.*"),
        ({"podMonitors": {"enabled": True}}, "", ".*forebay.*"),
        ({"podMonitors": {"enabled": True, "assumeKinds": True}}, "llm|llm-workers", "llm|llm-workers"),
        ({}, "llm|llm-workers", "llm|llm-workers"),
    ],
)
def test_alerts_watch_the_jobs_that_there_are(helm: Helm, monitors: dict[str, Any], set_by_hand: str, jobs: str):
    alerts = VARIANTS["alerts"]
    values = {**alerts, **monitors, "prometheusRules": {**alerts["prometheusRules"], "jobs": set_by_hand}}
    (rule,) = of_kind(helm.template(values), "PrometheusRule")
    texts = [one["expr"] for group in rule["spec"]["groups"] for one in group["rules"] if "job=~" in one["expr"]]
    assert texts
    assert {found for text in texts for found in re.findall(r'job=~"([^"]*)"', text)} == {jobs}


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        (PROMETHEUS, ["kubectl port-forward -n default service/forebay-router 8080:80 &", "of every namespace."]),
        (
            VARIANTS["named namespaces"],
            ["of the namespaces team-a, team-b.", "kubectl apply -n team-a -f - <<YAML"],
        ),
        (VARIANTS["autoscaler off"], ["The autoscaler is off: set the number of workers with"]),
        (
            VARIANTS["load balancer and own autoscaling of the router"],
            [
                "service/forebay-router 8080:8000 &",
                "WARNING: the router is reached from outside the cluster and asks for no key",
            ],
        ),
        (
            PROMETHEUS,
            [
                "     curl -N http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\\n       -d '{"
            ],
        ),
        (
            PROMETHEUS | {"router": {"apiKeysSecret": "keys", "tlsSecret": "tls"}},
            [
                "KEY=...   # a key of those that the Secret keys lists",
                (
                    "     curl -N https://127.0.0.1:8080/v1/chat/completions --insecure -H 'Content-Type: application/json' \\\n"
                    '       -H "Authorization: Bearer $KEY" \\\n       -d \'{'
                ),
            ],
        ),
    ],
    ids=["default", "named namespaces", "autoscaler off", "another port", "no key", "keys and TLS"],
)
def test_the_notes_tell_the_next_steps(helm: Helm, values: dict[str, Any], lines: list[str]):
    shown = helm.run("install", RELEASE, str(CHART), "--dry-run=client", values=values)
    for line in lines:
        assert line in shown


def test_accelerators_are_known_to_the_capacity_model_and_found_on_simulated_nodes(helm: Helm):
    classes = of_kind(helm.template(PROMETHEUS), "AcceleratorClass")
    assert {one["spec"]["hardware"] for one in classes} <= ACCELERATORS.keys()
    selectors = {one["metadata"]["name"]: one["spec"]["nodeSelector"]["nvidia.com/gpu.product"] for one in classes}
    assert selectors["h100-sxm"] == "NVIDIA-H100-80GB-HBM3"
    assert {one.product for one in registration.ACCELERATORS.values()} <= set(selectors.values())
    assert len(set(selectors.values())) == len(selectors)


def test_accelerators_can_be_changed_added_and_removed(helm: Helm):
    classes = {
        one["metadata"]["name"]: one["spec"]
        for one in of_kind(helm.template(VARIANTS["own accelerators"]), "AcceleratorClass")
    }
    assert "l40s" not in classes
    assert classes["h100-nvl"]["memory"] == "94Gi"
    assert classes["h100-sxm"]["pricePerHour"] == "2.75"
    assert classes["h100-sxm"]["hardware"] == "h100-sxm"


def test_crds_are_brought_up_to_date_by_a_hook_that_leaves_them_alone_otherwise(helm: Helm):
    hooks = of_kind(helm.template(PROMETHEUS), "CustomResourceDefinition")
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted((CHART / "crds").glob("*.yaml"))]
    assert [one["metadata"]["annotations"].pop("helm.sh/hook") for one in hooks] == ["pre-upgrade"] * len(files)
    assert hooks == files
    assert not of_kind(helm.template(VARIANTS["nothing but the programs"]), "CustomResourceDefinition")


REFUSALS = [
    ({}, "prometheus.url is not set: give the address at which the autoscaler reads metrics"),
    ({"prometheus": {"url": "prometheus:9090"}}, "at '/prometheus/url': 'prometheus:9090' does not match pattern"),
    ({"routers": {}}, "additional properties 'routers' not allowed"),
    ({"router": {"replica": 3}}, "at '/router': additional properties 'replica' not allowed"),
    ({"router": {"replicas": "3"}}, "at '/router/replicas': got string, want null or integer"),
    ({"router": {"processes": 0}}, "at '/router/processes': minimum: got 0, want 1"),
    ({"operator": {"replicas": -1}}, "at '/operator/replicas': minimum: got -1, want 0"),
    ({"watchNamespaces": "team-a"}, "at '/watchNamespaces': got string, want array"),
    ({"watchNamespaces": ["Team A"]}, "at '/watchNamespaces/0': 'Team A' does not match pattern"),
    ({"autoscaler": {"interval": 5}}, "at '/autoscaler/interval': got number, want string"),
    ({"autoscaler": {"interval": "5"}}, "at '/autoscaler/interval': '5' does not match pattern"),
    ({"logging": {"level": "verbose"}}, "value must be one of 'debug', 'info', 'warning', 'error'"),
    ({"image": {"pullPolicy": "Sometimes"}}, "value must be one of 'Always', 'IfNotPresent', 'Never'"),
    ({"router": {"service": {"port": 70000}}}, "at '/router/service/port': maximum: got 70,000, want 65,535"),
    ({"router": {"image": {"digest": "sha256:1"}}}, "at '/router/image/digest': 'sha256:1' does not match pattern"),
    ({"acceleratorClasses": {"classes": {"x": {}}}}, "missing property 'hardware'"),
    (
        {"router": {"podLabels": {names.COMPONENT_LABEL: "x"}}},
        "router.podLabels must not set app.kubernetes.io/component",
    ),
    (
        {"router": {"podLabels": {names.MODEL_SERVICE_LABEL: "x"}}},
        "router.podLabels must not set forebay.dev/model-service",
    ),
    ({"fullnameOverride": "-x"}, "at '/fullnameOverride': '-x' does not match pattern"),
]


@pytest.mark.parametrize(("values", "said"), REFUSALS, ids=[json.dumps(values) for values, _ in REFUSALS])
def test_wrong_values_are_refused_with_their_path(helm: Helm, values: dict[str, Any], said: str):
    with pytest.raises(ChartError) as refused:
        helm.template({**PROMETHEUS, **values} if values else values)
    assert said in str(refused.value)


def schema_leaves(schema: dict[str, Any], definitions: dict[str, Any], path: str = "") -> dict[str, dict[str, Any]]:
    """Every property of the schema by its path."""
    found = {}
    for name, child in schema.get("properties", {}).items():
        whole = {**definitions[child["$ref"].rsplit("/", 1)[1]], **child} if "$ref" in child else child
        here = f"{path}.{name}" if path else name
        found[here] = whole
        found.update(schema_leaves(whole, definitions, here))
    return found


def test_the_schema_describes_every_value_and_every_described_value_has_a_default():
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    described = schema_leaves(schema, schema["$defs"])
    for path, node in described.items():
        assert node.get("description", "").strip(), path
        if node.get("properties"):
            assert node["additionalProperties"] is False, path
    described.pop("global")
    missing = []
    for path in described:
        value: Any = values
        for part in path.split("."):
            if not isinstance(value, dict) or part not in value:
                missing.append(path)
                break
            value = value[part]
    optional = {f"{one}.resources.claims" for one in COMPONENTS}
    assert set(missing) == optional


def test_secrets_are_mounted_whole_where_the_router_follows_them(helm: Helm):
    """A Secret that is mounted by subPath would never be updated."""
    objects = helm.template(VARIANTS["keys and certificates"])
    router = of_component(objects, "Deployment", "router")
    of_router = parse_router(arguments_of(router), environment_of(router)).protection
    mounts = {one["name"]: one for one in container_of(router)["volumeMounts"]}
    volumes = {one["name"]: one["secret"]["secretName"] for one in pod_of(router)["volumes"] if "secret" in one}
    assert volumes == {"api-keys": "keys", "worker-key": "worker-key", "tls": "certificate"}
    for name in volumes:
        assert mounts[name] == {"name": name, "mountPath": f"/etc/forebay/{name}", "readOnly": True}
    assert str(of_router.api_keys) == mounts["api-keys"]["mountPath"]
    assert str(of_router.worker_key) == mounts["worker-key"]["mountPath"] + "/key"
    assert (str(of_router.certificate), str(of_router.key)) == ("/etc/forebay/tls/tls.crt", "/etc/forebay/tls/tls.key")
    (port,) = of_component(objects, "Service", "router")["spec"]["ports"]
    assert (port["port"], port["appProtocol"]) == (443, "https")
    plain = of_component(helm.template(VARIANTS["default"]), "Service", "router")
    assert plain["spec"]["ports"][0]["appProtocol"] == "http"
