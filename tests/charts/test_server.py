"""What a real API server makes of the chart: every variant accepted, and the rights of an installed release, one by one."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import yaml

from forebay_localcluster.cluster import Cluster
from forebay_localcluster.errors import CommandError
from tests.charts.helm import CHART, NAMESPACE, RELEASE, Helm, of_kind
from tests.charts.variants import COMPONENTS, PROMETHEUS, TEAMS, VARIANTS
from tests.support.api_server import ApiServer, RefusedError, install_crds
from tests.support.bounds import NEVER_S
from tests.support.eventually import eventually
from tests.support.rights import USED

pytestmark = [pytest.mark.cluster, pytest.mark.tables]
CLUSTER_SCOPED = "acceleratorclasses"
NOT_SERVED = "team-c"
Right = tuple[str, str, str, str]
"""Group, resource, verb, and the one name that it is bound to, if any."""


def rights(component: str) -> set[Right]:
    """What a component uses where it serves."""
    split = [(*key.split("/", 1), verb, "") for key, verbs in USED[component].items() for verb in verbs.split()]
    return {(group, resource, verb, name) for group, resource, verb, name in split}


def lease_rights(component: str) -> set[Right]:
    """What it uses in the namespace of the release.

    That is the Lease by which one of its replicas acts and what the autoscaler saves, or the other replicas' pods.
    """
    if component == "router":
        return {("", "pods", verb, "") for verb in ("list", "watch")}  # to find the other replicas
    own = {("coordination.k8s.io", "leases", verb, f"{RELEASE}-{component}") for verb in ("get", "update")}
    own |= {("coordination.k8s.io", "leases", "create", "")}
    if component == "operator":
        own |= {("coordination.k8s.io", "leases", "get", f"{RELEASE}-autoscaler")}  # to see whether it is there
    if component == "autoscaler":
        own |= {("", "configmaps", verb, f"{RELEASE}-autoscaler-state-0") for verb in ("get", "patch")}
        own |= {("", "configmaps", "create", ""), ("", "pods", "list", "")}
    return own


def granted(server: ApiServer, user: str, namespace: str) -> set[Right]:
    """Every right of a user in a namespace, the cluster-wide ones included, as the server lists them."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    status = server.request("POST", path, body=review, acting_as=user)["status"]
    assert not status["incomplete"]
    return {
        (group, resource, verb, name)
        for rule in status["resourceRules"]
        for group, resource, verb, name in product(
            rule["apiGroups"], rule["resources"], rule["verbs"], rule.get("resourceNames") or [""]
        )
    }


def granted_to(server: ApiServer, component: str, namespace: str) -> set[Right]:
    """What a component's service account may do beyond what every service account may."""
    everyone = granted(server, f"system:serviceaccount:{NAMESPACE}:default", namespace)
    return granted(server, f"system:serviceaccount:{NAMESPACE}:{RELEASE}-{component}", namespace) - everyone


@pytest.fixture(scope="module")
def namespaces(server: ApiServer) -> None:
    """The namespaces that variants name. The release's own admits restricted pods only."""
    for name in (NAMESPACE, "monitoring", *TEAMS, NOT_SERVED):
        labels = {"pod-security.kubernetes.io/enforce": "restricted"} if name == NAMESPACE else {}
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        server.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(body))


@pytest.fixture
def release(server: ApiServer, namespaces: None, kubernetes_cluster: Cluster) -> Iterator["Release"]:
    """A release that a test installs; afterwards it and the classes are gone."""
    made = Release(kubernetes_cluster, server)
    yield made
    made.uninstall()


