"""Requests go where their prefix is: the router with workers that have caches."""

import asyncio
import itertools
import json
from collections import Counter

import httpx

from tests.router.harness import Running, ask, chat, routed, routed_pairs, until
from tests.router.scripted import MODEL, Asked, Wire, chat_chunk, completion, usage_chunk, workers
from tests.support.bounds import NEVER_S

WORDS = "The reservoir above the dam was full, and the turbines below it turned without a sound. "
BLOCK = 64
PROMPT_S, TOKEN_S = 0.002, 0.0001
"""What an engine takes for a prompt, and for each token that is not cached: a hit that saves nothing would earn nothing."""


class Engine:
    """A worker's script with a prefix cache: blocks of 64 characters, 4 characters a token, bounded, least recently used out."""

    def __init__(self, blocks_max: int = 10_000) -> None:
        self.blocks_max = blocks_max
        self.cache: dict[str, None] = {}
        self.asked: list[str] = []
        self.computing = asyncio.Lock()

    def serve(self, text: str) -> tuple[int, int]:
        """Prompt tokens and cached tokens."""
        starts = [text[:end] for end in range(BLOCK, len(text), BLOCK)]
        held = next((at for at, start in enumerate(starts) if start not in self.cache), len(starts))
        for start in reversed(starts):
            self.cache.pop(start, None)
            self.cache[start] = None
        while len(self.cache) > self.blocks_max:
            del self.cache[next(iter(self.cache))]
        return len(text) // 4, held * BLOCK // 4

    async def __call__(self, asked: Asked, wire: Wire) -> None:
        body = asked.json
        text = "".join(f"<{one['role']}>{one['content']}" for one in body["messages"])
        prompt_tokens, cached = self.serve(text)
        self.asked.append(text)
        async with self.computing:  # one prompt after another, as long as its tokens take
            await asyncio.sleep(PROMPT_S + TOKEN_S * (prompt_tokens - cached))
        if not body.get("stream"):
            answer = completion("fine")
            answer["usage"] = {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": cached},
            }
            await wire.json(answer)
            return
        await wire.events_head()
        await wire.event(chat_chunk("fine"))
        await wire.event(chat_chunk("", finish="stop"))
        await wire.event(usage_chunk(3, prompt_tokens=prompt_tokens, cached_tokens=cached))
        await wire.event("[DONE]")
        await wire.end_chunks()


def talk(name: str, turns: int) -> dict:
    messages = [{"role": "system", "content": f"{name}: " + WORDS * 20}]
    for at in range(turns):
        messages += [{"role": "assistant", "content": f"answer {at}"}] if at else []
        messages += [{"role": "user", "content": f"question {at} of {name}. " + WORDS}]
    return chat(stream=True, messages=messages, max_tokens=3)


def turn_of(text: str) -> tuple[str, int]:
    return text.removeprefix("<system>").partition(":")[0], text.count("<user>")


async def state(router: Running) -> dict:
    async with httpx.AsyncClient(timeout=NEVER_S) as client:
        return (await client.get(f"{router.control}/state")).json()


async def test_each_turn_of_a_chat_goes_where_the_one_before_went():
    """C077: 20 chats of 10 turns over two workers; predictions are within two blocks of what was delivered.

    Four requests at a time, so that no worker is overloaded: a turn may well move away from a long queue.
    """
    engines = [Engine(), Engine()]
    async with workers(*engines) as scripted, routed(*scripted) as router:
        for turn, first in itertools.product(range(1, 11), range(0, 20, 4)):
            replies = await asyncio.gather(*(ask(router, talk(f"chat{at}", turn)) for at in range(first, first + 4)))
            assert all(reply.status == 200 for reply in replies)
        homes = {turn_of(text): at for at, engine in enumerate(engines) for text in engine.asked}
        stayed = sum(
            homes[f"chat{at}", turn] == homes[f"chat{at}", turn - 1] for at in range(20) for turn in range(2, 11)
        )
        assert stayed >= 0.95 * 180
        share = Counter(homes.values())
        assert min(share.values()) >= 40, "both workers have chats"
        told = [worker["cache"] for service in (await state(router))["services"] for worker in service["workers"]]
        assert all(one["source"] == "approximate" and one["blocks"] > 100 for one in told)
        assert all(one["errors"]["approximate"]["over"] < 0.02 for one in told)
        assert all(one["errors"]["approximate"]["under"] < 0.15 for one in told)


