"""Which watch event wakes which object."""

import random

import pytest

from forebay_operator.handlers import Waker, kopf_settings, register
from forebay_operator.keys import ObjectKey, model_service_key, worker_pool_key
from forebay_operator.metrics import Metrics
from forebay_operator.queue import KeyedQueue, Pace
from forebay_operator.resources import DEPLOYMENT, MODEL_SERVICE, POD, WORKER_POOL

LABELS = {"forebay.dev/model-service": "chat", "forebay.dev/pool": "mixed"}


@pytest.fixture
def queue() -> KeyedQueue[ObjectKey]:
    return KeyedQueue(Pace(), now=lambda: 0.0, rng=random.Random(0))


@pytest.fixture
def waker(queue) -> Waker:
    return Waker(queue, Metrics())


def event(name: str, kind: str = "MODIFIED", **metadata) -> dict:
    return {"type": kind, "object": {"metadata": {"name": name, "namespace": "team", **metadata}}}


def due(queue: KeyedQueue[ObjectKey]) -> list[ObjectKey]:
    return sorted(queue._due_at)


def test_a_model_service_wakes_itself(waker, queue):
    waker.on_reconciled(MODEL_SERVICE, event("chat"))
    assert due(queue) == [model_service_key("team", "chat")]


def test_what_the_status_of_each_service_depends_on_wakes_services_alone(waker, queue):
    waker.on_reconciled(MODEL_SERVICE, event("chat"))
    waker.on_reconciled(MODEL_SERVICE, event("gone"))
    waker.on_reconciled(MODEL_SERVICE, event("gone", "DELETED"))
    waker.on_reconciled(WORKER_POOL, event("other-mixed"))
    queue._due_at.clear()
    waker.wake_services()
    assert due(queue) == [model_service_key("team", "chat")]


def test_a_worker_pool_wakes_itself_and_its_service(waker, queue):
    waker.on_reconciled(WORKER_POOL, event("chat-mixed", labels=LABELS))
    assert due(queue) == [model_service_key("team", "chat"), worker_pool_key("team", "chat-mixed")]


@pytest.mark.parametrize("kind", [None, "ADDED", "MODIFIED", "DELETED"])
def test_a_pod_wakes_its_pool_whatever_happened_to_it(waker, queue, kind):
    waker.on_child(POD, event("chat-mixed-abc", kind, labels=LABELS))
    assert due(queue) == [worker_pool_key("team", "chat-mixed")]


def test_a_child_that_lost_its_labels_wakes_its_owner(waker, queue):
    """The watch reports it as deleted, since it does not match the selector any more."""
    owner = {"kind": "WorkerPool", "name": "chat-mixed", "uid": "u"}
    waker.on_child(DEPLOYMENT, event("chat-mixed", "DELETED", ownerReferences=[owner]))
    assert due(queue) == [worker_pool_key("team", "chat-mixed")]


def test_a_worker_pool_that_lost_its_labels_wakes_its_owner(waker, queue):
    owner = {"kind": "ModelService", "name": "chat", "uid": "u"}
    waker.on_reconciled(WORKER_POOL, event("chat-mixed", ownerReferences=[owner]))
    assert due(queue) == [model_service_key("team", "chat"), worker_pool_key("team", "chat-mixed")]


def test_an_accelerator_class_wakes_everything_that_exists(waker, queue):
    waker.on_reconciled(MODEL_SERVICE, event("chat", "ADDED"))
    waker.on_reconciled(MODEL_SERVICE, event("gone", "ADDED"))
    waker.on_reconciled(MODEL_SERVICE, event("gone", "DELETED"))
    while (key := queue._take()[0]) is not None:
        queue.forget(key)
    waker.on_accelerator(event("h100-sxm"))
    assert due(queue) == [model_service_key("team", "chat")]


def test_kopf_only_listens(waker):
    """No handler that would keep state in annotations or need a finalizer, no peering, no Events by Kopf."""
    import kopf

    registry = kopf.OperatorRegistry()
    register(registry, waker)
    assert len(registry._watching.get_all_handlers()) == 7
    assert not list(registry._changing.get_all_handlers())
    assert not list(registry._spawning.get_all_handlers())
    settings = kopf_settings()
    assert settings.peering.standalone
    assert not settings.posting.enabled
    assert settings.scanning.disabled
