"""What is queued: the identity of an object to reconcile."""

from dataclasses import dataclass

from forebay_operator.resources import MODEL_SERVICE, WORKER_POOL


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """One object of one of the two reconciled kinds."""

    kind: str
    namespace: str
    name: str


def model_service_key(namespace: str, name: str) -> ObjectKey:
    """Key of a ModelService."""
    return ObjectKey(MODEL_SERVICE.kind, namespace, name)


def worker_pool_key(namespace: str, name: str) -> ObjectKey:
    """Key of a WorkerPool."""
    return ObjectKey(WORKER_POOL.kind, namespace, name)
