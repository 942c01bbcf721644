"""What a ModelService's status says of its scaling while the autoscaler is gone.

That part of the status is the autoscaler's. It is written under the autoscaler's own field manager, so that this one apply
takes its old numbers away (a field can only be removed by who owns it), and so that the next apply of a living autoscaler
replaces it as a whole, with nothing left of ours (decision 0006).

Where nobody scales, nothing is said: in mode Off, and where no autoscaler is installed, what an autoscaler wrote earlier goes.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from forebay_api.conditions import Condition, ConditionStatus, find_condition, merge_conditions
from forebay_api.modelservice import AutoscalingMode
from forebay_api.names import AUTOSCALER_CONDITIONS
from forebay_operator.attendance import Absence
from forebay_operator.resources import Manifest, name_of, namespace_of

GONE: Final = "AutoscalerGone"


def build_absent_part(service: Manifest, absence: Absence, *, now: datetime) -> Manifest | None:
    """The autoscaler's part, ready to be applied for it; None when the stored status says just that.

    Its conditions tell: an autoscaler writes no number without them.
    """
    stored = (service.get("status") or {}).get("conditions") or []
    wanted: list[dict[str, Any]] = []
    if absence.deployed and _mode(service) != AutoscalingMode.OFF.value:
        told = [Condition(name, ConditionStatus.UNKNOWN, GONE, explain(absence)) for name in AUTOSCALER_CONDITIONS]
        wanted = merge_conditions(stored, told, generation=service["metadata"]["generation"], now=now)
    if wanted == _told(service):
        return None
    metadata = {"name": name_of(service), "namespace": namespace_of(service)}
    return {"metadata": metadata, "status": {"conditions": wanted} if wanted else {}}


def is_living_word(service: Manifest) -> bool:
    """Whether the stored part was written by an autoscaler, and not in its stead."""
    return any(one.get("reason") != GONE for one in _told(service))


def _told(service: Manifest) -> list[Mapping[str, Any]]:
    """The autoscaler's conditions, as they are stored."""
    stored = (service.get("status") or {}).get("conditions") or []
    return [one for name in AUTOSCALER_CONDITIONS if (one := find_condition(stored, name)) is not None]


def explain(absence: Absence) -> str:
    """Since when, and what to do."""
    namespace = absence.lease.partition("/")[0]
    since = f" since {absence.renewed}" if absence.renewed else ""
    return (
        f"the autoscaler has not renewed its Lease {absence.lease}{since}: nothing is measured and no pool is resized; "
        f"look at its pods: kubectl -n {namespace} get pods -l app.kubernetes.io/component=autoscaler"
    )


def _mode(service: Manifest) -> str:
    return str((service["spec"].get("autoscaling") or {}).get("mode", AutoscalingMode.AUTO.value))
