"""The router before simulated engines that run as processes: the wire contract as a whole."""

import asyncio
import json
import signal
from contextlib import ExitStack, asynccontextmanager

import pytest

from tests.router.harness import ask, request_bytes, running, until
from tests.simulator.engine.process import EngineProcess, free_port
from tests.simulator.engine.process import running as running_engine

MODEL = "llama-3.1-8b"
PROMPT = "the quick brown fox jumps over the lazy dog " * 40
DETAILS = "--enable-prompt-tokens-details"


def transfer(role: str) -> tuple[str, str]:
    config = {"kv_connector": "NixlConnector", "kv_role": role, "kv_load_failure_policy": "recompute"}
    return "--kv-transfer-config", json.dumps(config)


def chat(**fields):
    return {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 12, **fields}


@asynccontextmanager
async def engines(*flags: tuple[str, ...]):
    """Engine processes, one for each set of flags."""
    with ExitStack() as stack:
        made = []
        for one in flags:
            side_channel = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port())}
            engine = running_engine(DETAILS, *one, "--sim-speed", "10", **side_channel)
            made.append(await asyncio.to_thread(stack.enter_context, engine))
        yield made


async def metric(engine: EngineProcess, name: str, **labels: str) -> float:
    return await asyncio.to_thread(lambda: engine.metric(name, **labels))


async def test_streams_and_plain_answers_agree_and_are_counted():
    async with engines(()) as [engine], running("--workers", engine.url) as router:
        plain = await ask(router, chat())
        streamed = await ask(router, chat(stream=True))
        assert plain.status == streamed.status == 200
        assert streamed.text() == plain.json["choices"][0]["message"]["content"]
        await router.no_lease_is_left()
        stats = router.stats
        assert stats.output_tokens == 24
        assert stats.prompt_tokens == 2 * plain.json["usage"]["prompt_tokens"]
        assert stats.cached_tokens > 0, "the second prompt was in the prefix cache"
        assert router.verdicts()["good"] == 2


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_prefill_and_decode_on_two_engines(stream):
    """The engines' own counters show the hand-over; the text is the one that a single engine gives."""
    async with engines(transfer("kv_producer"), transfer("kv_consumer"), ()) as [prefill, decode, alone]:
        reference = (await asyncio.to_thread(alone.chat, PROMPT, max_tokens=12)).json()
        async with running("--prefill-workers", prefill.url, "--decode-workers", decode.url) as router:
            reply = await ask(router, chat(stream=stream))
            text = reply.text() if stream else reply.json["choices"][0]["message"]["content"]
            assert text == reference["choices"][0]["message"]["content"]
            await router.no_lease_is_left()
        fetched = await metric(decode, "vllm:prompt_tokens_by_source_total", source="external_kv_transfer")
        computed = await metric(prefill, "vllm:prompt_tokens_by_source_total", source="local_compute")
        assert fetched == computed == reference["usage"]["prompt_tokens"]


async def test_killed_prefill_engine_costs_the_client_nothing():
    """C092: the prefill engine dies hard; the client gets a whole answer from what is left."""
    async with (
        engines(transfer("kv_producer"), transfer("kv_consumer")) as [prefill, decode],
        running("--prefill-workers", prefill.url, "--decode-workers", decode.url) as router,
    ):
        assert (await ask(router, chat(stream=True))).error() is None
        prefill.process.send_signal(signal.SIGKILL)
        for _ in range(3):
            reply = await ask(router, chat(stream=True))
            assert (reply.status, reply.error()) == (200, None)
            assert reply.events()[-1] == "[DONE]"
        await router.no_lease_is_left()


async def test_requests_survive_the_shutdown_of_one_of_two_engines():
    """Waiting requests of an engine that gets SIGTERM are answered by the other; streams that had begun end with an error."""
    async with (
        engines(("--max-num-seqs", "2"), ("--max-num-seqs", "2")) as [first, second],
        running("--workers", first.url, second.url) as router,
    ):
        asking = [asyncio.create_task(ask(router, chat(stream=True, max_tokens=400))) for _ in range(12)]
        await until(lambda: len(router.table.leases) == 12, "all are placed")
        await asyncio.sleep(0.2)
        first.process.send_signal(signal.SIGTERM)
        replies = await asyncio.gather(*asking)
        await router.no_lease_is_left()
        whole = [reply for reply in replies if reply.error() is None]
        broken = [reply for reply in replies if reply.error() is not None]
        assert all(reply.events()[-1] == "[DONE]" for reply in whole)
        assert len(broken) <= 2, "at most those that were running on it"
        assert len(whole) >= 10


async def test_client_that_leaves_stops_the_engine():
    async with engines(()) as [engine], running("--workers", engine.url) as router:
        client = await router.connect()
        await client.send(request_bytes(chat(stream=True, max_tokens=4000, ignore_eos=True)))
        await client.read_head()
        client.leave()
        await asyncio.to_thread(engine.eventually, "vllm:num_requests_running", 0.0)
        await router.no_lease_is_left()


async def test_error_of_the_engine_reaches_the_client():
    async with engines(("--max-model-len", "64")) as [engine], running("--workers", engine.url) as router:
        reply = await ask(router, chat(stream=True))
        assert reply.status == 400
        assert reply.json["error"]["type"] == "BadRequestError"
        assert router.verdicts() == {"good": 0, "bad": 0, "abandoned": 0}
