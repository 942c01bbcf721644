"""What the API shows of a pod, and what is read back from it."""

import pytest

from forebay_simulator.node import lifecycle
from forebay_simulator.node.lifecycle import Phase
from forebay_simulator.node.machine import new_state
from forebay_simulator.node.pods import parse_pod
from forebay_simulator.node.recovery import recovered_state
from forebay_simulator.node.status import Addresses, pod_status, status_patch

from .manifests import container, pod, probe
from .timeline import BEGIN_S, Timeline

ADDRESSES = Addresses(pod="127.1.0.2", node="127.1.0.1")


def conditions(status: dict) -> dict[str, tuple[str, str | None]]:
    return {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}


def test_a_running_pod_shows_everything_that_kubectl_prints():
    status = Timeline(pod()).status()
    assert status["phase"] == "Running"
    assert status["podIP"] == "127.1.0.2"
    assert status["hostIP"] == "127.1.0.1"
    assert status["observedGeneration"] == 1
    assert conditions(status) == {
        "PodReadyToStartContainers": ("True", None),
        "Initialized": ("True", None),
        "ContainersReady": ("True", None),
        "Ready": ("True", None),
    }
    (shown,) = status["containerStatuses"]
    assert shown["containerID"] == "process://1001"
    assert shown["ready"]
    assert shown["started"]
    assert shown["state"] == {"running": {"startedAt": "1970-01-12T13:46:40Z"}}


def test_an_unready_container_is_named():
    raw = pod(container("a", readinessProbe=probe(initialDelaySeconds=100)), container("b"))
    status = Timeline(raw).status()
    ready = next(item for item in status["conditions"] if item["type"] == "Ready")
    assert ready["reason"] == "ContainersNotReady"
    assert ready["message"] == "containers with unready status: [a]"


def test_a_finished_pod_is_completed():
    status = Timeline(pod(restartPolicy="Never"), lasts_s={"main": 2}).run(for_s=3).status()
    assert status["phase"] == "Succeeded"
    assert conditions(status)["Ready"] == ("False", "PodCompleted")
    terminated = status["containerStatuses"][0]["state"]["terminated"]
    assert terminated["reason"] == "Completed"
    assert terminated["finishedAt"] == "1970-01-12T13:46:42Z"


def test_transition_times_change_only_with_the_condition():
    timeline = Timeline(pod())
    first = timeline.status()
    timeline.raw["status"] = first
    timeline.run(for_s=100)
    assert timeline.status()["conditions"] == first["conditions"]
    timeline.happens(lifecycle.Exited("main", 1, 1, None))
    timeline.happens(lifecycle.Exited("main", 2, 1, None))
    later = {item["type"]: item for item in timeline.status()["conditions"]}
    assert later["Ready"]["lastTransitionTime"] == "1970-01-12T13:48:20Z"
    assert later["Initialized"]["lastTransitionTime"] == "1970-01-12T13:46:40Z"


@pytest.mark.parametrize(("gate", "ready"), [("True", "True"), ("False", "False"), (None, "False")])
def test_readiness_gates_count(gate: str | None, ready: str):
    raw = pod(readinessGates=[{"conditionType": "example.com/gate"}])
    if gate is not None:
        raw["status"]["conditions"].append({"type": "example.com/gate", "status": gate})
    shown = conditions(Timeline(raw).status())
    assert shown["Ready"][0] == ready
    assert shown["ContainersReady"][0] == "True"


def test_a_patch_replaces_lists_with_one_owner_and_is_tied_to_the_pod():
    timeline = Timeline(pod())
    patch = status_patch(timeline.pod, timeline.status())
    assert patch["metadata"] == {"uid": "uid-1"}
    assert patch["status"]["podIPs"] == [{"$patch": "replace"}, {"ip": "127.1.0.2"}]
    assert not any(item["type"] == "PodScheduled" for item in patch["status"]["conditions"])


def recover(raw: dict, statuses: list[dict], init: list[dict] | None = None):
    raw["status"] = {"containerStatuses": statuses, "initContainerStatuses": init or []}
    described = parse_pod(raw)
    return described, recovered_state(described, new_state(described), now_s=BEGIN_S)


RUNNING = {"name": "main", "restartCount": 2, "state": {"running": {"startedAt": "1970-01-01T00:00:00Z"}}}
COMPLETED = {"name": "main", "restartCount": 0, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}


def test_after_an_agent_s_end_a_running_container_is_started_again_and_counted():
    _, state = recover(pod(), [RUNNING])
    recovered = state.containers["main"]
    assert recovered.phase is Phase.WAITING
    assert recovered.restarts == 3
    assert recovered.last is not None
    assert recovered.last.exit_code == 137


def test_after_an_agent_s_end_a_container_that_may_not_run_again_has_failed():
    described, state = recover(pod(restartPolicy="Never"), [RUNNING])
    ended = state.containers["main"].ended
    assert ended is not None
    assert ended.reason == "ContainerStatusUnknown"
    shown = pod_status(described, state, addresses=ADDRESSES, previous={}, now_s=BEGIN_S)
    assert shown["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137


def test_after_an_agent_s_end_what_was_completed_stays_so():
    _, state = recover(pod(restartPolicy="OnFailure"), [COMPLETED])
    assert state.containers["main"].phase is Phase.ENDED


def test_after_an_agent_s_end_init_containers_run_again():
    raw = pod(initContainers=[container("init")])
    _, state = recover(raw, [RUNNING], [{**COMPLETED, "name": "init"}])
    assert state.containers["init"].phase is Phase.WAITING
    assert not state.initialized


def test_a_pod_that_never_ran_is_not_changed_by_recovery():
    described, state = recover(pod(), [{"name": "main", "restartCount": 0, "state": {"waiting": {}}}])
    assert state == new_state(described)
