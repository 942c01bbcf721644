"""Start, drain, stop, the control port, and the program itself."""

import asyncio
import os
import re
import signal
import socket
import sys
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from forebay_router.metrics import FAMILIES
from forebay_router.options import OPTIONS
from forebay_router.settings import parse_settings
from tests.router.harness import ask, chat, request_bytes, routed, running, until
from tests.router.scripted import chat_chunk, hello, workers
from tests.support.bounds import NEVER_S

DOCS = Path(__file__).parents[2] / "docs" / "router.md"


async def slow(_asked, wire):
    await wire.events_head()
    for _ in range(10):
        await wire.event(chat_chunk("x"))
        await asyncio.sleep(0.05)
    await wire.event("[DONE]")
    await wire.end_chunks()


async def test_drain_lets_accepted_requests_finish_and_sends_clients_elsewhere():
    """C125: readiness fails first; accepted requests end whole; kept-alive clients are told to reconnect."""
    async with workers(slow) as [worker], running("--workers", worker.url, "--shutdown-delay", "300ms") as router:
        idle, busy, later = [await router.connect() for _ in range(3)]
        await busy.send(request_bytes(chat(stream=True)))
        await busy.read_head()
        await idle.send(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await idle.read()).status == 200
        await later.send(b"POST /v1/chat/completions HTTP/1.1\r\n")
        await until(
            lambda: any(one._reader.receiving for one in router.process.router.connections.live), "a request has begun"
        )
        router.process.on_signal()
        async with httpx.AsyncClient(timeout=NEVER_S) as control:
            await until(lambda: router.process.router.connections.draining, "draining")
            readiness = await control.get(router.control + "/readyz")
            assert (readiness.status_code, readiness.text) == (503, "draining\n")
            assert (await control.get(router.control + "/healthz")).status_code == 200
        assert await idle.at_end(), "idle connections are closed"
        newcomer = await router.connect()
        await newcomer.send(request_bytes(chat(stream=True)))
        sent = request_bytes(chat(stream=True)).partition(b"\r\n")[2]
        await later.send(sent)
        rest = b""
        while chunk := await busy.read_chunk():
            rest += chunk
        assert rest.endswith(b"[DONE]\n\n")
        for client in (newcomer, later):
            reply = await client.read()
            assert (reply.text(), reply.headers["connection"]) == ("x" * 10, "close")
        for client in (idle, busy, later, newcomer):
            await client.close()


async def test_held_request_is_still_placed_during_the_drain():
    """C125: discovery runs until the end."""
    async with workers(hello) as [worker], running("--workers", worker.url) as router:
        await worker.stop()
        await until(lambda: not router.table.workers, "the worker is away")
        asking = asyncio.create_task(ask(router, chat()))
        await until(lambda: router.stats.pending == 1, "held")
        router.process.on_signal()
        await worker.start()
        assert (await asking).status == 200


async def test_drain_limit_ends_what_is_left_with_an_error_event():
    """C124: beyond the limit clients get an error event, not a reset."""

    async def endless(_asked, wire):
        await wire.events_head()
        while True:
            await wire.event(chat_chunk("x"))
            await asyncio.sleep(0.02)

    async with workers(endless) as [worker], running("--workers", worker.url, "--drain-limit", "200ms") as router:
        asking = asyncio.create_task(ask(router, chat(stream=True)))
        await until(lambda: worker.asked, "it streams")
        router.process.on_signal()
        reply = await asking
        assert reply.error()["code"] == "shutdown"
        await until(lambda: worker.asked[0].aborted, "the worker is told to stop")


async def test_second_signal_does_not_wait():
    async def hang(_asked, _wire):
        await asyncio.sleep(30)

    async with workers(hang) as [worker], running("--workers", worker.url) as router:
        asking = asyncio.create_task(ask(router, chat()))
        await until(lambda: worker.asked, "it runs")
        router.process.on_signal()
        router.process.on_signal()
        reply = await asking
        assert (reply.status, reply.json["error"]["code"]) == (503, "shutdown")


async def test_metrics_are_valid_and_every_series_is_there_from_the_start():
    async with workers(hello) as [worker], routed(worker) as router, httpx.AsyncClient(timeout=NEVER_S) as control:
        text = (await control.get(router.control + "/metrics")).text
        families = {family.name: family for family in text_string_to_metric_families(text)}
        documented = {family.name.removesuffix("_total") for family in FAMILIES}
        assert documented <= families.keys()
        labels = {"namespace": "local", "model_service": "m"}
        for family in FAMILIES:
            samples = families[family.name.removesuffix("_total")].samples
            if set(family.labels) >= labels.keys():
                assert any(labels.items() <= sample.labels.items() for sample in samples), family.name
            for sample in samples:
                assert set(sample.labels) - {"le"} == set(family.labels)
        (target,) = families["forebay_router_objective_target"].samples
        (service,) = router.table.services.values()
        assert target.value == service.spec.objective.target
        before = len(text.splitlines())
        for _ in range(3):
            await ask(router, chat(stream=True))
        await router.no_lease_is_left()
        text = (await control.get(router.control + "/metrics")).text
        assert len(text.splitlines()) == before, "counting makes no new series"
        assert 'forebay_router_requests_total{namespace="local",model_service="m",verdict="good"} 3' in text
        assert (
            'forebay_router_workers{namespace="local",model_service="m",pool="mixed",role="Mixed",state="ready"} 1'
            in text
        )
        pool = 'namespace="local",model_service="m",pool="mixed",role="Mixed"'
        assert f'forebay_router_pool_requests_finished_total{{{pool},verdict="good"}} 3' in text


