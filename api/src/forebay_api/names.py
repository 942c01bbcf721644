"""Every name that two components, or a component and a user, must agree on.

Label and annotation keys, port names and numbers, field managers, condition types and their order, name builders. Nothing
here computes; a name that stands in two files stands here instead.
"""

from typing import Final

GROUP: Final = "forebay.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

MODEL_SERVICE_KIND: Final = "ModelService"
MODEL_SERVICE_PLURAL: Final = "modelservices"
WORKER_POOL_KIND: Final = "WorkerPool"
WORKER_POOL_PLURAL: Final = "workerpools"
ACCELERATOR_CLASS_KIND: Final = "AcceleratorClass"
ACCELERATOR_CLASS_PLURAL: Final = "acceleratorclasses"

# Labels. The first three are Kubernetes' recommended ones.
NAME_LABEL: Final = "app.kubernetes.io/name"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MODEL_SERVICE_LABEL: Final = f"{GROUP}/model-service"
POOL_LABEL: Final = f"{GROUP}/pool"
ROLE_LABEL: Final = f"{GROUP}/role"
REVISION_LABEL: Final = f"{GROUP}/revision"
"""Hash of what makes two workers' KV caches interchangeable; prefill and decode are paired only when equal."""
DRAINING_LABEL: Final = f"{GROUP}/draining"
"""Value "true" on a worker that must get no new request; set before its pod is deleted."""

APPLICATION: Final = "forebay"
WORKER_COMPONENT: Final = "worker"

# Annotations.
MODEL_ANNOTATION: Final = f"{GROUP}/model"
"""The served model name of a worker pod (a name may hold characters that a label may not)."""
DRAIN_STARTED_ANNOTATION: Final = f"{GROUP}/drain-started"
"""RFC 3339 time at which the operator marked a worker as draining."""
DELETION_COST_ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"

# Field managers of server-side apply: one a writer.
OPERATOR_MANAGER: Final = "forebay-operator"
INITIAL_REPLICAS_MANAGER: Final = "forebay-initial-replicas"
"""Owns spec.replicas of a WorkerPool from its creation until somebody scales it."""
AUTOSCALER_MANAGER: Final = "forebay-autoscaler"

# Containers and ports of a worker pod. Port names have at most 15 characters.
ENGINE_CONTAINER: Final = "engine"
HTTP_PORT_NAME: Final = "http"
ENGINE_PORT: Final = 8000
NIXL_PORT_NAME: Final = "nixl"
NIXL_PORT: Final = 5600
KV_EVENTS_PORT_NAME: Final = "kv-events"
KV_EVENTS_PORT: Final = 5557
KV_REPLAY_PORT_NAME: Final = "kv-replay"

# Ports of Forebay's own components.
METRICS_PORT_NAME: Final = "metrics"
ROUTER_PORT: Final = 8080
CONTROL_PORT: Final = 9090
MESH_PORT_NAME: Final = "mesh"
MESH_PORT: Final = 9091
"""Where router replicas tell one another what they do."""

# Condition types of a ModelService, in the order in which a person reads them.
ACCEPTED: Final = "Accepted"
FITS: Final = "Fits"
READY: Final = "Ready"
ROUTABLE: Final = "Routable"
PROGRESSING: Final = "Progressing"
METRICS_FRESH: Final = "MetricsFresh"
SCALING_ACTIVE: Final = "ScalingActive"
CACHE_INDEX_HEALTHY: Final = "CacheIndexHealthy"
WORKERS_HEALTHY: Final = "WorkersHealthy"
AUTOSCALER_CONDITIONS: Final = (METRICS_FRESH, SCALING_ACTIVE, CACHE_INDEX_HEALTHY, WORKERS_HEALTHY)
"""Those that the autoscaler writes. What it has to say of routers is there because it is who asks them."""
MODEL_SERVICE_CONDITIONS: Final = (ACCEPTED, FITS, READY, ROUTABLE, PROGRESSING, *AUTOSCALER_CONDITIONS)


def worker_pool_name(model_service: str, pool: str) -> str:
    """Name of the WorkerPool, and of its Deployment and Service, of one pool of a model service."""
    return f"{model_service}-{pool}"


def worker_labels(*, model_service: str, pool: str, role: str) -> dict[str, str]:
    """Labels that select the workers of one pool; they never change, so they may stand in a selector."""
    return {
        NAME_LABEL: APPLICATION,
        COMPONENT_LABEL: WORKER_COMPONENT,
        MODEL_SERVICE_LABEL: model_service,
        POOL_LABEL: pool,
        ROLE_LABEL: role,
    }
