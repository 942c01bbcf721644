"""Prefill and decode on different workers."""

import asyncio
import json
import time

import pytest

from tests.router.harness import ask, chat, request_bytes, routed_pairs, until
from tests.router.scripted import MODEL, chat_chunk, completion, hello, usage, usage_chunk, workers

PARAMS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2, 3]],
    "remote_engine_id": "e-1",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
    "remote_blocks_expiry_time": None,
    "tp_size": 1,
    "big": 2**63 + 7,
}


async def prefill(asked, wire):
    """A prefill worker that is strict about what it is asked."""
    body = asked.json
    assert body["max_tokens"] == 1
    assert body["stream"] is False
    assert body.get("min_tokens", 0) <= 1
    assert body.get("n", 1) == 1
    assert "stream_options" not in body
    assert body.get("max_completion_tokens", 1) == 1
    assert body["kv_transfer_params"]["do_remote_decode"] is True
    assert body["kv_transfer_params"]["do_remote_prefill"] is False
    answer = completion("h", output_tokens=1, finish="length", kv_transfer_params=PARAMS)
    answer["usage"] = usage(1, cached_tokens=0)
    await wire.json(answer)


async def decode(asked, wire):
    """A decode worker that insists on the parameters and calls the whole prompt cached."""
    assert asked.json["kv_transfer_params"] == PARAMS
    if asked.json.get("stream"):
        await wire.events_head()
        for text in ("hel", "lo"):
            await wire.event(chat_chunk(text))
        if asked.json.get("stream_options", {}).get("include_usage"):
            await wire.event(usage_chunk(2, cached_tokens=7))
        await wire.event("[DONE]")
        await wire.end_chunks()
    else:
        answer = completion("hello")
        answer["usage"] = usage(3, cached_tokens=7)
        await wire.json(answer)


async def died(_asked, wire):
    wire.reset()


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_two_legs(stream):
    """The parameters go from leg to leg unchanged, under one request id; decode gets the client's own request."""
    async with workers(prefill) as first, workers(decode) as second, routed_pairs(first, second) as router:
        sent = chat(stream=stream, max_tokens=50, temperature=0.5)
        reply = await ask(router, sent)
        assert reply.status == 200
        assert (reply.text() if stream else reply.json["choices"][0]["message"]["content"]) == "hello"
        (prefilled,), (decoded,) = first[0].asked, second[0].asked
        assert prefilled.headers["x-request-id"] == decoded.headers["x-request-id"] == reply.headers["x-request-id"]
        assert prefilled.json["messages"] == sent["messages"]
        asked = decoded.json
        assert asked.pop("kv_transfer_params") == PARAMS
        if stream:
            assert asked.pop("stream_options") == {"include_usage": True}
        assert asked == sent
        await router.no_lease_is_left()
        assert router.verdicts() == {"good": 1, "bad": 0, "abandoned": 0}
        pools = router.stats.pools
        assert pools["prefill"].finished["good"] == pools["decode"].finished["good"] == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 400, "min_tokens": 60},
        {"max_completion_tokens": 400},
        {"n": 2},
        {"logprobs": True, "top_logprobs": 3},
        {"stream_options": {"include_usage": True}},
    ],
)
async def test_prefill_leg_asks_for_one_token_and_decode_for_what_the_client_wants(fields):
    """C089: the prefill worker here is strict."""
    async with workers(prefill) as first, workers(decode) as second, routed_pairs(first, second) as router:
        reply = await ask(router, chat(stream=True, **fields))
        assert (reply.status, reply.text()) == (200, "hello")
        asked = second[0].asked[0].json
        assert {key: asked[key] for key in fields} == fields


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_cached_tokens_are_prefills(stream):
    """C094: the client and the metrics see prefill's count (0), not decode's (all)."""
    async with workers(prefill) as first, workers(decode) as second, routed_pairs(first, second) as router:
        options = {"stream_options": {"include_usage": True}} if stream else {}
        reply = await ask(router, chat(stream=stream, **options))
        told = reply.events()[-2]["usage"] if stream else reply.json["usage"]
        assert told["prompt_tokens_details"]["cached_tokens"] == 0
        assert told["prompt_tokens"] == 7
        await router.no_lease_is_left()
        assert (router.stats.prompt_tokens, router.stats.cached_tokens) == (7, 0)


async def test_chunks_without_choices_pass_in_split_mode():
    """C029, its prefill/decode half."""

    async def script(_asked, wire):
        await wire.events_head()
        await wire.event({"id": "x", "choices": []})
        await wire.event(chat_chunk("a", finish="stop"))
        await wire.event(usage_chunk(1))
        await wire.event("[DONE]")
        await wire.end_chunks()

    async with workers(prefill) as first, workers(script) as second, routed_pairs(first, second) as router:
        reply = await ask(router, chat(stream=True, stream_options={"include_usage": True}))
        assert (reply.text(), len(reply.events())) == ("a", 4)
        await router.no_lease_is_left()
        assert router.stats.output_tokens == 1


