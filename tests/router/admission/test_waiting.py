"""Requests that wait for room, before real connections."""

import asyncio
import time
from contextlib import asynccontextmanager

import httpx
import pytest

from forebay_router.speed import Origin, Seed
from tests.router.harness import Reply, ask, chat, request_bytes, routed, until
from tests.router.scripted import completion, hello, workers
from tests.support.bounds import NEVER_S, in_time, quickest_of_three

PATH = "/v1/chat/completions"
WAITING = "waiting"
"""Name of the tasks of clients that wait."""
ONE = ("--worker-limit", "1")


class Gate:
    """A worker's script that answers when it is told to, and remembers who was served."""

    def __init__(self) -> None:
        self.served: list[str] = []
        self.open = asyncio.Event()
        self.turns = asyncio.Semaphore(0)

    async def __call__(self, asked, wire) -> None:
        self.served.append(asked.json["user"])
        if not self.open.is_set():
            await self.turns.acquire()
        await wire.json(completion("x"))

    def finish(self) -> None:
        self.open.set()
        self.turns.release()


@asynccontextmanager
async def busy(*flags: str):
    """A router before one worker that has one request and room for no other."""
    gate = Gate()
    async with workers(gate) as [worker], routed(worker, flags=(*ONE, *flags)) as router:
        running = asyncio.create_task(ask(router, chat(user="first")))
        await until(lambda: gate.served, "it is busy")
        try:
            yield router, gate
        finally:
            gate.finish()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(running, *(task for task in others if task.get_name() == WAITING))


async def wait_in(router, name: str, *, stream: bool = False, **headers: str) -> asyncio.Task[Reply]:
    """A request that waits, once it does."""
    before = router.stats.pending
    given = {key.replace("_", "-"): value for key, value in headers.items()}
    task = asyncio.create_task(ask(router, chat(user=name, stream=stream), headers=given), name=WAITING)
    await until(lambda: router.stats.pending == before + 1 or task.done(), "it waits")
    return task


async def test_high_goes_before_normal_before_low():
    async with busy() as (router, gate):
        waiting = [await wait_in(router, name, x_forebay_priority=name) for name in ("low", "normal", "high")]
        gate.finish()
        assert [reply.status for reply in await asyncio.gather(*waiting)] == [200] * 3
        assert gate.served == ["first", "high", "normal", "low"]


async def test_priority_of_the_body_counts_as_well():
    async with busy() as (router, gate):
        asking = []
        for name, fields in (("low", {"priority": 3}), ("flex", {"service_tier": "flex"}), ("high", {"priority": -1})):
            asking.append(asyncio.create_task(ask(router, chat(user=name, **fields))))
            await until(lambda: router.stats.pending == len(asking), "it waits")
        gate.finish()
        await asyncio.gather(*asking)
        assert gate.served == ["first", "high", "low", "flex"]


async def test_tenant_with_one_request_does_not_wait_for_all_of_another_s():
    async with busy() as (router, gate):
        waiting = [await wait_in(router, f"flood {number}", x_forebay_tenant="flood") for number in range(10)]
        waiting.append(await wait_in(router, "quiet", x_forebay_tenant="quiet"))
        gate.finish()
        assert [reply.status for reply in await asyncio.gather(*waiting)] == [200] * 11
        assert gate.served.index("quiet") <= 2


async def test_full_queue_refuses_who_has_most_in_it():
    async with busy("--hold-limit", "4") as (router, gate):
        flood = [await wait_in(router, f"flood {number}", x_forebay_tenant="flood") for number in range(4)]
        quiet = await wait_in_place(router, "quiet", flood[3])
        evicted = await flood[3]
        assert (evicted.status, evicted.json["error"]["code"]) == (429, "queue_share_exceeded")
        assert int(evicted.headers["retry-after"]) >= 1
        again = await ask(router, chat(user="more"), headers={"x-forebay-tenant": "flood"})
        assert again.status == 429
        gate.finish()
        assert [reply.status for reply in await asyncio.gather(*flood[:3], quiet)] == [200] * 4
        assert router.stats.failures["queue_full"] == 2


async def wait_in_place(router, name: str, other: asyncio.Task[Reply]) -> asyncio.Task[Reply]:
    """A request that waits where another has to go."""
    task = asyncio.create_task(ask(router, chat(user=name), headers={"x-forebay-tenant": name}))
    await until(other.done, "another has to go")
    return task


