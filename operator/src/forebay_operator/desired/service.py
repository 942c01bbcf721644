"""A WorkerPool's Service: headless, so that its name resolves to the workers themselves.

The router finds workers by watching pods; the Service is for people and for tools that look names up.
"""

from forebay_api.names import ENGINE_PORT, HTTP_PORT_NAME
from forebay_api.workerpool import WorkerPoolSpec
from forebay_operator.desired.deployment import selector_labels
from forebay_operator.desired.ownership import child_metadata, pool_labels
from forebay_operator.resources import WORKER_POOL, Manifest, name_of


def build_service(owner: Manifest, spec: WorkerPoolSpec) -> Manifest:
    """The headless Service of a pool."""
    return {
        "metadata": child_metadata(WORKER_POOL, owner, name=name_of(owner), labels=pool_labels(spec)),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "selector": selector_labels(spec),
            "ports": [
                {"name": HTTP_PORT_NAME, "port": ENGINE_PORT, "targetPort": HTTP_PORT_NAME, "protocol": "TCP"},
            ],
        },
    }
