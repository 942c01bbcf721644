"""What the simulated engine costs: start, idle processes, streamed tokens a core. Results in build/bench/engine.json."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.simulator.engine.process import CLIENT, EngineProcess, running

pytestmark = pytest.mark.bench
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build/bench/engine.json"
STREAMS = 128
TOKENS = 400


def _note(name: str, value: float) -> None:
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps({**results, name: round(value, 4)}, indent=1) + "\n")


def _cpu_s(engine: EngineProcess) -> float:
    times = psutil.Process(engine.process.pid).cpu_times()
    return times.user + times.system


def test_start_takes_less_than_a_second():
    starts = []
    for _ in range(3):
        with running() as engine:
            starts.append(engine.start_s)
    _note("start_s", min(starts))
    assert min(starts) < 1.0


def test_sixteen_idle_engines_take_less_than_a_fifth_of_a_core_while_they_are_scraped():
    with ExitStack() as stack:
        engines = [stack.enter_context(running()) for _ in range(16)]
        before = sum(map(_cpu_s, engines))
        began = time.monotonic()
        for second in range(1, 6):
            for engine in engines:
                assert CLIENT.get(engine.url + "/metrics").status_code == 200
                assert CLIENT.get(engine.url + "/health").status_code == 200
            time.sleep(max(0.0, began + second - time.monotonic()))
        share = (sum(map(_cpu_s, engines)) - before) / (time.monotonic() - began)
    _note("sixteen_idle_engines_cores", share)
    assert share < 0.2


async def _read_streams(port: int) -> int:
    return sum(await asyncio.gather(*(_read_stream(port, number) for number in range(STREAMS))))


async def _read_stream(port: int, number: int) -> int:
    body = json.dumps({"prompt": f"{number} " * 150, "max_tokens": TOKENS, "stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
    writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
    answer = bytearray()
    while data := await reader.read(1 << 16):
        answer += data
    writer.close()
    return answer.count(b"data: {")


def test_a_core_streams_well_over_five_thousand_tokens_a_second():
    """Tokens per second of the engine's own processor time; the reader runs in another process."""
    with running(FOREBAY_SIM_SPEED="5") as engine:
        before = _cpu_s(engine)
        command = [sys.executable, "-m", __name__, str(engine.port)]
        reader = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
        rate = int(reader.stdout) / (_cpu_s(engine) - before)
    assert int(reader.stdout) == STREAMS * TOKENS
    _note("streamed_tokens_per_cpu_s", rate)
    assert rate > 5000


if __name__ == "__main__":
    print(asyncio.run(_read_streams(int(sys.argv[1]))))
