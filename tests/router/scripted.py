"""A worker that does what a test tells it, byte by byte, and remembers what was asked of it.

A script is a coroutine `script(asked, wire)`. `wire` writes raw parts; `asked` holds the request. When the script returns, the
connection goes on with the next request; `wire.reset()` and `wire.close()` end it instead.
"""

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

MODEL = "m"


@dataclass(slots=True)
class Asked:
    """One request that reached the worker."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    aborted: bool = False
    """The router closed the connection before the script had ended."""
    finished: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """The answer of a scripted worker, as raw as needed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.ended = False
        self.left = asyncio.get_running_loop().create_task(self._watch())
        """Done when the router closes the connection."""

    async def _watch(self) -> None:
        with suppress(ConnectionError):
            await self._reader.read(1)

    async def raw(self, data: bytes) -> None:
        try:
            self.writer.write(data)
        except RuntimeError as error:  # uvloop's word for a connection that the other side has ended
            raise ConnectionResetError from error
        await self.writer.drain()

    async def head(self, status: int = 200, headers: dict[str, str] | None = None, *, chunked: bool = True) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        coding = "Transfer-Encoding: chunked\r\n" if chunked else ""
        await self.raw(f"HTTP/1.1 {status} Status\r\n{lines}{coding}\r\n".encode())

    async def events_head(self) -> None:
        await self.head(headers={"Content-Type": "text/event-stream; charset=utf-8"})

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def end_chunks(self) -> None:
        await self.raw(b"0\r\n\r\n")

    async def event(self, data: Any) -> None:
        text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
        await self.chunk(f"data: {text}\n\n".encode())

    async def json(self, body: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        given = {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}
        await self.head(status, given, chunked=False)
        await self.raw(data)

    async def tokens(self, *texts: str, usage: bool = True, finish: str = "stop") -> None:
        """A whole chat stream."""
        await self.events_head()
        for text in texts:
            await self.event(chat_chunk(text))
        await self.event(chat_chunk("", finish=finish))
        if usage:
            await self.event(usage_chunk(len(texts)))
        await self.event("[DONE]")
        await self.end_chunks()

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        self.ended = True

    def close(self) -> None:
        """End the connection politely."""
        self.writer.close()
        self.ended = True


def chat_chunk(text: str, *, finish: str | None = None, role: bool = False, **delta: Any) -> dict[str, Any]:
    content: dict[str, Any] = {"role": "assistant", "content": ""} if role else {"content": text}
    content.update(delta)
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": MODEL,
        "choices": [{"index": 0, "delta": content, "finish_reason": finish}],
    }


def usage_chunk(output_tokens: int, *, prompt_tokens: int = 7, cached_tokens: int = 4) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": MODEL,
        "choices": [],
        "usage": usage(output_tokens, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens),
    }


def usage(output_tokens: int, *, prompt_tokens: int = 7, cached_tokens: int = 4) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def completion(text: str, *, output_tokens: int = 3, finish: str = "stop", **more: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": MODEL,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}],
        "usage": usage(output_tokens),
        **more,
    }


Script = Callable[[Asked, Wire], Awaitable[None]]


async def hello(asked: Asked, wire: Wire) -> None:
    """A well-behaved worker: a streamed or plain answer."""
    if asked.json.get("stream"):
        await wire.tokens("hel", "lo", usage=bool(asked.json.get("stream_options", {}).get("include_usage")))
    else:
        await wire.json(completion("hello"))


class Flood:
    """A worker's script: a stream of more than all buffers of the kernel take, and how much of it has been sent."""

    EVENTS = 8000
    EVENT_BYTES = 8192

    def __init__(self) -> None:
        self.sent = 0

    async def __call__(self, _asked: Asked, wire: Wire) -> None:
        await wire.events_head()
        for _ in range(self.EVENTS):
            await wire.event(chat_chunk("z" * self.EVENT_BYTES))
            self.sent += 1
        await wire.event("[DONE]")
        await wire.end_chunks()

    async def stand_still(self) -> int:
        """Wait until nothing more is sent; how many events were."""
        last = -1
        while last != self.sent:
            last = self.sent
            await asyncio.sleep(0.3)
        return last


