"""What passes through, unchanged, and what is told of it."""

import asyncio
import gzip
import hashlib
import json
import random
import time

import pytest

from tests.router.harness import ask, chat, request_bytes, routed, until
from tests.router.scripted import MODEL, chat_chunk, completion, usage_chunk, workers


async def test_plain_answer_is_passed_on_with_its_length():
    async with workers(lambda _asked, wire: wire.json(completion("hello"))) as [worker], routed(worker) as router:
        reply = await ask(router, chat())
        assert reply.status == 200
        assert reply.json == completion("hello")
        assert worker.asked[0].json == chat()
        assert reply.headers["x-request-id"] == worker.asked[0].headers["x-request-id"]
        assert router.verdicts() == {"good": 1, "bad": 0, "abandoned": 0}


async def test_streamed_answer_is_passed_on_event_by_event():
    """C031: each event leaves on its own, with the headers that keep proxies from buffering."""
    gate = asyncio.Event()

    async def script(_asked, wire):
        await wire.events_head()
        await wire.event(chat_chunk("one"))
        await gate.wait()
        await wire.event(chat_chunk("two", finish="stop"))
        await wire.event("[DONE]")
        await wire.end_chunks()

    async with workers(script) as [worker], routed(worker) as router:
        client = await router.connect()
        await client.send(request_bytes(chat(stream=True)))
        status, headers = await client.read_head()
        assert status == 200
        assert headers["x-accel-buffering"] == "no"
        assert headers["cache-control"] == "no-cache"
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert b"one" in await client.read_chunk()
        gate.set()
        assert b"two" in await client.read_chunk()
        await client.close()


async def test_usage_is_asked_for_and_taken_out_again():
    async with workers(lambda _asked, wire: wire.tokens("a", "b", "c")) as [worker], routed(worker) as router:
        reply = await ask(router, chat(stream=True))
        assert worker.asked[0].json["stream_options"] == {"include_usage": True}
        assert all(event == "[DONE]" or event["choices"] for event in reply.events())
        assert reply.events()[-1] == "[DONE]"
        assert reply.text() == "abc"
        await router.no_lease_is_left()
        assert (router.stats.prompt_tokens, router.stats.cached_tokens, router.stats.output_tokens) == (7, 4, 3)


