"""A client that leaves: the worker's connection is closed at once, and nothing is kept."""

import asyncio
import time

import pytest

from tests.router.harness import ask, chat, check_back_pressure, request_bytes, routed, routed_pairs, until
from tests.router.scripted import MODEL, Flood, chat_chunk, completion, hello, workers
from tests.support.bounds import STALL_S, in_time, quickest_of_three

FORM = (
    b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
    b'--XX\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc\r\n--XX--\r\n'
)
ABORT_BOUND_S = 2.0


async def at_once(condition, what: str) -> None:
    """A client has just left. Workers that are not told to stop go on for longer than is waited here."""
    left_s = time.monotonic()
    await until(condition, what, bound_s=STALL_S)
    in_time(time.monotonic() - left_s, ABORT_BOUND_S)


async def hang(_asked, _wire):
    await asyncio.sleep(30)


async def drip(_asked, wire):
    await wire.events_head()
    while True:
        await wire.event(chat_chunk("x"))
        await asyncio.sleep(0.02)


@quickest_of_three
async def test_plain_request_is_cancelled_at_the_worker_when_its_client_leaves():
    """C001: counted as abandoned, neither good nor a worker's fault; the in-flight gauge is back at zero."""
    async with workers(hang) as [worker], routed(worker) as router:
        client = await router.connect()
        await client.send(request_bytes(chat(max_tokens=4096)))
        await until(lambda: worker.asked, "the worker was asked")
        client.leave()
        await at_once(lambda: worker.asked[0].aborted, "the worker sees its connection closed")
        await router.no_lease_is_left()
        assert router.verdicts() == {"good": 0, "bad": 0, "abandoned": 1}
        assert not any(router.stats.failures.values())
        assert router.stats.responses[499] == 1


@quickest_of_three
async def test_polite_close_counts_as_leaving():
    async with workers(hang) as [worker], routed(worker) as router:
        client = await router.connect()
        await client.send(request_bytes(chat()))
        await until(lambda: worker.asked, "the worker was asked")
        await client.close()
        await at_once(lambda: worker.asked[0].aborted, "the worker sees its connection closed")


@quickest_of_three
async def test_twenty_streams_are_cancelled_when_their_clients_leave():
    """C002: 20 aborts, no completion, and no connection to the worker is left busy."""
    async with workers(drip) as [worker], routed(worker) as router:
        clients = [await router.connect() for _ in range(20)]
        for client in clients:
            await client.send(request_bytes(chat(stream=True)))
        for client in clients:
            await client.read_head()
            for _ in range(3):
                await client.read_chunk()
        for client in clients:
            client.leave()
        await at_once(lambda: sum(asked.aborted for asked in worker.asked) == 20, "20 aborts")
        await until(lambda: len(worker.connections) <= 2, "connections are closed")
        await router.no_lease_is_left()
        assert router.verdicts() == {"good": 0, "bad": 0, "abandoned": 20}


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        ("/v1/completions", {"model": MODEL, "prompt": "x", "stream": True}, {}),
        ("/v1/embeddings", {"model": MODEL, "input": "x"}, {}),
        ("/v1/responses", {"model": MODEL, "input": "x", "stream": True}, {}),
        ("/v1/messages", {"model": MODEL, "messages": [], "stream": True}, {}),
        ("/tokenize", {"model": MODEL, "prompt": "x"}, {}),
        ("/v1/audio/transcriptions", FORM, {"Content-Type": "multipart/form-data; boundary=XX"}),
    ],
)
@quickest_of_three
async def test_every_path_cancels(path, body, headers):
    """C004: the same abort on every forwarded path."""
    async with workers(drip) as [worker], routed(worker) as router:
        client = await router.connect()
        await client.send(request_bytes(body, path, headers))
        await client.read_head()
        client.leave()
        await at_once(lambda: worker.asked[0].aborted, "the worker sees its connection closed")


@quickest_of_three
async def test_client_that_leaves_during_the_prefill_leg_cancels_it():
    async with workers(hang) as prefill, workers(hello) as decode, routed_pairs(prefill, decode) as router:
        client = await router.connect()
        await client.send(request_bytes(chat(stream=True)))
        await until(lambda: prefill[0].asked, "the prefill worker was asked")
        client.leave()
        await at_once(lambda: prefill[0].asked[0].aborted, "the prefill leg is cancelled")
        await router.no_lease_is_left()
        assert decode[0].asked == []


