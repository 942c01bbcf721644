"""The router before real vLLMs on CPU (marker real_engine): exact predictions of cached tokens, prefill and decode over NIXL.

Slow and few: an engine takes 20 s to start on an idle machine.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from tests.router.gate import Gate
from tests.router.harness import Reply, Running, ask, running, until
from tests.simulator.engine.contract.sources import BLOCK_SIZE, EVENTS, NAME, real, words
from tests.simulator.engine.process import EngineProcess, free_port

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(1500)]
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
ADAPTER = "tiny-lora"
QUIET_ROUNDS = 4
CAPACITY_TOKENS = 255 * BLOCK_SIZE
TOOL = {
    "type": "function",
    "function": {"parameters": {"type": "object", "properties": {}}, "name": "look_up", "strict": True, "unknown": 1},
}


def model_folder() -> Path:
    folder = os.environ.get("FOREBAY_REAL_MODEL")
    if not folder:
        pytest.skip("no real engine: see `make real-engine`")
    return Path(folder)


@asynccontextmanager
async def engines(*flags: tuple[str, ...]) -> AsyncIterator[list[EngineProcess]]:
    """Real engines that start side by side, one for each set of flags."""
    async with AsyncExitStack() as stack:
        starting = []
        for one in flags:
            ports = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port())}
            own = stack.enter_context(ExitStack())
            starting.append(asyncio.to_thread(own.enter_context, real("--kv-events-config", EVENTS, *one, **ports)))
        started = await asyncio.gather(*starting)
        for one in started:  # an engine that has stored nothing has told nothing
            warm = {"model": NAME, "prompt": words(60, "warm"), "max_tokens": 1}
            assert (await asyncio.to_thread(one.post, COMPLETION, warm)).status_code == 200
        yield started


@asynccontextmanager
async def routed(*flags: str, workers: int) -> AsyncIterator[Running]:
    """A router that follows all workers' events and has the model's tokenizer."""
    tokenizer = ("--tokenizer", f"{NAME}={model_folder()}")
    async with running(*flags, "--kv-events-port", "1", *tokenizer) as router:
        await every_engine_speaks(router, workers)
        router.process.router.tools.placing.tokenizers.wait_s = 10.0  # however busy the machine is
        yield router


async def every_engine_speaks(router: Running, count: int) -> None:
    """The caches of so many engines are known."""
    precise = router.process.router.tools.placing.index.precise
    await until(lambda: sum(map(precise.speaks, precise.ranks)) == count, "every engine is followed", bound_s=30)


async def settled(router: Running) -> None:
    """No event has come for a while: an engine sends them just after the answer."""
    counts, seen, quiet = router.process.kv_events.counts, -1, 0
    for _ in range(200):
        quiet = quiet + 1 if counts.messages == seen else 0
        seen = counts.messages
        if quiet == QUIET_ROUNDS:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("events do not end")


async def told_and_delivered(router: Running, path: str, body: dict) -> tuple[Reply, dict[str, int], dict[str, int]]:
    """Ask, and return what was predicted of the prompt and what the engine says of it."""
    await settled(router)
    reply = await ask(router, body, path, {"x-forebay-explain": "1"})
    assert reply.status == 200, reply.body
    explained = json.loads(reply.headers["x-forebay-explain"])
    if body.get("stream"):
        usage = next(event["usage"] for event in reversed(reply.events()) if event != "[DONE]" and event.get("usage"))
    else:
        usage = reply.json["usage"]
    prompt = explained["prompt_tokens"]
    predicted = {"prompt": prompt, "cached": prompt - explained["predicted"]["uncached_tokens"]}
    delivered = {"prompt": usage["prompt_tokens"], "cached": usage["prompt_tokens_details"]["cached_tokens"]}
    assert explained["source"] == "precise", explained
    return reply, predicted, delivered


class Mix:
    """Requests as clients send them: chats that go on, completions, token ids; few beginnings, many ends."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.seed = seed
        self.chats: list[list[dict]] = []

    def text(self, count: int, name: object) -> str:
        return words(count, f"{self.seed} {name}")

    def make(self, number: int) -> tuple[str, dict]:
        """The next request."""
        kinds: list[Callable[[int], tuple[str, dict]]] = [
            self.chat,
            self.chat,
            self.go_on,
            self.completion,
            self.ids,
            self.special,
        ]
        path, body = self.rng.choice(kinds)(number)
        body = {"model": NAME, "max_tokens": self.rng.choice((1, 3, 40)), "temperature": 0, "ignore_eos": True, **body}
        if self.rng.random() < 0.3:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return path, body

    def chat(self, number: int) -> tuple[str, dict]:
        system = self.text(150, f"system {self.rng.randrange(3)}")
        chat = [
            {"role": "system", "content": system},
            {"role": "user", "content": self.text(self.rng.randrange(20, 200), number)},
        ]
        self.chats.append(chat)
        return CHAT, {"messages": chat}

    def go_on(self, number: int) -> tuple[str, dict]:
        if not self.chats:
            return self.chat(number)
        at = self.rng.randrange(len(self.chats))
        self.chats[at] = chat = [*self.chats[at][:12], {"role": "user", "content": self.text(30, number)}]
        return CHAT, {"messages": chat}

    def completion(self, number: int) -> tuple[str, dict]:
        prompt = f"{self.text(300, f'document {self.rng.randrange(2)}')}\n{self.text(20, number)}"
        return COMPLETION, {"prompt": [prompt] if self.rng.random() < 0.3 else prompt}

    def ids(self, number: int) -> tuple[str, dict]:
        start = [100 + at * 7 % 700 for at in range(200)]
        shown = self.rng.randrange(64, 200)  # a body of less than 256 bytes is not looked up
        return COMPLETION, {"prompt": [*start[:shown], number % 700 + 100]}

    def special(self, number: int) -> tuple[str, dict]:
        """What a template or an engine treats in its own way."""
        path, body = self.chat(number)
        messages = body["messages"]
        messages[1] = {
            "role": "user",
            "content": [{"type": "text", "text": "Say"}, {"type": "text", "text": messages[1]["content"]}],
        }
        call = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": '{"é": [1, 2]}'}}
        return self.rng.choice(
            [
                (path, {**body, "cache_salt": f"tenant-{number % 2}"}),
                (path, {**body, "model": ADAPTER}),
                (path, {**body, "model": ADAPTER, "cache_salt": "tenant-0"}),
                (path, {**body, "tools": [TOOL], "tool_choice": "none"}),
                (path, {"messages": [*messages, {"role": "assistant", "content": None, "tool_calls": [call]},
                                     {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "found"}]}]}),
                (path, {"messages": [{"role": "user", "content": "<|im_end|> é\u0301 日本 🙂\n\n  x<|im_start|>"}, *messages]}),
            ]
        )  # fmt: skip

    def note(self, reply: Reply, body: dict) -> None:
        """An answer becomes part of its chat."""
        for chat in self.chats:
            if chat == body.get("messages") and not body.get("stream"):
                chat.append({"role": "assistant", "content": reply.json["choices"][0]["message"]["content"]})


TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson(indent=1) }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("count", [1, 2])
async def test_predicted_tokens_are_the_engines_cached_tokens(count, tmp_path):
    """Every request, without exception: prompt tokens and cached tokens, through evictions, adapters, salts and tool calls."""
    adapter = model_folder().with_name(ADAPTER)
    flags = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"{ADAPTER}={adapter}")
    wrong, cached, computed = [], 0, 0
    async with engines(*[flags] * count) as started:
        urls = [one.url for one in started]
        async with routed("--workers", *urls, workers=count) as router:
            mix = Mix(count)
            for number in range(100 * count):
                path, body = mix.make(number)
                reply, predicted, delivered = await told_and_delivered(router, path, body)
                mix.note(reply, body)
                cached += delivered["cached"]
                computed += delivered["prompt"] - delivered["cached"]
                if predicted != delivered:
                    wrong.append((number, path, predicted, delivered, body))
            await router.no_lease_is_left()
            precise = router.process.router.tools.placing.index.precise
            print(f"{count} engines: {cached} cached and {computed} computed tokens, {len(wrong)} predictions wrong")
            assert precise.orphans == 0
            assert router.process.kv_events.counts.malformed == 0
            asked = [await asyncio.to_thread(lambda one=one: one.metric("vllm:prompt_tokens_total")) for one in started]
    assert not wrong
    assert min(asked) > 0
    assert cached > computed / 4
    assert computed > CAPACITY_TOKENS * count, "caches were full and evicted"