async def test_usage_that_the_client_asked_for_stays():
    async with workers(lambda _asked, wire: wire.tokens("a")) as [worker], routed(worker) as router:
        reply = await ask(router, chat(stream=True, stream_options={"include_usage": True}))
        assert worker.asked[0].body == json.dumps(chat(stream_options={"include_usage": True}, stream=True)).encode()
        assert reply.events()[-2]["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("options", [{}, {"include_usage": False}, {"continuous_usage_stats": False}, None])
async def test_usage_is_asked_for_whatever_other_stream_options_there_are(options):
    async with workers(lambda _asked, wire: wire.tokens("a")) as [worker], routed(worker) as router:
        reply = await ask(router, chat(stream=True, stream_options=options))
        assert worker.asked[0].json["stream_options"] == {**(options or {}), "include_usage": True}
        assert not any(isinstance(event, dict) and event.get("usage") for event in reply.events())


async def test_ten_thousand_events_cut_at_random_places_arrive_byte_for_byte():
    """C028: the hash of what the client got equals that of what the worker sent; usage is counted once."""
    rng = random.Random(28)
    calls = [
        chat_chunk("", tool_calls=[{"index": 0, "function": {"arguments": '{"a":"é"}' * rng.randint(1, 4)}}])
        for _ in range(10_000)
    ]
    body = "".join(f"data: {json.dumps(call)}\n\n" for call in calls)
    body += f"data: {json.dumps(usage_chunk(10_000))}\n\ndata: [DONE]\n\n"
    data = body.encode()

    async def script(_asked, wire):
        await wire.events_head()
        start = 0
        while start < len(data):
            end = min(len(data), start + rng.randint(1, 4000))
            await wire.chunk(data[start:end])
            start = end
        await wire.end_chunks()

    async with workers(script) as [worker], routed(worker) as router:
        reply = await ask(router, chat(stream=True, stream_options={"include_usage": True}))
        assert hashlib.sha256(reply.body).digest() == hashlib.sha256(data).digest()
        await router.no_lease_is_left()
        assert router.stats.output_tokens == 10_000
        assert router.verdicts() == {"good": 1, "bad": 0, "abandoned": 0}


async def test_comments_and_other_fields_reach_the_client_unchanged():
    """C023: comments, event, id and retry lines are passed on as they are, and are no first token."""
    parts = [
        b": processing\n\n",
        b"event: x\nid: 7\nretry: 1000\ndata: " + json.dumps(chat_chunk("", role=True)).encode() + b"\n\n",
        b": processing\n\n",
        b"data: " + json.dumps(chat_chunk("text")).encode() + b"\n\n",
        b"data: [DONE]\n\n",
    ]

    async def script(_asked, wire):
        await wire.events_head()
        for part in parts:
            await wire.chunk(part)
        await wire.end_chunks()

    async with workers(script) as [worker], routed(worker) as router:
        reply = await ask(router, chat(stream=True))
        assert reply.body == b"".join(parts)


@pytest.mark.parametrize("line_end", ["\r\n", "\n", "\r"], ids=["CRLF", "LF", "CR"])
async def test_line_ends_of_any_kind_are_understood(line_end):
    """C025, C026: CRLF and CR streams flow as they come, with the same figures; data may span lines or lack the space."""
    split = json.dumps(chat_chunk("two"), indent=1).splitlines()
    events = [
        "data: " + json.dumps(chat_chunk("one")),
        line_end.join("data:" + line for line in split),
        "data: " + json.dumps(usage_chunk(2)),
        "data: [DONE]",
    ]
    data = "".join(event + line_end * 2 for event in events).encode()

    async def script(_asked, wire):
        await wire.events_head()
        for start in range(0, len(data), 50):
            await wire.chunk(data[start : start + 50])
        await wire.end_chunks()

    async with workers(script) as [worker], routed(worker) as router:
        reply = await ask(router, chat(stream=True, stream_options={"include_usage": True}))
        assert reply.body == data
        await router.no_lease_is_left()
        assert (router.stats.output_tokens, router.stats.ttft.counts.count(1)) == (2, 1)
        assert router.verdicts()["good"] == 1


@pytest.mark.parametrize(
    ("first", "name"),
    [
        ({"content": "text"}, "text"),
        ({"reasoning_content": "hm"}, "reasoning"),
        ({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}, "tool call"),
        (None, "nothing"),
    ],
)
async def test_first_token_is_the_first_content(first, name):
    """C032: neither the role chunk nor a comment starts the clock's end; a stream without output gives no sample."""

    async def script(_asked, wire):
        await wire.events_head()
        await wire.event(chat_chunk("", role=True))
        await asyncio.sleep(0.05)
        await wire.chunk(b": processing\n\n")
        await asyncio.sleep(0.25)
        if first is not None:
            await wire.event(chat_chunk("", **first))
        await wire.event(chat_chunk("", finish="stop"))
        await wire.event("[DONE]")
        await wire.end_chunks()

    async with workers(script) as [worker], routed(worker) as router:
        started_s = time.monotonic()
        await ask(router, chat(stream=True))
        took_s = time.monotonic() - started_s
        await router.no_lease_is_left()
        samples = sum(router.stats.ttft.counts)
        assert samples == (0 if first is None else 1), name
        if first is not None:
            assert 0.28 <= router.stats.ttft.total <= took_s


async def test_chunks_without_choices_are_no_content_and_no_trouble():
    """C029: first and last chunk with an empty choices list."""

    async def script(_asked, wire):
        await wire.events_head()
        await wire.event({"id": "x", "choices": [], "prompt_filter_results": []})
        await wire.event(chat_chunk("a", finish="stop"))
        await wire.event(usage_chunk(1))
        await wire.event("[DONE]")
        await wire.end_chunks()

    async with workers(script) as [worker], routed(worker) as router:
        reply = await ask(router, chat(stream=True, stream_options={"include_usage": True}))
        assert len(reply.events()) == 4
        await router.no_lease_is_left()
        assert router.stats.output_tokens == 1


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429])
async def test_error_before_the_stream_keeps_status_body_and_headers(status):
    """C013: an error answer to a streamed request is that very answer, never a 200 event stream."""
    body = {"error": {"message": "context too long", "type": "BadRequestError", "param": None, "code": status}}

    async def script(_asked, wire):
        await wire.json(body, status, {"Retry-After": "7"})

    async with workers(script, script) as made, routed(*made) as router:
        reply = await ask(router, chat(stream=True))
        assert (reply.status, reply.json) == (status, body)
        assert reply.headers["retry-after"] == "7"
        assert reply.headers["content-type"] == "application/json"
        assert sum(len(worker.asked) for worker in made) == 1, "4xx is not made again"