@quickest_of_three
async def test_client_that_leaves_during_the_decode_leg_cancels_it():
    async def prefill_script(_asked, wire):
        await wire.json(completion("x", kv_transfer_params={"do_remote_prefill": True, "remote_engine_id": "e"}))

    async with workers(prefill_script) as prefill, workers(drip) as decode, routed_pairs(prefill, decode) as router:
        client = await router.connect()
        await client.send(request_bytes(chat(stream=True)))
        await client.read_head()
        client.leave()
        await at_once(lambda: decode[0].asked[0].aborted, "the decode leg is cancelled")


@quickest_of_three
async def test_client_that_leaves_while_held_is_forgotten():
    async with workers(hello) as [worker], routed(worker) as router:
        await worker.stop()
        await until(lambda: not router.table.workers, "the worker is away")
        client = await router.connect()
        await client.send(request_bytes(chat()))
        await until(lambda: router.stats.pending == 1, "the request is held")
        client.leave()
        await at_once(lambda: router.stats.pending == 0, "the request is forgotten")
        await router.no_lease_is_left()


async def test_many_short_timeouts_leak_nothing():
    """C005, in small: clients that give up early leave no connection and no lease, and the next request is served."""

    async def slow_then_quick(asked, wire):
        if asked.json.get("max_tokens") == 1:
            await hello(asked, wire)
        else:
            await asyncio.sleep(30)

    async with workers(slow_then_quick) as [worker], routed(worker) as router:
        for _ in range(10):
            clients = [await router.connect() for _ in range(20)]
            for client in clients:
                await client.send(request_bytes(chat()))
            await until(lambda: len(router.table.leases) == 20, "all are in flight")
            for client in clients:
                client.leave()
            await until(lambda: not router.table.leases, "none is in flight")
        await until(lambda: len(worker.connections) <= 2, "worker connections are closed")
        async with asyncio.timeout(STALL_S):  # behind one of those it would wait for three times as long
            assert (await ask(router, chat(max_tokens=1))).status == 200
        await until(lambda: not router.process.router.connections.live, "client connections are closed")


async def test_large_streams_that_leave_together_do_not_stop_the_loop():
    """C008, in small: the loop goes on within half a second while many large streams end at once."""
    block = "y" * 8192

    async def flood(_asked, wire):
        await wire.events_head()
        for _ in range(200):
            await wire.event(chat_chunk(block))
        await asyncio.sleep(30)

    async with workers(flood) as [worker], routed(worker) as router:
        clients = [await router.connect() for _ in range(10)]
        for client in clients:
            await client.send(request_bytes(chat(stream=True)))
        await until(lambda: len(worker.asked) == 10, "all stream")
        for client in clients:
            client.leave()
        started_s = time.process_time()
        await until(lambda: not router.table.leases, "leases are released")
        assert time.process_time() - started_s < 0.5, "seconds of CPU"


async def test_slow_client_slows_the_worker_down():
    """Back-pressure: what the client does not read, the router does not buffer."""
    flood = Flood()
    async with workers(flood) as [worker], routed(worker) as router:
        client = await router.connect()
        await check_back_pressure(router, client, flood)
        await client.close()


async def test_connection_that_was_paused_by_its_last_part_is_not_reused_deaf():
    """The client stalls just as the answer ends: the worker's connection goes back to the pool able to read."""
    part = b"z" * 300_000

    async def script(asked, wire):
        if asked.json.get("max_tokens") == 1:
            await hello(asked, wire)
            return
        await wire.head(200, {"Content-Type": "audio/wav", "Content-Length": str(len(part) * 4)}, chunked=False)
        for _ in range(4):
            await wire.raw(part)

    async with workers(script) as [worker], routed(worker) as router:
        for _ in range(10):
            client = await router.connect()
            client.writer.transport.pause_reading()
            await client.send(request_bytes({"model": MODEL, "input": "x"}, "/v1/audio/speech"))
            await until(lambda: worker.asked and worker.asked[-1].finished, "all was sent")
            client.writer.transport.resume_reading()
            assert len((await client.read()).body) == 4 * len(part)
            assert (await ask(router, chat(max_tokens=1))).status == 200
            await client.close()
