"""Launches and watches the containers of one pod: what the pod runner does through the launcher."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from forebay_simulator.node import lifecycle
from forebay_simulator.node.container_logs import begin_log
from forebay_simulator.node.context import NodeContext
from forebay_simulator.node.environment import PodFacts, needed_objects
from forebay_simulator.node.errors import ApiError, ImageUnknownError, LauncherGoneError, PodConfigError, ProgramError
from forebay_simulator.node.launch_plan import (
    LaunchFolders,
    container_devices,
    container_environment,
    device_environment,
    image_environment,
    plan_launch,
    termination_policy,
)
from forebay_simulator.node.lifecycle import Observation, StartProblem
from forebay_simulator.node.objects import read_sources
from forebay_simulator.node.pods import Container, Handler, Pod
from forebay_simulator.node.probes import Answer, run_handler
from forebay_simulator.node.processes import Captured, last_lines
from forebay_simulator.node.volumes import PodVolumes, make_folder

_MESSAGE_BYTES_MAX = 4096
_FALLBACK_BYTES_MAX = 2048
_FALLBACK_LINES_MAX = 80


class PodSurroundings(Protocol):
    """What a pod's containers need to know of their pod."""

    pod: Pod
    folder: Path
    log_folder: Path
    volumes: PodVolumes
    devices: tuple[int, ...]
    address: str

    @property
    def hosts_file(self) -> Path:
        """The pod's /etc/hosts on the machine."""
        ...

    def facts(self) -> PodFacts:
        """What fields and resources refer to."""
        ...

    def tell(self, reason: str, message: str, container: str = "", *, warning: bool = False) -> None:
        """Record an Event."""
        ...


class PodContainers:
    """The containers of one pod; `put` takes what is observed."""

    def __init__(self, node: NodeContext, around: PodSurroundings, put: Callable[[Observation], None]) -> None:
        self._node = node
        self._around = around
        self._put = put
        self._running: dict[str, int] = {}  # container -> process id at the launcher
        self._environments: dict[str, dict[str, str]] = {}
        self._launching: dict[str, asyncio.Task[None]] = {}

    def give_up_launches(self) -> None:
        """End every launch that is under way; each is observed as failed."""
        for task in self._launching.values():
            task.cancel()

    def launching(self, container: str, task: asyncio.Task[None]) -> None:
        """Note the task that runs `run` for a container."""
        self._launching[container] = task

    async def run(self, container: Container, attempt: int) -> None:
        """Start a container and wait for its end."""
        name = container.name
        try:
            identifier = await self._launch(container, attempt)
        except ImageUnknownError as error:
            self._put(lifecycle.StartFailed(name, attempt, StartProblem.IMAGE, str(error)))
            return
        except (PodConfigError, ApiError, OSError) as error:
            self._put(lifecycle.StartFailed(name, attempt, StartProblem.CONFIG, str(error)))
            return
        except ProgramError as error:
            self._put(lifecycle.StartFailed(name, attempt, StartProblem.PROGRAM, str(error)))
            return
        except asyncio.CancelledError:
            self._put(lifecycle.StartFailed(name, attempt, StartProblem.CONFIG, "given up, the pod is to end"))
            raise
        finally:
            self._launching.pop(name, None)
        try:
            ended = await self._node.processes.wait(identifier)
        except LauncherGoneError:
            return  # the agent ends too
        self._running.pop(name, None)
        failed = ended.code != 0
        message = self._termination_message(container, failed=failed)
        self._put(lifecycle.Exited(name, attempt, ended.code, ended.signal, message))

    async def _launch(self, container: Container, attempt: int) -> int:
        image = self._node.images.find(container.image)
        await self._node.pull(
            container.image, image, lambda reason, text: self._around.tell(reason, text, container.name)
        )
        config_maps, secrets = needed_objects(container.raw)
        sources = await read_sources(
            self._node.api, self._around.pod.namespace, config_maps=config_maps, secrets=secrets
        )
        devices = container_devices(self._around.pod, self._around.devices, container)
        inherited = {
            **image_environment(self._around.pod),
            **self._node.services.environment(self._around.pod),
            **device_environment(devices),
        }
        facts = self._around.facts()
        environment = container_environment(container, image=image, inherited=inherited, sources=sources, facts=facts)
        identifier = self._node.processes.new_id()
        request = plan_launch(
            identifier,
            self._around.pod,
            container,
            image=image,
            environment=environment,
            volumes=self._around.volumes.mounts(self._around.pod, container.raw, environment),
            folders=self._make_folders(container),
        )
        process_id = await self._node.processes.start(request)
        self._running[container.name] = identifier
        self._environments[container.name] = environment
        self._put(lifecycle.Started(container.name, attempt, process_id))
        return identifier

    def _make_folders(self, container: Container) -> LaunchFolders:
        folder = self._around.folder / "containers" / container.name
        make_folder(folder)
        root = folder / "root"
        root.mkdir(exist_ok=True)
        termination = folder / "termination-log"
        termination.unlink(missing_ok=True)
        termination.touch()
        termination.chmod(0o666)
        return LaunchFolders(
            log_file=begin_log(self._around.log_folder, container.name),
            root=root,
            hosts=self._around.hosts_file,
            termination=termination,
        )

    def _termination_message(self, container: Container, *, failed: bool) -> str:
        folder = self._around.folder / "containers" / container.name
        message = last_lines(folder / "termination-log", bytes_max=_MESSAGE_BYTES_MAX, lines_max=_MESSAGE_BYTES_MAX)
        if message or not failed or not termination_policy(container.raw):
            return message
        log_file = self._around.log_folder / f"{container.name}.log"
        return last_lines(log_file, bytes_max=_FALLBACK_BYTES_MAX, lines_max=_FALLBACK_LINES_MAX)

    async def signal(self, action: lifecycle.SendSignal) -> None:
        """Signal a container's main process."""
        identifier = self._running.get(action.container)
        if identifier is not None:
            await self._node.processes.signal(identifier, signal.SIGKILL if action.kill else signal.SIGTERM)

    async def probe(self, action: lifecycle.RunProbe) -> None:
        """Probe once."""
        answer = await self._ask(action.container, action.probe.handler, action.probe.timeout_s)
        self._put(
            lifecycle.ProbeAnswered(action.container, action.attempt, action.kind, answer.healthy, answer.message)
        )

    async def hook(self, action: lifecycle.RunHook) -> None:
        """Run a hook."""
        answer = await self._ask(action.container, action.handler, action.timeout_s)
        problem = "" if answer.healthy else answer.message
        self._put(lifecycle.HookEnded(action.container, action.attempt, action.kind, problem))

    async def _ask(self, container: str, handler: Handler, timeout_s: float) -> Answer:
        async def execute(argv: tuple[str, ...], within_s: float) -> Captured:
            identifier = self._running.get(container)
            if identifier is None:
                raise ProgramError("the container is not running")
            return await self._node.processes.capture(
                identifier,
                argv,
                environment=self._environments[container],
                directory=self._around.pod.container(container).raw.get("workingDir") or "/",
                timeout_s=within_s,
            )

        return await run_handler(handler, address=self._around.address, timeout_s=timeout_s, execute=execute)
