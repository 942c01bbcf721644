"""KV events: what the prefix cache stores and evicts, published over ZeroMQ as vLLM 0.32 does.

Frames on the PUB socket: topic, sequence (8 bytes, big-endian, from 0 at each start), msgpack of [time, [events], rank].
Events are maps with a `type`. There is one batch for each engine step that changed something, sent when the step has
ended, so a cache reset is announced with the next step and not before. Removals come one hash an event, ahead of the
BlockStored that took their place. The last batches are kept for replay: a DEALER sends ["", start] to the ROUTER socket
and gets ["", topic, sequence, payload] for each, then ["", "", -1, ""].

An endpoint with `*` or `::`, and every replay endpoint, is bound; another one is connected to, and its consumer must bind.
Where VLLM_HOST_IP is set, `*` means that address: engines whose pods share one network would otherwise take each other's
ports. (vLLM itself does so for port 0 only.)
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import asdict
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from forebay_simulator.engine.block_hash import TokenSequence, event_id
from forebay_simulator.engine.scheduler import Scheduler
from forebay_simulator.engine.scheduling import BlockRemoved, BlocksStored, CacheEvent
from forebay_simulator.engine.settings import EventSettings

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
MEDIUM = "GPU"
_encode = msgspec.msgpack.encode


def event_map(event: CacheEvent, *, block_size: int, integer_hashes: bool) -> dict[str, Any]:
    """Return an event as it is sent. Fields at their defaults are left out."""
    name = event_id if integer_hashes else bytes
    if isinstance(event, BlockRemoved):
        assert isinstance(event.block_hash, bytes), "the engine names blocks by digests"
        return {"type": "BlockRemoved", "block_hashes": [name(event.block_hash)], "medium": MEDIUM, "group_idx": 0}
    if not isinstance(event, BlocksStored):
        return {"type": "AllBlocksCleared"}
    tokens = event.request.blocks
    assert isinstance(tokens, TokenSequence), "the engine schedules token ids"
    parent = tokens.parent_hash(event.first)
    blocks = range(event.first, event.last)
    stored: dict[str, Any] = {
        "type": "BlockStored",
        "block_hashes": [name(tokens.block_hash(index)) for index in blocks],
        "parent_block_hash": None if parent is None else name(parent),
        "token_ids": tokens.ids[event.first * block_size : event.last * block_size],
        "block_size": block_size,
        "lora_id": tokens.adapter_number,
        "medium": MEDIUM,
        "lora_name": tokens.adapter[0] if tokens.adapter else None,
        # An event shows an adapter's name and a salt, not the tags and the path that go into the hash.
        "extra_keys": [[key[1] for key in tokens.extra_keys(index)] or None for index in blocks],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    if tokens.session is not None:
        stored["session_id"] = tokens.session
    return stored


class EventPublisher:
    """The sockets of one engine's events."""

    def __init__(self, settings: EventSettings, scheduler: Scheduler) -> None:
        self._settings = settings
        self._scheduler = scheduler
        self._topic = settings.topic.encode()
        self._sequence = 0
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=settings.buffer_steps)
        self._context = zmq.Context()
        self._publisher: zmq.Socket[bytes] | None = None
        self._replay: zmq.asyncio.Socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._endpoint = settings.endpoint
        self._replay_endpoint = settings.replay_endpoint

    def open(self) -> None:
        """Open the sockets. Raises OSError."""
        settings = self._settings
        self._publisher = self._context.socket(zmq.PUB)
        self._publisher.set_hwm(settings.hwm)
        try:
            if _is_bound(settings.endpoint):
                self._endpoint = _bind(self._publisher, settings.endpoint, settings.host)
            else:
                self._publisher.connect(settings.endpoint)
            if settings.replay_endpoint is not None:
                self._replay = zmq.asyncio.Socket(self._context, zmq.ROUTER)
                self._replay_endpoint = _bind(self._replay, settings.replay_endpoint, settings.host)
                self._task = asyncio.get_running_loop().create_task(self._answer_replays(self._replay))
        except zmq.ZMQError as error:
            raise OSError(error.errno, f"KV events at {settings.endpoint}: {error}") from error

    async def close(self) -> None:
        """Close the sockets."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for socket in (self._publisher, self._replay):
            if socket is not None:
                socket.close(linger=0)
        self._context.term()

    def source(self) -> dict[str, Any]:
        """Return the entry of /kv_event_sources."""
        settings = asdict(self._settings)
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self._endpoint,
            "replay_endpoint": self._replay_endpoint,
            **{name: settings[name] for name in ("buffer_steps", "hwm", "max_queue_size", "topic")},
        }

    def publish(self) -> None:
        """Send what the scheduler noted since the last time, as one batch."""
        noted = self._scheduler.events
        if not noted or self._publisher is None:
            return
        block_size = self._scheduler.config.block_size
        integers = self._settings.integer_hashes
        events = [event_map(event, block_size=block_size, integer_hashes=integers) for event in noted]
        noted.clear()
        payload = _encode([time.time(), events, 0])
        sequence = self._sequence.to_bytes(8, "big")
        self._sequence += 1
        self._kept.append((sequence, payload))
        with contextlib.suppress(zmq.Again):  # nobody reads fast enough: they have the replay socket
            self._publisher.send_multipart([self._topic, sequence, payload], zmq.NOBLOCK)

    async def _answer_replays(self, router: zmq.asyncio.Socket) -> None:
        while True:
            frames = await router.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                continue
            identity, start = frames[0], frames[2]
            # Sequences are equally long and big-endian, so they compare as bytes.
            for sequence, payload in [kept for kept in self._kept if kept[0] >= start]:
                await router.send_multipart([identity, b"", self._topic, sequence, payload])
            await router.send_multipart([identity, b"", b"", END_OF_REPLAY, b""])


def _is_bound(endpoint: str) -> bool:
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def _bind(socket: Any, endpoint: str, host: str | None) -> str:
    """Bind and return the endpoint with the port that was found."""
    if host is not None or endpoint.endswith(":0"):
        endpoint = endpoint.replace("*", host or "127.0.0.1")
    socket.bind(endpoint)
    bound: bytes = socket.getsockopt(zmq.LAST_ENDPOINT)
    return bound.decode() if endpoint.endswith(":0") else endpoint