@dataclass(slots=True)
class ScriptedWorker:
    """One scripted worker."""

    script: Script = hello
    models: tuple[dict[str, Any], ...] = (
        {
            "id": MODEL,
            "object": "model",
            "created": 1700000000,
            "owned_by": "vllm",
            "root": "/models/m",
            "max_model_len": 4096,
        },
    )
    asked: list[Asked] = field(default_factory=list)
    """Requests in order of arrival, without health and model listing."""
    healthy: bool = True
    hung: bool = False
    """Health checks get no answer."""
    metrics: Callable[[], bytes] | None = None
    """What /metrics shows; 404 without."""
    key: str | None = None
    """Asked for below /v1, as vLLM's --api-key."""
    tls: ssl.SSLContext | None = None
    connections: set[asyncio.StreamWriter] = field(default_factory=set)
    accepted: int = 0
    """Connections so far."""
    probed: int = 0
    """Health checks so far."""
    port: int = 0
    server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self.server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and cut every connection."""
        if self.server is None:
            return
        self.server.close()
        for writer in tuple(self.connections):
            writer.transport.abort()
        await self.server.wait_closed()
        self.server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        self.accepted += 1
        first = b""
        try:
            while True:
                asked = await read_request(reader, first)
                wire = Wire(reader, writer)
                first = b""
                try:
                    await self._answer(asked, wire)
                finally:
                    wire.left.cancel()
                    await asyncio.gather(wire.left, return_exceptions=True)
                if wire.ended:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self.connections.discard(writer)
            writer.close()

    async def _answer(self, asked: Asked, wire: Wire) -> None:
        self.probed += asked.path == "/health"
        if asked.path == "/health" and self.hung:
            await wire.left
            wire.ended = True
        elif asked.path == "/health":
            await wire.head(200 if self.healthy else 503, {"Content-Length": "0"}, chunked=False)
        elif asked.path == "/metrics":
            text = self.metrics() if self.metrics is not None else b""
            await wire.head(200 if text else 404, {"Content-Length": str(len(text))}, chunked=False)
            await wire.raw(text)
        elif (
            self.key is not None
            and asked.path.startswith("/v1")
            and asked.headers.get("authorization") != f"Bearer {self.key}"
        ):
            self.asked.append(asked)
            await wire.json({"error": "Unauthorized"}, 401)
        elif asked.path == "/v1/models":
            await wire.json({"object": "list", "data": self.models})
        else:
            self.asked.append(asked)
            running = asyncio.ensure_future(self.script(asked, wire))
            await asyncio.wait({running, wire.left}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                asked.aborted = True
                wire.ended = True
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                return
            if isinstance(running.exception(), ConnectionError):
                asked.aborted = True
                wire.ended = True
                return
            await running
            asked.finished = True


async def read_request(reader: asyncio.StreamReader, first: bytes = b"") -> Asked:
    head = first + await reader.readuntil(b"\r\n\r\n")
    start, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = start.split(" ")
    headers = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            assert name.lower() not in headers or name.lower() not in {"content-length", "host"}, f"{name} twice"
            headers[name.lower()] = value.strip()
    assert "transfer-encoding" not in headers, "bodies go to workers with a length"
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(method, path, headers, body)


@asynccontextmanager
async def started(*made: ScriptedWorker):
    """Workers that run."""
    for worker in made:
        await worker.start()
    try:
        yield made
    finally:
        for worker in made:
            await worker.stop()


@asynccontextmanager
async def workers(*scripts: Script):
    """Scripted workers, one a script."""
    async with started(*(ScriptedWorker(script) for script in scripts)) as made:
        yield list(made)
