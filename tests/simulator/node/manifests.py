"""Pods as the API server hands them out, defaults filled in where the node reads them."""

from typing import Any


def container(name: str = "main", **fields: Any) -> dict[str, Any]:
    """A container; keyword arguments are its fields."""
    return {"name": name, "image": "busybox", "command": ["run"], **fields}


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A pod bound to node-0; keyword arguments are fields of its spec."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "uid": "uid-1",
            "namespace": "default",
            "name": "web-0",
            "labels": {"app": "web"},
            "annotations": {"note": 'say "hi"'},
            "generation": 1,
        },
        "spec": {
            "nodeName": "node-0",
            "serviceAccountName": "default",
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "containers": list(containers) or [container()],
            **spec,
        },
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]},
    }


def probe(**fields: Any) -> dict[str, Any]:
    """An HTTP probe with the API server's defaults."""
    return {
        "httpGet": {"path": "/", "port": 8000, "scheme": "HTTP"},
        "periodSeconds": 10,
        "timeoutSeconds": 1,
        "successThreshold": 1,
        "failureThreshold": 3,
        **fields,
    }