async def test_ttft_buckets_reach_ten_minutes():
    """C115: a long wait is never above the last finite bound."""
    async with workers(hello) as [worker], routed(worker) as router, httpx.AsyncClient(timeout=NEVER_S) as control:
        text = (await control.get(router.control + "/metrics")).text
        assert 'time_to_first_token_seconds_bucket{namespace="local",model_service="m",le="600.0"}' in text


async def test_state_shows_workers_and_loads():
    gate = asyncio.Event()

    async def script(asked, wire):
        await gate.wait()
        await hello(asked, wire)

    async with workers(script) as [worker], routed(worker) as router, httpx.AsyncClient(timeout=NEVER_S) as control:
        asking = asyncio.create_task(ask(router, chat()))
        await until(lambda: worker.asked, "it runs")
        state = (await control.get(router.control + "/state")).json()
        (service,) = state["services"]
        (seen,) = service["workers"]
        assert (state["leases"], service["in_flight"], seen["requests"], seen["state"]) == (1, 1, 1, "ready")
        gate.set()
        await asking


async def test_not_ready_before_the_workers_are_known():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        async with running("--workers", url, ready=False) as router, httpx.AsyncClient(timeout=NEVER_S) as control:
            assert (await control.get(router.control + "/readyz")).status_code == 503
            assert (await control.get(router.control + "/healthz")).status_code == 200
            assert (await control.get(router.url + "/health")).status_code == 503


async def test_program_serves_and_stops_on_sigterm():
    async with workers(hello) as [worker]:
        with socket.socket() as data, socket.socket() as control:
            data.bind(("127.0.0.1", 0))
            control.bind(("127.0.0.1", 0))
            ports = data.getsockname()[1], control.getsockname()[1]
        command = [
            sys.executable, "-m", "forebay_router", "--listen", f"127.0.0.1:{ports[0]}", "--control", f"127.0.0.1:{ports[1]}",
            "--workers", worker.url, "--access-log", "all",
        ]  # fmt: skip
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, env=dict(os.environ))
        try:
            async with httpx.AsyncClient(trust_env=False) as client:

                async def ready() -> bool:
                    try:
                        return (await client.get(f"http://127.0.0.1:{ports[1]}/readyz")).status_code == 200
                    except httpx.HTTPError:
                        return False

                async with asyncio.timeout(60):
                    while not await ready():  # noqa: ASYNC110 - another process
                        await asyncio.sleep(0.05)
                answer = await client.post(f"http://127.0.0.1:{ports[0]}/v1/chat/completions", json=chat())
                assert answer.status_code == 200
            process.send_signal(signal.SIGTERM)
            _, logged = await asyncio.wait_for(process.communicate(), 20)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0
        assert b'"message": "request"' in logged
        assert b"Traceback" not in logged


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give exactly one of"),
        (["--workers", "http://a:1", "--kubernetes"], "give exactly one of"),
        (["--prefill-workers", "http://a:1"], "--prefill-workers needs --decode-workers"),
        (["--workers", "a"], "--workers: 'a' is not a worker's address"),
        (["--workers", "http://a:1/v1"], "without a path"),
        (["--workers", "http://a:1", "--namespace", "n"], "--namespace works with --kubernetes only"),
        (["--workers", "http://a:1", "--listen", "8080"], "--listen: '8080' is not HOST:PORT"),
        (["--workers", "http://a:1", "--idle-timeout", "5"], "--idle-timeout: '5' is not a duration"),
        (["--workers", "http://a:1", "--idle-timeout", "0s"], "must be above zero"),
        (["--workers", "http://a:1", "--body-limit", "5MB"], "--body-limit: '5MB' is not a size"),
        (["--workers", "http://a:1", "--attempts", "0"], "--attempts: '0' is not a whole number from 1"),
        (["--workers", "http://a:1", "--upstream-idle", "6s"], "below the engine's keep-alive"),
        (["--workers", "http://a:1", "--objective-target", "99"], "--objective-target: '99' is not a share"),
        (["--workers", "http://a:1", "--access-log", "some"], "is none of off, errors, all"),
    ],
)
def test_wrong_setting_names_itself_and_the_fix(arguments, says, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_settings(arguments, {})
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_environment_stands_in_for_flags_and_flags_win(capsys):
    environment = {
        "FOREBAY_ROUTER_WORKERS": "http://a:1 http://b:2",
        "FOREBAY_ROUTER_HOLD_TIMEOUT": "10s",
        "FOREBAY_ROUTER_ATTEMPTS": "5",
    }
    settings = parse_settings(["--attempts", "2"], environment)
    assert [url for url, _ in settings.workers] == ["http://a:1", "http://b:2"]
    assert (settings.hold_timeout_s, settings.attempts) == (10.0, 2)
    with pytest.raises(SystemExit):
        parse_settings([], {**environment, "FOREBAY_ROUTER_HOLD_TIMEOUT": "ten"})
    assert "FOREBAY_ROUTER_HOLD_TIMEOUT: 'ten' is not a duration" in capsys.readouterr().err
    assert parse_settings([], {"FOREBAY_ROUTER_KUBERNETES": "true"}).shutdown_delay_s == 5.0


def test_documentation_names_every_setting_and_only_real_metrics():
    text = DOCS.read_text()
    for option in OPTIONS:
        assert f"`{option.flag}`" in text, option.flag
    named = set(re.findall(r"`(forebay_router_[a-z_]+)`", text))
    assert named <= {family.name for family in FAMILIES}


def test_documentation_names_the_tests_of_every_field_case():
    """The table in the docs and the ids in the tests' docstrings are the same."""
    shown = set(re.findall(r"^\| (C\d{3}) \|", DOCS.read_text(), re.MULTILINE))
    tested = set()
    for path in Path(__file__).parent.rglob("test_*.py"):
        tested |= set(re.findall(r"\bC\d{3}\b", path.read_text()))
    assert shown == tested
