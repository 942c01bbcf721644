"""Where the other replicas publish: a list of addresses, or the pods of this release.

A pod counts from the moment it has an address until it is deleted, ready or not: a replica that drains still holds leases.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from forebay_api import names
from forebay_router.discovery.apiserver import ApiServer
from forebay_router.discovery.listwatch import Api, Follower, Object
from forebay_router.discovery.objects import named_port

Take = Callable[[frozenset[str]], None]
"""Told of all addresses whenever they change."""


class PeerAddresses(Protocol):
    """A source of addresses."""

    async def run(self, take: Take) -> None:
        """Tell of them for ever."""
        ...


@dataclass(frozen=True, slots=True)
class ListedPeers:
    """Addresses that do not change."""

    addresses: tuple[str, ...]

    async def run(self, take: Take) -> None:
        """Tell of them once."""
        take(frozenset(self.addresses))
        await asyncio.get_running_loop().create_future()


@dataclass(slots=True)
class PodPeers:
    """The router pods that a label selector finds."""

    namespace: str
    selector: str
    own_pod: str
    """Left out."""
    api: Api | None = None
    """The API server; connected to when absent."""
    _addresses: dict[str, str] = field(default_factory=dict)
    """By the pod's uid."""

    async def run(self, take: Take) -> None:
        """Watch for ever."""
        own = await ApiServer.connect() if self.api is None else None
        api = own or self.api
        assert api is not None

        def on_list(items: Sequence[Object]) -> None:
            self._addresses.clear()
            for item in items:
                self._put(item)
            take(frozenset(self._addresses.values()))

        def on_event(kind: str, item: Object) -> None:
            if kind == "DELETED":
                self._addresses.pop(item["metadata"]["uid"], None)
            else:
                self._put(item)
            take(frozenset(self._addresses.values()))

        path = f"/api/v1/namespaces/{self.namespace}/pods"
        rng = random.Random()  # noqa: S311 - jitter
        try:
            await Follower(api, path, self.selector, on_list, on_event, rng).run()
        finally:
            if own is not None:
                await own.close()

    def _put(self, pod: Object) -> None:
        uid, address = pod["metadata"]["uid"], address_of(pod)
        if address is None or pod["metadata"]["name"] == self.own_pod:
            self._addresses.pop(uid, None)
        else:
            self._addresses[uid] = address


def address_of(pod: Object) -> str | None:
    """Where a router pod publishes; None while it has no address, or when it takes no part."""
    status = pod.get("status") or {}
    host, port = status.get("podIP"), named_port(pod, names.MESH_PORT_NAME)
    if not host or port is None or status.get("phase") in {"Succeeded", "Failed"}:
        return None
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
