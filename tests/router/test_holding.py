"""Requests for which there is no worker yet."""

import asyncio
import time
from dataclasses import replace

import pytest

from forebay_router.table import WorkerState
from tests.router.harness import ask, chat, request_bytes, routed, running, until
from tests.router.scripted import ScriptedWorker, completion, hello, workers
from tests.support.bounds import NEVER_S, in_time, quickest_of_three


async def test_unknown_model_is_404():
    async with workers(hello) as [worker], routed(worker) as router:
        reply = await ask(router, {"model": "nobody", "messages": []})
        assert (reply.status, reply.json["error"]["code"], reply.json["error"]["param"]) == (
            404,
            "model_not_found",
            "model",
        )


async def test_unknown_models_make_no_series():
    """C053: they count as client errors under empty labels."""
    async with workers(hello) as [worker], routed(worker) as router:
        before = len(await _series(router))
        for number in range(200):
            assert (await ask(router, {"model": f"nobody-{number}"})).status == 404
        after = await _series(router)
        assert len(after) - before < 5
        assert 'forebay_router_responses_total{namespace="",model_service="",code="404"} 200' in after
        assert router.verdicts() == {"good": 0, "bad": 0, "abandoned": 0}


async def _series(router) -> list[str]:
    import httpx

    async with httpx.AsyncClient(timeout=NEVER_S) as client:
        text = (await client.get(router.control + "/metrics")).text
    return [line for line in text.splitlines() if line.startswith("forebay_")]


async def test_request_without_model_goes_to_the_only_service():
    async with workers(hello) as [worker], routed(worker) as router:
        assert (await ask(router, {"messages": []})).status == 200


async def test_request_is_held_until_a_worker_is_ready():
    """C055: with none ready, held up to a documented cap and then served."""
    async with workers(hello) as [worker], routed(worker) as router:
        await worker.stop()
        await until(lambda: not router.table.workers, "the worker is away")
        asking = [asyncio.create_task(ask(router, chat())) for _ in range(20)]
        await until(lambda: router.stats.pending == 20, "held")
        await worker.start()
        assert [reply.status for reply in await asyncio.gather(*asking)] == [200] * 20


@quickest_of_three
async def test_held_request_ends_with_503_and_retry_after():
    """C055, C062: an OpenAI-shaped 503 that says that no worker is ready; never an open-ended hang."""
    async with workers(hello) as [worker], routed(worker, flags=("--hold-timeout", "300ms")) as router:
        await worker.stop()
        await until(lambda: not router.table.workers, "the worker is away")
        started_s = time.monotonic()
        reply = await ask(router, chat(stream=True))
        in_time(time.monotonic() - started_s, 2)
        assert (reply.status, reply.json["error"]["code"]) == (503, "no_ready_worker")
        assert int(reply.headers["retry-after"]) >= 1
        assert (router.verdicts()["bad"], router.stats.failures["no_worker"]) == (1, 1)


async def test_queue_of_held_requests_is_bounded():
    async with workers(hello) as [worker], routed(worker, flags=("--hold-limit", "3")) as router:
        await worker.stop()
        await until(lambda: not router.table.workers, "the worker is away")
        asking = [asyncio.create_task(ask(router, chat())) for _ in range(3)]
        await until(lambda: router.stats.pending == 3, "three are held")
        reply = await ask(router, chat())
        assert (reply.status, reply.json["error"]["code"]) == (503, "queue_full")
        assert "retry-after" in reply.headers
        await worker.start()
        assert [reply.status for reply in await asyncio.gather(*asking)] == [200] * 3


async def test_worker_limit_holds_the_rest_back_in_order():
    """C122: never more than the limit in flight on the first worker; the rest is served as room appears."""
    most = now = 0
    served = []

    async def script(asked, wire):
        nonlocal most, now
        now += 1
        most = max(most, now)
        served.append(asked.json["seed"])
        await asyncio.sleep(0.01)
        now -= 1
        await wire.json(completion("x"))

    async with workers(script) as [worker], routed(worker, flags=("--worker-limit", "4")) as router:
        asking = []
        for number in range(40):
            asking.append(asyncio.create_task(ask(router, chat(seed=number))))
            await until(lambda number=number: router.stats.arrived == number + 1, "it arrives")
        assert [reply.status for reply in await asyncio.gather(*asking)] == [200] * 40
        assert most <= 4
        assert sorted(served[:4]) == [0, 1, 2, 3]
        displaced = [abs(place - number) for place, number in enumerate(served)]
        assert max(displaced) <= 4, "first come, first served"


