"""The hand-over of a prompt's KV from a prefill to a decode engine, by the rules of vLLM's NixlConnector (pull).

1. The prefill leg (`do_remote_decode`) ends; its blocks stay held under a lease, and its answer says where they are.
2. The decode leg (`do_remote_prefill`) gets blocks of its own and fetches. The first fetch from an engine shakes hands on
   the ZeroMQ side channel: engine id and compatibility hash must agree. Later fetches reuse the connection.
3. The decode engine reads, the time of the transfer passes, it tells the prefill engine to free the blocks.

The prefill engine does not check a lease when its blocks are read: real RDMA cannot. A read after the lease, when the
blocks hold something else, succeeds, and the decode engine answers from wrong content and keeps it in its prefix cache.

What the engines of a real pair move by UCX goes over a TCP connection here, whose loss is noticed at once, as UCX's is.
Failures are counted and end in "fail" (500) or "recompute", as the decode engine was told.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import uuid
from collections.abc import Mapping
from typing import Any

from forebay_simulator.engine.core import EngineCore
from forebay_simulator.engine.errors import EngineError
from forebay_simulator.engine.generation import Generation, RemotePrefill
from forebay_simulator.engine.model import ServedModel
from forebay_simulator.engine.request import Phase, Request
from forebay_simulator.engine.settings import VERSION, TransferSettings
from forebay_simulator.engine.side_channel import (
    AgentMetadata,
    Handshake,
    Peer,
    PeerLostError,
    Read,
    SideChannel,
    shake_hands,
)

CONNECTOR_VERSION = 14
HANDSHAKE_TIMEOUT_S = 5.0
PEERS_MAX = 1024
"""Engines remembered, dead ones included: a fetch from an engine known to be dead fails at once."""
HEARTBEATS_PER_LEASE = 6
"""How often a decode engine renews the leases of requests in its queue: every 5 s with the default lease."""


class InvalidParamsError(EngineError):
    """`kv_transfer_params` that a real engine does not survive."""


class TransferError(EngineError):
    """A fetch that failed."""


def read_params(params: Mapping[str, Any]) -> RemotePrefill:
    """Read the fields a decode leg needs. Raises `InvalidParamsError` when one is missing."""
    try:
        groups = params["remote_block_ids"]
        return RemotePrefill(
            engine_id=str(params["remote_engine_id"]),
            request_id=str(params["remote_request_id"]),
            block_ids=tuple(int(block_id) for block_id in groups[0]),
            host=str(params["remote_host"]),
            port=int(params["remote_port"]),
            tensor=int(params.get("tp_size") or 1),
            cached_tokens=int(params.get("remote_prefill_cached_tokens") or 0),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InvalidParamsError(f"kv_transfer_params: {error!r}") from error


def compatibility_hash(model: ServedModel, kv_cache_dtype: str) -> str:
    """Return what prefill and decode must have in common; the model counts by its path string, as in vLLM."""
    shape = model.shape
    facts = (
        VERSION,
        CONNECTOR_VERSION,
        model.root,
        shape.layers,
        shape.kv_heads,
        shape.head_size,
        kv_cache_dtype,
        "pull",
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()


class Transfer:
    """The connector of one engine, both sides."""

    def __init__(
        self, settings: TransferSettings, core: EngineCore, model: ServedModel, *, compatibility: str, speed: float
    ) -> None:
        self.engine_id = str(uuid.uuid4())
        self._settings = settings
        self._core = core
        self._model = model
        self._compatibility = compatibility
        self._speed = speed
        self._peers: dict[str, Peer] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._link_free_s = 0.0
        self._queued: list[Generation] = []
        self._heartbeat: asyncio.TimerHandle | None = None
        self._heartbeat_s = settings.lease_s / HEARTBEATS_PER_LEASE
        self._renewals: set[asyncio.Task[None]] = set()
        self._channel = SideChannel(self)
        core.start_fetch = self.start
        core.cancel_fetch = self.cancel

    async def listen(self) -> None:
        """Open the side channel. Raises OSError when the port is taken."""
        await self._channel.listen(self._settings.host, self._settings.port)

    async def close(self) -> None:
        """End fetches and close every socket."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        tasks = [*self._tasks.values(), *self._renewals]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in self._peers.values():
            peer.close()
        await self._channel.close()

    # ---- prefill side

    def answer_params(self, request: Request) -> dict[str, Any] | None:
        """Return the `kv_transfer_params` of a finished prefill leg; None when nothing is held for it."""
        held = self._core.scheduler.held.get(request.request_id)
        if held is None:
            return None
        params: dict[str, Any] = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(held.block_ids)],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request.request_id,
            "remote_host": self._settings.host,
            "remote_port": self._settings.port,
            "tp_size": self._model.tensor,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": request.computed_tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
        }
        if request.output_tokens == 1:
            params["remote_prefill_cached_tokens"] = request.cached_tokens
        return params

    def handshake(self, data_host: str, data_port: int) -> Handshake:
        """Return what a decode engine is told first."""
        return Handshake(
            engine_id=self.engine_id,
            compatibility_hash=self._compatibility,
            block_size=self._model.scheduler.block_size,
            tensor=self._model.tensor,
            agent_metadata=AgentMetadata(host=data_host, port=data_port),
        )

    def serve_read(self, read: Read) -> bool:
        """Say whether the blocks read still hold the prompt they were handed over for."""
        scheduler = self._core.scheduler
        if read.request_id in scheduler.held:
            return True
        hashes = [scheduler.pool.hash_of(block_id) for block_id in read.block_ids[: len(read.hashes)]]
        return hashes == list(read.hashes)

    def serve_done(self, request_id: str) -> None:
        """Free the blocks of a request that was fetched."""
        if not self._core.release_held(request_id):
            self._core.recorder.metrics.add("vllm:nixl_num_notifications_after_expiry_total")

    def serve_renewal(self, request_ids: list[str]) -> None:
        """Renew leases."""
        for request_id in request_ids:
            self._core.renew_held(request_id)

    # ---- decode side

    def expect(self, generation: Generation) -> None:
        """Note a decode leg that was just submitted: its lease is renewed while it waits."""
        self._queued.append(generation)
        if self._heartbeat is None:
            self._heartbeat = asyncio.get_running_loop().call_later(self._heartbeat_s, self._beat)

    def start(self, generation: Generation) -> None:
        """Begin a fetch; the core hears how it ends, never before this returns."""
        request_id = generation.request.request_id
        task = asyncio.get_running_loop().create_task(self._fetch(generation))
        self._tasks[request_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(request_id, None))

    def cancel(self, generation: Generation) -> None:
        """Stop a fetch whose client is gone. Its blocks are free; a read under way is lost."""
        task = self._tasks.get(generation.request.request_id)
        if task is not None:
            task.cancel()

    async def _fetch(self, generation: Generation) -> None:
        remote = generation.remote
        assert remote is not None, "only a decode leg is fetched"
        try:
            intact = await self._pull(generation, remote)
        except (TransferError, PeerLostError, OSError, TimeoutError):
            self._core.recorder.metrics.add("vllm:nixl_num_failed_transfers_total")
            self._core.fetch_failed(generation, recompute=self._settings.recomputes_on_failure)
            return
        if not intact:
            self._taint(generation)
        self._core.fetch_arrived(generation)

    async def _pull(self, generation: Generation, remote: RemotePrefill) -> bool:
        request = generation.request
        peer = await self._peer(remote)
        full_blocks = request.prompt_tokens // self._model.scheduler.block_size
        hashes = tuple(generation.tokens.block_hash(index) for index in range(full_blocks))
        started = self._core.now()
        intact = await peer.read(Read(request_id=remote.request_id, block_ids=remote.block_ids, hashes=hashes))
        tokens = request.prompt_tokens - request.computed_tokens
        await peer.outlive(self._wait_for_link(tokens))
        peer.send_done(remote.request_id)
        size_bytes = tokens * self._model.kv_bytes_per_token
        self._core.recorder.transferred(
            seconds=self._core.now() - started, size_bytes=size_bytes, descriptors=self._model.shape.layers
        )
        return intact and peer.block_size == self._model.scheduler.block_size

    def _wait_for_link(self, tokens: int) -> float:
        """Return seconds until a transfer is through; transfers share the link one after another."""
        now = self._core.now()
        self._link_free_s = max(now, self._link_free_s) + self._model.transfer_seconds(tokens) / self._speed
        return self._link_free_s - now

    async def _peer(self, remote: RemotePrefill) -> Peer:
        known = self._peers.get(remote.engine_id)
        if known is not None and known.alive:
            return known
        if known is not None:
            raise TransferError(f"prefill engine {remote.engine_id} is gone")
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            peer = await shake_hands(remote.host, remote.port)
        problem = self._mismatch(peer, remote)
        if problem:
            peer.close()
            raise TransferError(problem)
        return self._keep(peer)

    def _keep(self, peer: Peer) -> Peer:
        """Remember a peer; one that another fetch connected to meanwhile is kept instead."""
        known = self._peers.get(peer.engine_id)
        if known is not None and known.alive:
            peer.close()
            return known
        while len(self._peers) >= PEERS_MAX:
            self._peers.pop(next(iter(self._peers))).close()
        self._peers[peer.engine_id] = peer
        return peer

    def _mismatch(self, peer: Peer, remote: RemotePrefill) -> str | None:
        mine = self._model
        if peer.engine_id != remote.engine_id:
            return f"engine id {peer.engine_id} is not the expected {remote.engine_id}"
        if self._settings.enforces_compatibility and peer.compatibility_hash != self._compatibility:
            return "compatibility hashes differ"
        if peer.block_size > mine.scheduler.block_size:
            return f"block size {peer.block_size} is larger than {mine.scheduler.block_size}"
        small, large = sorted((peer.tensor, mine.tensor))
        if large % small:
            return f"tensor parallel sizes {small} and {large} do not divide one another"
        return None

    def _taint(self, generation: Generation) -> None:
        """Wrong KV was loaded: the answer comes of it, and the blocks stay wrong in the prefix cache.

        Blocks that were found in this engine's own cache are right, and shared with others.
        """
        request = generation.request
        mark = int.from_bytes(hashlib.sha256(request.request_id.encode()).digest()[:8], "big")
        for block_id in request.block_ids[request.computed_tokens // self._model.scheduler.block_size :]:
            self._core.scheduler.pool.tainted[block_id] = mark

    def _beat(self) -> None:
        self._heartbeat = None
        self._queued = [generation for generation in self._queued if generation.request.phase is Phase.WAITING]
        by_engine: dict[str, list[RemotePrefill]] = {}
        for generation in self._queued:
            if generation.remote is not None:
                by_engine.setdefault(generation.remote.engine_id, []).append(generation.remote)
        loop = asyncio.get_running_loop()
        for remotes in by_engine.values():
            task = loop.create_task(self._renew(remotes))
            self._renewals.add(task)
            task.add_done_callback(self._renewals.discard)
        if self._queued:
            self._heartbeat = loop.call_later(self._heartbeat_s, self._beat)

    async def _renew(self, remotes: list[RemotePrefill]) -> None:
        # What fails here fails again, and is dealt with, when the request is fetched.
        with contextlib.suppress(TransferError, PeerLostError, OSError, TimeoutError):
            peer = await self._peer(remotes[0])
            peer.send_renewal([remote.request_id for remote in remotes])
