"""What the pods of a node share."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from forebay_simulator.node.allotments import AddressPool, Devices
from forebay_simulator.node.api import Api, Object
from forebay_simulator.node.events import Recorder
from forebay_simulator.node.images import Image, ImageTable
from forebay_simulator.node.launch_plan import hostname
from forebay_simulator.node.pods import Pod
from forebay_simulator.node.processes import Processes
from forebay_simulator.node.services import (
    ReachableService,
    api_server_environment,
    hosts_file,
    is_proxied,
    read_service,
    service_environment,
)
from forebay_simulator.node.status_writer import StatusWriter
from forebay_simulator.node.turn import Backoff

_SETTLE_TIMEOUT_S = 3.0


class ServiceView:
    """The Services of the cluster as pods see them."""

    def __init__(self, api_server: tuple[str, int]) -> None:
        self._api_server = api_server
        self._services: dict[str, Object] = {}
        self._changed = asyncio.Event()
        self._machine_hosts = _read_machine_hosts()

    def service_changed(self, service: Object, gone: bool) -> None:  # noqa: FBT001 - a reflector's callback
        """Take in a change."""
        uid = service["metadata"]["uid"]
        if gone:
            self._services.pop(uid, None)
        else:
            self._services[uid] = service
        self._changed.set()
        self._changed = asyncio.Event()

    async def settle(self, namespace: str) -> None:
        """Wait, for a bounded time, until every Service of the namespace that is to be proxied has an address.

        On a real cluster a Service has its address from the moment it exists, and charts make Services before pods.
        """
        deadline_s = time.monotonic() + _SETTLE_TIMEOUT_S
        while self._unsettled(namespace):
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                return
            try:
                async with asyncio.timeout(remaining_s):
                    await self._changed.wait()
            except TimeoutError:
                return

    def _unsettled(self, namespace: str) -> bool:
        return any(
            is_proxied(service) and read_service(service) is None
            for service in self._services.values()
            if service["metadata"]["namespace"] == namespace
        )

    def _reachable(self) -> Iterable[ReachableService]:
        return [service for item in self._services.values() if (service := read_service(item)) is not None]

    def environment(self, pod: Pod) -> dict[str, str]:
        """The variables for a pod."""
        environment: dict[str, str] = {}
        if pod.raw["spec"].get("enableServiceLinks", True):
            environment = service_environment(item for item in self._reachable() if item.namespace == pod.namespace)
        return environment | api_server_environment(*self._api_server)

    def hosts_file(self, pod: Pod, address: str) -> str:
        """The /etc/hosts for a pod."""
        return hosts_file(
            machine=self._machine_hosts,
            pod_address=address,
            pod_name=hostname(pod),
            namespace=pod.namespace,
            aliases=pod.raw["spec"].get("hostAliases") or [],
            services=self._reachable(),
        )


def _read_machine_hosts() -> str:
    try:
        return Path("/etc/hosts").read_text(encoding="utf-8")
    except OSError:
        return "127.0.0.1\tlocalhost\n"


@dataclass(slots=True, kw_only=True)
class NodeContext:
    """What the pods of a node share."""

    api: Api
    processes: Processes
    recorder: Recorder
    statuses: StatusWriter
    services: ServiceView
    images: ImageTable
    addresses: AddressPool
    devices: Devices
    allocatable: Mapping[str, str]
    backoff: Backoff
    refresh_s: float
    state_folder: Path
    pods_folder: Path
    _pulled: set[str] = field(default_factory=set)

    async def pull(self, reference: str, image: Image, tell: Callable[[str, str], None]) -> None:
        """Take the time that getting an image takes, once a node."""
        if reference in self._pulled or image.pull_s == 0:
            self._pulled.add(reference)
            tell("Pulled", f'Container image "{reference}" already present on machine')
            return
        tell("Pulling", f'Pulling image "{reference}"')
        await asyncio.sleep(image.pull_s)
        self._pulled.add(reference)
        tell("Pulled", f'Successfully pulled image "{reference}" in {image.pull_s:g}s')
