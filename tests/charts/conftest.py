"""The chart under a real helm, on a real API server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from forebay_localcluster.cluster import Cluster
from forebay_localcluster.locate import locate_programs
from forebay_localcluster.pins import Program
from tests.charts.helm import Helm
from tests.support import api_server

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm without a cluster: lint and template."""
    return Helm(locate_programs()[Program.HELM].path, tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def server(kubernetes_cluster: Cluster) -> Iterator[api_server.ApiServer]:
    """The API server of the cluster, with the CRDs."""
    with api_server.connect(kubernetes_cluster) as made:
        api_server.install_crds(made, ROOT / "charts/forebay/crds")
        yield made


@pytest.fixture(scope="session")
def monitors(server: api_server.ApiServer) -> None:
    """The cluster knows PodMonitors and PrometheusRules, as far as the chart needs it."""
    crds = [pod_monitor_crd(), prometheus_rule_crd()]
    server.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(crds))
    names = [f"crd/{crd['metadata']['name']}" for crd in crds]
    server.kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)


def pod_monitor_crd() -> dict[str, Any]:
    """A CRD of the kind's name; its schema checks the fields that the chart writes."""
    strings = {"type": "array", "items": {"type": "string"}}
    string_map = {"type": "object", "additionalProperties": {"type": "string"}}
    relabeling = {"type": "object", "properties": {"sourceLabels": strings, "targetLabel": {"type": "string"}}}
    endpoint = {
        "type": "object",
        "properties": {
            "port": {"type": "string", "maxLength": 15},
            "path": {"type": "string"},
            "interval": {
                "type": "string",
                "pattern": r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$",
            },
            "honorLabels": {"type": "boolean"},
            "relabelings": {"type": "array", "items": relabeling},
        },
    }
    spec = {
        "type": "object",
        "properties": {
            "namespaceSelector": {"type": "object", "properties": {"any": {"type": "boolean"}, "matchNames": strings}},
            "selector": {"type": "object", "properties": {"matchLabels": string_map}},
            "podMetricsEndpoints": {"type": "array", "items": endpoint},
        },
        "required": ["selector", "podMetricsEndpoints"],
    }
    return monitoring_crd("PodMonitor", spec)


def prometheus_rule_crd() -> dict[str, Any]:
    """The same for rules."""
    text, string_map = {"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}
    duration = {"type": "string", "pattern": r"^([0-9]+h)?([0-9]+m)?([0-9]+s)?$"}
    fields = {"alert": text, "expr": text, "for": duration, "labels": string_map, "annotations": string_map}
    rule = {"type": "object", "properties": fields, "required": ["expr"]}
    rules = {"type": "array", "items": rule}
    group = {"type": "object", "properties": {"name": text, "rules": rules}, "required": ["name"]}
    return monitoring_crd(
        "PrometheusRule", {"type": "object", "properties": {"groups": {"type": "array", "items": group}}}
    )


def monitoring_crd(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A CRD of the Prometheus operator's group."""
    singular = kind.lower()
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{singular}s.monitoring.coreos.com",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test's stand-in"},
        },
        "spec": {
            "group": "monitoring.coreos.com",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": f"{singular}s",
                "singular": singular,
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}},
                }
            ],
        },
    }
