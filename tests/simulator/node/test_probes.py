"""Probes against real sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from forebay_simulator.node.errors import ProgramError
from forebay_simulator.node.pods import Handler, HttpGet, Pause, RunCommand, TcpConnect
from forebay_simulator.node.probes import Answer, run_handler
from forebay_simulator.node.processes import Captured, Exit

ADDRESS = "127.0.0.1"
Serve = Callable[[bytes], Awaitable[int]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start a server that answers every connection with the given bytes; the requests are kept."""
    servers = []

    async def start(answer: bytes) -> int:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(answer)
            await writer.drain()
            writer.close()

        servers.append(await asyncio.start_server(handle, ADDRESS, 0))
        return servers[-1].sockets[0].getsockname()[1]

    requests: list[bytes] = []
    start.requests = requests  # type: ignore[attr-defined]
    yield start
    for server in servers:
        server.close()
    await asyncio.sleep(0.01)


async def never(_argv: tuple[str, ...], _timeout_s: float) -> Captured:
    raise AssertionError("no command is run")


async def run(handler: Handler, timeout_s: float = 2, execute=never) -> Answer:
    return await run_handler(handler, address=ADDRESS, timeout_s=timeout_s, execute=execute)


@pytest.mark.parametrize(
    ("answer", "healthy", "message"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", True, ""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True, ""),
        (b"HTTP/1.1 301 Moved\r\nLocation: /x\r\n\r\n", True, ""),
        (
            b"HTTP/1.1 503 Busy\r\nA: b\r\n\r\nstill loading",
            False,
            "HTTP probe failed with statuscode: 503: still loading",
        ),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", False, "HTTP probe failed with statuscode: 404"),
        (b"", False, ""),
        (b"SSH-2.0\r\n", False, ""),
    ],
)
async def test_http_answers_below_400_are_healthy(serve: Serve, answer: bytes, healthy: bool, message: str):  # noqa: FBT001
    found = await run(HttpGet(port=await serve(answer), path="/health"))
    assert found.healthy is healthy
    assert message in found.message


async def test_the_request_names_path_host_and_headers(serve: Serve):
    port = await serve(b"HTTP/1.1 200 OK\r\n\r\n")
    await run(HttpGet(port=port, path="/health?x=1", headers=(("Host", "me"), ("X-A", "b"))))
    (request,) = serve.requests  # type: ignore[attr-defined]
    assert request.startswith(b"GET /health?x=1 HTTP/1.1\r\nHost: me\r\n")
    assert b"X-A: b\r\n" in request


@pytest.mark.parametrize("kind", [HttpGet, TcpConnect])
async def test_a_refused_connection_is_unhealthy(kind: type[HttpGet] | type[TcpConnect]):
    server = await asyncio.start_server(lambda *_: None, ADDRESS, 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    found = await run(kind(port=port))
    assert not found.healthy
    assert "Connect" in found.message


async def test_a_connection_is_all_that_tcp_asks_for():
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), ADDRESS, 0)
    assert (await run(TcpConnect(port=server.sockets[0].getsockname()[1]))).healthy
    server.close()
    await asyncio.sleep(0.01)


async def test_a_silent_server_is_unhealthy_after_the_timeout():
    silent: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _reader, writer: silent.append(writer), ADDRESS, 0)
    found = await run(HttpGet(port=server.sockets[0].getsockname()[1]), timeout_s=0.1)
    assert found == Answer(healthy=False, message="no answer within 0.1 s")
    for writer in silent:
        writer.close()
    server.close()
    await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("ended", "healthy", "message"),
    [(Exit(0, None), True, ""), (Exit(1, None), False, "not yet"), (Exit(None, 9), False, "not yet")],
)
async def test_a_command_is_healthy_when_it_exits_with_zero(ended: Exit, healthy: bool, message: str):  # noqa: FBT001
    async def execute(argv: tuple[str, ...], _timeout_s: float) -> Captured:
        assert argv == ("check", "it")
        return Captured(ended, "not yet\n")

    assert await run(RunCommand(("check", "it")), execute=execute) == Answer(healthy=healthy, message=message)


async def test_a_command_that_can_t_be_run_is_unhealthy():
    async def execute(_argv: tuple[str, ...], _timeout_s: float) -> Captured:
        raise ProgramError("the container is not running")

    found = await run(RunCommand(("check",)), execute=execute)
    assert found == Answer(healthy=False, message="the container is not running")


async def test_a_pause_takes_its_time_and_no_longer_than_the_timeout():
    assert (await run(Pause(0.01))).healthy
    assert not (await run(Pause(10), timeout_s=0.01)).healthy
