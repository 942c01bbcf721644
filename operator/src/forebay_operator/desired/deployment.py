"""A WorkerPool's Deployment: one pod a worker.

Times of a worker's end, which must nest: the pod is marked for deletion and routers stop sending (`preStop` pause) -> SIGTERM
-> the engine finishes its requests within the drain time -> SIGKILL. So

    terminationGracePeriodSeconds = preStop pause + drain time + GRACE_MARGIN_S

Start: the startup probe gives the engine its whole start budget; liveness begins only afterwards and is patient, because an
engine in a long prefill answers /health late, and a restart costs minutes of loading.

The selector and the name never change with a version of Forebay, so an upgrade finds and keeps what runs.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

from forebay_api.acceleratorclass import AcceleratorClassSpec
from forebay_api.durations import parse_duration_s
from forebay_api.modelservice import Parallelism, Role
from forebay_api.names import (
    ENGINE_CONTAINER,
    ENGINE_PORT,
    HTTP_PORT_NAME,
    KV_EVENTS_PORT,
    KV_EVENTS_PORT_NAME,
    KV_REPLAY_PORT_NAME,
    MANAGED_BY_LABEL,
    MODEL_ANNOTATION,
    NIXL_PORT,
    NIXL_PORT_NAME,
    OPERATOR_MANAGER,
    REVISION_LABEL,
    worker_labels,
)
from forebay_api.workerpool import WorkerPoolSpec
from forebay_operator.desired.ownership import child_metadata, pool_labels
from forebay_operator.desired.revision import revision_of
from forebay_operator.desired.vllm import COMMAND, build_arguments, build_environment, drain_timeout_s, replay_port
from forebay_operator.desired.volumes import adapter_source, build_volumes, locate
from forebay_operator.digests import digest
from forebay_operator.drift import REPLICAS_ANNOTATION
from forebay_operator.pods import TEMPLATE_ANNOTATION
from forebay_operator.resources import WORKER_POOL, Manifest, name_of

GRACE_MARGIN_S: Final = 15
"""The engine needs some seconds to end after its last request; it must never meet SIGKILL on a clean way out."""
LIVENESS_PERIOD_S: Final = 10
LIVENESS_FAILURES: Final = 12
PROBE_TIMEOUT_S: Final = 5
PROGRESS_MARGIN_S: Final = 600
"""Beyond the start budget: pulling the image and waiting for a node."""


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What the operator's settings say about workers."""

    host: str
    """Host that engines bind to."""
    probe_period_s: int
    prestop_delay_s: int


def selector_labels(spec: WorkerPoolSpec) -> dict[str, str]:
    """Labels that select the pool's workers."""
    return worker_labels(model_service=spec.model_service, pool=spec.pool.name, role=spec.pool.role.value)


def build_deployment(
    owner: Manifest,
    spec: WorkerPoolSpec,
    accelerator: AcceleratorClassSpec,
    *,
    context: WorkerContext,
    replicas: int,
) -> Manifest:
    """The Deployment of a pool; `replicas` is what the drain allows now, not necessarily what is wanted."""
    startup_s = math.ceil(parse_duration_s(spec.engine.startup_timeout))
    metadata = child_metadata(WORKER_POOL, owner, name=name_of(owner), labels=pool_labels(spec))
    return {
        "metadata": {**metadata, "annotations": {REPLICAS_ANNOTATION: str(replicas)}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": selector_labels(spec)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {
                    "maxUnavailable": spec.rollout.max_unavailable,
                    "maxSurge": spec.rollout.max_surge,
                },
            },
            "progressDeadlineSeconds": startup_s + PROGRESS_MARGIN_S,
            "revisionHistoryLimit": 3,
            "template": _template(spec, accelerator, context=context, startup_s=startup_s),
        },
    }