async def test_error_503_of_the_only_worker_keeps_status_body_and_headers():
    """C013, its 503 variant: the worker's own answer is relayed when nobody else can do better."""
    body = {"error": {"message": "currently busy", "type": "Service Unavailable", "param": None, "code": 503}}

    async def script(_asked, wire):
        await wire.json(body, 503, {"Retry-After": "7"})

    async with workers(script) as [worker], routed(worker) as router:
        reply = await ask(router, chat(stream=True))
        assert (reply.status, reply.json, reply.headers["retry-after"]) == (503, body, "7")
        assert router.verdicts()["bad"] == 1


@pytest.mark.parametrize("accepted", ["gzip", None, "zstd"])
async def test_content_encoding_passes_untouched(accepted):
    """C034: the body is decoded once, by the client; length and encoding match the bytes."""
    data = gzip.compress(json.dumps(completion("x" * 500)).encode())

    async def script(asked, wire):
        assert asked.headers.get("accept-encoding") == accepted
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip", "Content-Length": str(len(data))}
        await wire.head(200, headers, chunked=False)
        await wire.raw(data)

    async with workers(script) as [worker], routed(worker) as router:
        reply = await ask(router, chat(), headers={"Accept-Encoding": accepted} if accepted else None)
        assert reply.headers["content-encoding"] == "gzip"
        assert int(reply.headers["content-length"]) == len(data)
        assert json.loads(gzip.decompress(reply.body)) == completion("x" * 500)


async def test_large_answer_with_an_oddly_cased_length_arrives_whole():
    """C035: 900 KB with `content-LENGTH`."""
    data = json.dumps(completion("y" * 900_000)).encode()

    async def script(_asked, wire):
        await wire.head(200, {"Content-Type": "application/json", "content-LENGTH": str(len(data))}, chunked=False)
        await wire.raw(data)

    async with workers(script) as [worker], routed(worker) as router:
        reply = await ask(router, chat())
        assert reply.body == data
        await router.no_lease_is_left()
        assert router.stats.output_tokens == 3, "usage at the end of a long answer is read"


async def test_answer_above_the_buffer_is_passed_on_while_it_comes():
    data = b'{"data":"' + b"z" * 3_000_000 + b'","usage":{"prompt_tokens":1}}'
    gate = asyncio.Event()

    async def script(_asked, wire):
        await wire.head(200, {"Content-Type": "application/json"})
        await wire.chunk(data[:2_000_000])
        await gate.wait()
        await wire.chunk(data[2_000_000:])
        await wire.end_chunks()

    async with workers(script) as [worker], routed(worker) as router:
        client = await router.connect()
        await client.send(request_bytes({"model": MODEL, "input": "x"}, "/v1/embeddings"))
        await client.read_head()
        got = await client.read_chunk()
        gate.set()
        while chunk := await client.read_chunk():
            got += chunk
        assert got == data
        await client.close()


async def test_answer_without_length_ends_with_the_connection():
    async def script(_asked, wire):
        await wire.head(200, {"Content-Type": "audio/wav"}, chunked=False)
        await wire.raw(b"RIFF....")
        wire.close()

    async with workers(script) as [worker], routed(worker) as router:
        reply = await ask(router, {"model": MODEL, "input": "say"}, "/v1/audio/speech")
        assert (reply.status, reply.body) == (200, b"RIFF....")


@pytest.mark.parametrize(
    "prompt", [[11, 12, 13, 14], [[21, 22], [23, 24]], ["a", "b"], ""], ids=["tokens", "token lists", "texts", "empty"]
)
async def test_every_form_of_prompt_reaches_a_worker(prompt):
    """C046."""
    async with workers(lambda _asked, wire: wire.json(completion("x"))) as [worker], routed(worker) as router:
        reply = await ask(router, {"model": MODEL, "prompt": prompt}, "/v1/completions")
        assert reply.status == 200
        assert worker.asked[0].json["prompt"] == prompt


async def test_every_form_of_message_reaches_a_worker():
    """C047."""
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:,"}}],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "y"},
    ]
    async with workers(lambda _asked, wire: wire.json(completion("x"))) as [worker], routed(worker) as router:
        assert (await ask(router, {"model": MODEL, "messages": messages})).status == 200
        assert worker.asked[0].json["messages"] == messages


@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/rerank", "/rerank",
        "/v1/score", "/score", "/classify", "/pooling", "/tokenize", "/detokenize", "/v1/audio/speech",
    ],
)  # fmt: skip
async def test_every_path_uses_the_one_relay(path):
    async with workers(lambda _asked, wire: wire.json({"ok": True})) as [worker], routed(worker) as router:
        reply = await ask(router, {"model": MODEL}, path + "?a=b")
        assert (reply.status, reply.json) == (200, {"ok": True})
        assert worker.asked[0].path == path + "?a=b"


