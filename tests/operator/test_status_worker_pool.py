"""A WorkerPool's status from what is observed."""

from datetime import timedelta

import pytest

from forebay_operator.resources import Manifest
from forebay_operator.rootcause import Cause, Reason
from forebay_operator.status.worker_pool import PoolState, build_pool_status, build_refused_status
from tests.operator.examples import NOW, draining, ended, worker

OWNER: Manifest = {"metadata": {"name": "chat-mixed", "namespace": "team", "generation": 4}}
UNSCHEDULABLE = Cause(Reason.UNSCHEDULABLE, "w: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")


def status(wanted: int, workers: list, *, owner: Manifest = OWNER, **fields) -> dict:
    values = {"template": "now", "revision": "r1", "selector": "a=b", "deployment": None, **fields}
    return build_pool_status(owner, PoolState(wanted=wanted, workers=workers, **values), now=NOW)["status"]


def condition(made: dict, condition_type: str) -> tuple[str, str]:
    found = next(one for one in made["conditions"] if one["type"] == condition_type)
    return found["status"], found["reason"]


PENDING = {"is_ready": False, "pod_ip": None}
CASES = {
    "settled": (2, [worker("a"), worker("b")], ("True", "AllWorkersReady"), ("True", "Settled")),
    "starting": (1, [worker("a", is_ready=False)], ("False", "Starting"), ("True", "ScalingUp")),
    "no pod yet": (1, [], ("False", "Starting"), ("True", "ScalingUp")),
    "growing": (2, [worker("a"), worker("b", **PENDING)], ("True", "ScalingUp"), ("True", "ScalingUp")),
    "no room to grow": (
        2,
        [worker("a"), worker("b", **PENDING, cause=UNSCHEDULABLE)],
        ("False", "Unschedulable"),
        ("False", "Unschedulable"),
    ),
    "draining": (1, [worker("a"), draining("b", since_s=3)], ("True", "AllWorkersReady"), ("True", "Draining")),
    "rolling out": (
        1,
        [worker("old", template="before"), worker("new", is_ready=False)],
        ("False", "RolloutInProgress"),
        ("True", "RollingOut"),
    ),
    "rolled out, the old one still ends": (
        1,
        [worker("old", template="before", is_terminating=True), worker("new")],
        ("False", "RolloutInProgress"),
        ("True", "RollingOut"),
    ),
    "stuck rollout": (
        1,
        [
            worker("old", template="before"),
            worker("new", is_ready=False, cause=Cause(Reason.IMAGE_PULL_FAILED, "no such image")),
        ],
        ("False", "ImagePullFailed"),
        ("False", "ImagePullFailed"),
    ),
    "one of three crashes": (
        3,
        [worker("a"), worker("b"), worker("c", is_ready=False, cause=Cause(Reason.WORKER_CRASHED, "boom"))],
        ("False", "WorkerCrashed"),
        ("False", "WorkerCrashed"),
    ),
    "a victim of the drain crashes": (
        1,
        [worker("a"), draining("b", since_s=3, is_ready=False, cause=Cause(Reason.WORKER_CRASHED, "boom"))],
        ("True", "AllWorkersReady"),
        ("True", "Draining"),
    ),
    "evicted, the replacement starts": (
        1,
        [ended("a"), worker("b", is_ready=False, created_at=NOW)],
        ("False", "PodFailed"),
        ("False", "PodFailed"),
    ),
    "evicted and replaced": (
        1,
        [ended("a"), worker("b", created_at=NOW)],
        ("True", "AllWorkersReady"),
        ("True", "Settled"),
    ),
    "evicted long ago, grows now": (
        2,
        [ended("a"), worker("b", created_at=NOW), worker("c", **PENDING, created_at=NOW)],
        ("True", "ScalingUp"),
        ("True", "ScalingUp"),
    ),
    "evicted, and no room for the replacement": (
        1,
        [ended("a"), worker("b", **PENDING, cause=UNSCHEDULABLE)],
        ("False", "Unschedulable"),
        ("False", "Unschedulable"),
    ),
    "evicted before a rollout": (
        1,
        [ended("a", template="before"), worker("b", created_at=NOW)],
        ("True", "AllWorkersReady"),
        ("True", "Settled"),
    ),
    "scaled to zero, an evicted pod is left": (0, [ended("a")], ("True", "ScaledToZero"), ("True", "Settled")),
    "scaled to zero": (0, [], ("True", "ScaledToZero"), ("True", "Settled")),
}


@pytest.mark.parametrize("case", CASES)
def test_conditions(case):
    wanted, workers, ready, progressing = CASES[case]
    made = status(wanted, workers)
    assert condition(made, "Ready") == ready
    assert condition(made, "Progressing") == progressing


def test_an_edit_ends_readiness_although_the_old_pods_satisfy_the_count():
    """C140: `kubectl wait --for=condition=Ready` right after an edit must not return early."""
    made = status(2, [worker("a", template="before"), worker("b", template="before")])
    assert condition(made, "Ready") == ("False", "RolloutInProgress")
    assert made["observedGeneration"] == 4
    assert all(one["observedGeneration"] == 4 for one in made["conditions"])


def test_counts_and_scale_fields():
    workers = [worker("a"), draining("b", since_s=1), worker("c", is_ready=False), worker("d", is_terminating=True)]
    made = status(3, workers)
    assert (made["replicas"], made["ready"], made["draining"]) == (4, 1, 2)
    assert made["selector"] == "a=b"
    assert made["revision"] == "r1"


def test_a_pod_that_has_ended_for_good_is_no_worker():
    """An evicted pod lies about for days; a pool that is to be removed must not wait for it."""
    made = status(1, [worker("a"), ended("b")])
    assert (made["replicas"], made["ready"], made["draining"]) == (1, 1, 0)


def test_the_root_cause_is_shown_and_goes_when_all_is_well():
    assert "Insufficient nvidia.com/gpu" in status(1, [worker("a", **PENDING, cause=UNSCHEDULABLE)])["reason"]
    assert "reason" not in status(1, [worker("a")])


def test_a_quota_reaches_the_conditions():
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota: gpus"}
    made = status(2, [worker("a")], deployment={"status": {"conditions": [failure]}})
    assert condition(made, "Ready") == ("False", "PodsNotCreated")
    assert "exceeded quota" in made["reason"]


def test_a_blocked_pool_keeps_its_readiness_and_says_what_blocks_it():
    blocked = Cause(Reason.ACCELERATOR_NOT_FOUND, "AcceleratorClass x does not exist")
    made = status(1, [worker("a", template="now")], blocked=blocked)
    assert condition(made, "Ready") == ("True", "AllWorkersReady")
    assert condition(made, "Progressing") == ("False", "AcceleratorNotFound")


def test_times_are_kept_while_a_condition_does_not_flip():
    before = {**OWNER, "status": status(1, [worker("a")])}
    later = PoolState(1, "now", "r1", "a=b", [worker("a")], None)
    made = build_pool_status(before, later, now=NOW + timedelta(hours=1))["status"]
    assert made == before["status"]


def test_a_spec_that_cannot_be_read_keeps_the_counts():
    before = {**OWNER, "status": status(1, [worker("a")])}
    made = build_refused_status(before, Cause(Reason.INVALID_SPEC, "pool.role: unknown"), now=NOW)["status"]
    assert made["ready"] == 1
    assert condition(made, "Ready") == ("False", "InvalidSpec")
