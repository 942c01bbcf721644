"""A WorkerPool's PodDisruptionBudget: voluntary evictions take one worker at a time.

`maxUnavailable: 1` rather than a minimum: with a minimum equal to a pool's only worker, `kubectl drain` would wait for ever.
Workers that are not ready anyway never stand in an eviction's way.
"""

from forebay_api.workerpool import WorkerPoolSpec
from forebay_operator.desired.deployment import selector_labels
from forebay_operator.desired.ownership import child_metadata, pool_labels
from forebay_operator.resources import WORKER_POOL, Manifest, name_of


def build_disruption_budget(owner: Manifest, spec: WorkerPoolSpec) -> Manifest:
    """The PodDisruptionBudget of a pool."""
    return {
        "metadata": child_metadata(WORKER_POOL, owner, name=name_of(owner), labels=pool_labels(spec)),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector_labels(spec)},
        },
    }