async def test_full_queue_of_one_tenant_is_503():
    async with busy("--hold-limit", "1") as (router, _):
        await wait_in(router, "a")
        refused = await ask(router, chat(user="b"))
        assert (refused.status, refused.json["error"]["code"]) == (503, "queue_full")


async def test_bytes_that_wait_are_bounded():
    async with busy("--hold-bytes", "1KiB") as (router, _):
        await wait_in(router, "x" * 600)
        refused = await ask(router, chat(user="y" * 600))
        assert (refused.status, refused.json["error"]["code"]) == (503, "queue_full")


@quickest_of_three
async def test_request_that_cannot_be_in_time_is_refused_at_once():
    """By the predicted wait: its own tenant's cost in the queue over the rate at which that is served."""
    async with busy() as (router, gate):
        waiting = [await wait_in(router, f"w{number}") for number in range(3)]
        line = router.process.router.tools.placing.pending.line_of(router.service)
        line.drain.begin(time.monotonic(), line.queue.bands[0].cost / 100)
        started_s = time.monotonic()
        refused = await ask(router, chat(user="late"), headers={"x-forebay-timeout": "20s"})
        in_time(time.monotonic() - started_s, 2)
        assert (refused.status, refused.json["error"]["code"]) == (503, "deadline_unreachable")
        assert int(refused.headers["retry-after"]) == 60, "capped: official clients ignore longer ones"
        assert router.stats.failures["deadline"] == 1
        patient = await wait_in(router, "patient", x_forebay_timeout="1000s")
        gate.finish()
        assert [reply.status for reply in await asyncio.gather(*waiting, patient)] == [200] * 4
        assert "late" not in gate.served


async def test_retry_after_is_the_predicted_wait():
    async with busy("--hold-limit", "3") as (router, _):
        for number in range(3):
            await wait_in(router, f"w{number}")
        line = router.process.router.tools.placing.pending.line_of(router.service)
        line.drain.begin(time.monotonic(), line.queue.bands[0].cost / 17)
        refused = await ask(router, chat(user="late"))
        assert refused.headers["retry-after"] in {"17", "18"}


@quickest_of_three
async def test_request_whose_time_is_over_while_it_waits_is_told_so():
    async with busy() as (router, gate):
        started_s = time.monotonic()
        refused = await ask(router, chat(user="late"), headers={"x-forebay-timeout": "300ms"})
        took_s = time.monotonic() - started_s
        assert took_s > 0.2
        in_time(took_s, 3)
        assert (refused.status, refused.json["error"]["code"]) == (503, "deadline_unreachable")
        assert gate.served == ["first"]


async def test_anthropic_client_gets_its_own_shape_of_error():
    async with busy("--hold-limit", "1") as (router, _):
        await wait_in(router, "a")
        refused = await ask(router, {"model": "m", "user": "b", "messages": []}, "/v1/messages")
        assert (refused.status, refused.json["error"]["type"]) == (503, "overloaded_error")
        assert "retry-after" in refused.headers


@quickest_of_three
async def test_wait_for_room_is_as_long_as_for_a_first_byte():
    async with busy("--hold-timeout", "100ms", "--first-byte-timeout", "700ms") as (router, _):
        started_s = time.monotonic()
        refused = await ask(router, chat(user="late", stream=True))
        took_s = time.monotonic() - started_s
        assert took_s > 0.6
        in_time(took_s, 3)
        assert (refused.status, refused.json["error"]["code"]) == (503, "overloaded")
        assert router.stats.failures["overloaded"] == 1


async def test_client_that_leaves_the_queue_costs_the_workers_nothing():
    async with busy() as (router, gate):
        client = await router.connect()
        await client.send(request_bytes(chat(user="gone")))
        await until(lambda: router.stats.pending == 1, "it waits")
        client.leave()
        await until(lambda: router.stats.pending == 0, "its place is free")
        waiting = await wait_in(router, "next")
        gate.finish()
        assert (await waiting).status == 200
        assert gate.served == ["first", "next"]


@pytest.mark.parametrize(("header", "value"), [("x-forebay-priority", "urgent"), ("x-forebay-timeout", "soon")])
async def test_header_of_ours_that_cannot_be_read_is_a_client_error(header, value):
    async with workers(hello) as [worker], routed(worker) as router:
        reply = await ask(router, chat(), headers={header: value})
        assert (reply.status, reply.json["error"]["param"]) == (400, header)
        assert not worker.asked