async def test_tokens_flow_as_decode_makes_them():
    """C091: the first token arrives with decode's first, and the stream ends properly."""
    gate = asyncio.Event()

    async def script(_asked, wire):
        await wire.events_head()
        await wire.event(chat_chunk("one"))
        await gate.wait()
        await wire.event(chat_chunk("two", finish="stop"))
        await wire.event("[DONE]")
        await wire.end_chunks()

    async with workers(prefill) as first, workers(script) as second, routed_pairs(first, second) as router:
        client = await router.connect()
        await client.send(request_bytes(chat(stream=True)))
        await client.read_head()
        assert b"one" in await client.read_chunk()
        gate.set()
        rest = b""
        while chunk := await client.read_chunk():
            rest += chunk
        assert rest.endswith(b"data: [DONE]\n\n")
        await client.close()


async def test_prefill_failure_is_made_good_by_another_prefill_worker():
    """C092, its second half: a prefill worker that dies costs the client nothing while another is there."""
    async with workers(died, prefill) as first, workers(decode) as second, routed_pairs(first, second) as router:
        for _ in range(8):
            assert (await ask(router, chat(stream=True))).text() == "hello"
        assert first[0].asked
        assert len(second[0].asked) == 8, "decode is asked only after a prefill"


async def test_parameters_are_never_used_twice():
    """A decode failure before the answer begins starts over with a new prefill: old parameters may point to others' blocks."""
    handed = []

    async def numbered(asked, wire):
        assert asked.json["kv_transfer_params"]["do_remote_decode"]
        handed.append(f"e-{len(handed)}")
        await wire.json(completion("h", kv_transfer_params={**PARAMS, "remote_engine_id": handed[-1]}))

    used = []

    async def dies_first(asked, wire):
        used.append(asked.json["kv_transfer_params"]["remote_engine_id"])
        if len(used) == 1:
            wire.reset()
        else:
            await wire.tokens("hel", "lo")

    async with (
        workers(numbered) as first,
        workers(dies_first, dies_first) as second,
        routed_pairs(first, second) as router,
    ):
        reply = await ask(router, chat(stream=True))
        assert (reply.status, reply.text()) == (200, "hello")
        assert used == ["e-0", "e-1"]
        assert [len(worker.asked) for worker in second] == [1, 1]


async def test_decode_computes_alone_when_there_is_no_prefill_worker():
    async with workers(prefill) as first, workers(hello) as second, routed_pairs(first, second) as router:
        await first[0].stop()
        await until(lambda: not router.service.snapshot.prefill, "the prefill worker is away")
        reply = await ask(router, chat(stream=True))
        assert reply.text() == "hello"
        assert "kv_transfer_params" not in second[0].asked[0].json


async def test_decode_computes_alone_when_every_prefill_worker_failed():
    async with workers(died) as first, workers(hello) as second, routed_pairs(first, second) as router:
        assert (await ask(router, chat(stream=True))).text() == "hello"
        assert "kv_transfer_params" not in second[0].asked[0].json


async def test_prefill_answer_without_parameters_leaves_the_prompt_to_decode():
    """kv_transfer_params is null when the prefill request did not end by stop or length."""

    async def none(_asked, wire):
        await wire.json(completion("h", kv_transfer_params=None))

    async with workers(none) as first, workers(hello) as second, routed_pairs(first, second) as router:
        assert (await ask(router, chat(stream=True))).text() == "hello"
        assert "kv_transfer_params" not in second[0].asked[0].json


