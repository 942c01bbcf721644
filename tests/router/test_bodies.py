"""The bound over all request bodies that are held."""

import asyncio

import pytest

from forebay_router.bodies import BodyMemory
from tests.router.harness import ask, chat, request_bytes, routed, until
from tests.router.scripted import completion, hello, workers

SMALL = ("--body-limit", "64KiB", "--bodies-limit", "100KiB")


def held(router) -> int:
    return router.process.router.tools.protection.bodies.held_bytes


class Request:
    held_bytes = 0


def test_memory_is_taken_and_given_back_once():
    memory = BodyMemory(100)
    one, two = Request(), Request()
    assert memory.take(one, 60)
    assert not memory.take(two, 41)
    assert memory.take(two, 40)
    assert not memory.room_for(1)
    memory.give_back(one)
    memory.give_back(one)
    assert memory.held_bytes == 40
    refused = memory.full()
    assert (refused.status, refused.retry_after_s, memory.refused) == (503, 1, 1)


async def test_bodies_beyond_the_bound_are_503_and_there_is_room_again_when_one_has_ended():
    gate = asyncio.Event()

    async def script(asked, wire):
        await gate.wait()
        await wire.json(completion("hello"))

    async with workers(script) as [worker], routed(worker, flags=SMALL) as router:
        first = asyncio.create_task(ask(router, chat(padding="x" * 60_000)))
        await until(lambda: worker.asked, "one runs")
        assert held(router) > 60_000
        refused = await ask(router, chat(padding="x" * 60_000))
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.json["error"]["code"] == "out_of_body_memory"
        client = await router.connect()
        await client.send(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        await client.send(b"c350\r\n" + b"x" * 50_000 + b"\r\n")
        assert (await client.read()).status == 503, "a body without a length is counted as it comes"
        await client.close()
        small = asyncio.create_task(ask(router, chat()))
        await until(lambda: len(worker.asked) == 2, "a small one has room")
        gate.set()
        assert (await first).status == (await small).status == 200
        await until(lambda: held(router) == 0, "nothing is held")
        assert (await ask(router, chat(padding="x" * 60_000))).status == 200


async def test_a_stream_holds_its_body_until_its_answer_begins():
    gate = asyncio.Event()

    async def script(asked, wire):
        await wire.events_head()
        await wire.event({"choices": [{"index": 0, "delta": {"content": "x"}}]})
        await gate.wait()
        await wire.event("[DONE]")
        await wire.end_chunks()

    async with workers(script) as [worker], routed(worker, flags=SMALL) as router:
        client = await router.connect()
        await client.send(request_bytes(chat(stream=True, padding="x" * 60_000)))
        await client.read_head()
        await until(lambda: held(router) == 0, "the answer has begun")
        gate.set()
        await client.close()


@pytest.mark.parametrize("sent", [0, 1000, 50_000])
async def test_a_client_that_leaves_within_its_body_leaves_nothing(sent):
    async with workers(hello) as [worker], routed(worker, flags=SMALL) as router:
        client = await router.connect()
        await client.send(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n" + b"x" * sent)
        await until(lambda: held(router) == sent, "it is counted")
        client.leave()
        await until(lambda: held(router) == 0 and not router.process.router.connections.live, "it is gone")


async def test_pipelined_refused_and_unknown_requests_leave_nothing():
    async with workers(hello) as [worker], routed(worker, flags=SMALL) as router:
        client = await router.connect()
        await client.send(
            request_bytes(chat())
            + request_bytes(chat(), "/v1/nowhere")
            + request_bytes(b"{", "/v1/completions")
            + request_bytes(chat(padding="x" * 70_000))
        )
        statuses = [(await client.read()).status for _ in range(4)]
        assert statuses == [200, 404, 400, 413]
        await until(lambda: held(router) == 0, "nothing is held")
        await client.close()
