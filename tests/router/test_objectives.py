"""Whether a stream was good is told by the objective of its service, and by nothing else."""

import asyncio

import pytest

from tests.router.harness import ask, chat, routed
from tests.router.scripted import chat_chunk, usage_chunk, workers

PAUSE_S = 0.3
WIDE = ("--objective-ttft", "30s", "--objective-tpot", "10s")
TTFT = ("--objective-ttft", "100ms", "--objective-tpot", "10s")
TPOT = ("--objective-ttft", "30s", "--objective-tpot", "100ms")
LATE = (PAUSE_S, 0.0)
"""Seconds before the first token, and between it and the second."""
SLOW = (0.0, PAUSE_S)


@pytest.mark.parametrize(
    ("pauses_s", "flags", "verdict"),
    [(LATE, TTFT, "bad"), (LATE, WIDE, "good"), (SLOW, TPOT, "bad"), (SLOW, WIDE, "good")],
    ids=["late", "late within wide bounds", "slow", "slow within wide bounds"],
)
async def test_stream_is_judged_by_the_objective_of_its_service(pauses_s, flags, verdict):
    async def script(_asked, wire):
        await wire.events_head()
        for text, pause_s in zip("ab", pauses_s, strict=True):
            await asyncio.sleep(pause_s)
            await wire.event(chat_chunk(text))
        await wire.event(chat_chunk("", finish="stop"))
        await wire.event(usage_chunk(2))
        await wire.event("[DONE]")
        await wire.end_chunks()

    async with workers(script) as [worker], routed(worker, flags=flags) as router:
        reply = await ask(router, chat(stream=True, stream_options={"include_usage": True}))
        assert (reply.text(), reply.error()) == ("ab", None)
        await router.no_lease_is_left()
        assert router.verdicts() == {"good": 0, "bad": 0, "abandoned": 0, verdict: 1}
