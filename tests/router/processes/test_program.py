"""The program with several processes: one port, one control port, and children that come and go."""

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from forebay_router.metrics import BACKGROUND_FAILURES
from forebay_router.processes.children import Child, Children, Told
from forebay_router.processes.exposition import Exposition
from forebay_router.processes.parent import combine_ejected, parent_app
from forebay_router.processes.part import Part
from forebay_router.supervision import Background, Supervisor
from tests.router.harness import chat
from tests.router.mesh.test_sockets import free_ports
from tests.router.scripted import ScriptedWorker, chat_chunk, workers

BOUND_S = 90.0
pytestmark = pytest.mark.timeout(300)  # each starts three programs


async def slowly(asked, wire):
    await quickly(asked, wire, chunks=20, pause_s=0.1)


async def quickly(_asked, wire, chunks: int = 2, pause_s: float = 0.0):
    await wire.events_head()
    for _ in range(chunks):
        await wire.event(chat_chunk("x"))
        await asyncio.sleep(pause_s)
    await wire.event("[DONE]")
    await wire.end_chunks()


class Program:
    """A router of two processes, and a client of its two ports."""

    def __init__(self, process: asyncio.subprocess.Process, ports: list[int], client: httpx.AsyncClient) -> None:
        self.process = process
        self.client = client
        self.data, self.control = (f"http://127.0.0.1:{port}" for port in ports)

    async def get(self, path: str) -> httpx.Response | None:
        try:
            return await self.client.get(self.control + path)
        except httpx.HTTPError:
            return None

    async def until(self, condition, what: str):
        """Poll a coroutine until it gives something."""
        try:
            async with asyncio.timeout(BOUND_S):
                while not (found := await condition()):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.05)
                return found
        except TimeoutError as error:
            raise AssertionError(f"not within {BOUND_S} s: {what}") from error

    async def ready(self) -> bool:
        answer = await self.get("/readyz")
        return answer is not None and answer.status_code == 200

    async def states(self) -> list[dict]:
        answer = await self.get("/state")
        assert answer is not None
        made: list[dict] = answer.json()["processes"]
        return made

    async def value(self, name: str, **labels: str) -> float:
        answer = await self.get("/metrics")
        assert answer is not None
        return sum(
            sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    async def chat(self, **fields) -> httpx.Response:
        """On a connection of its own, which either process may get."""
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            return await client.post(f"{self.data}/v1/chat/completions", json=chat(**fields))


@asynccontextmanager
async def program(worker: ScriptedWorker, log: Path):
    ports = free_ports(2)
    command = [
        sys.executable, "-m", "forebay_router", "--listen", f"127.0.0.1:{ports[0]}", "--control", f"127.0.0.1:{ports[1]}",
        "--workers", worker.url, "--processes", "2",
    ]  # fmt: skip
    with log.open("wb") as logged:
        process = await asyncio.create_subprocess_exec(*command, stderr=logged, env=dict(os.environ))
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            made = Program(process, ports, client)
            await made.until(made.ready, "both processes are ready")
            yield made
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_two_processes_serve_one_port_know_of_each_other_and_outlive_one_another(tmp_path):
    requests = 0
    async with workers(quickly) as [worker], program(worker, tmp_path / "log") as router:

        async def both_served() -> bool:
            nonlocal requests
            await asyncio.gather(*(router.chat() for _ in range(8)))
            requests += 8
            return all(
                one["peers"] and one["services"][0]["workers"][0]["speed"]["answered"] for one in await router.states()
            )

        await router.until(both_served, "both have answered requests and hear of each other")
        good = {"name": "forebay_router_requests_total"}
        assert await router.value(**good) == requests
        assert await router.value("forebay_router_processes") == 2
        assert await router.value("forebay_router_workers", state="ready") == 1
        first, second = await router.states()
        assert {first["replica"].rpartition("/")[2], second["replica"].rpartition("/")[2]} == {"0", "1"}

        os.kill(first["pid"], signal.SIGKILL)

        async def begun_again() -> bool:
            return await router.value("forebay_router_process_restarts_total") == 1 and await router.ready()

        await router.until(begun_again, "the killed one was begun again")
        assert await router.value(**good) == requests, "what it had counted is kept"
        assert (await router.states())[0]["pid"] not in {first["pid"], None}
        told = await router.client.post(router.control + "/explain", json=chat())
        assert told.json()["worker"] == worker.url
        ejected = await router.get("/ejected")
        assert ejected.json() == {"workers": []}


def test_a_worker_that_one_process_leaves_alone_is_left_alone():
    def told(*conditions: str) -> Told:
        named = [
            {"namespace": "n", "worker": f"w-{number}", "condition": condition}
            for number, condition in enumerate(conditions)
        ]
        return Told(200, json.dumps({"workers": named}).encode(), pid=1)

    found = combine_ejected([told("sound", "ejected"), told("ejected", "sound", "sound")])
    assert {one["worker"]: one["condition"] for one in found} == {"w-0": "ejected", "w-1": "ejected", "w-2": "sound"}


async def test_loops_of_the_parent_that_fail_are_counted_with_those_of_the_processes(monkeypatch):
    """It follows the files as each process does."""
    kept = Supervisor()
    kept.failures[Background.FILES] += 2
    sample = f'{BACKGROUND_FAILURES.name}{{loop="{Background.FILES.value}"}}'

    async def ask(_children, _path):
        text = f"# TYPE {BACKGROUND_FAILURES.name} counter\n{sample} 1\n"
        return {0: Told(200, text.encode(), pid=1)}

    monkeypatch.setattr(Children, "ask", ask)
    app = httpx.ASGITransport(parent_app(Children(()), Exposition(), kept))
    async with httpx.AsyncClient(transport=app, base_url="http://parent") as client:
        assert f"{sample} 3" in (await client.get("/metrics")).text.splitlines()


async def test_what_a_process_that_does_not_answer_leaves_alone_is_not_known(tmp_path):
    """Told as nothing, it would make every worker healthy."""
    silent = Children((Child(Part(0, str(tmp_path)), ("not begun",)),))
    app = httpx.ASGITransport(parent_app(silent, Exposition(), Supervisor()))
    async with httpx.AsyncClient(transport=app, base_url="http://parent") as client:
        answer = await client.get("/ejected")
    assert (answer.status_code, answer.text) == (503, "process 0: does not answer\n")


async def test_sigterm_lets_the_children_drain(tmp_path):
    async with workers(slowly) as [worker], program(worker, tmp_path / "log") as router:
        asking = [asyncio.create_task(router.chat(stream=True)) for _ in range(6)]

        async def all_run() -> bool:
            return len([one for one in worker.asked if one.path == "/v1/chat/completions"]) == 6

        await router.until(all_run, "they run")
        router.process.send_signal(signal.SIGTERM)
        answers = await asyncio.gather(*asking)
        assert all(one.text.rstrip().endswith("data: [DONE]") for one in answers)
        assert await asyncio.wait_for(router.process.wait(), BOUND_S) == 0
        assert "Traceback" not in (tmp_path / "log").read_text()


async def test_the_end_of_the_parent_ends_the_children(tmp_path):
    async with workers(slowly) as [worker], program(worker, tmp_path / "log") as router:
        pids = [one["pid"] for one in await router.states()]
        router.process.kill()

        async def gone() -> bool:
            return not any(_command(pid) for pid in pids)

        await router.until(gone, "children end with their parent")


def _command(pid: int) -> str:
    """Of a process; empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    except OSError:
        return ""