async def test_form_upload_is_routed_by_its_model_field():
    body = (
        b'--XX\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        + bytes(range(256)) * 40
        + b"\r\n"
        b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--XX--\r\n'
    )
    async with workers(lambda _asked, wire: wire.json({"text": "x"})) as [worker], routed(worker) as router:
        headers = {"Content-Type": "multipart/form-data; boundary=XX"}
        reply = await ask(router, body, "/v1/audio/transcriptions", headers)
        assert reply.status == 200
        assert worker.asked[0].body == body


async def test_client_cannot_steer_transfers_or_ranks():
    async with workers(lambda _asked, wire: wire.json(completion("x"))) as [worker], routed(worker) as router:
        sent = chat(kv_transfer_params={"do_remote_prefill": True}, seed=5)
        await ask(router, sent, headers={"X-Data-Parallel-Rank": "3", "X-Forebay-Anything": "1", "X-Kept": "yes"})
        asked = worker.asked[0]
        assert asked.json == chat(seed=5)
        assert "x-data-parallel-rank" not in asked.headers
        assert "x-forebay-anything" not in asked.headers
        assert asked.headers["x-kept"] == "yes"


@pytest.mark.parametrize(
    ("sent", "arrives"),
    [
        ({"kv_transfer_params": "x", "kv_cache_report_mode": "full"}, {"kv_cache_report_mode": "full"}),
        ({"ec_transfer_params": {}}, {}),
        ({"kv_cache_report_mode": "full"}, {"kv_cache_report_mode": "full"}),
        ("kv_transfer_params", "kv_transfer_params"),
    ],
)
async def test_client_cannot_steer_transfers_through_extra_arguments(sent, arrives):
    async with workers(lambda _asked, wire: wire.json(completion("x"))) as [worker], routed(worker) as router:
        await ask(router, chat(vllm_xargs=sent))
        assert worker.asked[0].json == chat(vllm_xargs=arrives)


async def test_hop_by_hop_headers_end_at_the_router():
    async def script(_asked, wire):
        await wire.json(
            completion("x"),
            headers={"Keep-Alive": "timeout=5", "Connection": "X-Secret, keep-alive", "X-Secret": "1", "X-B": "2"},
        )

    async with workers(script) as [worker], routed(worker) as router:
        given = {
            "Connection": "X-Hop, keep-alive",
            "X-Hop": "1",
            "TE": "trailers",
            "Proxy-Authorization": "x",
            "X-A": "2",
        }
        reply = await ask(router, chat(), headers=given)
        assert not {"x-hop", "te", "proxy-authorization", "connection"} & worker.asked[0].headers.keys()
        assert worker.asked[0].headers["x-a"] == "2"
        assert not {"keep-alive", "x-secret", "connection"} & reply.headers.keys()
        assert reply.headers["x-b"] == "2"


async def test_four_hundred_streams_run_at_once():
    """C020: no pool size holds requests back."""
    gate = asyncio.Event()

    async def script(_asked, wire):
        await wire.events_head()
        await wire.event(chat_chunk("x"))
        await gate.wait()
        await wire.event("[DONE]")
        await wire.end_chunks()

    async with workers(script) as [worker], routed(worker) as router:
        asking = [asyncio.create_task(ask(router, chat(stream=True))) for _ in range(400)]
        await until(lambda: len(worker.asked) == 400, "400 requests in flight, of which none ends before that")
        gate.set()
        replies = await asyncio.gather(*asking)
        assert all(reply.text() == "x" for reply in replies)


async def test_same_request_id_twice_is_two_requests():
    """C052: the twins do not touch each other, and an unsafe id is made safe in the same way for client and worker."""
    gate = asyncio.Event()

    async def script(_asked, wire):
        await wire.events_head()
        await wire.event(chat_chunk("x"))
        await gate.wait()
        await wire.event("[DONE]")
        await wire.end_chunks()

    async with workers(script) as [worker], routed(worker) as router:
        first = await router.connect()
        sent = request_bytes(chat(stream=True), headers={"X-Request-Id": 'a"b@ {c}' + "d" * 10_000})
        await first.send(sent.replace(b"@", b"\x80"))
        second = asyncio.create_task(ask(router, chat(stream=True), headers={"X-Request-Id": "same"}))
        third = asyncio.create_task(ask(router, chat(stream=True), headers={"X-Request-Id": "same"}))
        await until(lambda: len(worker.asked) == 3, "all three arrive")
        first.leave()
        gate.set()
        replies = await asyncio.gather(second, third)
        assert [reply.headers["x-request-id"] for reply in replies] == ["same", "same"]
        assert all(reply.text() == "x" for reply in replies)
        safe = worker.asked[0].headers["x-request-id"]
        assert safe == "a_b___c_" + "d" * 120
