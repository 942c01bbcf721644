"""What runs beside the requests goes on, whatever it stumbles over."""

import asyncio
import logging

import httpx
import pytest

from forebay_router import supervision
from forebay_router.discovery import static
from forebay_router.supervision import Background, Supervisor
from tests.router.harness import ask, chat, request_bytes, routed, running, until
from tests.router.mesh.test_sockets import free_ports
from tests.router.scripted import ScriptedWorker, chat_chunk, hello, started, workers
from tests.support.bounds import NEVER_S


class OddError(Exception):
    """Something nobody has thought of."""


async def test_loop_that_fails_is_logged_counted_and_begun_again(caplog):
    supervisor = Supervisor(first_pause_s=0.001)
    runs = 0

    async def loop() -> None:
        nonlocal runs
        runs += 1
        if runs < 4:
            raise OddError(str(runs))

    await supervisor.keep(Background.WATCH, loop)
    assert runs == 4
    assert supervisor.failures[Background.WATCH] == 3
    assert sum(supervisor.failures.values()) == 3
    assert [(one.loop, one.exc_info[0]) for one in caplog.records] == [("watch", OddError)] * 3
    pauses_s = [one.pause_s for one in caplog.records]
    assert pauses_s == pytest.approx([0.001, 0.002, 0.004])


async def test_pauses_are_bounded_and_begin_anew_after_a_long_life(caplog, monkeypatch):
    monkeypatch.setattr(supervision, "LONGEST_PAUSE_S", 0.004)
    monkeypatch.setattr(supervision, "LIVED_S", 0.05)
    supervisor = Supervisor(first_pause_s=0.001)
    lives_s = iter([0, 0, 0, 0, 0.06, 0])

    async def loop() -> None:
        life_s = next(lives_s, None)
        if life_s is not None:
            await asyncio.sleep(life_s)
            raise OddError

    await supervisor.keep(Background.MESH, loop)
    assert [one.pause_s for one in caplog.records] == pytest.approx([0.001, 0.002, 0.004, 0.004, 0.001, 0.002])


async def test_cancellation_and_the_end_of_the_program_go_through():
    supervisor = Supervisor()
    task = asyncio.create_task(supervisor.keep(Background.FILES, asyncio.get_running_loop().create_future))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    async def leave() -> None:
        raise SystemExit("a port is taken")

    with pytest.raises(SystemExit):
        await supervisor.keep(Background.MESH, leave)
    assert not any(supervisor.failures.values())


class Stumble:
    """A method that raises the first time."""

    def __init__(self, kept) -> None:
        self.kept = kept
        self.calls = 0

    @property
    def call(self):
        def method(owner, *arguments, **named):
            self.calls += 1
            if self.calls == 1:
                raise OddError
            return self.kept(owner, *arguments, **named)

        return method


async def test_streams_outlive_every_loop_that_fails(monkeypatch, tmp_path):
    """Each loop raises once, while a client reads its stream; afterwards each does its work."""
    go_on = asyncio.Event()

    async def script(_asked, wire):
        await wire.events_head()
        await wire.event(chat_chunk("a"))
        await go_on.wait()
        await wire.event(chat_chunk("b"))
        await wire.event("[DONE]")
        await wire.end_chunks()

    (tmp_path / "key").write_text("secret")
    own, other = free_ports(2)
    flags = ("--worker-key-file", str(tmp_path / "key"), "--kv-events-port", str(other))
    flags += ("--mesh", f"127.0.0.1:{own}", "--peers", f"tcp://127.0.0.1:{other}")
    async with workers(script) as [worker], routed(worker, flags=flags) as router:
        client = await router.connect()
        await client.send(request_bytes(chat(stream=True)))
        await client.read_head()
        failures = router.process.router.tools.supervisor.failures
        broken = {
            Background.TIME_LIMITS: (router.process.router.tools.protection.quotas, "share"),
            Background.WATCH: (router.process.watch, "observe"),
            Background.DISCOVERY: (router.process.discovery, "_probe"),
            Background.KV_EVENTS: (router.process.kv_events, "_sources"),
            Background.FILES: (router.process.router.tools.protection.files[0], "look"),
            Background.MESH: (router.process.router.mesh.outbox, "due"),
        }
        assert set(broken) == set(Background)
        for background, (owner, name) in broken.items():
            stumble = Stumble(getattr(type(owner), name))
            monkeypatch.setattr(type(owner), name, stumble.call)
            await until(lambda one=background: failures[one] == 1, "it fails")
            await until(lambda one=stumble: one.calls > 1, "it goes on")
        go_on.set()
        text = b""
        while chunk := await client.read_chunk():
            text += chunk
        assert text.count(b"data: ") == 3
        assert text.endswith(b"data: [DONE]\n\n")
        await client.close()
        async with httpx.AsyncClient(timeout=NEVER_S) as control:
            metrics = (await control.get(router.control + "/metrics")).text
        for background in Background:
            shown = f'forebay_router_background_failures_total{{loop="{background.value}"}}'
            assert f"{shown} 1\n" in metrics


@pytest.mark.parametrize("listed", [5, True, "m", {"id": "m"}, None, [5], [{"id": 5}]])
async def test_worker_that_lists_its_models_oddly_is_not_used_and_hurts_nobody(listed):
    good, odd = ScriptedWorker(hello), ScriptedWorker(hello, models=listed)
    async with started(good, odd), running("--workers", good.url, odd.url, ready=False) as router:
        await until(lambda: router.process.discovery.failures > 2, "it is asked again and again")
        assert (await ask(router, chat())).status == 200
        assert [one.spec.name for one in router.table.workers.values()] == [good.url]
        assert not any(router.process.router.tools.supervisor.failures.values())


async def test_worker_that_does_not_answer_its_probes_is_told_of_once(caplog):
    async with workers(hello) as [worker], routed(worker) as router:
        router.process.discovery.timeout_s = 0.05
        worker.hung = True
        before = router.process.discovery.failures
        with caplog.at_level(logging.WARNING):
            await until(lambda: router.process.discovery.failures > before + 3 * static.PATIENCE, "probes fail")
        assert [one.message for one in caplog.records].count("worker does not answer") == 1
        worker.hung = False
        await until(lambda: router.service.snapshot.mixed, "it is back")
