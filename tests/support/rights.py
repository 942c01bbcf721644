"""What each component uses of the API server, in one table.

The components' own tests run them with these rights and no others, and the chart's tests hold the chart to exactly these: so a
right that is missing fails there, and one that nothing uses fails here.
"""

import json
from pathlib import Path
from typing import Any

from forebay_localcluster.cluster import Cluster

USED = {
    "operator": {
        "forebay.dev/modelservices": "get list watch",
        "forebay.dev/modelservices/status": "patch",
        "forebay.dev/workerpools": "get list watch create patch delete",
        "forebay.dev/workerpools/status": "patch",
        "forebay.dev/workerpools/scale": "patch",
        "forebay.dev/acceleratorclasses": "get list watch",
        "apps/deployments": "get list watch create patch",
        "policy/poddisruptionbudgets": "get list watch create patch",
        "/services": "get list watch create patch",
        "/pods": "list watch patch",
        "/events": "get create patch",
    },
    "router": {
        "forebay.dev/modelservices": "list watch",
        "forebay.dev/acceleratorclasses": "list watch",
        "/pods": "list watch",
    },
    "autoscaler": {
        "forebay.dev/modelservices": "list",
        "forebay.dev/modelservices/status": "patch",
        "forebay.dev/workerpools": "list",
        "forebay.dev/workerpools/scale": "patch",
        "forebay.dev/acceleratorclasses": "list",
        "autoscaling/horizontalpodautoscalers": "list",
        "/events": "create",
    },
}
"""Verbs by group and resource, in a namespace that a component serves."""
LEASE = {"coordination.k8s.io/leases": "get create update"}
"""What a component with a leader uses beside that, in the namespace of its Lease."""
RELEASE = {"/configmaps": "get create patch", "/pods": "list"}
"""What the autoscaler uses there beside it: to save what it learnt, and to ask routers for the requests that they hold."""


def rules(component: str) -> list[dict[str, Any]]:
    """The rights as rules of a role."""
    made = []
    beside = {**LEASE, **RELEASE} if component == "autoscaler" else LEASE
    for key, verbs in {**USED[component], **beside}.items():
        group, resource = key.split("/", 1)
        made.append({"apiGroups": [group], "resources": [resource], "verbs": verbs.split()})
    return made


def grant(cluster: Cluster, component: str, *, user: str) -> Path:
    """A user who may do in every namespace what a component uses; its kubeconfig."""
    api = "rbac.authorization.k8s.io"
    role = {
        "apiVersion": f"{api}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": user},
        "rules": rules(component),
    }
    binding = {
        "apiVersion": f"{api}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": user},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": api, "kind": "User", "name": user}],
    }
    made = {"apiVersion": "v1", "kind": "List", "items": [role, binding]}
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(made))
    return cluster.issue(user)
