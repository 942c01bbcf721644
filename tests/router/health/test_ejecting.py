"""Workers that fail or hang while they call themselves healthy, before real connections."""

import asyncio
import time
from dataclasses import replace

import httpx
import pytest

from forebay_router.health.breaker import RESTS, Cause, Condition, Rest
from forebay_router.health.frozen import Limits
from forebay_router.table import WorkerState
from tests.router.harness import ask, chat, request_bytes, routed, routed_pairs, until
from tests.router.scripted import completion, hello, workers
from tests.support.bounds import NEVER_S

QUICK = Limits(quiet_s=0.3, still_s=0.4, blind_s=1.0)
FROZEN = b'vllm:num_requests_running{engine="0"} 2.0\nvllm:generation_tokens_total{engine="0"} 777.0\n'


async def broken(_asked, wire):
    await wire.json({"error": {"message": "broken", "type": "InternalServerError", "param": None, "code": 500}}, 500)


async def hang(_asked, wire):
    """The API process takes a request, and its engine does nothing."""
    await wire.events_head()
    await asyncio.sleep(60)


def quick(router) -> None:
    """Watch in short steps."""
    router.process.watch.limits = QUICK
    router.process.watch.round_s = 0.05
    router.process.watch.sign_timeout_s = 0.3
    router.process.watch.watched.clear()


def worker_of(router, scripted):
    return next(one for one in router.table.workers.values() if one.spec.port == scripted.port)


async def state_of(router):
    async with httpx.AsyncClient(timeout=NEVER_S) as client:
        (service,) = (await client.get(router.control + "/state")).json()["services"]
        return service


async def left_alone(router) -> list[dict]:
    async with httpx.AsyncClient(timeout=NEVER_S) as client:
        found: list[dict] = (await client.get(router.control + "/ejected")).json()["workers"]
        return found


async def metrics_of(router) -> dict[str, float]:
    async with httpx.AsyncClient(timeout=NEVER_S) as client:
        text = (await client.get(router.control + "/metrics")).text
    samples = (line.rpartition(" ") for line in text.splitlines() if line.startswith("forebay_"))
    return {name: float(value) for name, _, value in samples}


@pytest.fixture
def long_rest(monkeypatch):
    """No rest is over before a test says so, however long the machine stands still."""
    for cause in (Cause.FAILING, Cause.FROZEN):
        monkeypatch.setitem(RESTS, cause, Rest(LONG_S, 2 * LONG_S))


LONG_S = 3600.0
POOL = 'namespace="local",model_service="m",pool="mixed",role="Mixed"'


@pytest.mark.usefixtures("long_rest")
async def test_failing_worker_is_left_alone_and_comes_back_by_itself():
    """C068: after its rest one request tries it, and it is used again without help."""
    async with workers(broken, hello) as [bad, good], routed(bad, good) as router:
        for _ in range(60):
            assert (await ask(router, chat())).status == 200
        assert len(bad.asked) == 5, "left alone after five in a row"
        ejected = worker_of(router, bad)
        told = next(one for one in (await state_of(router))["workers"] if one["uid"] == ejected.spec.uid)
        assert told["health"]["condition"] == "ejected"
        assert told["health"]["cause"] == "failing"
        assert "500" in told["health"]["detail"]
        assert LONG_S - NEVER_S < told["health"]["rest_left_s"] <= LONG_S
        (named,) = await left_alone(router)
        assert (named["namespace"], named["model_service"], named["pool"]) == ("local", "m", "mixed")
        assert (named["worker"], named["condition"], named["cause"]) == (ejected.spec.name, "ejected", "failing")
        assert "500" in named["detail"]
        samples = await metrics_of(router)
        assert samples[f'forebay_router_workers_ejected{{{POOL},cause="failing"}}'] == 1
        assert samples[f'forebay_router_ejections_total{{{POOL},cause="failing"}}'] == 1
        assert samples[f'forebay_router_ejections_total{{{POOL},cause="frozen"}}'] == 0, "zero series exist"
        bad.script = hello
        ejected.health.until_s = time.monotonic()
        await until(lambda: ejected.health.condition is Condition.PROBING, "its rest is over")

        async def served() -> bool:
            await ask(router, chat())
            return ejected.health.sound

        while not await served():
            assert len(bad.asked) <= 6
        assert (await metrics_of(router))[f'forebay_router_workers_ejected{{{POOL},cause="failing"}}'] == 0