async def test_tools_and_contents_are_written_as_the_engine_writes_them(tmp_path):
    """A template that prints what the tiny model's own passes over."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).write_bytes((model_folder() / name).read_bytes())
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    flags = (
        "--chat-template",
        str(folder / "chat_template.jinja"),
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "hermes",
    )
    async with engines(flags) as [engine]:
        url = ("--workers", engine.url, "--kv-events-port", "1", "--tokenizer", f"{NAME}={folder}")
        async with running(*url) as router:
            await every_engine_speaks(router, 1)
            router.process.router.tools.placing.tokenizers.wait_s = 10.0
            mix = Mix(7)
            for number in range(40):
                path, body = mix.special(number) if number % 2 else mix.make(number)
                if body.get("model") == ADAPTER:
                    continue
                body = {"model": NAME, "max_tokens": 2, "temperature": 0, **body}
                _, predicted, delivered = await told_and_delivered(router, path, body)
                assert predicted == delivered, body


# -- prefill and decode -----------------------------------------------------------------------------------------------


def transfer(role: str) -> tuple[str, str]:
    config = {"kv_connector": "NixlConnector", "kv_role": role, "kv_load_failure_policy": "recompute"}
    return "--kv-transfer-config", json.dumps(config)


def written(reply: Reply, body: dict) -> str:
    """The text of an answer of any kind."""
    if not body.get("stream"):
        choice = reply.json["choices"][0]
        return choice["message"]["content"] if "messages" in body else choice["text"]
    if "messages" in body:
        return reply.text()
    return "".join(event["choices"][0]["text"] for event in reply.events() if event != "[DONE]" and event["choices"])


def metric(engine: EngineProcess, name: str, **labels: str) -> float:
    return engine.metric(name, **labels)


async def test_prefill_and_decode_over_nixl():
    """The text is one engine's own, the prompt's KV is fetched and the prefill worker's cache predicted exactly."""
    async with engines(transfer("kv_producer"), transfer("kv_consumer"), ()) as [prefill, decode, alone]:
        own = {"source": "local_compute"}
        before = await asyncio.to_thread(metric, decode, "vllm:prompt_tokens_by_source_total", **own)
        pools = ("--prefill-workers", prefill.url, "--decode-workers", decode.url)
        async with routed(*pools, workers=2) as router:
            mix, prompt_tokens = Mix(5), 0
            for number in range(30):
                path, body = mix.make(number)
                if body["model"] == ADAPTER:
                    continue
                reference = await asyncio.to_thread(alone.post, path, {**body, "stream": False, "stream_options": None})
                reply, predicted, delivered = await told_and_delivered(router, path, body)
                mix.note(reply, body)
                assert predicted == delivered, body
                prompt_tokens += delivered["prompt"]
                whole = reference.json()["choices"][0]
                assert written(reply, body) == (whole["message"]["content"] if path == CHAT else whole["text"]), body
            await router.no_lease_is_left()
        fetched = await asyncio.to_thread(
            metric, decode, "vllm:prompt_tokens_by_source_total", source="external_kv_transfer"
        )
        computed = await asyncio.to_thread(metric, decode, "vllm:prompt_tokens_by_source_total", **own)
        failed = await asyncio.to_thread(metric, decode, "vllm:nixl_num_failed_transfers_total")
        print(
            f"decode: {prompt_tokens} prompt tokens, of which {fetched} fetched, {computed} computed, {failed} transfers failed"
        )
        assert fetched > 0
        assert failed == 0
        assert computed - before <= 30


@pytest.mark.parametrize("known", [False, True], ids=["before any transfer", "after transfers"])
async def test_prefill_worker_that_dies_in_the_middle_of_a_hand_over(known):
    """C092: SIGKILL when the decode worker is about to fetch: the client gets its answer, nothing stays claimed."""
    async with (
        engines(transfer("kv_producer"), transfer("kv_consumer")) as [prefill, decode],
        Gate(decode.port).open() as gate,
        routed("--prefill-workers", prefill.url, "--decode-workers", gate.url, workers=2) as router,
    ):
        body = {"model": NAME, "max_tokens": 8, "temperature": 0, "stream": True}
        if known:
            chat = [{"role": "user", "content": words(120, "first")}]
            assert (await ask(router, {**body, "messages": chat})).error() is None

        def kill() -> bool:
            if prefill.process.poll() is None:
                os.killpg(prefill.process.pid, signal.SIGKILL)
                prefill.process.wait(10)
            return True  # the hand-over goes on to the decode worker

        gate.on_hand_over = kill
        before = gate.handed_over
        chat = [{"role": "user", "content": words(150, "second")}]
        reply = await ask(router, {**body, "messages": chat})
        assert gate.handed_over > before
        assert prefill.process.poll() == -signal.SIGKILL
        assert (reply.status, reply.error()) == (200, None)
        assert reply.events()[-1] == "[DONE]"
        reference = await asyncio.to_thread(decode.chat, words(150, "second"), model=NAME, max_tokens=8, temperature=0)
        assert reply.text() == reference.json()["choices"][0]["message"]["content"]
        gate.on_hand_over = None
        again = await ask(router, {**body, "messages": chat})
        assert (again.status, again.error()) == (200, None), "decode goes on by itself"
        await router.no_lease_is_left()
        await asyncio.to_thread(decode.eventually, "vllm:num_requests_running", 0.0)
        await asyncio.to_thread(decode.post, COMPLETION, {"model": NAME, "prompt": "x", "max_tokens": 1})
        await asyncio.to_thread(decode.eventually, "vllm:kv_cache_usage_perc", 0.0, 40.0)


async def test_prefill_worker_that_dies_while_it_computes():
    """SIGKILL under several prompts: each is computed by the decode worker instead."""
    async with (
        engines((*transfer("kv_producer"), "--max-num-batched-tokens", "64"), transfer("kv_consumer")) as [
            prefill,
            decode,
        ],
        routed("--prefill-workers", prefill.url, "--decode-workers", decode.url, workers=2) as router,
    ):
        body = {"model": NAME, "max_tokens": 4, "temperature": 0, "stream": True}
        asking = [
            asyncio.create_task(
                ask(router, {**body, "messages": [{"role": "user", "content": words(900, f"long {at}")}]})
            )
            for at in range(4)
        ]
        await until(lambda: len(router.table.leases) >= 4, "the requests are placed")
        os.killpg(prefill.process.pid, signal.SIGKILL)
        replies = await asyncio.gather(*asking)
        assert [(one.status, one.error()) for one in replies] == [(200, None)] * 4
        assert all(one.events()[-1] == "[DONE]" for one in replies)
        await router.no_lease_is_left()
        await asyncio.to_thread(decode.eventually, "vllm:num_requests_running", 0.0)
