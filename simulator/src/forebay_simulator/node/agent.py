"""The node agent: one task a pod, a heartbeat, and the cluster's view of both.

- Start: it waits for its lock, which a predecessor and its launcher hold while they live, drops what the predecessor left, and
  adopts nothing. Pods bound to it are started again, with a restart counted.
- API server away: pods go on, restarts and probes included; statuses and events wait; watches and heartbeats are retried.
- Told to end (SIGTERM, SIGINT): the node turns NotReady, pods are stopped within `--shutdown-grace` and reported as Failed
  with the reason Terminated, so that their controllers replace them elsewhere. A second signal ends at once.
- Killed: the launcher ends with it, and with the launcher every pod's process.
"""

import asyncio
import fcntl
import logging
import os
import shutil
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from forebay_simulator.node.allotments import AddressPool, Devices
from forebay_simulator.node.api import Api, Object
from forebay_simulator.node.container_logs import bound_logs, prune_logs
from forebay_simulator.node.context import NodeContext, ServiceView
from forebay_simulator.node.errors import ApiError, PodConfigError, SettingsError
from forebay_simulator.node.events import Note, Recorder
from forebay_simulator.node.heartbeat import Heartbeat
from forebay_simulator.node.images import load_table
from forebay_simulator.node.log_server import LogServer
from forebay_simulator.node.machine import shutdown_failure
from forebay_simulator.node.pod_runner import PodRunner
from forebay_simulator.node.pods import parse_pod
from forebay_simulator.node.processes import Processes
from forebay_simulator.node.reflector import Reflector
from forebay_simulator.node.registration import NodeDescription, capacity
from forebay_simulator.node.service_proxy import ServiceProxy
from forebay_simulator.node.settings import Settings
from forebay_simulator.node.status_writer import StatusWriter

_LOCK_TIMEOUT_S = 5.0
_LOCK_POLL_S = 0.05
_HOUSEKEEPING_S = 10.0
_FLUSH_TIMEOUT_S = 2.0
_SHUTDOWN_MARGIN_S = 3.0
_RETRY_S = 5.0

log = logging.getLogger(__name__)


