"""Telling a repair from an update.

Every object that the operator applies carries the hash of the manifest that was applied, in an annotation. If the stored
hash equals the hash of what is about to be applied, nothing of ours has changed since; if the apply then changes the
object's content all the same, somebody else had changed fields of ours, and the apply put them right: drift, repaired. If
the hashes differ, the spec or the operator's version has changed, and the write is an update.

Content is spec, labels, annotations and owners. Status and the other metadata move on their own; so does the revision that
the Deployment controller notes on a Deployment. Fields that others *added* are not ours, so an apply leaves them and they
are no drift. An edit that also rewrites the hash annotation is repaired, but counted as an update.
"""

from typing import Final

from forebay_api.names import GROUP
from forebay_operator.digests import digest
from forebay_operator.resources import Manifest, annotations_of

APPLIED_ANNOTATION: Final = f"{GROUP}/applied"
"""Hash of the manifest as applied last."""
REPLICAS_ANNOTATION: Final = f"{GROUP}/replicas"
"""What a Deployment's replicas were set to last. A drain goes through several numbers on its way, so the manifest's hash alone
cannot tell its steps from somebody else's scaling."""
FOREIGN_ANNOTATIONS: Final = frozenset({"deployment.kubernetes.io/revision"})


def with_digest(manifest: Manifest) -> Manifest:
    """The manifest with its own hash as an annotation."""
    annotations = {**(manifest["metadata"].get("annotations") or {}), APPLIED_ANNOTATION: digest(manifest)}
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": annotations}}


def is_changed(before: Manifest | None, after: Manifest) -> bool:
    """Whether a write changed an object's content."""
    return before is None or _content(before) != _content(after)


def is_repair(before: Manifest | None, manifest: Manifest, after: Manifest) -> bool:
    """Whether applying `manifest` (made by `with_digest`) to `before` put right what somebody else had changed."""
    if before is None:
        return False
    applied = annotations_of(manifest)[APPLIED_ANNOTATION]
    return annotations_of(before).get(APPLIED_ANNOTATION) == applied and is_changed(before, after)


def content_digest(manifest: Manifest) -> str:
    """Hash of an object's content."""
    return digest(_content(manifest))


def is_scaled_by_others(before: Manifest | None, manifest: Manifest) -> bool:
    """Whether others scaled a Deployment and `manifest` is only a step on the way back.

    When `manifest` goes back to the number that was applied last, it is the manifest that was applied last, and `is_repair`
    sees the difference.
    """
    if before is None:
        return False
    applied = annotations_of(before).get(REPLICAS_ANNOTATION)
    is_step = annotations_of(manifest).get(REPLICAS_ANNOTATION) != applied
    return applied is not None and applied != str(before["spec"].get("replicas")) and is_step


def _content(manifest: Manifest) -> Manifest:
    metadata = manifest["metadata"]
    annotations = {key: value for key, value in annotations_of(manifest).items() if key not in FOREIGN_ANNOTATIONS}
    return {
        "spec": manifest.get("spec"),
        "labels": metadata.get("labels"),
        "annotations": annotations,
        "ownerReferences": metadata.get("ownerReferences"),
    }
