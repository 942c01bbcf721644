"""The official Anthropic client, unmodified, against `/v1/messages`."""

import asyncio
import json
from typing import Any

import anthropic
import pytest

from tests.router.harness import routed, until
from tests.router.scripted import MODEL, Asked, Wire, workers

MESSAGES = [{"role": "user", "content": "hi"}]
MESSAGE: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL}
USAGE = {"input_tokens": 7, "cache_read_input_tokens": 4}


async def named(wire: Wire, event: dict[str, Any]) -> None:
    """One event with its name before its data, as the messages API has them."""
    await wire.chunk(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())


async def begin(wire: Wire) -> None:
    start = {
        **MESSAGE,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**USAGE, "output_tokens": 0},
    }
    await wire.events_head()
    await named(wire, {"type": "message_start", "message": start})
    await named(wire, {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})


async def text(wire: Wire, part: str) -> None:
    await named(wire, {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": part}})


async def end(wire: Wire, output_tokens: int) -> None:
    await named(wire, {"type": "content_block_stop", "index": 0})
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    await named(wire, {"type": "message_delta", "delta": delta, "usage": {**USAGE, "output_tokens": output_tokens}})
    await named(wire, {"type": "message_stop"})
    await wire.end_chunks()


async def says_hello(asked: Asked, wire: Wire) -> None:
    if asked.path.endswith("count_tokens"):
        await wire.json({"input_tokens": 7})
    elif asked.json.get("stream"):
        await begin(wire)
        await text(wire, "hel")
        await text(wire, "lo")
        await end(wire, 2)
    else:
        content = [{"type": "text", "text": "hello"}]
        await wire.json(
            {**MESSAGE, "content": content, "stop_reason": "end_turn", "usage": {**USAGE, "output_tokens": 2}}
        )


def client_of(router) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=router.url, api_key="x", max_retries=0)


async def test_messages_plain_streamed_and_counted():
    async with workers(says_hello) as [worker], routed(worker) as router, client_of(router) as client:
        plain = await client.messages.create(model=MODEL, messages=MESSAGES, max_tokens=16)
        assert plain.content[0].text == "hello"
        assert plain.usage.output_tokens == 2
        async with client.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=16) as stream:
            assert "".join([part async for part in stream.text_stream]) == "hello"
            final = await stream.get_final_message()
        assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 2)
        counted = await client.messages.count_tokens(model=MODEL, messages=MESSAGES)
        assert counted.input_tokens == 7
        await router.no_lease_is_left()
        assert router.verdicts()["good"] == 2  # counting tokens is not judged
        assert (router.stats.prompt_tokens, router.stats.output_tokens, router.stats.cached_tokens) == (14, 4, 8)
        assert sum(router.stats.ttft.counts) == 1


async def test_leaving_a_stream_of_messages_aborts_it():
    async def endless(_asked, wire):
        await begin(wire)
        while True:
            await text(wire, "x")
            await asyncio.sleep(0.005)

    async with workers(endless) as [worker], routed(worker) as router, client_of(router) as client:
        async with client.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=16) as stream:
            async for _ in stream.text_stream:
                break
        await until(lambda: worker.asked[0].aborted, "the worker is told to stop")
        await router.no_lease_is_left()
        assert router.verdicts()["abandoned"] == 1


async def test_a_broken_stream_of_messages_raises():
    async def breaks(_asked, wire):
        await begin(wire)
        await text(wire, "par")
        wire.reset()

    async with workers(breaks) as [worker], routed(worker) as router, client_of(router) as client:
        async with client.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=16) as stream:
            with pytest.raises(anthropic.APIError):
                await stream.get_final_message()
        await router.no_lease_is_left()
        assert router.verdicts()["bad"] == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"model": "unknown"}, anthropic.NotFoundError),
        ({"model": MODEL, "extra_body": {"model": 7}}, anthropic.BadRequestError),
    ],
    ids=["unknown model", "model of another type"],
)
async def test_refusals_are_the_clients_own_exceptions(arguments, expected):
    async with workers(says_hello) as [worker], routed(worker) as router, client_of(router) as client:
        with pytest.raises(expected) as refused:
            await client.messages.create(messages=MESSAGES, max_tokens=16, **arguments)
        assert refused.value.body["type"] == "error"
        assert "model" in refused.value.body["error"]["message"]


async def test_a_worker_that_is_full_is_an_error_of_the_messages_api():
    async def full(_asked, wire):
        error = {"type": "error", "error": {"type": "overloaded_error", "message": "full"}}
        await wire.json(error, status=529)

    async with workers(full) as [worker], routed(worker) as router, client_of(router) as client:
        with pytest.raises(anthropic.APIStatusError) as refused:
            await client.messages.create(model=MODEL, messages=MESSAGES, max_tokens=16)
        assert refused.value.status_code == 529
        await router.no_lease_is_left()
