"""Comments in silent streams (C022)."""

import asyncio

from tests.router.harness import ask, chat, request_bytes, routed, routed_pairs, until
from tests.router.scripted import chat_chunk, completion, hello, workers

FLAGS = ("--keep-alive", "300ms")
COMMENT = b": keep-alive\n\n"


async def test_a_silent_start_is_bridged_by_the_head_and_comments():
    gate = asyncio.Event()

    async def script(asked, wire):
        await gate.wait()
        await wire.tokens("hel", "lo")

    async with workers(script) as [worker], routed(worker, flags=FLAGS) as router:
        client = await router.connect()
        await client.send(request_bytes(chat(stream=True)))
        status, headers = await client.read_head()
        assert (status, headers["x-accel-buffering"]) == (200, "no")
        assert headers["content-type"].startswith("text/event-stream")
        assert "x-request-id" in headers
        assert [await client.read_chunk() for _ in range(2)] == [COMMENT, COMMENT]
        gate.set()
        rest = b""
        while chunk := await client.read_chunk():
            rest += chunk
        assert rest.replace(COMMENT, b"").startswith(b"data: ")
        assert rest.endswith(b"data: [DONE]\n\n")
        await client.close()
        await until(lambda: router.verdicts()["good"] + router.verdicts()["bad"] == 1, "judged")
        assert not router.process.router.tools.protection.keep_alive.watches


async def test_silence_between_tokens_gets_comments_between_events():
    gate = asyncio.Event()

    async def script(asked, wire):
        await wire.events_head()
        await wire.event(chat_chunk("hel"))
        await wire.chunk(b'data: {"choices":[{"index":0,"delta":{"c')  # within an event
        await gate.wait()
        await wire.chunk(b'ontent":"lo"}}]}\n\n')
        await wire.event("[DONE]")
        await wire.end_chunks()

    async with workers(script) as [worker], routed(worker, flags=FLAGS) as router:
        client = await router.connect()
        await client.send(request_bytes(chat(stream=True)))
        await client.read_head()
        assert (await client.read_chunk()).startswith(b"data: ")
        assert await client.read_chunk() == COMMENT
        gate.set()
        rest = await client.read_chunk()
        await client.close()
        assert rest.startswith(b'data: {"choices":[{"index":0,"delta":{"content":"lo"}}]}\n\n')


async def test_a_stream_that_is_never_silent_gets_none_and_neither_does_an_answer_in_one_piece():
    async def script(asked, wire):
        if not asked.json.get("stream"):
            await asyncio.sleep(0.8)
            await wire.json(completion("hello"))
            return
        await wire.events_head()
        for _ in range(15):
            await wire.event(chat_chunk("x"))
            await asyncio.sleep(0.05)
        await wire.event("[DONE]")
        await wire.end_chunks()

    async with workers(script) as [worker], routed(worker, flags=("--keep-alive", "600ms")) as router:
        streamed, whole = await asyncio.gather(ask(router, chat(stream=True)), ask(router, chat()))
        assert COMMENT not in streamed.body
        assert whole.json["choices"][0]["message"]["content"] == "hello"


async def test_without_the_option_there_are_none():
    async def script(asked, wire):
        await asyncio.sleep(0.6)
        await hello(asked, wire)

    async with workers(script) as [worker], routed(worker) as router:
        assert b"keep-alive" not in (await ask(router, chat(stream=True))).body


async def test_after_an_early_head_another_worker_may_still_answer():
    turn = iter(("dies", "answers"))

    async def script(asked, wire):
        if next(turn) == "dies":
            await asyncio.sleep(0.7)
            wire.reset()
        else:
            await hello(asked, wire)

    async with workers(script, script) as both, routed(*both, flags=FLAGS) as router:
        reply = await ask(router, chat(stream=True))
        assert COMMENT in reply.body
        assert reply.text() == "hello"
        assert reply.error() is None


async def test_after_an_early_head_a_client_error_comes_as_an_event_in_the_workers_words_and_is_not_judged():
    async def script(asked, wire):
        await asyncio.sleep(0.7)
        await wire.json({"error": {"message": "too long", "type": "BadRequestError", "code": 400}}, 400)

    async with workers(script, script) as both, routed(*both, flags=FLAGS) as router:
        reply = await ask(router, chat(stream=True))
        assert (reply.status, reply.error()["message"]) == (200, "too long")
        assert len(both[0].asked) + len(both[1].asked) == 1, "no other worker sees it differently"
        assert sum(router.verdicts().values()) == 0


async def test_after_an_early_head_a_failure_is_an_error_event():
    async def script(asked, wire):
        await asyncio.sleep(0.7)
        await wire.json({"error": {"message": "broken"}}, 500)

    async with workers(script) as [worker], routed(worker, flags=FLAGS) as router:
        reply = await ask(router, chat(stream=True))
        assert (reply.status, reply.error()["code"]) == (200, "worker_error")
        assert router.verdicts()["bad"] == 1


async def test_a_request_that_is_held_and_a_slow_prefill_are_bridged_too():
    async def slow(asked, wire):
        await asyncio.sleep(0.7)
        await wire.json(completion("", kv_transfer_params={"remote_engine_id": "e"}))

    async with workers(slow, hello) as [prefill, decode], routed_pairs([prefill], [decode], FLAGS) as router:
        reply = await ask(router, chat(stream=True))
        assert reply.body.startswith(COMMENT)
        assert reply.text() == "hello"
        await decode.stop()
        await until(lambda: len(router.table.workers) == 1, "it is away")
        client = await router.connect()
        await client.send(request_bytes(chat(stream=True)))
        assert (await client.read_head())[0] == 200
        assert await client.read_chunk() == COMMENT
        await decode.start()
        rest = b""
        while chunk := await client.read_chunk():
            rest += chunk
        assert b"hel" in rest
        await client.close()


async def test_anthropic_streams_get_comments_and_errors_in_their_own_shape():
    async def script(asked, wire):
        await asyncio.sleep(0.7)
        await wire.json({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}, 400)

    async with workers(script) as [worker], routed(worker, flags=FLAGS) as router:
        reply = await ask(router, {**chat(stream=True), "max_tokens": 1}, "/v1/messages")
        assert reply.body.replace(COMMENT, b"").startswith(b'event: error\ndata: {"type": "error"')
