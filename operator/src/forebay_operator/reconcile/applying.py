"""Apply one desired object: adopt it if it is ours, count drift, skip what is known to be a no-op.

Adoption: an object of the wanted name is ours when the owner controls it. One that carries our managed-by label is adopted when
nobody controls it (a restored backup), or when a former owner of the same kind and name does (the owner was deleted and made
again; the garbage collector then finds a living owner and keeps the child). Anything else keeps its name, and the
reconciliation fails with a message that says which object is in the way.

Refusals: such an object, and a write that the API server refuses (a webhook, a quota, a missing right), stay as they are until
somebody changes something. The reconcilers write them into the conditions before they fail, or nobody would see more than a
rollout that never ends.

Skipping: an apply whose manifest is the one applied last, on an object whose content is the one that apply left, changes
nothing. Both hashes are remembered by UID, so that the many reconciliations which a starting pod causes cost reads only. The
memory is a saving and no more: without it everything works the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from forebay_api.names import MANAGED_BY_LABEL, OPERATOR_MANAGER
from forebay_operator.cluster import Cluster
from forebay_operator.digests import digest
from forebay_operator.drift import content_digest, is_changed, is_repair, with_digest
from forebay_operator.errors import ApiForbiddenError, ApiInvalidError, OperatorError
from forebay_operator.events import Kind, Recorder
from forebay_operator.metrics import Metrics
from forebay_operator.resources import Manifest, Resource, labels_of, name_of, namespace_of

REMEMBERED_MAX: Final = 20_000
"""Objects whose last apply is remembered; the oldest are forgotten first."""


class NameTakenError(OperatorError):
    """An object of the wanted name exists and is not ours."""

    def __init__(self, resource: Resource, existing: Manifest) -> None:
        super().__init__(
            f"{resource.kind} {name_of(existing)} exists and is not managed by Forebay: "
            "delete or rename it, or choose another name for the model service or the pool"
        )


REFUSALS: Final = (NameTakenError, ApiForbiddenError, ApiInvalidError)


@dataclass(frozen=True, slots=True)
class Owner:
    """The object that children are applied for."""

    resource: Resource
    manifest: Manifest
    was_applied: bool = False
    """Whether its children have been applied before, so that an absent one was deleted by somebody."""


@dataclass(slots=True)
class Applier:
    """Applies children and tells whether anything changed."""

    cluster: Cluster
    recorder: Recorder
    metrics: Metrics
    _settled: dict[str, tuple[str, str]] = field(default_factory=dict)

    async def apply_over(
        self, existing: Manifest | None, resource: Resource, manifest: Manifest, *, owner: Owner
    ) -> tuple[Manifest, bool]:
        """Apply over what was just read (None where it is absent); the stored object and whether its content changed."""
        check_ours(resource, existing, owner=owner)
        wanted = with_digest(manifest)
        if existing is not None and self._is_settled(existing, wanted):
            return existing, False
        stored = await self.cluster.apply(resource, wanted)
        self._remember(stored, wanted)
        if existing is None and owner.was_applied:
            await self.report_drift(resource, stored, owner=owner, what="had been deleted and was made again")
        elif is_repair(existing, wanted, stored):
            await self.report_drift(resource, stored, owner=owner, what="had been changed by others and was put right")
        return stored, is_changed(existing, stored)

    async def report_drift(self, resource: Resource, stored: Manifest, *, owner: Owner, what: str) -> None:
        """Count a repair and tell about it on the owner."""
        self.metrics.drift_repairs.labels(namespace_of(stored), resource.kind).inc()
        message = f"{resource.kind} {name_of(stored)} {what}; change the ModelService instead"
        await self.recorder.record(
            owner.resource, owner.manifest, kind=Kind.WARNING, reason="DriftRepaired", message=message
        )

    def _is_settled(self, existing: Manifest, wanted: Manifest) -> bool:
        return self._settled.get(existing["metadata"]["uid"]) == (digest(wanted), content_digest(existing))

    def _remember(self, stored: Manifest, wanted: Manifest) -> None:
        self._settled.pop(stored["metadata"]["uid"], None)
        self._settled[stored["metadata"]["uid"]] = (digest(wanted), content_digest(stored))
        while len(self._settled) > REMEMBERED_MAX:
            self._settled.pop(next(iter(self._settled)))


def controller_of(manifest: Manifest) -> Mapping[str, Any] | None:
    """The owner reference of the object that controls this one, or None."""
    references = manifest["metadata"].get("ownerReferences") or []
    return next((one for one in references if one.get("controller")), None)


def is_ours(existing: Manifest, *, resource: Resource, owner: Manifest) -> bool:
    """Whether an object belongs to the owner (of this resource), or may be adopted by it."""
    controller = controller_of(existing)
    if controller and controller["uid"] == owner["metadata"]["uid"]:
        return True
    is_free = controller is None or (controller["kind"], controller["name"]) == (resource.kind, name_of(owner))
    return is_free and labels_of(existing).get(MANAGED_BY_LABEL) == OPERATOR_MANAGER


def check_ours(resource: Resource, existing: Manifest | None, *, owner: Owner) -> None:
    """Refuse to take an object over that is not ours."""
    if existing is not None and not is_ours(existing, resource=owner.resource, owner=owner.manifest):
        raise NameTakenError(resource, existing)
