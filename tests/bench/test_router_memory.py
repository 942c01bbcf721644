"""What a stream holds in the router while it waits for its next token. Results in build/bench/router-memory.json."""

import asyncio
from itertools import cycle
from pathlib import Path

import orjson
import pytest

from tests.bench.routers.engines import EngineSettings
from tests.bench.routers.load import Asked, Connection, Load
from tests.bench.routers.peers import ROUTERS
from tests.bench.routers.processes import resident_mib
from tests.bench.routers.rounds import engines
from tests.bench.routers.workloads import Workload, bodies

RESULTS = Path(__file__).parents[2] / "build/bench/router-memory.json"
STREAMS = 1000
BOUND_S = 60.0

pytestmark = pytest.mark.bench


async def hold(workload: Workload, target: str, pid: int, streams: int) -> float:
    """Resident MiB that so many streams add once each has its first token."""
    load = Load(workload, cycle([target]), pid)
    made = bodies(workload)
    asked: list[Asked] = []

    def ended(_connection: Connection, _asked: Asked) -> None:
        """They are left before their end."""

    async def begin(count: int) -> None:
        for _ in range(count):
            asked.append(Asked(0.0, ended))
            (await load.connect()).ask(next(made), asked[-1])
        async with asyncio.timeout(BOUND_S):
            while not all(one.first_s for one in asked):  # noqa: ASYNC110 - tokens come when they come
                await asyncio.sleep(0.05)

    await begin(50)
    before_mib = resident_mib(pid)
    await begin(streams)
    await asyncio.sleep(1.0)
    grown_mib = resident_mib(pid) - before_mib
    for connection in load.connections:
        connection.close()
    return grown_mib


@pytest.mark.parametrize("words", [40, 4000])
def test_waiting_stream_holds_little(words):
    """The prompt is let go when the answer has begun, so a long one costs no more than a short one."""
    (router,) = (one for one in ROUTERS if one.name == "forebay")
    workload = Workload("held", "", words=words, output_tokens=128, streamed=True)
    with engines() as bench, bench.running(router) as (address, pid):
        bench.settle(EngineSettings(step_s=600.0))
        grown_mib = asyncio.run(hold(workload, address, pid, STREAMS))
    kib = 1024 * grown_mib / STREAMS
    print(f"{kib:.1f} KiB a stream with a prompt of {words} words")
    found = orjson.loads(RESULTS.read_bytes()) if RESULTS.exists() else {}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_bytes(orjson.dumps({**found, f"kib_per_stream_{words}_words": round(kib, 1)}))
    assert kib < 48
