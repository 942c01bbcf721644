"""The official OpenAI client, unmodified."""

import openai
import pytest

from tests.router.harness import routed, until
from tests.router.scripted import MODEL, chat_chunk, hello, workers

MESSAGES = [{"role": "user", "content": "hi"}]


def client_of(router) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=router.url + "/v1", api_key="x", max_retries=0)


async def test_chat_streams_and_plain():
    async with workers(hello) as [worker], routed(worker) as router, client_of(router) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
        assert answer.choices[0].message.content == "hello"
        text = ""
        async for chunk in await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True):
            assert chunk.usage is None
            text += chunk.choices[0].delta.content or ""
        assert text == "hello"
        stream = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        assert [chunk.usage.completion_tokens async for chunk in stream if chunk.usage] == [2]
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).id == MODEL


async def test_leaving_a_stream_aborts_it():
    async def endless(_asked, wire):
        await wire.events_head()
        while True:
            await wire.event(chat_chunk("x"))

    async with workers(endless) as [worker], routed(worker) as router, client_of(router) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await until(lambda: worker.asked[0].aborted, "the worker is told to stop", bound_s=2)


async def test_broken_stream_raises():
    """C014, C016: the client raises instead of taking the beginning for the whole."""

    async def breaks(_asked, wire):
        await wire.events_head()
        await wire.event(chat_chunk("par"))
        wire.reset()

    async def aborts(_asked, wire):
        await wire.events_head()
        await wire.event(chat_chunk("par", finish="abort"))
        await wire.event("[DONE]")
        await wire.end_chunks()

    for script in (breaks, aborts):
        async with workers(script) as [worker], routed(worker) as router, client_of(router) as client:
            stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
            with pytest.raises(openai.APIError):
                async for _ in stream:
                    pass


async def test_errors_are_the_clients_own_classes():
    async with (
        workers(hello) as [worker],
        routed(worker, flags=("--hold-timeout", "100ms")) as router,
        client_of(router) as client,
    ):
        with pytest.raises(openai.NotFoundError) as error:
            await client.chat.completions.create(model="nobody", messages=MESSAGES)
        assert error.value.code == "model_not_found"
        await worker.stop()
        await until(lambda: not router.table.workers, "the worker is away")
        with pytest.raises(openai.InternalServerError) as error:
            await client.chat.completions.create(model=MODEL, messages=MESSAGES)
        assert (error.value.status_code, error.value.code) == (503, "no_ready_worker")