def _template(
    spec: WorkerPoolSpec, accelerator: AcceleratorClassSpec, *, context: WorkerContext, startup_s: int
) -> dict[str, Any]:
    source = locate(spec.model.source, volume="model")
    adapters = [adapter_source(index, adapter) for index, adapter in enumerate(spec.engine.lora_adapters)]
    volumes, mounts = build_volumes(spec.model, [source, *adapters])
    container = {
        "name": ENGINE_CONTAINER,
        "image": spec.engine.image,
        "command": list(COMMAND),
        "args": build_arguments(spec, host=context.host, source=source, adapters=adapters),
        "env": build_environment(spec),
        **_secret(spec),
        "ports": _ports(spec.pool.role, spec.pool.parallelism),
        "resources": _resources(spec, accelerator),
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "lifecycle": {"preStop": {"sleep": {"seconds": context.prestop_delay_s}}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        **_probes(context, startup_s),
    }
    labels = {
        **selector_labels(spec),
        MANAGED_BY_LABEL: OPERATOR_MANAGER,
        REVISION_LABEL: revision_of(spec.model, spec.engine),
    }
    template: dict[str, Any] = {
        "metadata": {"labels": labels, "annotations": {MODEL_ANNOTATION: spec.model.name}},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": context.prestop_delay_s + drain_timeout_s(spec) + GRACE_MARGIN_S,
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": volumes,
            **_placement(spec, accelerator),
        },
    }
    template["metadata"]["annotations"][TEMPLATE_ANNOTATION] = digest(template)
    return template


def _secret(spec: WorkerPoolSpec) -> dict[str, Any]:
    reference = spec.model.secret_ref
    return {"envFrom": [{"secretRef": {"name": reference.name}}]} if reference else {}


def _ports(role: Role, parallelism: Parallelism) -> list[dict[str, Any]]:
    """Named ports; by their names the router knows that a worker publishes KV events."""
    named = {
        HTTP_PORT_NAME: ENGINE_PORT,
        KV_EVENTS_PORT_NAME: KV_EVENTS_PORT,
        KV_REPLAY_PORT_NAME: replay_port(parallelism),
    }
    if role is not Role.MIXED:
        named[NIXL_PORT_NAME] = NIXL_PORT
    return [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in named.items()]


def _resources(spec: WorkerPoolSpec, accelerator: AcceleratorClassSpec) -> dict[str, Any]:
    wanted = spec.pool.resources
    accelerators = {accelerator.resource_name: str(spec.pool.parallelism.accelerators)}
    return {
        "requests": {"cpu": wanted.cpu, "memory": wanted.memory, **accelerators},
        "limits": {"memory": wanted.memory, **accelerators},
    }


def _probes(context: WorkerContext, startup_s: int) -> dict[str, Any]:
    health = {"httpGet": {"path": "/health", "port": HTTP_PORT_NAME}, "timeoutSeconds": PROBE_TIMEOUT_S}
    period_s = context.probe_period_s
    return {
        "startupProbe": {**health, "periodSeconds": period_s, "failureThreshold": math.ceil(startup_s / period_s)},
        "readinessProbe": {**health, "periodSeconds": period_s, "failureThreshold": 2},
        "livenessProbe": {**health, "periodSeconds": LIVENESS_PERIOD_S, "failureThreshold": LIVENESS_FAILURES},
    }


def _placement(spec: WorkerPoolSpec, accelerator: AcceleratorClassSpec) -> dict[str, Any]:
    """Where the scheduler may put a worker: nodes of the accelerator, spread over hosts as far as that costs nothing."""
    placement: dict[str, Any] = {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector_labels(spec)},
            }
        ]
    }
    selector = {**accelerator.node_selector, **spec.pool.node_selector}
    if selector:
        placement["nodeSelector"] = selector
    if accelerator.tolerations:
        placement["tolerations"] = [
            toleration.model_dump(mode="json", by_alias=True, exclude_none=True)
            for toleration in accelerator.tolerations
        ]
    if spec.pool.priority_class_name:
        placement["priorityClassName"] = spec.pool.priority_class_name
    return placement
