"""Pods and ModelServices as the router understands them. Pure.

A worker gets requests when its pod is Ready, has an address, is not marked for deletion and is not labelled as draining. The
deletion mark counts at once: a pod that is going away often passes its readiness probe until its process has ended.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from forebay_api import names
from forebay_api.acceleratorclass import AcceleratorClassSpec
from forebay_api.durations import parse_duration_s
from forebay_api.modelservice import ModelServiceSpec, Role
from forebay_router.discovery.seeds import seeds_of_pools
from forebay_router.table import ServiceKey, ServiceSpec, Timeouts, WorkerSpec, WorkerState, WorkerUid


def unix_s(timestamp: str | None) -> int:
    """Seconds since 1970 of an RFC 3339 time; 0 for none."""
    return int(datetime.fromisoformat(timestamp).timestamp()) if timestamp else 0


def service_key(item: Mapping[str, Any]) -> ServiceKey:
    """Identity of a ModelService."""
    metadata = item["metadata"]
    return ServiceKey(metadata["namespace"], metadata["name"])


def read_service(item: Mapping[str, Any], accelerators: Mapping[str, AcceleratorClassSpec]) -> ServiceSpec:
    """A ModelService; raises ValueError (pydantic's ValidationError) for one that does not fit the schema."""
    spec = ModelServiceSpec.model_validate(item["spec"])
    routing = spec.routing
    return ServiceSpec(
        key=service_key(item),
        models=(spec.model.name, *(adapter.name for adapter in spec.engine.lora_adapters)),
        objective=spec.objective.to_objective(),
        timeouts=Timeouts(
            hold_s=parse_duration_s(routing.queue_timeout),
            first_byte_s=parse_duration_s(routing.first_token_timeout),
            idle_s=parse_duration_s(routing.idle_timeout),
            total_s=parse_duration_s(routing.request_timeout),
        ),
        created_s=unix_s(item["metadata"].get("creationTimestamp")),
        pools=tuple((pool.name, pool.role) for pool in spec.pools),
        seeds=seeds_of_pools(spec, accelerators),
    )


def _ready(status: Mapping[str, Any]) -> bool:
    return status.get("phase") == "Running" and any(
        one.get("type") == "Ready" and one.get("status") == "True" for one in status.get("conditions") or ()
    )


def worker_state(pod: Mapping[str, Any]) -> WorkerState:
    """Whether a worker pod gets requests."""
    metadata = pod["metadata"]
    if metadata.get("deletionTimestamp") or metadata["labels"].get(names.DRAINING_LABEL) == "true":
        return WorkerState.DRAINING
    status = pod.get("status") or {}
    return WorkerState.READY if status.get("podIP") and _ready(status) else WorkerState.NOT_READY


def named_port(pod: Mapping[str, Any], name: str) -> int | None:
    """The number of a pod's port of this name."""
    for container in (pod.get("spec") or {}).get("containers") or ():
        for port in container.get("ports") or ():
            if port.get("name") == name:
                return int(port["containerPort"])
    return None


def read_worker(pod: Mapping[str, Any]) -> WorkerSpec | None:
    """A worker pod; None for one that lacks a worker's labels."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    service = labels.get(names.MODEL_SERVICE_LABEL)
    role = labels.get(names.ROLE_LABEL)
    if not service or role not in {one.value for one in Role}:
        return None
    return WorkerSpec(
        uid=WorkerUid(metadata["uid"]),
        name=f"{metadata['namespace']}/{metadata['name']}",
        host=(pod.get("status") or {}).get("podIP") or "",
        port=named_port(pod, names.HTTP_PORT_NAME) or names.ENGINE_PORT,
        service=ServiceKey(metadata["namespace"], service),
        pool=labels.get(names.POOL_LABEL, ""),
        role=Role(role),
        state=worker_state(pod),
        revision=labels.get(names.REVISION_LABEL, ""),
        kv_events_port=named_port(pod, names.KV_EVENTS_PORT_NAME),
        kv_replay_port=named_port(pod, names.KV_REPLAY_PORT_NAME),
    )
