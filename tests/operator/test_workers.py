"""The load of workers, read over real HTTP from pages as vLLM serves them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from forebay_operator.workers import read_loads, requests_in_flight
from tests.operator.examples import worker
from tests.support.bounds import NEVER_S

PAGE = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}
# HELP vllm:kv_cache_usage_perc KV-cache usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {usage}
"""


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (PAGE.format(running="3.0", waiting="2.0", usage="0.1"), 5.0),
        (PAGE.format(running="0.0", waiting="0.0", usage="0.0"), 0.0),
        (PAGE.format(running="0.0", waiting="0.0", usage="0.05"), 1.0),  # blocks that a decode worker has not fetched
        ("", None),
        ("# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0.0\n", None),
    ],
)
def test_requests_in_flight_of_a_page(page, expected):
    assert requests_in_flight(page) == expected


def test_every_data_rank_counts():
    page = PAGE.format(running="1.0", waiting="0.0", usage="0.0").replace(
        "# HELP vllm:num_requests_waiting",
        'vllm:num_requests_running{engine="1",model_name="m"} 4.0\n# HELP vllm:num_requests_waiting',
    )
    assert requests_in_flight(page) == 5.0


@asynccontextmanager
async def serving(answer: bytes | None) -> AsyncIterator[int]:
    """A server that sends these bytes, or nothing at all."""
    held = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer is None:
            await held.wait()
        else:
            writer.write(answer)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        held.set()
        server.close()
        await server.wait_closed()


def ok(text: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (ok(PAGE.format(running="2.0", waiting="0.0", usage="0.0")), 2.0),
        (b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", None),
        (b"nonsense\r\n\r\n", None),
        (None, None),
    ],
    ids=["busy", "error", "nonsense", "silent"],
)
async def test_a_worker_that_does_not_tell_is_unknown(answer, expected, monkeypatch):
    patience_s = 0.2 if answer is None else NEVER_S
    async with serving(answer) as port, httpx.AsyncClient(timeout=patience_s, trust_env=False) as client:
        monkeypatch.setattr("forebay_operator.workers.ENGINE_PORT", port)
        loads = await read_loads(client, [worker("a", pod_ip="127.0.0.1"), worker("b", pod_ip=None)])
    assert loads == {"a": expected}


async def test_a_refused_connection_is_unknown(monkeypatch, unused_tcp_port):
    monkeypatch.setattr("forebay_operator.workers.ENGINE_PORT", unused_tcp_port)
    async with httpx.AsyncClient(timeout=NEVER_S, trust_env=False) as client:
        assert await read_loads(client, [worker("a", pod_ip="127.0.0.1")]) == {"a": None}
