"""Specs and pods that the tests start from."""

from datetime import UTC, datetime, timedelta
from typing import Any

from forebay_operator.pods import MARKED_COST, RELEASED_COST, TEMPLATE_ANNOTATION, Worker
from forebay_operator.resources import Manifest
from forebay_operator.rootcause import Cause, Reason

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
ACCELERATOR: Manifest = {"metadata": {"name": "h100-sxm"}, "spec": {"hardware": "h100-sxm"}}


def model_service(name: str = "chat", **spec: Any) -> Manifest:
    """A ModelService as stored."""
    return {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "ModelService",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {
            "model": {"name": "llama-3.1-8b", "source": "hf://meta-llama/Llama-3.1-8B-Instruct"},
            "engine": {"maxModelLen": 16384},
            "pools": [pool("mixed")],
            **spec,
        },
    }


def pool(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "accelerator": "h100-sxm", "replicas": {"min": 1, "max": 4}, **fields}


def worker(name: str, **fields: Any) -> Worker:
    """A ready worker of the current template, made a minute ago."""
    values: dict[str, Any] = {
        "name": name,
        "uid": f"uid-of-{name}",
        "created_at": NOW - timedelta(minutes=1),
        "template": "now",
        "revision": "r1",
        "pod_ip": "10.0.0.1",
        "is_ready": True,
        "is_terminating": False,
        "has_ended": False,
        "is_labelled_draining": False,
        "drain_started_at": None,
        "is_released": False,
        "cause": None,
    }
    return Worker(**{**values, **fields})


def draining(name: str, *, since_s: float, **fields: Any) -> Worker:
    """A worker that the operator marked some time ago."""
    started = NOW - timedelta(seconds=since_s)
    return worker(name, drain_started_at=started, is_labelled_draining=True, **fields)


def ended(name: str, reason: str = "Evicted", **fields: Any) -> Worker:
    """A worker whose pod has failed for good and still lies about."""
    cause = Cause(Reason.POD_FAILED, f"{name}: {reason}: The node was low on resource: memory.")
    values = {"is_ready": False, "is_terminating": True, "has_ended": True, "cause": cause, **fields}
    return worker(name, **values)


def pod(deployment: Manifest, name: str, *, ready: bool = True, **status: Any) -> Manifest:
    """A pod as the ReplicaSet controller and a kubelet would make it from a Deployment."""
    template = deployment["spec"]["template"]
    return {
        "metadata": {
            "name": name,
            "namespace": deployment["metadata"]["namespace"],
            "labels": dict(template["metadata"]["labels"]),
            "annotations": dict(template["metadata"]["annotations"]),
            "creationTimestamp": "2026-01-01T11:00:00Z",
        },
        "spec": {},
        "status": {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            **status,
        },
    }


__all__ = [
    "ACCELERATOR",
    "MARKED_COST",
    "NOW",
    "RELEASED_COST",
    "TEMPLATE_ANNOTATION",
    "Cause",
    "draining",
    "ended",
    "model_service",
    "pod",
    "pool",
    "worker",
]
