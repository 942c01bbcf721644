"""Labels and owner references of everything the operator makes.

`blockOwnerDeletion` stays unset: setting it takes the right to update the owner's finalizers, and nothing here needs the
owner to outlive its children. Garbage collection removes children when the owner is gone.
"""

from typing import Any

from forebay_api.names import (
    APPLICATION,
    MANAGED_BY_LABEL,
    MODEL_SERVICE_LABEL,
    NAME_LABEL,
    OPERATOR_MANAGER,
    POOL_LABEL,
)
from forebay_api.workerpool import WorkerPoolSpec
from forebay_operator.resources import Manifest, Resource, name_of, namespace_of


def owner_reference(resource: Resource, owner: Manifest) -> dict[str, Any]:
    """The reference by which an object belongs to its owner."""
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": name_of(owner),
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }


def model_service_labels(model_service: str) -> dict[str, str]:
    """Labels of everything that belongs to one model service."""
    return {
        NAME_LABEL: APPLICATION,
        MANAGED_BY_LABEL: OPERATOR_MANAGER,
        MODEL_SERVICE_LABEL: model_service,
    }


def child_metadata(resource: Resource, owner: Manifest, *, name: str, labels: dict[str, str]) -> dict[str, Any]:
    """Metadata of a child in its owner's namespace."""
    return {
        "name": name,
        "namespace": namespace_of(owner),
        "labels": labels,
        "ownerReferences": [owner_reference(resource, owner)],
    }


def pool_labels(spec: WorkerPoolSpec) -> dict[str, str]:
    """Labels of a WorkerPool and of what it owns."""
    return {**model_service_labels(spec.model_service), POOL_LABEL: spec.pool.name}
