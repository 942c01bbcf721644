"""Sockets of the KV hand-over: a ZeroMQ handshake, then one TCP connection for reads and notices.

The handshake is vLLM's: a REQ socket asks the ROUTER at VLLM_NIXL_SIDE_CHANNEL_HOST:PORT for its metadata, in msgpack.
The metadata names a TCP port, which stands for the UCX connection of a real pair. On it, both ways, run messages of a
four-byte length and msgpack: ("read", n, request id, block ids, hashes) answered by (n, intact), ("done", request id) and
("renew", request ids). A closed connection fails every read under way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import zmq
import zmq.asyncio

from forebay_simulator.engine.errors import EngineError

GET_METADATA = b"get_meta_msg"
MESSAGE_BYTES_MAX = 16 << 20
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


class PeerLostError(EngineError):
    """The other engine's connection is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One fetch: which blocks, and what their full ones should hold."""

    request_id: str
    block_ids: tuple[int, ...]
    hashes: tuple[bytes, ...]


class AgentMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Where the connection that stands for UCX is taken."""

    host: str
    port: int


class Handshake(msgspec.Struct, frozen=True, kw_only=True):
    """What a prefill engine tells a decode engine first."""

    engine_id: str
    compatibility_hash: str
    block_size: int
    tensor: int
    agent_metadata: AgentMetadata


class Producer(Protocol):
    """The engine behind a side channel."""

    def handshake(self, data_host: str, data_port: int) -> Handshake:
        """Return the metadata for a decode engine."""
        ...

    def serve_read(self, read: Read) -> bool:
        """Answer a read."""
        ...

    def serve_done(self, request_id: str) -> None:
        """Hear that a request was fetched."""
        ...

    def serve_renewal(self, request_ids: list[str]) -> None:
        """Hear a heartbeat."""
        ...


class SideChannel:
    """The listening side."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._context: zmq.asyncio.Context | None = None
        self._task: asyncio.Task[None] | None = None
        self._data: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def listen(self, host: str, port: int) -> None:
        """Open both ports. Raises OSError."""
        self._data = await asyncio.start_server(self._serve, host, 0)
        data_port = int(self._data.sockets[0].getsockname()[1])
        self._context = zmq.asyncio.Context()
        router = self._context.socket(zmq.ROUTER)
        router.linger = 0
        try:
            router.bind(f"tcp://{_bindable(host)}:{port}")
        except zmq.ZMQError as error:
            raise OSError(error.errno, f"side channel {host}:{port}: {error}") from error
        self._task = asyncio.get_running_loop().create_task(self._answer_handshakes(router, host, data_port))

    async def close(self) -> None:
        """Close both ports and every connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._data is not None:
            self._data.close()
        for writer in list(self._writers):
            writer.close()
        if self._context is not None:
            self._context.destroy(linger=0)

    async def _answer_handshakes(self, router: zmq.asyncio.Socket, host: str, data_port: int) -> None:
        metadata = _encode(self._producer.handshake(host, data_port))
        while True:
            frames = await router.recv_multipart()
            # Whoever asks wrongly gets no answer, as in vLLM.
            with contextlib.suppress(msgspec.DecodeError, IndexError, TypeError):
                if _decode(frames[2])[0] == GET_METADATA:
                    await router.send_multipart([frames[0], b"", metadata])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                match await _receive(reader):
                    case ["read", number, request_id, block_ids, hashes]:
                        read = Read(request_id=request_id, block_ids=tuple(block_ids), hashes=tuple(hashes))
                        _send(writer, (number, self._producer.serve_read(read)))
                    case ["done", request_id]:
                        self._producer.serve_done(request_id)
                    case ["renew", request_ids]:
                        self._producer.serve_renewal(request_ids)
        except (PeerLostError, OSError, msgspec.DecodeError):
            return
        finally:
            self._writers.discard(writer)
            writer.close()


class Peer:
    """A prefill engine, seen from a decode engine."""

    def __init__(self, answer: Handshake, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.engine_id = answer.engine_id
        self.compatibility_hash = answer.compatibility_hash
        self.block_size = answer.block_size
        self.tensor = answer.tensor
        self._writer = writer
        self._reads: dict[int, asyncio.Future[bool]] = {}
        self._number = 0
        self._lost = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._listen(reader))

    @property
    def alive(self) -> bool:
        """Whether the connection stands."""
        return not self._lost.is_set()

    async def read(self, read: Read) -> bool:
        """Read blocks; True when they hold what they should. Raises `PeerLostError`."""
        if not self.alive:
            raise PeerLostError(f"prefill engine {self.engine_id} is gone")
        self._number += 1
        number = self._number
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._reads[number] = future
        try:
            _send(self._writer, ("read", number, read.request_id, read.block_ids, read.hashes))
            return await future
        finally:
            self._reads.pop(number, None)

    async def outlive(self, seconds: float) -> None:
        """Wait so long. Raises `PeerLostError` when the connection does not last."""
        try:
            await asyncio.wait_for(self._lost.wait(), seconds)
        except TimeoutError:
            return
        raise PeerLostError(f"prefill engine {self.engine_id} is gone")

    def send_done(self, request_id: str) -> None:
        """Tell that a request was fetched."""
        _send(self._writer, ("done", request_id))

    def send_renewal(self, request_ids: list[str]) -> None:
        """Renew leases."""
        _send(self._writer, ("renew", request_ids))

    def close(self) -> None:
        """Close the connection."""
        self._task.cancel()
        self._writer.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                number, intact = await _receive(reader)
                future = self._reads.get(number)
                if future is not None and not future.done():
                    future.set_result(bool(intact))
        except (PeerLostError, OSError, msgspec.DecodeError):
            return
        finally:
            self._lost.set()
            for future in self._reads.values():
                if not future.done():
                    future.set_exception(PeerLostError(f"prefill engine {self.engine_id} is gone"))
            self._writer.close()


async def shake_hands(host: str, port: int) -> Peer:
    """Ask an engine for its metadata and connect. The caller bounds the wait. Raises OSError, `PeerLostError`."""
    context = zmq.asyncio.Context.instance()
    socket = context.socket(zmq.REQ)
    socket.linger = 0
    try:
        socket.connect(f"tcp://{_bindable(host)}:{port}")
        await _finished(socket.send(_encode((GET_METADATA, 0))))
        metadata = _decode(await _finished(socket.recv()))
    except zmq.ZMQError as error:
        raise OSError(error.errno, f"side channel {host}:{port}: {error}") from error
    except msgspec.DecodeError as error:
        raise PeerLostError(f"side channel {host}:{port} does not speak NIXL's handshake") from error
    finally:
        socket.close()
    try:
        answer = msgspec.convert(metadata, Handshake)
    except msgspec.ValidationError as error:
        raise PeerLostError(f"side channel {host}:{port} is not a simulated engine's: {error}") from error
    reader, writer = await asyncio.open_connection(answer.agent_metadata.host, answer.agent_metadata.port)
    return Peer(answer, reader, writer)


async def _finished(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _bindable(host: str) -> str:
    return "127.0.0.1" if host == "localhost" else host


def _send(writer: asyncio.StreamWriter, message: object) -> None:
    data = _encode(message)
    writer.write(len(data).to_bytes(4, "big") + data)


async def _receive(reader: asyncio.StreamReader) -> Any:
    try:
        length = int.from_bytes(await reader.readexactly(4), "big")
        if length > MESSAGE_BYTES_MAX:
            raise PeerLostError(f"a message of {length} bytes is not one of ours")
        return _decode(await reader.readexactly(length))
    except asyncio.IncompleteReadError as error:
        raise PeerLostError("connection closed") from error
