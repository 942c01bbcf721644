"""Registers the node and keeps it Ready: a Lease every few seconds, the status when it is not what it should be.

Each beat reads the Node first: it may have been deleted, or the node controller may have marked it Unknown while the API
server was away; both are put right by the next beat.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from forebay_simulator.node.api import Api, Object
from forebay_simulator.node.errors import ApiConflictError, ApiError, ApiNotFoundError
from forebay_simulator.node.registration import (
    LEASE_NAMESPACE,
    NodeDescription,
    lease_object,
    node_labels,
    node_object,
    node_status,
    settled,
)

BEAT_S = 10.0
_FIRST_RETRY_S = 0.2
_STATUS_EVERY_S = 300.0

log = logging.getLogger(__name__)


class Heartbeat:
    """The node's registration."""

    def __init__(self, api: Api, node: NodeDescription) -> None:
        self._api = api
        self._node = node
        self._path = f"/api/v1/nodes/{node.name}"
        self._lease_path = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases"
        self._status_written_s = 0.0
        self.uid = ""
        self.shutting_down = False  # from then on every beat says so

    async def learn_version(self) -> None:
        """Take on the API server's version as the node's own, so that tools see no skew. Raises ApiError."""
        version = await self._api.get("/version")
        self._node = replace(self._node, version=version["gitVersion"])

    async def run(self, on_registered: Callable[[], None]) -> None:
        """Beat until cancelled; `on_registered` is called after the first beat that succeeds."""
        pause_s = _FIRST_RETRY_S
        registered = False
        while True:
            try:
                if not registered:
                    await self.learn_version()
                await self.beat()
            except ApiError as error:
                log.warning("heartbeat failed, next in %.1f s: %s", pause_s, error)
                await asyncio.sleep(pause_s)
                pause_s = min(BEAT_S / 2, pause_s * 2)
                continue
            pause_s = _FIRST_RETRY_S
            if not registered:
                registered = True
                on_registered()
            await asyncio.sleep(BEAT_S)

    async def beat(self) -> None:
        """One heartbeat. Raises ApiError."""
        now_s = time.time()
        node = await self._read_or_create()
        self.uid = node["metadata"]["uid"]
        previous = node.get("status") or {}
        status = node_status(self._node, previous, now_s=now_s, shutting_down=self.shutting_down)
        if not settled(status, previous) or now_s - self._status_written_s > _STATUS_EVERY_S:
            # Addresses are a list with a merge key that an old entry of another address would survive.
            status["addresses"] = [{"$patch": "replace"}, *status["addresses"]]
            await self._api.patch(f"{self._path}/status", {"status": status})
            self._status_written_s = now_s
        await self._renew(now_s)

    async def _read_or_create(self) -> Object:
        try:
            node = await self._api.get(self._path)
        except ApiNotFoundError:
            return await self._api.create("/api/v1/nodes", node_object(self._node))
        labels = node_labels(self._node)
        if not labels.items() <= (node["metadata"].get("labels") or {}).items():
            node = await self._api.patch(self._path, {"metadata": {"labels": labels}})
        return node

    async def _renew(self, now_s: float) -> None:
        lease = lease_object(self._node, self.uid, now_s=now_s)
        path = f"{self._lease_path}/{self._node.name}"
        try:
            await self._api.patch(path, {"metadata": lease["metadata"], "spec": lease["spec"]})
        except ApiNotFoundError:
            try:
                await self._api.create(self._lease_path, lease)
            except ApiConflictError:
                log.debug("the lease appeared meanwhile; the next beat renews it")
