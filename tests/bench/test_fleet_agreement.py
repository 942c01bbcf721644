"""Virtual time against real time: two simulated engines behind a router, as processes, and the same in the fleet simulator.

Bounds: mean time per output token within 10 %; mean time to first token within 15 % and 15 ms, which HTTP, two event loops and a
busy machine may add.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import httpx
import pytest

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_simulator.fleet.simulation import Setting, simulate
from forebay_simulator.fleet.spec import EngineSpec, FleetSpec, PoolSpec
from forebay_simulator.fleet.traces.generators import constant, generate
from forebay_simulator.fleet.traces.trace import Arrival, Trace
from tests.simulator.engine.process import MODEL, free_port, running

pytestmark = pytest.mark.bench
SECONDS = 15.0
RATE_PER_S = 6.0


@contextmanager
def router(*workers: str) -> Iterator[str]:
    """A router process in front of these workers."""
    port, control = free_port(), free_port()
    process = subprocess.Popen(
        [
            sys.executable, "-m", "forebay_router", "--listen", f"127.0.0.1:{port}", "--control", f"127.0.0.1:{control}",
            "--workers", *workers,
        ]
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 20
        while True:
            assert time.monotonic() < deadline, "the router is not ready after 20 s"
            try:
                if MODEL in httpx.get(f"http://127.0.0.1:{port}/v1/models", trust_env=False).text:
                    break
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=20)


async def send(http: aiohttp.ClientSession, url: str, number: int, one: Arrival) -> tuple[float, float]:
    """TTFT and TPOT of one streamed completion of token ids that no other prompt begins with."""
    prompt = [1000 + number, *(500 + (number * 7919 + place) % 90_000 for place in range(one.prompt_tokens - 1))]
    body = {"model": MODEL, "prompt": prompt, "max_tokens": one.output_tokens, "ignore_eos": True, "stream": True}
    began_s = time.monotonic()
    async with http.post(f"{url}/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        times = [time.monotonic() async for line in answer.content if has_text(line)]
    assert len(times) == one.output_tokens
    return times[0] - began_s, (times[-1] - times[0]) / (len(times) - 1)


def has_text(line: bytes) -> bool:
    """Whether a line of the stream carries a token."""
    return line.startswith(b"data: {") and bool(json.loads(line[6:]).get("choices", [{}])[0].get("text"))


async def play(url: str, trace: Trace) -> list[tuple[float, float]]:
    """Send every request at its time."""
    async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
        began_s = time.monotonic()
        sent = []
        for number, one in enumerate(trace.arrivals):
            await asyncio.sleep(max(0.0, began_s + one.at_s - time.monotonic()))
            sent.append(group.create_task(send(http, url, number, one)))
    return [task.result() for task in sent]


def test_virtual_time_agrees_with_processes_behind_the_router():
    trace = generate(
        "agreement",
        constant(RATE_PER_S),
        lambda chance, _at_s: (chance.randint(400, 3000), chance.randint(20, 60)),
        duration_s=SECONDS,
        seed=5,
    )
    engine = EngineSpec(max_model_len=8192)
    pool = PoolSpec(name="mixed", role=Role.MIXED, replicas=2, engine=engine)
    fleet = FleetSpec(pools=(pool,), objective=Objective(1.0, 0.025, 0.95), seeds_known=False)
    virtual = [(job.ttft_s, job.tpot_s) for job in simulate(Setting(fleet=fleet, trace=trace)).jobs]
    flags = ("--max-model-len", "8192", "--gpu-memory-utilization", "0.9")
    with running(*flags) as first, running(*flags) as second, router(first.url, second.url) as url:
        real = asyncio.run(play(url, trace))
    for name, place, share, more_s in (("TTFT", 0, 0.15, 0.015), ("TPOT", 1, 0.10, 0.0)):
        there, here = (statistics.fmean(one[place] for one in seen) for seen in (virtual, real))
        print(f"{name}: {there * 1000:.1f} ms in virtual time, {here * 1000:.1f} ms in real time")
        assert there - share * there - more_s <= here <= there + share * there + more_s
