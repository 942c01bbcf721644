"""Snapshots of a model service, and what their differences tell."""

from typing import Any

from forebay_cli.timeline import EMPTY, PoolState, Snapshot, Timeline, Worker, snapshot_of, tell, worker_from_pod


def worker(name: str, **changes: Any) -> Worker:
    return Worker(
        **{
            "name": name, "pool": "mixed", "node": "node-0", "ready": True, "draining": False, "accelerators": 1,
            "restarts": 0, "trouble": None, **changes,
        }
    )  # fmt: skip


def snapshot(time_s: float, *workers: Worker, replicas: int = 1, reason: str | None = None) -> Snapshot:
    return Snapshot(
        time_s=time_s,
        workers={one.name: one for one in workers},
        pools={"mixed": PoolState("mixed", replicas, reason)},
        conditions={},
    )


def test_a_decision_is_told_and_its_reason_when_that_is_known():
    timeline = Timeline()
    stages = [
        snapshot(0, reason="1 kept: 2 req/s asked"),
        snapshot(1, replicas=3, reason="1 kept: 9 req/s asked"),
        snapshot(2, replicas=3, reason="1 → 3: 30 req/s asked"),
        snapshot(3, replicas=3, reason="3 kept: 30 req/s asked"),
    ]
    told = [sentence.text for one in stages for sentence in timeline.add(one)]
    assert told == ["mixed 1 → 3", "mixed 1 → 3: 30 req/s asked"]


def test_the_life_of_a_worker_is_told_in_order():
    stages = [
        snapshot(0, worker("a", node=None, ready=False, trouble="Unschedulable: no GPU")),
        snapshot(1, worker("a", ready=False)),
        snapshot(2, worker("a")),
        snapshot(3, worker("a", restarts=1)),
        snapshot(4, worker("a", restarts=1, draining=True)),
        snapshot(5),
    ]
    timeline = Timeline()
    told = [sentence.text for one in stages for sentence in timeline.add(one)]
    assert told == [
        "a waits: Unschedulable: no GPU",
        "a scheduled on node-0",
        "a ready",
        "a restarted (1)",
        "a drains: it finishes what it has and gets nothing new",
        "a gone",
    ]


def test_a_condition_is_told_when_its_status_or_reason_changes_only():
    def ready(message: str) -> Snapshot:
        return Snapshot(time_s=0, workers={}, pools={}, conditions={"Ready": ("True", "AllReady", message)})

    assert len(tell(EMPTY, ready("1 of 1"))) == 1
    assert tell(ready("1 of 1"), ready("2 of 2")) == []


def test_gpu_seconds_count_bound_workers_only():
    timeline = Timeline()
    for one in (
        snapshot(0, worker("a"), worker("b", node=None)),
        snapshot(10, worker("a"), worker("b", accelerators=4)),
        snapshot(15, worker("a")),
    ):
        timeline.add(one)
    assert timeline.gpu_seconds() == 10 * 1 + 5 * 5


def test_the_sequence_of_sizes_has_no_repeats():
    timeline = Timeline()
    for time_s, replicas in enumerate((1, 1, 3, 3, 2, 1, 1)):
        timeline.add(snapshot(time_s, replicas=replicas))
    assert timeline.wanted_sequence("mixed") == [1, 3, 2, 1]
    assert [row["time_s"] for row in timeline.replicas_over_time()] == [0, 2, 4, 5]


def test_a_pod_object_is_read_as_a_worker():
    pod = {
        "metadata": {"name": "w-1", "labels": {"forebay.dev/pool": "decode", "forebay.dev/draining": "true"}},
        "spec": {
            "nodeName": "node-1",
            "containers": [{"resources": {"limits": {"nvidia.com/gpu": "4", "memory": "1Gi"}}}],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": [
                {"restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}}
            ],
        },
    }
    read = worker_from_pod(pod)
    assert (read.pool, read.node, read.accelerators, read.draining, read.restarts) == ("decode", "node-1", 4, True, 2)
    assert read.trouble == "CrashLoopBackOff: back-off 10s"
    pools = [{"spec": {"replicas": 2, "pool": {"name": "decode"}}}]
    service = {"status": {"pools": [{"name": "decode", "reason": "why"}], "conditions": []}}
    assert snapshot_of(1.0, service, pools, [pod]).pools["decode"] == PoolState("decode", 2, "why")
