"""A router in the test's own loop, on free ports, and small clients for it."""

import asyncio
import json
import ssl
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from forebay_router.process import Process
from forebay_router.settings import parse_settings
from tests.router.scripted import MODEL, Flood, ScriptedWorker
from tests.support.bounds import NEVER_S

BOUND_S = NEVER_S

FLAGS = (
    *("--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--probe-interval", "50ms"),
    *("--objective-ttft", "30s", "--objective-tpot", "10s"),
)
"""A machine that stands still for some seconds makes no request a bad one."""


async def until(condition: Callable[[], Any], what: str, *, bound_s: float = BOUND_S) -> Any:
    """Poll until a condition holds; the failure says what was waited for."""
    deadline_s = time.monotonic() + bound_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"not within {bound_s} s: {what}"
        await asyncio.sleep(0.005)
    return value


@dataclass(slots=True)
class Running:
    """A router that runs."""

    process: Process

    @property
    def port(self) -> int:
        assert self.process.listen_address is not None
        return self.process.listen_address.port

    @property
    def control(self) -> str:
        assert self.process.control_address is not None
        return f"http://127.0.0.1:{self.process.control_address.port}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def table(self):
        return self.process.router.table

    @property
    def service(self):
        (service,) = self.table.services.values()
        return service

    @property
    def stats(self):
        return self.service.stats

    async def connect(self, tls: ssl.SSLContext | None = None) -> "RawClient":
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls)
        return RawClient(reader, writer)

    def verdicts(self) -> dict[str, int]:
        return {verdict.value: count for verdict, count in self.stats.verdicts.items()}

    async def no_lease_is_left(self) -> None:
        """Every claim was given back, and every count agrees."""
        await until(lambda: not self.table.leases, "leases are released")
        await until(lambda: not self.process.router.connections.busy, "no request runs")
        for service in self.table.services.values():
            assert service.stats.in_flight == 0
            assert service.stats.pending == 0
            for pool in service.stats.pools.values():
                assert pool.in_flight == 0
        for worker in self.table.workers.values():
            assert (worker.load.requests, worker.load.prompt_tokens, worker.load.output_tokens) == (0, 0, 0)
        await until(lambda: not self.process.router.tools.upstreams.awaited(), "no worker is waited for")


@asynccontextmanager
async def running(*arguments: str, ready: bool = True):
    """A router with these flags."""
    flags = [*FLAGS, *arguments]
    process = Process(parse_settings(flags, {}))
    task = asyncio.create_task(process.run())
    try:
        await until(lambda: process.control_address or task.done(), "the router listens")
        if ready:
            await until(lambda: process.router.ready or task.done(), "the router is ready")
        assert not task.done(), task.exception()
        yield Running(process)
    finally:
        process.stop.set()
        process.hurry.set()
        await task


@asynccontextmanager
async def routed(*workers: ScriptedWorker, flags: tuple[str, ...] = ()):
    """A router before mixed workers; checks at the end that no lease is left."""
    async with running("--workers", *(worker.url for worker in workers), *flags) as router:
        yield router
        await router.no_lease_is_left()


@asynccontextmanager
async def routed_pairs(prefill: list[ScriptedWorker], decode: list[ScriptedWorker], flags: tuple[str, ...] = ()):
    """A router before prefill and decode workers."""
    arguments = [
        "--prefill-workers",
        *(worker.url for worker in prefill),
        "--decode-workers",
        *(worker.url for worker in decode),
        *flags,
    ]
    async with running(*arguments) as router:
        yield router
        await router.no_lease_is_left()


@dataclass(slots=True)
class Reply:
    """An answer as it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes
    chunks: list[bytes] = field(default_factory=list)
    """As framed, for a chunked answer."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """Data of the event stream, parsed."""
        found = []
        for line in self.body.decode().splitlines():
            if line.startswith("data:"):
                data = line.removeprefix("data:").strip()
                found.append(data if data == "[DONE]" else json.loads(data))
        return found

    def text(self) -> str:
        """The text of a streamed chat."""
        parts = []
        for event in self.events():
            if isinstance(event, dict):
                parts += [choice["delta"].get("content") or "" for choice in event.get("choices", [])]
        return "".join(parts)

    def error(self) -> dict[str, Any] | None:
        """The error event of a stream."""
        return next((event["error"] for event in self.events() if isinstance(event, dict) and "error" in event), None)


@dataclass(slots=True)
class RawClient:
    """A client that writes and reads bytes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read_head(self) -> tuple[int, dict[str, str]]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        start, *lines = head.split("\r\n")
        headers = {}
        for line in lines:
            if line:
                name, _, value = line.partition(":")
                assert name.lower() not in headers or name.lower() == "vary", f"header {name} twice"
                headers[name.lower()] = value.strip()
        return int(start.split(" ")[1]), headers

    async def read_chunk(self) -> bytes:
        size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
        data = await self.reader.readexactly(size)
        assert await self.reader.readexactly(2) == b"\r\n"
        return data

    async def read(self, *, head_only: bool = False) -> Reply:
        """One whole answer."""
        async with asyncio.timeout(BOUND_S * 2):
            status, headers = await self.read_head()
            if head_only or status in {204, 304}:
                return Reply(status, headers, b"")
            if "content-length" in headers:
                return Reply(status, headers, await self.reader.readexactly(int(headers["content-length"])))
            if headers.get("transfer-encoding") == "chunked":
                chunks = []
                while chunk := await self.read_chunk():
                    chunks.append(chunk)
                return Reply(status, headers, b"".join(chunks), chunks)
            return Reply(status, headers, await self.reader.read())

    async def at_end(self) -> bool:
        """The router has closed the connection."""
        async with asyncio.timeout(BOUND_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return

    def leave(self) -> None:
        """Go away without a word."""
        self.writer.transport.abort()


def request_bytes(
    body: Any, path: str = "/v1/chat/completions", headers: dict[str, str] | None = None, *, method: str = "POST"
) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"Host": "router", "Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + data


def chat(*, stream: bool = False, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields}
    return {**body, "stream": True} if stream else body


async def ask(
    router: Running, body: Any, path: str = "/v1/chat/completions", headers: dict[str, str] | None = None
) -> Reply:
    """One request on a connection of its own."""
    client = await router.connect()
    try:
        await client.send(request_bytes(body, path, headers))
        return await client.read()
    finally:
        await client.close()


async def check_back_pressure(router: Running, client: RawClient, flood: Flood) -> None:
    """What a client does not read is held back in the worker, not in the router; and all of it comes when it reads."""
    await client.send(request_bytes(chat(stream=True)))
    await client.read_head()
    assert await flood.stand_still() < flood.EVENTS - 100, "the worker is held back"
    (connection,) = router.process.router.connections.live
    assert connection.transport.get_write_buffer_size() < 1_000_000
    while await client.read_chunk():
        pass
    assert flood.sent == flood.EVENTS