async def test_client_error_of_the_prefill_leg_is_the_answer():
    body = {"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}}

    async def refuse(_asked, wire):
        await wire.json(body, 400)

    async with workers(refuse) as first, workers(decode) as second, routed_pairs(first, second) as router:
        reply = await ask(router, chat(stream=True))
        assert (reply.status, reply.json) == (400, body)
        assert second[0].asked == []


async def test_refusal_of_the_prefill_leg_ends_an_open_stream_in_the_workers_words():
    """A comment of the first decode worker has opened the stream when the second prefill leg is refused."""

    async def prefill_once(asked, wire):
        if len(first[0].asked) + len(first[1].asked) == 1:
            await prefill(asked, wire)
        else:
            await wire.json({"error": {"message": "no", "type": "BadRequestError", "param": None, "code": 400}}, 400)

    async def comment_then_reset(_asked, wire):
        await wire.events_head()
        await wire.chunk(b": waiting\n\n")
        await asyncio.sleep(0.05)
        wire.reset()

    async with (
        workers(prefill_once, prefill_once) as first,
        workers(comment_then_reset, comment_then_reset) as second,
        routed_pairs(first, second, flags=("--attempts", "2")) as router,
    ):
        reply = await ask(router, chat(stream=True))
        assert (reply.status, reply.error()["message"]) == (200, "no")
        assert b"HTTP/1.1" not in reply.body
        await router.no_lease_is_left()
        assert sum(router.verdicts().values()) == 0, "the client's error"


@pytest.mark.parametrize("fields", [{"prompt_logprobs": 1}, {"echo": True}])
async def test_prompt_logprobs_are_refused_in_split_mode(fields):
    """C095: a decode worker that sees them dies; it never does."""
    async with workers(prefill) as first, workers(decode) as second, routed_pairs(first, second) as router:
        reply = await ask(router, {"model": MODEL, "prompt": "x", **fields}, "/v1/completions")
        assert reply.status == 400
        assert "prompt_logprobs" in reply.json["error"]["message"]
        assert first[0].asked == second[0].asked == []


async def test_paths_that_cannot_be_split_go_to_decode_alone():
    async def whatever(_asked, wire):
        await wire.json({"ok": 1})

    async with workers(prefill) as first, workers(whatever) as second, routed_pairs(first, second) as router:
        for path in ("/v1/responses", "/v1/embeddings", "/tokenize"):
            assert (await ask(router, {"model": MODEL, "input": "x"}, path)).status == 200
        assert first[0].asked == []


async def test_models_are_listed_once():
    """C050: no doubles for prefill and decode."""
    async with workers(prefill) as first, workers(decode) as second, routed_pairs(first, second) as router:
        client = await router.connect()
        await client.send(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
        assert [card["id"] for card in (await client.read()).json["data"]] == [MODEL]
        await client.close()


async def test_roles_that_come_and_go_are_paired_again():
    """C079: the first request after both roles are there succeeds, also after one of each was away."""
    async with (
        workers(prefill, prefill) as first,
        workers(decode, decode) as second,
        routed_pairs(first, second) as router,
    ):
        for side in (first, second):
            await side[0].stop()
        await until(lambda: len(router.table.workers) == 2, "one of each is away")
        assert (await ask(router, chat(stream=True))).text() == "hello"
        for side in (first, second):
            await side[0].start()
        await until(lambda: len(router.table.workers) == 4, "they are back")
        for _ in range(20):
            assert (await ask(router, chat(stream=True))).text() == "hello"
        assert all(worker.asked for worker in first + second)


async def test_long_prompt_is_not_cut_on_either_leg():
    text = "word " * 60_000

    async def echo_length(asked, wire):
        assert asked.json["messages"][0]["content"] == text
        await (prefill if asked.json["kv_transfer_params"].get("do_remote_decode") else decode)(asked, wire)

    async with workers(echo_length) as first, workers(echo_length) as second, routed_pairs(first, second) as router:
        sent = {"model": MODEL, "messages": [{"role": "user", "content": text}], "stream": True}
        assert (await ask(router, sent)).text() == "hello"


async def test_long_prompt_is_whole_on_every_attempt():
    """What was read of it is dropped once it has been sent, and read again when its worker fails."""
    text = "word " * 20_000
    seen = []

    async def dies_first(asked, wire):
        seen.append(asked.json["messages"][0]["content"])
        await (died if len(seen) == 1 else prefill)(asked, wire)

    async with (
        workers(dies_first, dies_first) as first,
        workers(decode) as second,
        routed_pairs(first, second) as router,
    ):
        sent = {"model": MODEL, "messages": [{"role": "user", "content": text}], "stream": True}
        assert (await ask(router, sent)).text() == "hello"
        assert seen == [text, text]
        assert second[0].asked[0].json["messages"][0]["content"] == text


async def test_time_to_first_token_covers_both_legs():
    async def slow(asked, wire):
        await asyncio.sleep(0.2)
        await prefill(asked, wire)

    async with workers(slow) as first, workers(decode) as second, routed_pairs(first, second) as router:
        started_s = time.monotonic()
        await ask(router, chat(stream=True))
        took_s = time.monotonic() - started_s
        await router.no_lease_is_left()
        assert 0.2 <= router.stats.ttft.total <= took_s


def test_prefill_parameters_are_json_of_the_contract():
    from forebay_router.rewriting import prefill_body

    leg = json.loads(prefill_body(chat(stream=True, max_tokens=9)))
    assert leg["kv_transfer_params"] == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