async def test_answer_that_the_client_does_not_wait_for_is_given_up():
    """Its time limit holds on the worker too, is nobody's failure but the request's, and no other worker is asked."""

    async def slow(_asked, wire):
        await asyncio.sleep(30)

    async with workers(slow, slow) as made, routed(*made) as router:
        for _ in range(8):
            reply = await ask(router, chat(stream=True), headers={"x-stainless-read-timeout": "0.1"})
            assert (reply.status, reply.json["error"]["code"]) == (504, "deadline")
        assert sum(len(worker.asked) for worker in made) == 8
        assert all(worker.health.sound and not worker.health.failures for worker in router.table.workers.values())
        await until(lambda: all(asked.aborted for worker in made for asked in worker.asked), "the engines stop")


async def test_never_more_than_the_limit_on_the_first_worker():
    """C122: 700 requests at once, a limit of 8, the second worker comes later; nobody gets a 502."""
    most = [0, 0]
    now = [0, 0]

    def script(index: int):
        async def run(_asked, wire):
            now[index] += 1
            most[index] = max(most[index], now[index])
            await asyncio.sleep(0.02)
            now[index] -= 1
            await wire.json(completion("x"))

        return run

    flags = ("--worker-limit", "8", "--hold-limit", "300")
    async with workers(script(0), script(1)) as [first, second], routed(first, second, flags=flags) as router:
        await first.stop()
        await second.stop()
        await until(lambda: not router.table.workers, "the pool is at zero")
        asking = [asyncio.create_task(ask(router, chat(user=str(number)))) for number in range(400)]
        await until(lambda: router.stats.arrived == 400, "they have arrived")
        await until(lambda: router.stats.pending == 300, "held")
        await first.start()
        await until(lambda: now[0] == 8, "the first worker is full")
        await second.start()
        replies = await asyncio.gather(*asking)
        assert sorted({reply.status for reply in replies}) == [200, 503]
        assert sum(reply.status == 200 for reply in replies) == 300
        assert all("retry-after" in reply.headers for reply in replies if reply.status == 503)
        assert max(most) <= 8
        assert most[1] > 0


SEED = Seed(0.001, 1 / 1000, 0.001, 0.0, Origin.PLANNED)
"""1,000 prompt tokens a second."""


def measured(router) -> None:
    """Make the pool's speed known, as many requests would have done."""
    for speed in router.service.speeds.values():
        speed.plan(SEED)
        speed.first_token.seen = 1000


def long_chat(number: int):
    """About 350 tokens that no other has, so about 0.35 s."""
    return chat(stream=True, messages=[{"role": "user", "content": f"{number} " + f"{number:03d} " * 350}])


async def test_request_waits_here_while_every_engine_has_more_than_it_can_do_in_time():
    """And goes when the prompts queued there have come down to half of the objective's time: no event is needed for that."""

    async def slow(asked, wire):
        await asyncio.sleep(30)

    async with workers(slow) as [worker], routed(worker, flags=("--objective-ttft", "1s")) as router:
        measured(router)
        clients = []
        for number in range(1, 6):
            client = await router.connect()
            clients.append(client)
            await client.send(request_bytes(long_chat(number)))
            await until(lambda number=number: router.stats.arrived == number, "it arrives")
        await until(lambda: len(worker.asked) == 3, "no more than fit half of the objective's time, and the one on top")
        assert router.stats.pending == 2
        for client in clients:
            client.leave()
        await until(lambda: not router.table.leases, "all left")


async def test_waiting_request_goes_when_a_first_token_comes():
    first_tokens = asyncio.Event()

    async def slow(asked, wire):
        await first_tokens.wait()
        await wire.tokens("x")

    async with workers(slow) as [worker], routed(worker, flags=("--objective-ttft", "1s")) as router:
        measured(router)
        asking = [asyncio.create_task(ask(router, long_chat(number))) for number in range(6)]
        await until(lambda: router.stats.pending >= 3, "the rest waits")
        first_tokens.set()
        assert [reply.text() for reply in await asyncio.gather(*asking)] == ["x"] * 6


