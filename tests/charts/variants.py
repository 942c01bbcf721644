"""The values under test: each variant is one way of installing the chart."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = {"prometheus": {"url": "http://prometheus.monitoring:9090"}}
COMPONENTS = ("operator", "router", "autoscaler")
TEAMS = ["team-a", "team-b"]


def each(values: dict[str, Any]) -> dict[str, Any]:
    """The same values for every component."""
    return dict.fromkeys(COMPONENTS, values)


def local_values() -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load((ROOT / "deploy/local/values.yaml").read_text(encoding="utf-8"))
    return made


SCHEDULING = {
    "priorityClassName": "system-cluster-critical",
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "control", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "preference": {
                        "matchExpressions": [{"key": "example.com/pool", "operator": "In", "values": ["system"]}]
                    },
                }
            ]
        }
    },
    "topologySpreadConstraints": [
        {"topologyKey": "example.com/rack", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    ],
    "podAnnotations": {"example.com/team": "serving"},
    "podLabels": {"example.com/cost-centre": "7"},
    "extraEnv": [
        {"name": "HTTPS_PROXY", "value": "http://proxy:3128"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "token"}}},
    ],
}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": PROMETHEUS,
    "named namespaces": {**PROMETHEUS, "watchNamespaces": TEAMS},
    "autoscaler off": {"autoscaler": {"enabled": False}},
    "local cluster": {**local_values(), **PROMETHEUS},
    "monitors": {
        **PROMETHEUS,
        "podMonitors": {
            "enabled": True,
            "assumeKinds": True,
            "namespace": "monitoring",
            "labels": {"release": "kube-prometheus-stack"},
            "interval": "15s",
        },
    },
    "alerts": {
        **PROMETHEUS,
        "fullnameOverride": "serving",
        "prometheusRules": {
            "enabled": True,
            "assumeKinds": True,
            "namespace": "monitoring",
            "labels": {"release": "kube-prometheus-stack"},
            "runbook": "https://example.com/runbooks/forebay",
        },
    },
    "alerts without an autoscaler": {
        "autoscaler": {"enabled": False},
        "prometheusRules": {"enabled": True, "assumeKinds": True},
    },
    "monitors of named namespaces": {
        **PROMETHEUS,
        "watchNamespaces": TEAMS,
        "podMonitors": {"enabled": True, "assumeKinds": True},
    },
    "network policies": {
        **PROMETHEUS,
        "networkPolicies": {
            "enabled": True,
            "routerFrom": [{"namespaceSelector": {"matchLabels": {"example.com/gateway": "true"}}}],
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        },
    },
    "network policies for everybody": {**PROMETHEUS, "networkPolicies": {"enabled": True}},
    "load balancer and own autoscaling of the router": {
        **PROMETHEUS,
        "router": {
            "replicas": None,
            "service": {
                "type": "LoadBalancer",
                "port": 8000,
                "annotations": {"example.com/internal": "true"},
                "loadBalancerClass": "example.com/inner",
            },
        },
    },
    "private registry": {
        **PROMETHEUS,
        "image": {
            "registry": "registry.example.com/mirror/",
            "tag": "v9",
            "pullPolicy": "Always",
            "pullSecrets": ["registry"],
        },
        "operator": {"image": {"digest": "sha256:" + "a" * 64}},
        "router": {"image": {"repository": "own/router", "tag": "v10"}},
    },
    "everything about scheduling": {**PROMETHEUS, **each(SCHEDULING)},
    "nothing but the programs": {
        **PROMETHEUS,
        **each({"serviceAccount": {"create": False, "name": "mine"}, "podDisruptionBudget": {"enabled": False}}),
        "rbac": {"create": False, "aggregate": False},
        "acceleratorClasses": {"create": False},
        "crds": {"upgrade": False},
    },
    "user chosen by the cluster": {
        **PROMETHEUS,
        "podSecurityContext": {"runAsUser": None, "runAsGroup": None},
    },
    "prometheus behind a token": {
        "prometheus": {
            "url": "https://thanos.monitoring:9090/tenant",
            "tokenSecret": {"name": "thanos", "key": "bearer"},
            "authoritySecret": {"name": "thanos-ca"},
        }
    },
    "keys and certificates": {
        **PROMETHEUS,
        "router": {
            "apiKeysSecret": "keys",
            "workerKeySecret": {"name": "worker-key", "key": "key"},
            "tlsSecret": "certificate",
            "service": {"port": 443},
        },
    },
    "own accelerators": {
        **PROMETHEUS,
        "acceleratorClasses": {
            "classes": {
                "l40s": None,
                "h100-sxm": {"pricePerHour": "2.75"},
                "h100-nvl": {"hardware": "h100-pcie", "memory": "94Gi", "nodeSelector": {"example.com/gpu": "nvl"}},
            }
        },
    },
    "routers of several processes": {**PROMETHEUS, "router": {"processes": 4}},
    "tokenizers": {
        **PROMETHEUS,
        "router": {
            "tokenizers": [
                {
                    "model": "llama-3.1-8b",
                    "volume": {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
                    "subPath": "llama-3.1-8b",
                },
                {"model": "qwen3-8b", "volume": {"image": {"reference": "registry.example.com/qwen3-8b-tokenizer:1"}}},
            ],
            "extraArgs": ["--access-log=all"],
        },
    },
    "routers apart": {
        **PROMETHEUS,
        "router": {"mesh": {"enabled": False}},
        "networkPolicies": {"enabled": True},
    },
    "another name": {**PROMETHEUS, "fullnameOverride": "serving"},
    "single replicas": {**PROMETHEUS, **each({"replicas": 1}), "logging": {"level": "debug"}},
    "flags": {
        **PROMETHEUS,
        "operator": {"extraArgs": ["--resync=1m", "--log-format=text"]},
        "router": {"extraArgs": ["--access-log=all", "--hold-timeout=10s"]},
        "autoscaler": {"extraArgs": ["--timeout=2s"]},
        "worker": {"host": "127.0.0.1"},
    },
}