class Release:
    """The chart, installed on the cluster."""

    def __init__(self, cluster: Cluster, server: ApiServer) -> None:
        self.cluster = cluster
        self.server = server
        self.installed = False

    def install(self, values: dict[str, Any], *arguments: str) -> str:
        shown = self.cluster.helm(
            *("upgrade", "--install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--values", "-", *arguments),
            stdin=yaml.safe_dump(values),
        )
        self.installed = True
        return shown

    def uninstall(self) -> None:
        if self.installed:
            self.cluster.helm("uninstall", RELEASE, "--namespace", NAMESPACE)
            self.installed = False

    def get(self, *what: str) -> dict[str, Any]:
        made: dict[str, Any] = yaml.safe_load(self.server.kubectl("get", *what, "-o", "yaml"))
        return made


@pytest.mark.usefixtures("namespaces", "monitors")
@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS.keys())
def test_the_server_accepts_every_variant(server: ApiServer, helm: Helm, values: dict[str, Any]):
    manifests = yaml.safe_dump_all(helm.template(values))
    server.kubectl(
        *("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-"),
        stdin=manifests,
    )


ALLOWED = [
    ("operator", "patch", "deployments.apps"),
    ("router", "watch", "pods"),
    ("autoscaler", "patch", "workerpools.forebay.dev/scale"),
]
FORBIDDEN = [
    ("operator", "get", "secrets"),
    ("operator", "create", "pods"),
    ("operator", "delete", "modelservices.forebay.dev"),
    ("router", "patch", "modelservices.forebay.dev"),
    ("router", "get", "secrets"),
    ("autoscaler", "patch", "workerpools.forebay.dev"),
    ("autoscaler", "patch", "deployments.apps"),
]


def test_components_may_do_what_they_use_and_nothing_else(server: ApiServer, release: Release):
    release.install(PROMETHEUS)
    for component in COMPONENTS:
        used = rights(component)
        assert granted_to(server, component, "default") == used
        assert granted_to(server, component, NAMESPACE) == used | lease_rights(component)
    for expected, table in (("yes", ALLOWED), ("no", FORBIDDEN)):
        for component, verb, resource in table:
            account = f"system:serviceaccount:{NAMESPACE}:{RELEASE}-{component}"
            assert can_i(server, account, verb, resource) == expected, (component, verb, resource)


def test_components_for_named_namespaces_may_do_nothing_elsewhere(server: ApiServer, release: Release):
    release.install({**PROMETHEUS, "watchNamespaces": TEAMS})
    for component in COMPONENTS:
        used = rights(component)
        cluster_wide = {right for right in used if right[1] == CLUSTER_SCOPED}
        for team in TEAMS:
            assert granted_to(server, component, team) == used
        assert granted_to(server, component, NOT_SERVED) == cluster_wide
        assert granted_to(server, component, NAMESPACE) == cluster_wide | lease_rights(component)


def can_i(server: ApiServer, user: str, verb: str, resource: str) -> str:
    """What `kubectl auth can-i` says in the namespace team-c; its exit status tells yes from no."""
    kind, _, part = resource.partition("/")
    subresource = [f"--subresource={part}"] if part else []
    try:
        server.kubectl("auth", "can-i", verb, kind, *subresource, f"--as={user}", "-n", NOT_SERVED)
    except CommandError as refused:
        return refused.stderr.strip().splitlines()[-1]
    return "yes"


def test_people_who_may_edit_a_namespace_may_edit_its_model_services(server: ApiServer, release: Release):
    release.install(PROMETHEUS)
    for role in ("view", "edit"):
        binding = [f"tester-{role}", f"--clusterrole={role}", f"--user={role}"]
        server.kubectl("create", "rolebinding", *binding, "-n", NOT_SERVED)
    expected = {
        "view": {("modelservices", "get"), ("workerpools", "get"), ("workerpools/scale", "get")},
        "edit": {("modelservices", "create"), ("modelservices", "delete"), ("workerpools/scale", "patch")},
    }
    refused = {
        "view": {("modelservices", "create"), ("workerpools/scale", "patch")},
        "edit": {("workerpools", "create"), ("workerpools", "delete"), ("modelservices/status", "patch")},
    }
    try:
        for user, wanted in expected.items():
            may = eventually(
                lambda user=user: {(resource, verb) for _, resource, verb, _ in granted(server, user, NOT_SERVED)},
                lambda found, wanted=wanted: found >= wanted,
                within_s=NEVER_S,
                what=f"{user} has the rights that the chart adds",
            )
            assert not may & refused[user]
    finally:
        server.kubectl("delete", "rolebinding", "tester-view", "tester-edit", "-n", NOT_SERVED)


