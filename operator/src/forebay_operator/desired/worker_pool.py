"""A ModelService's WorkerPools: the parts of its spec that concern one pool.

`spec.replicas` is left out on purpose. Its owner is whoever scales the pool; `reconcile.model_service` sets it once, at
creation, under a field manager of its own.
"""

from typing import Any

from forebay_api.modelservice import ModelServiceSpec, Pool
from forebay_api.names import POOL_LABEL, ROLE_LABEL, worker_pool_name
from forebay_api.workerpool import WorkerPoolSpec
from forebay_operator.desired.ownership import child_metadata, model_service_labels
from forebay_operator.resources import MODEL_SERVICE, Manifest, name_of


def build_worker_pool(owner: Manifest, spec: ModelServiceSpec, pool: Pool) -> Manifest:
    """The WorkerPool of one pool of a model service, without replicas."""
    service = name_of(owner)
    wanted = WorkerPoolSpec(
        model_service=service, model=spec.model, engine=spec.engine, pool=pool, rollout=spec.rollout
    )
    labels = {**model_service_labels(service), POOL_LABEL: pool.name, ROLE_LABEL: pool.role.value}
    body: dict[str, Any] = wanted.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"replicas"})
    return {
        "metadata": child_metadata(MODEL_SERVICE, owner, name=worker_pool_name(service, pool.name), labels=labels),
        "spec": body,
    }
