"""What a pod's status says about why it does not serve; statuses as real kubelets and the real scheduler write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_operator.rootcause import MESSAGE_LENGTH_MAX, SEVERITY, Cause, Reason, find_cause, worst


def pod(*, phase: str = "Pending", conditions: list | None = None, **status) -> dict:
    return {"metadata": {"name": "w"}, "status": {"phase": phase, "conditions": conditions or [], **status}}


def container(*, waiting: dict | None = None, ended: dict | None = None, last: dict | None = None, **fields) -> dict:
    running = {"running": {"startedAt": "2026-01-01T10:00:30Z"}}
    state = {"waiting": waiting} if waiting else {"terminated": ended} if ended else running
    return {
        "containerStatuses": [
            {
                "name": "engine",
                "image": "vllm/vllm-openai:v0.32.0",
                "ready": False,
                "restartCount": 0,
                "state": state,
                "lastState": {"terminated": last} if last else {},
                **fields,
            }
        ]
    }


def unready(since: str) -> list[dict]:
    return [{"type": "Ready", "status": "False", "lastTransitionTime": f"2026-01-01T{since}Z"}]


NO_GPU = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: 0/2 nodes are available: 2 No preemption victims."
CASES = {
    "not looked at by the scheduler yet": (pod(), None),
    "unschedulable": (
        pod(conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_GPU}]),
        Cause(Reason.UNSCHEDULABLE, f"w: {NO_GPU}"),
    ),
    "pulling": (pod(**container(waiting={"reason": "ContainerCreating"})), None),
    "image pull": (
        pod(**container(waiting={"reason": "ErrImagePull", "message": "manifest for x:1 not found"})),
        Cause(Reason.IMAGE_PULL_FAILED, "w: manifest for x:1 not found"),
    ),
    "image pull, backing off, without a message": (
        pod(**container(waiting={"reason": "ImagePullBackOff"})),
        Cause(Reason.IMAGE_PULL_FAILED, "w: ImagePullBackOff of vllm/vllm-openai:v0.32.0"),
    ),
    "missing secret": (
        pod(**container(waiting={"reason": "CreateContainerConfigError", "message": 'secret "hf" not found'})),
        Cause(Reason.CONTAINER_CONFIG_ERROR, 'w: secret "hf" not found'),
    ),
    "loading": (pod(phase="Running", **container(started=False)), None),
    "crash loop": (
        pod(
            phase="Running",
            **container(
                waiting={"reason": "CrashLoopBackOff", "message": "back-off 20s restarting failed container"},
                last={"exitCode": 1, "reason": "Error", "message": "torch.OutOfMemoryError: CUDA out of memory.\n"},
                restartCount=3,
            ),
        ),
        Cause(
            Reason.WORKER_CRASHED,
            "w: engine exited with code 1 (Error), restarted 3 times: torch.OutOfMemoryError: CUDA out of memory.",
        ),
    ),
    "killed for memory": (
        pod(phase="Running", **container(ended={"exitCode": 137, "signal": 9, "reason": "OOMKilled"})),
        Cause(Reason.WORKER_CRASHED, "w: engine was killed by signal 9 (OOMKilled)"),
    ),
    "running again after a crash, still loading": (
        pod(phase="Running", **container(last={"exitCode": 1, "reason": "Error"}, restartCount=1, started=False)),
        Cause(Reason.WORKER_CRASHED, "w: engine exited with code 1 (Error), restarted 1 time"),
    ),
    "ended well, about to be started again": (
        pod(phase="Running", **container(ended={"exitCode": 0, "reason": "Completed"})),
        None,
    ),
    "serving again after a crash": (
        pod(phase="Running", **container(last={"exitCode": 1}, restartCount=1, started=True, ready=True)),
        None,
    ),
    "started, about to become ready": (
        pod(phase="Running", conditions=unready("10:00:00"), **container(started=True)),
        None,
    ),
    "stopped answering": (
        pod(phase="Running", conditions=unready("10:07:00"), **container(started=True)),
        Cause(Reason.NOT_ANSWERING, "w: the engine does not answer /health since 2026-01-01T10:07:00Z"),
    ),
    "evicted": (
        pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory."),
        Cause(Reason.POD_FAILED, "w: Evicted: The node was low on resource: memory."),
    ),
    "serving": (pod(phase="Running", **container(started=True, ready=True)), None),
    "no status at all": ({"metadata": {"name": "w"}}, None),
}


@pytest.mark.parametrize("case", CASES)
def test_the_cause_of_a_pod(case):
    status, expected = CASES[case]
    assert find_cause(status) == expected


def test_the_worst_cause_is_the_one_that_most_needs_a_person():
    causes = [
        Cause(Reason.NOT_ANSWERING, "x"),
        None,
        Cause(Reason.UNSCHEDULABLE, "y"),
        Cause(Reason.IMAGE_PULL_FAILED, "z"),
    ]
    assert worst(causes) == causes[-1]
    assert worst([None]) is None


def test_every_reason_has_its_place():
    assert set(SEVERITY) == set(Reason)


@given(st.text(min_size=0, max_size=5000))
def test_a_long_message_is_shortened_to_its_ends(message):
    found = find_cause(pod(**container(waiting={"reason": "ErrImagePull", "message": message})))
    assert found is not None
    assert len(found.message) <= MESSAGE_LENGTH_MAX + 20
    assert "\n" not in found.message