PACED = Seed(0.001, 1e-5, 0.001, 0.006, Origin.PLANNED)
"""Four sequences keep to PACE."""
PACE = ("--objective-tpot", "25ms")


def paced(router) -> None:
    """Make the pool's speed known, as many even answers would have done."""
    for speed in router.service.speeds.values():
        speed.plan(PACED)
        speed.first_token.seen = speed.output_token.seen = 1000
        speed.unevenness = 1e-4


async def in_flight(router, worker, count: int) -> list[asyncio.Task[Reply]]:
    made = [
        asyncio.create_task(ask(router, chat(user=str(number), stream=True)), name=WAITING) for number in range(count)
    ]
    await until(lambda: router.stats.arrived == count, "they arrive")
    return made


async def test_request_waits_here_while_every_worker_runs_as_many_as_it_can_in_time():
    """And is told why, by /state and to whoever asks what would be done; it goes when one of them ends."""
    turns = asyncio.Semaphore(0)

    async def answer(asked, wire):
        await turns.acquire()
        await wire.tokens("y")

    async with workers(answer) as [worker], routed(worker, flags=PACE) as router:
        paced(router)
        asking = await in_flight(router, worker, 6)
        await until(lambda: len(worker.asked) == 4, "as many as run in time")
        assert router.stats.pending == 2
        async with httpx.AsyncClient(timeout=NEVER_S) as client:
            (service,) = (await client.get(router.control + "/state")).json()["services"]
            told = (await client.post(router.control + "/explain", params={"path": PATH}, json=chat())).json()
        assert told["held"] == "others wait"
        assert (
            service["queue"]["priorities"]["normal"]["because"]
            == "every worker runs as many requests as it can in time"
        )
        turns.release()
        await until(lambda: len(worker.asked) == 5, "one has ended, the next one goes")
        assert router.stats.pending == 1
        for _ in range(5):
            turns.release()
        assert {reply.status for reply in await asyncio.gather(*asking)} == {200}


async def test_request_that_is_due_goes_although_it_slows_the_others_down():
    """An objective that cannot be kept makes nobody wait for ever."""

    async def answer(asked, wire):
        await asyncio.sleep(30)

    async with workers(answer) as [worker], routed(worker, flags=(*PACE, "--first-byte-timeout", "1s")) as router:
        paced(router)
        asking = await in_flight(router, worker, 4)
        await until(lambda: len(worker.asked) == 4, "as many as run in time")
        asking.append(asyncio.create_task(ask(router, chat(user="4", stream=True)), name=WAITING))
        await until(lambda: router.stats.pending == 1, "it waits")
        await until(lambda: len(worker.asked) == 5, "for half of the time that its first byte may take")
        for one in asking:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def test_who_can_be_in_time_goes_before_who_is_late():
    async with busy("--objective-ttft", "300ms") as (router, gate):
        old = [await wait_in(router, f"old {number}") for number in range(3)]
        await asyncio.sleep(0.35)
        new = [await wait_in(router, f"new {number}") for number in range(2)]
        gate.finish()
        assert [reply.status for reply in await asyncio.gather(*old, *new)] == [200] * 5
        assert gate.served[:2] == ["first", "new 0"]


async def test_queue_is_shown_in_state_and_metrics():
    async with busy() as (router, gate):
        waiting = [await wait_in(router, "a", x_forebay_tenant="team", x_forebay_priority="low")]
        async with httpx.AsyncClient(timeout=NEVER_S) as client:
            (service,) = (await client.get(router.control + "/state")).json()["services"]
            text = (await client.get(router.control + "/metrics")).text
        low = service["queue"]["priorities"]["low"]
        assert low["requests"] == 1
        assert low["tenants"] == {"team": 1}
        assert low["retry_after_s"] >= 1
        of_service = 'namespace="local",model_service="m"'
        assert f'forebay_router_queue_requests{{{of_service},priority="low"}} 1' in text
        assert f'forebay_router_queue_requests{{{of_service},priority="high"}} 0' in text
        assert "team" not in text, "no label comes from a request"
        gate.finish()
        await asyncio.gather(*waiting)
        async with httpx.AsyncClient(timeout=NEVER_S) as client:
            text = (await client.get(router.control + "/metrics")).text
            (service,) = (await client.get(router.control + "/state")).json()["services"]
        assert f'forebay_router_queue_served_total{{{of_service},priority="low"}} 1' in text
        assert service["queue"] is None