@pytest.mark.usefixtures("long_rest")
async def test_trial_that_fails_costs_the_client_nothing():
    async with workers(broken, hello) as [bad, good], routed(bad, good) as router:
        ejected = worker_of(router, bad)
        while ejected.health.sound:
            assert (await ask(router, chat())).status == 200
        ejected.health.until_s = time.monotonic()
        await until(lambda: ejected.health.condition is Condition.PROBING, "its rest is over")
        while ejected.health.condition is not Condition.EJECTED:
            assert (await ask(router, chat())).status == 200
        assert len(bad.asked) == 6
        assert ejected.health.until_s - time.monotonic() > 1.5 * LONG_S, "a longer rest"


async def test_only_worker_is_never_left_alone():
    async with workers(broken) as [worker], routed(worker) as router:
        for _ in range(20):
            assert (await ask(router, chat())).status == 500
        assert len(worker.asked) == 20, "its own answers are better than none"
        worker.script = hello
        assert (await ask(router, chat())).status == 200


@pytest.mark.usefixtures("long_rest")
async def test_streams_that_break_count_too():
    """A failure after the answer has begun cannot be made good; the worker is left alone all the same."""

    async def cut(_asked, wire):
        await wire.events_head()
        await wire.event({"choices": [{"index": 0, "delta": {"content": "x"}}]})
        await asyncio.sleep(0.02)
        wire.reset()

    async with workers(cut, hello) as [bad, good], routed(bad, good) as router:
        for _ in range(60):
            await ask(router, chat(stream=True))
        assert len(bad.asked) == 5
        assert worker_of(router, bad).health.cause is Cause.FAILING


@pytest.mark.usefixtures("long_rest")
async def test_prefill_worker_that_heals_is_used_again():
    """C067: while one prefill worker is left alone the other does it all; decode gets nothing that was not prefilled."""

    async def prefill(asked, wire):
        await wire.json(completion("", kv_transfer_params={"do_remote_prefill": True, "remote_block_ids": [1]}))

    seen = []

    async def decode(asked, wire):
        seen.append(asked.json.get("kv_transfer_params"))
        await hello(asked, wire)

    async with workers(broken, prefill, decode) as [bad, good, writer], routed_pairs([bad, good], [writer]) as router:
        ejected = worker_of(router, bad)
        for _ in range(40):
            assert (await ask(router, chat())).status == 200
        assert ejected.health.condition is Condition.EJECTED
        assert len(bad.asked) == 5
        assert all(params and params["remote_block_ids"] == [1] for params in seen)
        bad.script = prefill
        ejected.health.until_s = time.monotonic()
        await until(lambda: ejected.health.condition is Condition.PROBING, "its rest is over")
        while not ejected.health.sound:
            assert (await ask(router, chat())).status == 200
        assert len(bad.asked) == 6, "one request tried it"


async def test_frozen_worker_is_found_and_its_requests_fail_over():
    """C064: /health is green, the counters stand still; what waits there is answered by another, and it is left alone."""
    async with workers(hang, hello) as [frozen, good], routed(frozen, good) as router:
        frozen.metrics = lambda: FROZEN
        quick(router)
        asking = [asyncio.create_task(ask(router, chat(stream=True))) for _ in range(8)]
        await until(lambda: frozen.asked, "some wait there")
        replies = await asyncio.gather(*asking)
        assert [(reply.status, reply.text()) for reply in replies] == [(200, "hello")] * 8
        left = worker_of(router, frozen)
        assert (left.health.condition, left.health.cause) == (Condition.EJECTED, Cause.FROZEN)
        assert router.stats.retries["frozen"] == sum("stream" in one.json for one in frozen.asked)
        assert "stood still" in left.health.detail
        samples = await metrics_of(router)
        assert samples[f'forebay_router_workers_ejected{{{POOL},cause="frozen"}}'] == 1


async def test_a_worker_that_was_seen_before_it_had_an_address_is_watched_at_the_one_it_got():
    """A pod is listed without an IP first; asked there, its counters could never be seen, nor a sign of life."""
    async with workers(hang, hello) as [frozen, good], routed(frozen, good) as router:
        spec = worker_of(router, frozen).spec
        router.table.put_worker(replace(spec, host="", state=WorkerState.NOT_READY), time.monotonic())
        quick(router)
        await router.process.watch.round()
        router.table.put_worker(spec, time.monotonic())
        frozen.metrics = lambda: FROZEN
        replies = await asyncio.gather(*(ask(router, chat(stream=True)) for _ in range(8)))
        assert [reply.text() for reply in replies] == ["hello"] * 8
        assert "stood still" in worker_of(router, frozen).health.detail


