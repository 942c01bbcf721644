"""The service proxy: a TCP relay for every Service that selects pods.

Endpoints refuse loopback addresses, so the ready pods are found by the Service's selector. Each Service gets a loopback
address of the proxy's own range and is served there on the ports that it declares (a free port where one can't be had);
the address is written on the Service. A connection goes to the ready pods in turn and past those that refuse it.
"""

import asyncio
import itertools
import logging
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from forebay_simulator.node.allotments import AddressPool
from forebay_simulator.node.api import MERGE, Api, Object
from forebay_simulator.node.errors import AddressesExhaustedError, ApiError, ApiNotFoundError
from forebay_simulator.node.reflector import LONGEST_PAUSE_S, Reflector
from forebay_simulator.node.services import (
    ADDRESS_ANNOTATION,
    Backend,
    address_annotations,
    backends,
    declared_ports,
    is_proxied,
)

_CONNECT_TIMEOUT_S = 2.0
_BACKLOG = 1024

log = logging.getLogger(__name__)

FindBackends = Callable[[], tuple[Backend, ...]]


class ServiceProxy:
    """Serves every Service of the cluster."""

    def __init__(self, api: Api, addresses: AddressPool) -> None:
        self._api = api
        self._addresses = addresses
        self._changed: asyncio.Queue[str] = asyncio.Queue()  # a UID a change; as many as Services change
        self._services = Reflector(api, "/api/v1/services", self._service_changed)
        self._pods = Reflector(api, "/api/v1/pods", self._pod_changed)
        self._pods_by_namespace: dict[str, dict[str, Object]] = {}
        self._served: dict[str, _ServedService] = {}

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._services.run())
                tasks.create_task(self._pods.run())
                while True:
                    uid = await self._changed.get()
                    try:
                        await self._reconcile(uid)
                    except (ApiError, OSError, AddressesExhaustedError) as error:
                        log.warning("can't serve a service, next try in %.0f s: %s", LONGEST_PAUSE_S, error)
                        asyncio.get_running_loop().call_later(LONGEST_PAUSE_S, self._changed.put_nowait, uid)
        finally:
            for served in self._served.values():
                served.close()

    def _service_changed(self, service: Object, gone: bool) -> None:  # noqa: FBT001 - a reflector's callback
        del gone
        self._changed.put_nowait(service["metadata"]["uid"])

    def _pod_changed(self, pod: Object, gone: bool) -> None:  # noqa: FBT001 - a reflector's callback
        metadata = pod["metadata"]
        pods = self._pods_by_namespace.setdefault(metadata["namespace"], {})
        if gone:
            pods.pop(metadata["uid"], None)
        else:
            pods[metadata["uid"]] = pod

    async def _reconcile(self, uid: str) -> None:
        service = self._services.objects.get(uid)
        served = self._served.get(uid)
        if service is None or not is_proxied(service):
            if served is not None:
                served.close()
                self._addresses.give_back(served.host)
                del self._served[uid]
            return
        if served is None:
            former = (service["metadata"].get("annotations") or {}).get(ADDRESS_ANNOTATION, "").rpartition(":")[0]
            served = self._served[uid] = _ServedService(self._addresses.take(former))
        await served.listen(service, lambda target: self._backends(uid, target))
        await self._publish(service, served)

    def _backends(self, uid: str, target: int | str) -> tuple[Backend, ...]:
        service = self._services.objects.get(uid)
        if service is None:
            return ()
        pods = self._pods_by_namespace.get(service["metadata"]["namespace"], {})
        return backends(service, target, pods.values())

    async def _publish(self, service: Object, served: "_ServedService") -> None:
        metadata = service["metadata"]
        wanted = address_annotations(served.host, served.ports)
        present = metadata.get("annotations") or {}
        if wanted.items() <= present.items():
            return
        path = f"/api/v1/namespaces/{metadata['namespace']}/services/{metadata['name']}"
        body = {"metadata": {"uid": metadata["uid"], "annotations": wanted}}
        with suppress(ApiNotFoundError):
            await self._api.patch(path, body, kind=MERGE)
            log.info("service %s/%s is at %s", metadata["namespace"], metadata["name"], wanted[ADDRESS_ANNOTATION])


