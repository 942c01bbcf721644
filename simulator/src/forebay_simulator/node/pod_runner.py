"""Runs one pod: the I/O around the pure machine.

One task a pod takes observations from a queue, lets the machine decide, and does what it says: each action that takes time is
a task of its own that ends by putting an observation into the queue. The status is computed after every step and handed to
the writer when it differs from the last.
"""

import asyncio
import logging
import random
import shutil
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from forebay_simulator.node import lifecycle
from forebay_simulator.node.container_logs import log_folder
from forebay_simulator.node.context import NodeContext
from forebay_simulator.node.environment import PodFacts
from forebay_simulator.node.errors import AddressesExhaustedError, ApiError, DevicesExhaustedError, PodConfigError
from forebay_simulator.node.events import Note
from forebay_simulator.node.lifecycle import Failure, Observation, PodState, StopAsked
from forebay_simulator.node.machine import advance, new_state
from forebay_simulator.node.observing import observe
from forebay_simulator.node.pod_containers import PodContainers
from forebay_simulator.node.pods import Pod, find_obstacles, parse_pod
from forebay_simulator.node.recovery import recovered_state
from forebay_simulator.node.status import Addresses, pod_status
from forebay_simulator.node.volumes import PodVolumes

_FIRST_RETRY_S = 0.1
_LONGEST_RETRY_S = 10.0
_QUIET_FAILURES = 3
"""So many failures to prepare pass unmentioned: the node authorizer learns of a new pod with a small delay."""
_DEVICES_TIMEOUT_S = 10.0
_REASSERT_AFTER_S = 1.0

log = logging.getLogger(__name__)


