"""What a model service's workers did over time: snapshots, the sentences that tell their differences, and the sums.

Pure: `demo` and the end-to-end tests take snapshots of the API server, this module compares them.

    GPU-seconds = sum over intervals of (accelerators bound to worker pods at the interval's start) x (length of the interval)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker pod, as the API server shows it."""

    name: str
    pool: str
    node: str | None
    ready: bool
    draining: bool
    """Marked as draining, or deleted and still finishing."""
    accelerators: int
    restarts: int
    trouble: str | None
    """Why a container waits or why the pod cannot be scheduled, when it does not simply start."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """A worker pool: its wanted size and the autoscaler's last words on it."""

    name: str
    replicas: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A model service at one moment."""

    time_s: float
    """Seconds since the observation began."""
    workers: Mapping[str, Worker]
    pools: Mapping[str, PoolState]
    conditions: Mapping[str, tuple[str, str, str]]
    """type -> (status, reason, message)"""


@dataclass(frozen=True, slots=True)
class Sentence:
    """One thing that happened."""

    subject: str
    """worker, pool or condition."""
    text: str


def _worker_sentences(before: Snapshot, after: Snapshot) -> list[Sentence]:
    made = []
    for name, worker in after.workers.items():
        old = before.workers.get(name)
        if worker.node is not None and (old is None or old.node is None):
            made.append(Sentence("worker", f"{name} scheduled on {worker.node}"))
        if worker.trouble is not None and (old is None or old.trouble != worker.trouble):
            made.append(Sentence("worker", f"{name} waits: {worker.trouble}"))
        if old is not None and worker.restarts > old.restarts:
            made.append(Sentence("worker", f"{name} restarted ({worker.restarts})"))
        if worker.ready and not worker.draining and not (old is not None and old.ready):
            made.append(Sentence("worker", f"{name} ready"))
        if worker.draining and not (old is not None and old.draining):
            made.append(Sentence("worker", f"{name} drains: it finishes what it has and gets nothing new"))
        if old is not None and old.draining and not worker.draining:
            made.append(Sentence("worker", f"{name} is called back from draining"))
    made += [Sentence("worker", f"{name} gone") for name in before.workers if name not in after.workers]
    return made


def _pool_sentences(before: Snapshot, after: Snapshot) -> list[Sentence]:
    """Changes of size; the reason comes with the autoscaler's status, which may be one snapshot later."""
    made = []
    for name, pool in after.pools.items():
        old = before.pools.get(name)
        if old is None:
            continue
        if old.replicas != pool.replicas:
            made.append(Sentence("pool", f"{name} {old.replicas} → {pool.replicas}"))
        if pool.reason is not None and pool.reason != old.reason and "→" in pool.reason:
            made.append(Sentence("pool", f"{name} {pool.reason}"))
    return made


def _condition_sentences(before: Snapshot, after: Snapshot) -> list[Sentence]:
    made = []
    for name, (status, reason, message) in after.conditions.items():
        old = before.conditions.get(name)
        if old is not None and old[:2] == (status, reason):
            continue
        made.append(Sentence("condition", f"{name} is {status} ({reason}): {message}"))
    return made


EMPTY = Snapshot(time_s=0.0, workers={}, pools={}, conditions={})


def tell(before: Snapshot, after: Snapshot) -> list[Sentence]:
    """What happened between two snapshots, decisions first, then workers, then conditions."""
    return [
        *_pool_sentences(before, after),
        *_worker_sentences(before, after),
        *_condition_sentences(before, after),
    ]


@dataclass(slots=True)
class Timeline:
    """All snapshots of one run."""

    snapshots: list[Snapshot] = field(default_factory=list)

    def add(self, snapshot: Snapshot) -> list[Sentence]:
        """Keep a snapshot; what happened since the one before."""
        before = self.snapshots[-1] if self.snapshots else EMPTY
        self.snapshots.append(snapshot)
        return tell(before, snapshot)

    def gpu_seconds(self) -> float:
        """Accelerators bound to workers, integrated over time."""
        total = 0.0
        for before, after in zip(self.snapshots, self.snapshots[1:], strict=False):
            bound = sum(worker.accelerators for worker in before.workers.values() if worker.node is not None)
            total += bound * (after.time_s - before.time_s)
        return total

    def replicas_over_time(self) -> list[dict[str, Any]]:
        """One row a change: time, and per pool the wanted, ready and existing workers."""
        rows: list[dict[str, Any]] = []
        for snapshot in self.snapshots:
            pools = {
                name: {
                    "wanted": pool.replicas,
                    "ready": sum(w.ready and not w.draining for w in snapshot.workers.values() if w.pool == name),
                    "existing": sum(w.pool == name for w in snapshot.workers.values()),
                }
                for name, pool in snapshot.pools.items()
            }
            if not rows or rows[-1]["pools"] != pools:
                rows.append({"time_s": round(snapshot.time_s, 2), "pools": pools})
        return rows

    def wanted_sequence(self, pool: str) -> list[int]:
        """The wanted sizes of a pool in order, without repeats: [1, 3, 4, 1]."""
        sequence: list[int] = []
        for snapshot in self.snapshots:
            state = snapshot.pools.get(pool)
            if state is not None and (not sequence or sequence[-1] != state.replicas):
                sequence.append(state.replicas)
        return sequence


def _trouble(pod: Mapping[str, Any]) -> str | None:
    """Why a pod does not simply start, in Kubernetes' words."""
    status = pod.get("status", {})
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"{condition.get('reason')}: {condition.get('message')}"
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting")
        if waiting and waiting.get("reason") not in {None, "ContainerCreating", "PodInitializing"}:
            return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    return None


def worker_from_pod(pod: Mapping[str, Any]) -> Worker:
    """The worker that a pod object (as JSON) is."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    labels = metadata.get("labels", {})
    accelerators = sum(
        int(amount)
        for container in spec.get("containers", ())
        for resource, amount in ((container.get("resources") or {}).get("limits") or {}).items()
        if resource.endswith("/gpu")
    )
    return Worker(
        name=metadata["name"],
        pool=labels.get("forebay.dev/pool", "?"),
        node=spec.get("nodeName"),
        ready=any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ()),
        draining=labels.get("forebay.dev/draining") == "true" or metadata.get("deletionTimestamp") is not None,
        accelerators=accelerators,
        restarts=sum(c.get("restartCount", 0) for c in status.get("containerStatuses") or ()),
        trouble=_trouble(pod),
    )


def snapshot_of(
    time_s: float, service: Mapping[str, Any], pools: list[Mapping[str, Any]], pods: list[Mapping[str, Any]]
) -> Snapshot:
    """A snapshot from the API objects (as JSON): the ModelService, its WorkerPools and its worker pods."""
    status = service.get("status", {})
    reasons = {one["name"]: one.get("reason") for one in status.get("pools") or ()}
    workers = [
        worker_from_pod(pod) for pod in pods if pod.get("status", {}).get("phase") not in {"Succeeded", "Failed"}
    ]
    return Snapshot(
        time_s=time_s,
        workers={worker.name: worker for worker in workers},
        pools={
            name: PoolState(name=name, replicas=pool["spec"].get("replicas", 0), reason=reasons.get(name))
            for pool in pools
            for name in (pool["spec"]["pool"]["name"],)
        },
        conditions={
            one["type"]: (one["status"], one["reason"], one.get("message", ""))
            for one in status.get("conditions") or ()
        },
    )