async def test_model_of_a_worker_that_has_not_answered_yet_is_held_not_refused():
    """Unknown is not zero: until every worker has told its models, a name may still turn up."""
    late = ScriptedWorker(hello)
    late.healthy = False
    await late.start()
    async with running("--workers", late.url, ready=False) as router:
        asking = asyncio.create_task(ask(router, chat()))
        await until(lambda: router.process.router.connections.busy, "it arrives")
        late.healthy = True
        assert (await asking).status == 200
    await late.stop()


async def test_models_are_listed_as_workers_give_them():
    """C050: all fields, one entry a name, stable `created`."""
    cards = (
        {
            "id": "m",
            "object": "model",
            "created": 17,
            "owned_by": "vllm",
            "root": "/models/m",
            "parent": None,
            "max_model_len": 262144,
        },
        {
            "id": "adapter",
            "object": "model",
            "created": 18,
            "owned_by": "vllm",
            "root": "/a",
            "parent": "m",
            "max_model_len": None,
        },
    )
    later = tuple({**card, "created": card["created"] + 100} for card in cards)
    async with workers(hello, hello) as [first, second]:
        first.models, second.models = cards, later
        async with routed(first, second) as router:
            client = await router.connect()
            for _ in range(2):
                await client.send(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
                listed = (await client.read()).json
                assert listed["object"] == "list"
                assert listed["data"] == list(cards)
            await client.send(b"GET /v1/models/adapter HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await client.read()).json == cards[1]
            await client.send(b"GET /v1/models/none HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await client.read()).status == 404
            await client.close()
            reply = await ask(router, {**chat(), "model": "adapter"})
            assert reply.status == 200
            assert router.service.spec.key.name == "m"


@pytest.mark.parametrize("path", ["/health", "/ping"])
async def test_health_of_the_data_port_is_readiness(path):
    async with workers(hello) as [worker], routed(worker) as router:
        client = await router.connect()
        await client.send(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert (await client.read()).status == 200
        await client.close()


async def test_balance_survives_aborts_and_a_restart():
    """C010: 300 aborts leak no load; a restarted worker gets its share, not everything."""

    async def slow_or_quick(asked, wire):
        if asked.json.get("max_tokens") == 1:
            await asyncio.sleep(0.01)
            await wire.json(completion("x"))
        else:
            await asyncio.sleep(30)

    async with workers(slow_or_quick, slow_or_quick, slow_or_quick) as made, routed(*made) as router:
        for _ in range(10):
            clients = [await router.connect() for _ in range(30)]
            for client in clients:
                await client.send(request_bytes(chat()))
            await until(lambda: len(router.table.leases) == 30, "in flight")
            for client in clients:
                client.leave()
            await until(lambda: not router.table.leases, "all left")
        await made[1].stop()
        await until(lambda: len(router.table.workers) == 2, "B is away")
        await made[1].start()
        await until(lambda: len(router.table.workers) == 3, "B is back")
        before = [len(worker.asked) for worker in made]
        gate = asyncio.Semaphore(12)

        async def one() -> None:
            async with gate:
                assert (await ask(router, chat(max_tokens=1))).status == 200

        await asyncio.gather(*(one() for _ in range(300)))
        got = [len(worker.asked) - start for worker, start in zip(made, before, strict=True)]
        assert all(80 <= count <= 120 for count in got), got


async def test_held_request_is_served_by_a_service_that_was_deleted_and_made_again():
    """It waits for the name, not for the object that bore it."""
    async with workers(hello) as [worker], routed(worker, flags=("--probe-interval", "1h")) as router:
        table = router.table
        service, (spec,) = router.service, [one.spec for one in table.workers.values()]
        table.put_worker(replace(spec, state=WorkerState.NOT_READY), 0.0)
        asking = asyncio.create_task(ask(router, chat()))
        await until(lambda: service.stats.pending == 1, "held")
        table.drop_service(service.spec.key)
        table.put_service(service.spec)
        table.put_worker(spec, 0.0)
        assert (await asking).status == 200