def test_the_pods_are_admitted_where_only_restricted_ones_are(release: Release):
    """The namespace enforces the Pod Security Standard `restricted`; a pod that broke it would never be made."""
    release.install(PROMETHEUS)
    pods = eventually(
        lambda: release.get("pods", "-n", NAMESPACE)["items"],
        lambda found: len(found) == 6,
        within_s=NEVER_S,
        what="two pods of each component",
    )
    for pod in pods:
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert {one["mountPath"] for one in container["volumeMounts"]} >= {"/tmp"}
        assert pod["status"]["qosClass"] == "Burstable"


def test_an_upgrade_leaves_the_replicas_of_pools_and_of_a_scaled_router_alone(server: ApiServer, release: Release):
    """C119: an unrelated change of the chart must not throw a fleet back."""
    own_scaling = {**PROMETHEUS, "router": {"replicas": None}}
    release.install(own_scaling)
    pool = {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "WorkerPool",
        "metadata": {"name": "chat-mixed", "namespace": "team-a"},
        "spec": {
            "replicas": 1,
            "modelService": "chat",
            "model": {"name": "chat", "source": "/models/chat"},
            "engine": {},
            "pool": {"name": "mixed", "accelerator": "h100-sxm"},
        },
    }
    server.create(pool)
    try:
        server.kubectl("scale", "-n", "team-a", "wp/chat-mixed", "--replicas=5")
        server.kubectl("scale", "-n", NAMESPACE, f"deployment/{RELEASE}-router", "--replicas=4")
        before = release.get("wp/chat-mixed", "-n", "team-a")
        release.install({**own_scaling, "logging": {"level": "debug"}})
        assert release.get("wp/chat-mixed", "-n", "team-a") == before
        assert before["spec"]["replicas"] == 5
        assert release.get(f"deployment/{RELEASE}-router", "-n", NAMESPACE)["spec"]["replicas"] == 4
    finally:
        server.kubectl("delete", "-n", "team-a", "wp/chat-mixed")


def test_an_upgrade_brings_old_crds_up_to_date_and_keeps_what_is_stored(server: ApiServer, release: Release):
    """C151: a definition that lacks a new field drops it in silence."""
    release.install(PROMETHEUS)
    definition = yaml.safe_load((CHART / "crds/modelservices.yaml").read_text(encoding="utf-8"))
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["pools"]["items"]["properties"]["priorityClassName"]
    older = ["apply", "--server-side", "--force-conflicts", "--field-manager=helm", "-f", "-"]
    server.kubectl(*older, stdin=yaml.safe_dump(definition))
    service = {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "ModelService",
        "metadata": {"name": "chat"},
        "spec": {
            "model": {"name": "chat", "source": "/models/chat"},
            "pools": [{"name": "mixed", "accelerator": "h100-sxm", "priorityClassName": "serving"}],
        },
    }
    eventually(
        lambda: refuses_unknown_field(server, service), bool, within_s=NEVER_S, what="the old definition is served"
    )
    without = {**service, "spec": {**service["spec"], "pools": [{"name": "mixed", "accelerator": "h100-sxm"}]}}
    stored = server.create(without)
    try:
        release.install(PROMETHEUS)
        eventually(
            lambda: refuses_unknown_field(server, service),
            lambda refused: not refused,
            within_s=NEVER_S,
            what="the new one",
        )
        assert release.get("msvc/chat")["metadata"]["uid"] == stored["metadata"]["uid"]
    finally:
        server.kubectl("delete", "msvc/chat")
        install_crds(server, CHART / "crds")