async def test_a_request_may_ask_why_it_went_where_it_went():
    engines = [Engine(), Engine(), Engine()]
    async with workers(*engines) as scripted, routed(*scripted) as router:
        first = await ask(router, talk("why", 1))
        assert "x-forebay-explain" not in first.headers
        reply = await ask(router, talk("why", 2), headers={"x-forebay-explain": "1"})
        told = json.loads(reply.headers["x-forebay-explain"])
        home = next(one for one in scripted if one.asked)
        assert told["worker"] == home.url
        assert told["reason"] == "least cost, holds part of the prompt"
        assert told["source"] == "approximate"
        assert len(told["candidates"]) == told["considered"] == 3
        assert told["candidates"][0]["uncached_tokens"] < told["candidates"][1]["uncached_tokens"]
        assert told["predicted"]["ttft_ms"] > 0
        assert "x-forebay-explain" not in home.asked[-1].headers


async def test_explaining_can_be_turned_off():
    async with workers(Engine()) as scripted, routed(*scripted, flags=("--explain", "off")) as router:
        reply = await ask(router, talk("why", 1), headers={"x-forebay-explain": "1"})
        assert "x-forebay-explain" not in reply.headers


async def test_token_id_prompts_keep_their_worker():
    """C046: a long prompt of token ids, repeated."""
    prompt = list(range(1000, 2000))

    async def complete(asked: Asked, wire: Wire) -> None:
        await wire.json(completion("fine"))

    async with workers(complete, complete, complete) as scripted, routed(*scripted) as router:
        for _ in range(10):
            reply = await ask(router, {"model": MODEL, "prompt": prompt, "max_tokens": 1}, "/v1/completions")
            assert reply.status == 200
        assert sorted(len(one.asked) for one in scripted) == [0, 0, 10]


async def test_a_start_that_all_share_does_not_tie_traffic_to_one_worker():
    """One system prompt for every request: sequential requests are spread over all workers."""
    engines = [Engine() for _ in range(4)]
    async with workers(*engines) as scripted, routed(*scripted) as router:
        for at in range(120):
            await ask(
                router,
                chat(messages=[{"role": "system", "content": WORDS * 20}, {"role": "user", "content": f"q{at}"}]),
            )
        counts = [len(engine.asked) for engine in engines]
        assert min(counts) >= 10, counts


async def test_tiny_requests_are_spread_over_idle_workers():
    """No pile-up on one engine at low load."""
    engines = [Engine() for _ in range(4)]
    async with workers(*engines) as scripted, routed(*scripted) as router:
        for at in range(100):
            await ask(router, chat(messages=[{"role": "user", "content": f"hi {at}"}]))
        counts = [len(engine.asked) for engine in engines]
        assert min(counts) >= 10, counts


async def test_workers_speeds_and_service_ratio_are_learnt():
    async with workers(Engine()) as scripted, routed(*scripted) as router:
        for at in range(12):
            await ask(router, talk(f"chat{at}", 1))
        await until(lambda: not router.table.leases, "leases are released")
        service = (await state(router))["services"][0]
        worker = service["workers"][0]
        assert 0.2 < service["prompt_tokens_per_byte"] < 0.3
        assert worker["speed"]["origin"] == "measured"
        assert worker["speed"]["answered"] == 12
        assert 0 <= worker["speed"]["first_token_base_s"] < 1


async def test_pairs_prefer_the_prefill_worker_that_holds_the_prompt():
    async def decode(asked: Asked, wire: Wire) -> None:
        await wire.tokens("fine")

    class Prefiller(Engine):
        async def __call__(self, asked: Asked, wire: Wire) -> None:
            body = asked.json
            prompt_tokens, cached = self.serve("".join(f"<{one['role']}>{one['content']}" for one in body["messages"]))
            answer = completion("h", output_tokens=1, kv_transfer_params={"do_remote_prefill": True})
            answer["usage"] = {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": cached},
            }
            await wire.json(answer)

    prefillers = [Prefiller(), Prefiller(), Prefiller()]
    async with workers(*prefillers, decode) as scripted:
        prefill, decoders = scripted[:3], scripted[3:]
        async with routed_pairs(prefill, decoders) as router:
            for turn in range(1, 6):
                reply = await ask(router, talk("pair", turn))
                assert reply.status == 200
            assert sorted(len(one.asked) for one in prefill) == [0, 0, 5]


async def test_a_rewritten_history_goes_where_its_session_was():
    """The client changes the start of its history at each turn; engines find the rest all the same (by segments, say)."""

    class Segmented(Engine):
        def serve(self, text: str) -> tuple[int, int]:
            prompt_tokens, _ = super().serve(text)
            return prompt_tokens, prompt_tokens * 9 // 10 if len(self.asked) else 0

    engines = [Segmented() for _ in range(4)]
    async with workers(*engines) as scripted, routed(*scripted) as router:
        for turn in range(12):
            reply = await ask(router, talk(f"rewritten {turn}", 2), headers={"X-Session-ID": "one chat"})
            assert reply.status == 200
        assert max(len(engine.asked) for engine in engines) == 12
        assert next(one for one in scripted if one.asked).asked[-1].headers["x-session-id"] == "one chat", "passed on"
