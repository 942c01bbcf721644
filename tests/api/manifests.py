"""Objects that use every field, and the places of a schema within them."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

MODEL = {
    "name": "llama-3.1-8b",
    "source": "hf://meta-llama/Llama-3.1-8B-Instruct",
    "secretRef": {"name": "hugging-face"},
    "cache": {"claimName": "weights", "mountPath": "/var/cache/models"},
}
ENGINE = {
    "kind": "vllm",
    "image": "vllm/vllm-openai:v0.32.0",
    "args": ["--max-num-seqs", "8"],
    "env": [
        {"name": "VLLM_LOGGING_LEVEL", "value": "INFO"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "tokens", "key": "hf", "optional": False}}},
        {"name": "PROXY", "valueFrom": {"configMapKeyRef": {"name": "proxy", "key": "url", "optional": True}}},
    ],
    "maxModelLen": 16384,
    "quantization": "fp8",
    "kvCacheDtype": "fp8",
    "speculative": {"method": "eagle3", "model": "draft", "tokens": 3},
    "loraAdapters": [{"name": "sql", "source": "hf://example/sql"}],
    "startupTimeout": "30m",
}


SCHEDULE = {
    "name": "office-hours",
    "days": ["Mon", "Fri"],
    "from": "08:00",
    "to": "18:30",
    "timeZone": "Europe/Berlin",
    "min": 1,
}


def pool(name: str, role: str) -> dict[str, Any]:
    """A pool with every field."""
    return {
        "name": name,
        "role": role,
        "accelerator": "h100-sxm",
        "replicas": {"min": 1, "max": 4, "spare": 1, "schedules": [dict(SCHEDULE)]},
        "parallelism": {"tensor": 2, "pipeline": 1, "data": 1},
        "resources": {"cpu": "4", "memory": "16Gi"},
        "nodeSelector": {"example.com/rack": "a"},
        "priorityClassName": "serving",
    }


ROLLOUT = {"maxUnavailable": 0, "maxSurge": 1, "drainTimeout": "2m"}
CONDITION = {
    "type": "Ready",
    "status": "True",
    "reason": "WorkersReady",
    "message": "2 of 2 workers answer.",
    "observedGeneration": 1,
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
FULL: Mapping[str, dict[str, Any]] = {
    "ModelService": {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "ModelService",
        "metadata": {"name": "full"},
        "spec": {
            "model": MODEL,
            "engine": ENGINE,
            "objective": {"ttft": "500ms", "tpot": "25ms", "target": "0.99"},
            "pools": [pool("prefill", "Prefill"), pool("decode", "Decode")],
            "autoscaling": {
                "mode": "Auto",
                "budget": {"gpus": 16},
                "scaleUpStabilization": "0s",
                "scaleDownStabilization": "5m",
                "scaleDownLimit": 2,
            },
            "rollout": ROLLOUT,
            "routing": {
                "queueTimeout": "30s",
                "firstTokenTimeout": "30s",
                "idleTimeout": "60s",
                "requestTimeout": "1h",
            },
        },
        "status": {
            "observedGeneration": 1,
            "conditions": [CONDITION],
            "pools": [
                {
                    "name": "prefill",
                    "role": "Prefill",
                    "replicas": 1,
                    "ready": 1,
                    "draining": 0,
                    "desired": 1,
                    "reason": "demand 0.5 of 1 worker",
                }
            ],
            "workers": "2/2",
            "attainment": "99.3%",
            "goodputPerSecond": "12.4",
        },
    },
    "WorkerPool": {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "WorkerPool",
        "metadata": {"name": "full-prefill"},
        "spec": {
            "replicas": 1,
            "modelService": "full",
            "model": MODEL,
            "engine": ENGINE,
            "pool": pool("prefill", "Prefill"),
            "rollout": ROLLOUT,
        },
        "status": {
            "observedGeneration": 1,
            "replicas": 1,
            "ready": 1,
            "draining": 0,
            "selector": "forebay.dev/model-service=full",
            "revision": "3f9a",
            "reason": "1 worker waits for accelerators",
            "conditions": [CONDITION],
        },
    },
    "AcceleratorClass": {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "AcceleratorClass",
        "metadata": {"name": "full"},
        "spec": {
            "hardware": "h100-sxm",
            "memory": "80Gi",
            "resourceName": "nvidia.com/gpu",
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Equal", "value": "true", "effect": "NoSchedule"}],
            "pricePerHour": "2.50",
        },
    },
}

Location = tuple[str | int, ...]
ITEMS = "[]"
VALUES = "{}"


def places(schema: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every node of a structural schema with its path; ITEMS stands for the items of a list, VALUES for a map's values."""
    yield path, dict(schema)
    for name, child in schema.get("properties", {}).items():
        yield from places(child, (*path, name))
    if "items" in schema:
        yield from places(schema["items"], (*path, ITEMS))
    if "additionalProperties" in schema:
        yield from places(schema["additionalProperties"], (*path, VALUES))


def locations(value: Any, path: tuple[str, ...]) -> Iterator[Location]:
    """Where an object has what stands at a path of its schema."""
    if not path:
        yield ()
        return
    head, rest = path[0], path[1:]
    if head == ITEMS:
        children: Any = enumerate(value)
    elif head == VALUES:
        children = value.items()
    else:
        children = [(head, value[head])] if head in value else []
    for key, child in children:
        for below in locations(child, rest):
            yield (key, *below)


def field_path(location: Location) -> str:
    """A location as the API server writes it."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return "".join(parts).removeprefix(".")


def get(value: Any, location: Location) -> Any:
    """What stands at a location."""
    for part in location:
        value = value[part]
    return value


def put(value: Mapping[str, Any], location: Location, new: Any) -> dict[str, Any]:
    """A copy of an object with another value at a location."""
    made = deepcopy(dict(value))
    if not location:
        return dict(new)
    get(made, location[:-1])[location[-1]] = new
    return made


def merge(value: Any, patch: Any) -> Any:
    """A value under a JSON merge patch: None removes a key, lists and scalars replace."""
    if not isinstance(patch, Mapping) or not isinstance(value, Mapping):
        return deepcopy(patch)
    kept = {name: child for name, child in value.items() if name not in patch}
    changed = {name: merge(value.get(name), child) for name, child in patch.items() if child is not None}
    return {**deepcopy(kept), **changed}