class _ServedService:
    """The listeners of one Service."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.ports: dict[str, int] = {}  # name -> port listened on, in the Service's order
        self._declared: list[tuple[str, int, int | str]] = []
        self._servers: list[asyncio.Server] = []

    async def listen(self, service: Object, find: Callable[[int | str], tuple[Backend, ...]]) -> None:
        """Listen on the declared ports; does nothing when these have not changed."""
        declared = declared_ports(service)
        if declared == self._declared:
            return
        self.close()
        for name, number, target in declared:
            relay = _Relay(partial(find, target))
            server = await _listen(relay, self.host, number)
            self._servers.append(server)
            self.ports[name] = server.sockets[0].getsockname()[1]
        self._declared = declared

    def close(self) -> None:
        """Stop listening; connections that exist go on."""
        for server in self._servers:
            server.close()
        self._servers, self.ports, self._declared = [], {}, []


async def _listen(relay: "_Relay", host: str, port: int) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_server(relay.accept, host, port, backlog=_BACKLOG)
    except OSError as error:
        log.warning("can't listen on %s:%d, taking a free port: %s", host, port, error)
        return await loop.create_server(relay.accept, host, 0, backlog=_BACKLOG)


class _Relay:
    """Accepts connections for one port and connects each to a backend."""

    def __init__(self, find: FindBackends) -> None:
        self._find = find
        self._turn = itertools.count()
        self._connecting: set[asyncio.Task[None]] = set()

    def accept(self) -> "_Side":
        return _Side(on_made=self._made)

    def _made(self, side: "_Side") -> None:
        side.transport.pause_reading()
        task = asyncio.get_running_loop().create_task(self._connect(side))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, client: "_Side") -> None:
        candidates = self._find()
        first = next(self._turn)
        for offset in range(len(candidates)):
            backend = candidates[(first + offset) % len(candidates)]
            # It must not read before it has a peer.
            server = _Side(on_made=lambda side: side.transport.pause_reading())
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                    await asyncio.get_running_loop().create_connection(
                        partial(_same, server), backend.address, backend.port
                    )
            except (OSError, TimeoutError):
                continue
            if client.transport.is_closing():
                server.transport.close()
                return
            client.join(server)
            server.join(client)
            return
        _reset(client)


def _reset(client: "_Side") -> None:
    """Close so that the client sees a reset, not an empty answer: nobody serves it."""
    client.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.transport.abort()


def _same(side: "_Side") -> "_Side":
    return side


class _Side(asyncio.Protocol):
    """One of the two connections of a relayed one; hands all that it gets to its peer."""

    transport: Any  # set by connection_made, before anything else is called

    def __init__(self, on_made: Callable[["_Side"], None] | None = None) -> None:
        self.peer: _Side | None = None
        self.ended = False  # nothing more will come from here
        self._early: list[bytes] = []  # what came before there was a peer; a paused transport may still deliver some
        self._on_made = on_made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        if self._on_made is not None:
            self._on_made(self)

    def join(self, peer: "_Side") -> None:
        """Hand everything to a peer from now on, beginning with what has come already."""
        self.peer = peer
        peer.transport.writelines(self._early)
        self._early.clear()
        if self.ended:
            peer.transport.write_eof()
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.peer is None:
            self._early.append(data)
        else:
            self.peer.transport.write(data)

    def eof_received(self) -> bool:
        self.ended = True
        if self.peer is None:
            return True  # the peer is told when there is one
        if not self.peer.ended:
            self.peer.transport.write_eof()
            return True  # the other direction may go on
        self.peer.transport.close()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        del error
        if self.peer is not None:
            self.peer.transport.close()

    def pause_writing(self) -> None:
        if self.peer is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None and not self.peer.transport.is_closing():
            self.peer.transport.resume_reading()
