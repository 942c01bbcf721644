"""Why workers do not serve: reasons, and how they are read from a pod.

A pod that is merely on its way (being scheduled for the first second, pulling, loading the model) has no cause. The message
is the scheduler's, the kubelet's or the engine's own last words; nothing is paraphrased that a person would search for.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from forebay_api.names import ENGINE_CONTAINER

MESSAGE_LENGTH_MAX: Final = 600
"""Characters of a message that reach a condition; an engine's last log lines can be long."""


class Reason(StrEnum):
    """What is wrong, from what most needs a person to what most likely passes."""

    INVALID_SPEC = "InvalidSpec"
    ACCELERATOR_NOT_FOUND = "AcceleratorNotFound"
    DOES_NOT_FIT = "DoesNotFit"
    NOT_APPLIED = "NotApplied"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_CONFIG_ERROR = "ContainerConfigError"
    WORKER_CRASHED = "WorkerCrashed"
    POD_FAILED = "PodFailed"
    PODS_NOT_CREATED = "PodsNotCreated"
    UNSCHEDULABLE = "Unschedulable"
    NOT_ANSWERING = "NotAnswering"


SEVERITY: Final = {reason: index for index, reason in enumerate(Reason)}
IMAGE_REASONS: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
CONFIG_REASONS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason with its evidence."""

    reason: Reason
    message: str


def worst(causes: Iterable[Cause | None]) -> Cause | None:
    """The cause that most needs a person; the first of equals."""
    found = [cause for cause in causes if cause is not None]
    return min(found, key=lambda cause: SEVERITY[cause.reason], default=None)


def find_cause(pod: Mapping[str, Any]) -> Cause | None:
    """Why this pod does not serve; None when it does or is on its way."""
    status = pod.get("status") or {}
    name = pod["metadata"]["name"]
    if status.get("phase") == "Failed" and status.get("reason"):
        return _cause(Reason.POD_FAILED, name, f"{status['reason']}: {status.get('message', '')}")
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return _cause(Reason.UNSCHEDULABLE, name, str(scheduled.get("message", "not scheduled yet")))
    statuses = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    lost_at = str(_condition(status, "Ready").get("lastTransitionTime", ""))
    return worst(_container_cause(name, one, lost_at=lost_at) for one in statuses)


def _container_cause(name: str, status: Mapping[str, Any], *, lost_at: str) -> Cause | None:
    """The cause in one container; `lost_at` is when the pod stopped being ready, or when it was made if it never was."""
    waiting = (status.get("state") or {}).get("waiting") or {}
    reason, message = str(waiting.get("reason", "")), str(waiting.get("message", ""))
    if reason in IMAGE_REASONS:
        return _cause(Reason.IMAGE_PULL_FAILED, name, message or f"{reason} of {status.get('image', '')}")
    if reason in CONFIG_REASONS:
        return _cause(Reason.CONTAINER_CONFIG_ERROR, name, message or reason)
    if status.get("ready"):
        return None
    ended = (status.get("state") or {}).get("terminated") or (status.get("lastState") or {}).get("terminated")
    if ended and (status.get("restartCount", 0) or ended.get("exitCode")):
        return _cause(Reason.WORKER_CRASHED, name, _last_words(status, ended))
    running_since = str(((status.get("state") or {}).get("running") or {}).get("startedAt", ""))
    # Both are UTC times in one format, which compare as text.
    if status.get("name") == ENGINE_CONTAINER and status.get("started") and lost_at > running_since > "":
        return _cause(Reason.NOT_ANSWERING, name, f"the engine does not answer /health since {lost_at}")
    return None


def _last_words(status: Mapping[str, Any], ended: Mapping[str, Any]) -> str:
    """How a container ended, such as `engine exited with code 1 (Error), restarted 3 times: out of memory`."""
    restarts = int(status.get("restartCount", 0))
    times = f", restarted {restarts} time{'s' if restarts != 1 else ''}" if restarts else ""
    code = f"exited with code {ended.get('exitCode', 'unknown')}"
    if ended.get("signal"):
        code = f"was killed by signal {ended['signal']}"
    text = str(ended.get("message", "")).strip()
    words = f"{status.get('name')} {code} ({ended.get('reason', 'Error')}){times}"
    return f"{words}: {text}" if text else words


def _condition(status: Mapping[str, Any], condition_type: str) -> Mapping[str, Any]:
    conditions = status.get("conditions") or []
    return next((one for one in conditions if one.get("type") == condition_type), {})


def _cause(reason: Reason, pod: str, message: str) -> Cause:
    text = " ".join(message.split())
    if len(text) > MESSAGE_LENGTH_MAX:
        text = f"{text[: MESSAGE_LENGTH_MAX // 3]} ... {text[-2 * MESSAGE_LENGTH_MAX // 3 :]}"
    return Cause(reason, f"{pod}: {text}")
