"""Worker pods as the operator sees them: a frozen view of the few facts that decide anything."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from forebay_api.names import DELETION_COST_ANNOTATION, DRAIN_STARTED_ANNOTATION, DRAINING_LABEL, GROUP, REVISION_LABEL
from forebay_operator.resources import Manifest, annotations_of, is_terminating, labels_of, name_of
from forebay_operator.rootcause import Cause, find_cause

TEMPLATE_ANNOTATION: Final = f"{GROUP}/template"
"""Hash of the pod template that a pod was made from, by which old pods are told from new ones."""
MARKED_COST: Final = "-1000"
"""pod-deletion-cost of a draining worker."""
RELEASED_COST: Final = "-1000000"
"""pod-deletion-cost of a worker that may go now."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker pod."""

    name: str
    uid: str
    created_at: datetime
    template: str
    """Hash of its template; empty on pods that the operator did not describe."""
    revision: str
    pod_ip: str | None
    is_ready: bool
    """Answers its readiness probe."""
    is_terminating: bool
    """Deletion has begun, or it has ended for good."""
    has_ended: bool
    """It has ended for good (evicted, or its node shut down); Kubernetes keeps such a pod long after, for its last words."""
    is_labelled_draining: bool
    """Carries the draining label, whoever set it."""
    drain_started_at: datetime | None
    """When the operator chose it as a victim; None when it did not."""
    is_released: bool
    """The operator lets it go: it is next in the ReplicaSet controller's order."""
    cause: Cause | None
    """Why it does not serve; None when it does or is on its way."""

    @property
    def serves(self) -> bool:
        """Whether routers may send to it."""
        return self.is_ready and not self.is_terminating and not self.is_labelled_draining


def read_worker(pod: Manifest) -> Worker:
    """The view of one pod."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    annotations, labels = annotations_of(pod), labels_of(pod)
    conditions = {one["type"]: one["status"] for one in status.get("conditions") or []}
    has_ended = status.get("phase") in {"Failed", "Succeeded"}
    return Worker(
        name=name_of(pod),
        uid=metadata["uid"],
        created_at=parse_time(metadata["creationTimestamp"]) or datetime.min.replace(tzinfo=UTC),
        template=annotations.get(TEMPLATE_ANNOTATION, ""),
        revision=labels.get(REVISION_LABEL, ""),
        pod_ip=status.get("podIP"),
        is_ready=conditions.get("Ready") == "True",
        is_terminating=is_terminating(pod) or has_ended,
        has_ended=has_ended,
        is_labelled_draining=labels.get(DRAINING_LABEL) == "true",
        drain_started_at=parse_time(annotations.get(DRAIN_STARTED_ANNOTATION)),
        is_released=annotations.get(DELETION_COST_ANNOTATION) == RELEASED_COST,
        cause=None if is_terminating(pod) else find_cause(pod),
    )


def parse_time(text: str | None) -> datetime | None:
    """An RFC 3339 time; None when absent or not one. A person's annotation may lack the zone: that is UTC."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