@pytest.mark.usefixtures("long_rest")
async def test_frozen_worker_comes_back_after_a_real_success_only():
    """C064: the router asks it for a token itself; no client waits for that."""
    async with workers(hang, hello) as [frozen, good], routed(frozen, good) as router:
        frozen.metrics = lambda: FROZEN
        quick(router)
        left = worker_of(router, frozen)
        while left.health.sound:
            await ask(router, chat(stream=True))
        got = len(frozen.asked)
        left.health.until_s = time.monotonic()
        await until(lambda: len(frozen.asked) == got + 1, "it is asked for a sign of life")
        assert frozen.asked[-1].path == "/v1/completions"
        assert frozen.asked[-1].json["max_tokens"] == 1
        for _ in range(5):
            assert (await ask(router, chat(stream=True))).text() == "hello"
        assert len(frozen.asked) == got + 1, "no client's request goes there meanwhile"
        await until(lambda: frozen.asked[-1].aborted, "the router has waited long enough")
        frozen.script = hello
        left.health.until_s = time.monotonic()
        await until(lambda: left.health.condition is Condition.PROBING, "it has answered")
        while not left.health.sound:
            assert (await ask(router, chat(stream=True))).text() == "hello"


async def test_slow_worker_whose_counters_move_is_left_in():
    """C064, the control: a prompt that takes long is no freeze."""
    count = 0

    def moving() -> bytes:
        nonlocal count
        count += 1
        return b"vllm:kv_cache_usage_perc 0.%d\n" % count

    async def slow(asked, wire):
        await until(lambda: count > 20, "it was looked at, for longer than one may be quiet and still")
        await hello(asked, wire)

    async with workers(slow, hello) as [slow_one, good], routed(slow_one, good) as router:
        slow_one.metrics = moving
        quick(router)
        replies = await asyncio.gather(*(ask(router, chat(stream=True)) for _ in range(6)))
        assert [reply.text() for reply in replies] == ["hello"] * 6
        assert worker_of(router, slow_one).health.ejections == 0


async def test_last_worker_is_not_ejected_for_being_frozen():
    async with (
        workers(hang) as [worker],
        routed(worker, flags=("--first-byte-timeout", "1500ms", "--hold-timeout", "200ms")) as router,
    ):
        worker.metrics = lambda: FROZEN
        quick(router)
        reply = await ask(router, chat(stream=True))
        assert (reply.status, reply.json["error"]["code"]) == (503, "no_ready_worker")
        assert router.stats.retries["first_byte_timeout"] == 1
        assert worker_of(router, worker).health.sound


async def test_stopped_worker_is_left_alone_though_it_shows_no_counters():
    """C019: a process that is stopped accepts connections and answers nothing, its /metrics neither."""
    async with workers(hang, hello) as [stopped, good], routed(stopped, good) as router:
        quick(router)
        left = worker_of(router, stopped)
        asking = []
        while left.health.sound:
            asking.append(asyncio.create_task(ask(router, chat(stream=True))))
            await asyncio.sleep(0.05)
            assert len(asking) < 200, "it is left alone within seconds"
        assert [reply.text() for reply in await asyncio.gather(*asking)] == ["hello"] * len(asking)
        assert left.health.cause is Cause.FROZEN


@pytest.mark.parametrize("reads", [True, False])
async def test_client_that_does_not_read_is_not_held_against_the_worker(reads):
    async def flood(_asked, wire):
        await wire.events_head()
        for _ in range(400):
            await wire.event({"choices": [{"index": 0, "delta": {"content": "z" * 8192}}]})
        await asyncio.sleep(0 if reads else 30)

    async with (
        workers(flood, hello) as [worker, other],
        routed(worker, other, flags=("--client-request", "2s")) as router,
    ):
        worker.metrics = other.metrics = lambda: FROZEN
        quick(router)
        clients = [await router.connect() for _ in range(4)]
        for client in clients:
            client.writer.transport.pause_reading()
            await client.send(request_bytes(chat(stream=True)))
        await until(lambda: worker.asked, "it floods")
        await asyncio.sleep(1.2)  # more than quiet and still together: time itself is what is tested
        assert worker_of(router, worker).health.ejections == 0
        for client in clients:
            client.leave()
