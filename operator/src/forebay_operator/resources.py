"""The kinds of objects that the operator reads or writes, and their paths on the API server."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from forebay_api.names import (
    ACCELERATOR_CLASS_KIND,
    ACCELERATOR_CLASS_PLURAL,
    GROUP,
    MODEL_SERVICE_KIND,
    MODEL_SERVICE_PLURAL,
    VERSION,
    WORKER_POOL_KIND,
    WORKER_POOL_PLURAL,
)

Manifest = dict[str, Any]
"""A Kubernetes object as JSON."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object."""

    group: str
    """Empty for the core group."""
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The `apiVersion` of a manifest."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of a collection or an object; a namespaced kind without namespace means every namespace."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts += [self.plural, *(part for part in (name, subresource) if part)]
        return "/".join(parts)


MODEL_SERVICE: Final = Resource(GROUP, VERSION, MODEL_SERVICE_PLURAL, MODEL_SERVICE_KIND)
WORKER_POOL: Final = Resource(GROUP, VERSION, WORKER_POOL_PLURAL, WORKER_POOL_KIND)
ACCELERATOR_CLASS: Final = Resource(GROUP, VERSION, ACCELERATOR_CLASS_PLURAL, ACCELERATOR_CLASS_KIND, namespaced=False)
DEPLOYMENT: Final = Resource("apps", "v1", "deployments", "Deployment")
POD: Final = Resource("", "v1", "pods", "Pod")
SERVICE: Final = Resource("", "v1", "services", "Service")
DISRUPTION_BUDGET: Final = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
EVENT: Final = Resource("", "v1", "events", "Event")
LEASE: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")

CHILDREN: Final = (DEPLOYMENT, SERVICE, DISRUPTION_BUDGET)
"""What a WorkerPool owns."""


def name_of(manifest: Mapping[str, Any]) -> str:
    """metadata.name."""
    return str(manifest["metadata"]["name"])


def namespace_of(manifest: Mapping[str, Any]) -> str:
    """metadata.namespace; the empty string for cluster-scoped objects."""
    return str(manifest["metadata"].get("namespace", ""))


def labels_of(manifest: Mapping[str, Any]) -> Mapping[str, str]:
    """metadata.labels, empty when absent."""
    return manifest["metadata"].get("labels") or {}


def annotations_of(manifest: Mapping[str, Any]) -> Mapping[str, str]:
    """metadata.annotations, empty when absent."""
    return manifest["metadata"].get("annotations") or {}


def is_terminating(manifest: Mapping[str, Any]) -> bool:
    """Whether deletion has begun."""
    return bool(manifest["metadata"].get("deletionTimestamp"))