def refuses_unknown_field(server: ApiServer, manifest: dict[str, Any]) -> bool:
    """Whether the server takes priorityClassName for an unknown field."""
    try:
        server.create({**manifest, "metadata": {"name": "probe"}}, dry_run=True)
    except RefusedError as refused:
        return "unknown field" in str(refused)
    return False


def test_an_uninstall_leaves_nothing_but_the_crds(server: ApiServer, release: Release):
    kinds = server.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    everything = ",".join(kind for kind in kinds if not kind.startswith("events"))
    label = "app.kubernetes.io/name=forebay"
    release.install({**PROMETHEUS, "watchNamespaces": TEAMS, "networkPolicies": {"enabled": True}})
    there = server.kubectl("get", everything, "-A", "-l", label, "-o", "name").split()
    rendered = [
        one["kind"]
        for one in yaml.safe_load_all(release.cluster.helm("get", "manifest", RELEASE, "-n", NAMESPACE))
        if one
    ]
    assert len(there) >= len(rendered) + 3
    release.uninstall()
    left = eventually(
        lambda: server.kubectl("get", everything, "-A", "-l", label, "-o", "name").split(),
        lambda names: len(names) == 3,
        within_s=NEVER_S,
        what="only the CRDs are left",
    )
    assert {name.partition("/")[0] for name in left} == {"customresourcedefinition.apiextensions.k8s.io"}


def test_a_release_can_be_installed_anew_under_another_name(server: ApiServer, release: Release):
    """The CRDs that an uninstall leaves belong to no release."""
    release.install(PROMETHEUS)
    release.uninstall()
    release.cluster.helm(
        *("install", "other", str(CHART), "-n", "team-a", "--values", "-"), stdin=yaml.safe_dump(PROMETHEUS)
    )
    try:
        assert "h100-sxm" in server.kubectl("get", "acc", "-o", "name")
    finally:
        release.cluster.helm("uninstall", "other", "-n", "team-a")


def test_two_releases_for_different_namespaces_live_side_by_side(release: Release):
    """Cluster-scoped names hold the namespace; the accelerator classes belong to one of them."""
    release.install({**PROMETHEUS, "watchNamespaces": ["team-a"]})
    second = {**PROMETHEUS, "watchNamespaces": ["team-b"], "acceleratorClasses": {"create": False}}
    release.cluster.helm(
        *("install", RELEASE, str(CHART), "-n", "team-b", "--values", "-"), stdin=yaml.safe_dump(second)
    )
    release.cluster.helm("uninstall", RELEASE, "-n", "team-b")


@pytest.mark.usefixtures("monitors")
def test_monitors_are_made_once_the_cluster_knows_them(release: Release):
    """C154."""
    shown = release.install({**PROMETHEUS, "podMonitors": {"enabled": True}})
    assert "WARNING" not in shown
    made = release.get("podmonitors", "-n", NAMESPACE)["items"]
    assert len(of_kind(made, "PodMonitor")) == 2


@pytest.mark.usefixtures("monitors")
def test_alerts_are_made_once_the_cluster_knows_their_kind(release: Release):
    shown = release.install({**PROMETHEUS, "podMonitors": {"enabled": True}, "prometheusRules": {"enabled": True}})
    assert "WARNING" not in shown
    (made,) = of_kind(release.get("prometheusrules", "-n", NAMESPACE)["items"], "PrometheusRule")
    assert len([rule for group in made["spec"]["groups"] for rule in group["rules"]]) == 12


def test_a_missing_namespace_is_named(release: Release):
    with pytest.raises(CommandError, match='namespaces "nowhere" not found'):
        release.install({**PROMETHEUS, "watchNamespaces": ["nowhere"]})
    release.installed = True
