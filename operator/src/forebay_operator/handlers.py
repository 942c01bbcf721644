"""Kopf's part: watch events become keys on the queue, nothing else.

Only low-level `on.event` handlers are used. They need no finalizer, keep no state in annotations of our objects and look at
no diff; Kopf gives watches that reconnect and re-list. A child's event wakes what it belongs to, by its labels and by its owner
(a pod has labels only, and labels may be what somebody took away), and an AcceleratorClass wakes everything, since any spec may
name it. The initial listing arrives as events as well, so after a start everything is reconciled once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import kopf

from forebay_api.names import (
    COMPONENT_LABEL,
    GROUP,
    MANAGED_BY_LABEL,
    MODEL_SERVICE_LABEL,
    OPERATOR_MANAGER,
    POOL_LABEL,
    VERSION,
    WORKER_COMPONENT,
    worker_pool_name,
)
from forebay_operator.keys import ObjectKey, model_service_key, worker_pool_key
from forebay_operator.metrics import Metrics
from forebay_operator.queue import KeyedQueue
from forebay_operator.resources import (
    ACCELERATOR_CLASS,
    CHILDREN,
    MODEL_SERVICE,
    POD,
    WORKER_POOL,
    Resource,
)

WATCH_BACKOFF_S: Final = (0.2, 0.5, 1.0, *[2.0] * 300)
"""Pauses of a watch that cannot connect: about ten minutes of an absent API server, then the process ends and is restarted."""
REQUEST_TIMEOUT_S: Final = 30.0


@dataclass(slots=True)
class Waker:
    """Turns events into keys; remembers which keys exist, to wake all of them."""

    queue: KeyedQueue[ObjectKey]
    metrics: Metrics
    _known: set[ObjectKey] = field(default_factory=set)

    def on_reconciled(self, resource: Resource, event: Mapping[str, Any]) -> None:
        """A ModelService or WorkerPool was added, changed or deleted."""
        self.metrics.watch_events.labels(resource.kind).inc()
        metadata = event["object"]["metadata"]
        key = ObjectKey(resource.kind, metadata["namespace"], metadata["name"])
        if event["type"] == "DELETED":
            self._known.discard(key)
        else:
            self._known.add(key)
        self.queue.put(key)
        if resource is WORKER_POOL:
            self._wake_service(metadata)

    def on_child(self, resource: Resource, event: Mapping[str, Any]) -> None:
        """Something that belongs to a WorkerPool was added, changed or deleted."""
        self.metrics.watch_events.labels(resource.kind).inc()
        metadata = event["object"]["metadata"]
        labels = metadata.get("labels") or {}
        service, pool = labels.get(MODEL_SERVICE_LABEL), labels.get(POOL_LABEL)
        if service and pool:
            self.queue.put(worker_pool_key(metadata["namespace"], worker_pool_name(service, pool)))
        for owner in _owners(metadata, WORKER_POOL):
            self.queue.put(worker_pool_key(metadata["namespace"], owner))

    def on_accelerator(self, event: Mapping[str, Any]) -> None:
        """An AcceleratorClass was added, changed or deleted."""
        self.metrics.watch_events.labels(ACCELERATOR_CLASS.kind).inc()
        del event
        for key in sorted(self._known):
            self.queue.put(key)

    def wake_services(self) -> None:
        """Something that each ModelService's status depends on has changed."""
        for key in sorted(self._known):
            if key.kind == MODEL_SERVICE.kind:
                self.queue.put(key)

    def _wake_service(self, metadata: Mapping[str, Any]) -> None:
        service = (metadata.get("labels") or {}).get(MODEL_SERVICE_LABEL)
        if service:
            self.queue.put(model_service_key(metadata["namespace"], service))
        for owner in _owners(metadata, MODEL_SERVICE):
            self.queue.put(model_service_key(metadata["namespace"], owner))


def _owners(metadata: Mapping[str, Any], resource: Resource) -> list[str]:
    """Names of an object's owners of one kind."""
    references = metadata.get("ownerReferences") or []
    return [reference["name"] for reference in references if reference.get("kind") == resource.kind]


def register(registry: kopf.OperatorRegistry, waker: Waker) -> None:
    """Declare the handlers. They are coroutines because Kopf runs plain functions in threads."""

    @kopf.on.event(GROUP, VERSION, MODEL_SERVICE.plural, registry=registry)
    async def model_service_event(event: Any, **_: Any) -> None:
        waker.on_reconciled(MODEL_SERVICE, event)

    @kopf.on.event(GROUP, VERSION, WORKER_POOL.plural, registry=registry)
    async def worker_pool_event(event: Any, **_: Any) -> None:
        waker.on_reconciled(WORKER_POOL, event)

    @kopf.on.event(GROUP, VERSION, ACCELERATOR_CLASS.plural, registry=registry)
    async def accelerator_class_event(event: Any, **_: Any) -> None:
        waker.on_accelerator(event)

    for resource in (*CHILDREN, POD):
        _register_child(registry, waker, resource)


def _register_child(registry: kopf.OperatorRegistry, waker: Waker, resource: Resource) -> None:
    @kopf.on.event(resource.group, resource.version, resource.plural, registry=registry, id=resource.plural)
    async def child_event(event: Any, **_: Any) -> None:
        waker.on_child(resource, event)


def kopf_settings() -> kopf.OperatorSettings:
    """Kopf without peering, discovery watches or Events of its own, and with watches narrowed to our labels by the server."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.networking.error_backoffs = WATCH_BACKOFF_S
    settings.networking.request_timeout = REQUEST_TIMEOUT_S
    settings.queueing.exit_timeout = 0.5
    for child in CHILDREN:
        selector = f"{MANAGED_BY_LABEL}={OPERATOR_MANAGER}"
        settings.watching.label_selectors[child.group, child.version, child.plural] = selector
    pods = f"{COMPONENT_LABEL}={WORKER_COMPONENT},{MANAGED_BY_LABEL}={OPERATOR_MANAGER}"
    settings.watching.label_selectors[POD.group, POD.version, POD.plural] = pods
    return settings