def take_lock(folder: Path) -> int:
    """Lock a node's data folder for this process and its launcher. Raises SettingsError when another node has it."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline_s = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline_s:
                os.close(descriptor)
                raise SettingsError(
                    f"--data {folder} is in use by another forebay-node: give this one its own"
                ) from error
            time.sleep(_LOCK_POLL_S)
        else:
            return descriptor


class Agent:
    """Runs a node until `stop` is set."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pods_folder = settings.data / "pods"
        self._state_folder = settings.data / "state"
        self._scratch_folder = self._state_folder / "scratch"
        self._addresses = AddressPool(settings.address_range)
        self._description = NodeDescription(
            name=settings.name,
            address=self._addresses.node,
            gpus=settings.gpus,
            accelerator=settings.accelerator,
            cpu=settings.cpu,
            memory=settings.memory,
            pods=settings.pods,
            zone=settings.zone,
            version="v0.0.0",  # until the API server's is known
            log_port=0,
            labels=settings.labels,
        )
        self._runners: dict[str, PodRunner] = {}
        self._ended: dict[str, PodRunner] = {}  # run to their end, the API object still there
        self._running: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set, then shut the node down. Raises LauncherGoneError, SettingsError and bugs."""
        lock = take_lock(self._settings.data)
        self._clear()
        async with AsyncExitStack() as stack:
            stack.callback(os.close, lock)
            api = await Api.connect(self._settings.kubeconfig, self._scratch_folder)
            stack.push_async_callback(api.close)
            await self._serve_logs(api, stack)
            processes = await stack.enter_async_context(Processes(self._scratch_folder, lock))
            node = self._context(api, processes)
            heartbeat = Heartbeat(api, self._description)
            async with asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(work)
                    for work in (
                        processes.failed(),
                        node.recorder.run(),
                        node.statuses.run(),
                        heartbeat.run(lambda: self._registered(node.recorder, heartbeat)),
                        self._follow(node, tasks),
                        self._keep_house(),
                        *(await self._proxy(stack)),
                    )
                ]
                await stop.wait()
                await self._shut_down(heartbeat, node)
                for task in (*background, *self._running):  # a pod that still runs has had its time
                    task.cancel()

    def _clear(self) -> None:
        """Drop what a predecessor left, logs aside."""
        shutil.rmtree(self._state_folder, ignore_errors=True)
        self._scratch_folder.mkdir(parents=True, mode=0o700)
        self._pods_folder.mkdir(parents=True, exist_ok=True)

    async def _serve_logs(self, api: Api, stack: AsyncExitStack) -> None:
        if api.certificate is None:
            return
        certificate, key = api.certificate
        server = await LogServer(self._pods_folder, self._may_write).listen(
            self._addresses.node, certificate=certificate, key=key
        )
        stack.callback(server.close)
        port = server.sockets[0].getsockname()[1]
        self._description = replace(self._description, log_port=port)

    def _may_write(self, namespace: str, pod: str, container: str) -> bool:
        return any(
            runner.runs(container)
            for runner in self._runners.values()
            if (runner.pod.namespace, runner.pod.name) == (namespace, pod)
        )

    def _context(self, api: Api, processes: Processes) -> NodeContext:
        settings = self._settings
        placeholders = {
            "python": sys.executable,
            "bin": str(Path(sys.executable).parent),
            "accelerator": settings.accelerator,
            "engine-speed": f"{settings.engine_speed:g}",
            "engine-startup-s": f"{settings.engine_startup_s:g}",
        }
        return NodeContext(
            api=api,
            processes=processes,
            recorder=Recorder(api, settings.name),
            statuses=StatusWriter(api),
            services=ServiceView(api.endpoint),
            images=load_table(settings.images, placeholders),
            addresses=self._addresses,
            devices=Devices(settings.gpus),
            allocatable=capacity(self._description),
            backoff=settings.backoff,
            refresh_s=settings.refresh_s,
            state_folder=self._state_folder,
            pods_folder=self._pods_folder,
        )

    async def _proxy(self, stack: AsyncExitStack) -> list[Any]:
        if not self._settings.service_proxy:
            return []
        api = await Api.connect(self._settings.proxy_kubeconfig, self._scratch_folder)
        stack.push_async_callback(api.close)
        return [ServiceProxy(api, AddressPool(self._settings.service_range)).run()]

    def _registered(self, recorder: Recorder, heartbeat: Heartbeat) -> None:
        log.info("node is ready")
        subject = {"apiVersion": "v1", "kind": "Node", "name": self._settings.name, "uid": heartbeat.uid}
        recorder.note(Note(subject, "Starting", "Starting the simulated node."))

    # -- pods

    async def _follow(self, node: NodeContext, tasks: asyncio.TaskGroup) -> None:
        services = Reflector(node.api, "/api/v1/services", self._services_changed(node))
        following = [asyncio.create_task(services.run())]
        try:
            await services.listed.wait()  # a pod's environment names the Services there are

            def pod_changed(raw: Object, gone: bool) -> None:  # noqa: FBT001 - a reflector's callback
                self._pod_changed(raw, gone=gone, node=node, tasks=tasks)

            pods = Reflector(
                node.api, "/api/v1/pods", pod_changed, fieldSelector=f"spec.nodeName={self._settings.name}"
            )
            following.append(asyncio.create_task(pods.run()))
            await asyncio.gather(*following)
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    def _services_changed(self, node: NodeContext) -> Any:
        def changed(service: Object, gone: bool) -> None:  # noqa: FBT001 - a reflector's callback
            node.services.service_changed(service, gone)
            for runner in self._runners.values():
                runner.services_changed()

        return changed

    def _pod_changed(self, raw: Object, *, gone: bool, node: NodeContext, tasks: asyncio.TaskGroup) -> None:
        uid = raw["metadata"]["uid"]
        runner = self._runners.get(uid)
        if gone:
            self._ended.pop(uid, None)
            if runner is not None:
                runner.object_deleted()
        elif runner is not None:
            runner.update(raw)
        elif uid in self._ended or (raw.get("status") or {}).get("phase") in {"Succeeded", "Failed"}:
            if "deletionTimestamp" in raw["metadata"]:
                node.statuses.remove(parse_pod(raw))
        elif not self._stopping:
            try:
                self._runners[uid] = PodRunner(raw, node)
            except (PodConfigError, ValueError):  # the other pods are not to end with it
                log.exception("pod %s/%s can't be run", raw["metadata"]["namespace"], raw["metadata"]["name"])
                return
            task = tasks.create_task(self._run_pod(uid, node), name=f"pod {raw['metadata']['name']}")
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _run_pod(self, uid: str, node: NodeContext) -> None:
        """Run a pod to its end; one whose runner breaks is started anew after a pause."""
        while True:
            runner = self._runners[uid]
            try:
                await runner.run()
                break
            except Exception:
                log.exception("%s: the pod's runner failed, next try in %.0f s", runner.pod.key, _RETRY_S)
                await asyncio.sleep(_RETRY_S)
                self._runners[uid] = PodRunner(dict(runner.pod.raw), node)
        del self._runners[uid]
        if runner.object_gone:
            return
        if runner.deletion_asked:
            node.statuses.remove(runner.pod)
        else:
            self._ended[uid] = runner

    # -- housekeeping and the end

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_HOUSEKEEPING_S)
            bound_logs(self._pods_folder)
            prune_logs(self._pods_folder, {runner.log_folder for runner in self._runners.values()})

    async def _shut_down(self, heartbeat: Heartbeat, node: NodeContext) -> None:
        self._stopping = True
        heartbeat.shutting_down = True
        log.info("the node is shutting down, %d pods are stopped", len(self._runners))
        try:
            async with asyncio.timeout(_FLUSH_TIMEOUT_S):
                await heartbeat.beat()
        except (ApiError, TimeoutError) as error:
            log.warning("could not report the shutdown: %s", error)
        grace_s = self._settings.shutdown_grace_s
        for runner in self._runners.values():
            runner.stop(grace_s=min(grace_s, runner.pod.grace_s), failure=shutdown_failure())
        if self._running:
            await asyncio.wait(self._running, timeout=grace_s + _SHUTDOWN_MARGIN_S)
        await node.statuses.flush(timeout_s=_FLUSH_TIMEOUT_S)
        await node.recorder.flush(timeout_s=_FLUSH_TIMEOUT_S)
