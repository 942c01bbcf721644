"""Kopf's session: fresh tokens, and watches that are not opened in a hot loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from kubernetes.aio import client as kubernetes_client

from forebay_operator import login
from forebay_operator.login import PAUSE_FIRST_S, PAUSE_MAX_S, SHORT_S, WatchPacer, _Middleware


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_watch_that_lived_is_reopened_at_once():
    clock = Clock()
    pacer = WatchPacer(clock)
    for _ in range(5):
        assert pacer.pause_s("/pods") == 0.0
        clock.now_s += 240.0


def test_watches_that_end_at_once_are_reopened_ever_more_slowly():
    """C148: an API server that answers a watch with an immediate end is asked less than twice a second."""
    clock, asked = Clock(), 0
    pacer = WatchPacer(clock)
    while clock.now_s < 60.0:
        clock.now_s += pacer.pause_s("/pods")
        asked += 1
        clock.now_s += 0.001
    assert asked < 20
    clock.now_s += SHORT_S + PAUSE_MAX_S
    assert pacer.pause_s("/pods") == 0.0


def test_watches_do_not_slow_each_other():
    clock = Clock()
    pacer = WatchPacer(clock)
    assert pacer.pause_s("/pods") == 0.0
    assert pacer.pause_s("/services") == 0.0


@asynccontextmanager
async def serving(requests: list[str]) -> AsyncIterator[str]:
    """A server that answers each request with an empty 200; its address."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_the_session_waits_before_it_opens_a_watch_again_and_lists_at_once(monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []

    async def sleep(pause_s: float) -> None:
        slept.append(pause_s)

    monkeypatch.setattr(login.asyncio, "sleep", sleep)
    middleware = _Middleware(kubernetes_client.Configuration(), WatchPacer(Clock()))
    async with serving([]) as address, aiohttp.ClientSession(middlewares=(middleware,)) as session:
        for query in ("?watch=true", "?watch=true", "?watch=true", ""):
            async with session.get(f"{address}/api/v1/pods{query}"):
                pass
    assert slept == [0.0, PAUSE_FIRST_S, 2 * PAUSE_FIRST_S]


async def test_a_rotated_token_is_used_from_the_next_request_on(tmp_path: Path):
    """C146."""
    requests: list[str] = []
    token = tmp_path / "token"
    token.write_text("first")
    configuration = kubernetes_client.Configuration()

    def read_token(found: kubernetes_client.Configuration) -> None:
        found.api_key["BearerToken"] = f"bearer {token.read_text()}"

    configuration.refresh_api_key_hook = read_token
    middleware = _Middleware(configuration, WatchPacer(Clock()))
    async with serving(requests) as address, aiohttp.ClientSession(middlewares=(middleware,)) as session:
        async with session.get(address):
            pass
        token.write_text("second")
        async with session.get(address):
            pass
    seen = [line for request in requests for line in request.splitlines() if line.startswith("Authorization:")]
    assert seen == ["Authorization: Bearer first", "Authorization: Bearer second"]