class PodRunner:
    """One pod on this node, from the moment it is bound to the end of its last process."""

    def __init__(self, raw: dict[str, Any], node: NodeContext) -> None:
        self.pod: Pod = parse_pod(raw)
        self.object_gone = False
        self._node = node
        self.folder = node.state_folder / self.pod.uid
        self.log_folder = log_folder(node.pods_folder, self.pod.namespace, self.pod.name)
        self.volumes = PodVolumes(self.folder / "volumes", node.api)
        self._state: PodState = recovered_state(self.pod, new_state(self.pod), now_s=time.time())
        self._inbox: asyncio.Queue[Observation] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._containers = PodContainers(node, self, self._put)
        self.devices: tuple[int, ...] = ()
        self.address = ""
        self._status: dict[str, Any] = {}
        self._grace_s: float | None = None
        self._reassertion: asyncio.TimerHandle | None = None
        self._note_deletion()

    # -- what the agent tells

    def update(self, raw: dict[str, Any]) -> None:
        """The API object has changed."""
        self.pod = replace(self.pod, raw=raw)
        self._note_deletion()
        if self._contradicted() and self._reassertion is None:
            # What is seen may be older than what was written last: only a contradiction that stays is one.
            self._reassertion = asyncio.get_running_loop().call_later(_REASSERT_AFTER_S, self._reassert)

    def _contradicted(self) -> bool:
        """Whether the API object says something else than this node does.

        The node controller turns pods unready when the node seems gone; nobody but the node turns them ready again.
        """
        shown = self.pod.raw.get("status") or {}
        statuses = {item["type"]: item["status"] for item in shown.get("conditions") or []}
        own = self._status.get("conditions") or []
        phases_differ = bool(self._status) and shown.get("phase") != self._status["phase"]
        return phases_differ or any(statuses.get(item["type"]) != item["status"] for item in own)

    def _reassert(self) -> None:
        self._reassertion = None
        if self._contradicted() and not self.object_gone:
            self._node.statuses.write(self.pod, self._status)

    def object_deleted(self) -> None:
        """The API object is gone: whatever still runs is killed."""
        self.object_gone = True
        self._put(StopAsked(grace_s=0))

    def stop(self, *, grace_s: float, failure: Failure) -> None:
        """End the pod by the node's own decision."""
        self._put(StopAsked(grace_s=grace_s, failure=failure))

    def services_changed(self) -> None:
        """Show the Services as they are now."""
        if self._state.prepared and not self._state.finished:
            self._write_hosts()

    def runs(self, container: str) -> bool:
        """Whether a container has a process."""
        state = self._state.containers.get(container)
        return state is not None and state.active

    @property
    def deletion_asked(self) -> bool:
        """The API object is marked for deletion."""
        return "deletionTimestamp" in self.pod.raw["metadata"]

    def _note_deletion(self) -> None:
        if not self.deletion_asked:
            return
        grace_s = float(self.pod.raw["metadata"].get("deletionGracePeriodSeconds") or 0)
        if self._grace_s is None or grace_s < self._grace_s:
            self._grace_s = grace_s
            self._put(StopAsked(grace_s=grace_s))

    def _put(self, observation: Observation) -> None:
        self._inbox.put_nowait(observation)

    # -- the loop

    async def run(self) -> None:
        """Run the pod to its end; its last status has been handed to the writer then."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            while not self._state.finished:
                wake_at_s = self._turn()
                if not self._state.finished:
                    await self._wait(wake_at_s)
        finally:
            await self._cancel_tasks()
            self._release()

    def _turn(self) -> float | None:
        while not self._inbox.empty():
            self._observe(self._inbox.get_nowait())
        step = advance(self.pod, self._state, now_s=time.time(), backoff=self._node.backoff)
        self._take(step)
        self._publish()
        return step.wake_at_s

    async def _wait(self, wake_at_s: float | None) -> None:
        timeout_s = None if wake_at_s is None else max(0.0, wake_at_s - time.time())
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                self._observe(await self._inbox.get())

    def _observe(self, observation: Observation) -> None:
        if isinstance(observation, StopAsked):
            self._containers.give_up_launches()
        self._take(observe(self.pod, self._state, observation, now_s=time.time(), backoff=self._node.backoff))

    def _take(self, step: lifecycle.Step) -> None:
        self._state = step.state
        for action in step.actions:
            self._do(action)

    def _do(self, action: lifecycle.Action) -> None:
        match action:
            case lifecycle.Prepare():
                self._spawn(self._prepare())
            case lifecycle.StartContainer(container=name, attempt=attempt):
                task = self._spawn(self._containers.run(self.pod.container(name), attempt))
                self._containers.launching(name, task)
            case lifecycle.RunProbe():
                self._spawn(self._containers.probe(action))
            case lifecycle.RunHook():
                self._spawn(self._containers.hook(action))
            case lifecycle.SendSignal():
                self._spawn(self._containers.signal(action))
            case lifecycle.Tell():
                self.tell(action.reason, action.message, action.container, warning=action.warning)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: a step failed", self.pod.key, exc_info=error)

    async def _cancel_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _release(self) -> None:
        if self._reassertion is not None:
            self._reassertion.cancel()
        self._node.devices.give_back(self.pod.uid)
        self._node.addresses.give_back(self.address)
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- status and events

    def _publish(self) -> None:
        shown = self.pod.raw.get("status") or {}
        own = self._status.get("conditions") or []
        own_types = {item["type"] for item in own}
        others = [item for item in shown.get("conditions") or [] if item["type"] not in own_types]
        status = pod_status(
            self.pod,
            self._state,
            addresses=Addresses(pod=self.address, node=self._node.addresses.node),
            previous={**shown, **self._status, "conditions": [*others, *own]},
            now_s=time.time(),
        )
        if status != self._status:
            self._status = status
            if not self.object_gone:
                self._node.statuses.write(self.pod, status)

    def tell(self, reason: str, message: str, container: str = "", *, warning: bool = False) -> None:
        """Record an Event on the pod, or on one of its containers."""
        subject = {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": self.pod.namespace,
            "name": self.pod.name,
            "uid": self.pod.uid,
        }
        if container:
            listed = (
                "containers"
                if any(c["name"] == container for c in self.pod.raw["spec"]["containers"])
                else "initContainers"
            )
            subject["fieldPath"] = f"spec.{listed}{{{container}}}"
        self._node.recorder.note(Note(subject, reason, message, warning))

    # -- preparing

    async def _prepare(self) -> None:
        if obstacles := find_obstacles(self.pod.raw):
            for obstacle in obstacles:
                self.tell("FailedMount", obstacle, warning=True)
            self._put(lifecycle.Hindered("; ".join(obstacles)))
            return
        if not await self._take_devices():
            return
        pause_s = _FIRST_RETRY_S
        failures = 0
        while True:
            try:
                await self._prepare_once()
            except (PodConfigError, ApiError, AddressesExhaustedError, OSError) as error:
                failures += 1
                if failures > _QUIET_FAILURES:
                    self.tell("FailedMount", f"MountVolume.SetUp failed: {error}", warning=True)
                await asyncio.sleep(pause_s)
                pause_s = min(_LONGEST_RETRY_S, pause_s * 2)
            else:
                break
        self._put(lifecycle.Prepared())
        await self._keep_fresh()

    async def _prepare_once(self) -> None:
        if not self.address:
            former = (self.pod.raw.get("status") or {}).get("podIP", "")
            self.address = self._node.addresses.take(former)
        await self._node.services.settle(self.pod.namespace)
        await self.volumes.fill(self.pod, self.facts(), now_s=time.time())
        self._write_hosts()

    async def _take_devices(self) -> bool:
        """Get the pod's GPUs. A pod that was just killed may hold them for a moment more; the scheduler knows no more of it."""
        deadline_s = time.monotonic() + _DEVICES_TIMEOUT_S
        while True:
            try:
                self.devices = self._node.devices.take(self.pod.uid, self.pod.gpus)
            except DevicesExhaustedError as error:
                if time.monotonic() > deadline_s:
                    log.error("%s: %s", self.pod.key, error)
                    self.tell("UnexpectedAdmissionError", str(error), warning=True)
                    self.stop(grace_s=0, failure=Failure("UnexpectedAdmissionError", str(error)))
                    return False
                await asyncio.sleep(_FIRST_RETRY_S)
            else:
                return True

    async def _keep_fresh(self) -> None:
        """Renew tokens and show changed config maps and secrets until the pod ends."""
        while True:
            await asyncio.sleep(self._node.refresh_s * random.uniform(0.8, 1.2))  # noqa: S311 - spreads the reads
            try:
                await self.volumes.fill(self.pod, self.facts(), now_s=time.time())
            except (PodConfigError, ApiError, OSError) as error:
                log.warning("%s: volumes stay as they are: %s", self.pod.key, error)

    def facts(self) -> PodFacts:
        """What the pod's fields and resources refer to, as they are now."""
        return PodFacts(self.pod.raw, self.address, self._node.addresses.node, self._node.allocatable)

    @property
    def hosts_file(self) -> Path:
        """The pod's /etc/hosts on the machine."""
        return self.folder / "hosts"

    def _write_hosts(self) -> None:
        text = self._node.services.hosts_file(self.pod, self.address).encode()
        if not self.hosts_file.exists():
            self.hosts_file.write_bytes(text)
            return
        # In place: containers have this very file bound.
        with self.hosts_file.open("r+b", buffering=0) as file:
            file.write(text)
            file.truncate()
