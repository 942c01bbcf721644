"""Routers that hear of each other over real sockets."""

import asyncio
import json
import socket
from contextlib import asynccontextmanager

import httpx
import zmq
import zmq.asyncio

from forebay_router.endpoints import ENDPOINTS
from forebay_router.explaining import explain_request
from forebay_router.mesh.messages import TOPIC, Batch, Taken, encode
from forebay_router.mesh.peers import EXPIRY_S
from tests.router.harness import ask, chat, request_bytes, running, until
from tests.router.scripted import hello, workers
from tests.support.bounds import NEVER_S


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def flags(port: int, ports: list[int]) -> tuple[str, ...]:
    return ("--mesh", f"127.0.0.1:{port}", "--peers", *(f"tcp://127.0.0.1:{one}" for one in ports))


@asynccontextmanager
async def replicas(*urls: str, count: int = 2, more: tuple[str, ...] = ()):
    """Routers before the same workers, all with the same list of peers."""
    ports = free_ports(count)
    async with running("--workers", *urls, *flags(ports[0], ports), *more) as first:
        if count == 1:
            yield [first]
            return
        async with running("--workers", *urls, *flags(ports[1], ports), *more) as second:
            both = [first, second]
            await until(lambda: all(len(known(one)) == 1 for one in both), "they hear each other")
            yield both


PATH = "/v1/chat/completions"


def mesh(router):
    return router.process.router.mesh


def cached_at(router, body) -> set[str]:
    """Workers that a router thinks to hold a part of a request's prompt."""
    placing = router.process.router.tools.placing
    told = explain_request(placing, ENDPOINTS[PATH.encode()], {}, json.dumps(body).encode())
    return {one["worker"] for one in told["candidates"] if one["uncached_tokens"] < told["prompt_tokens"] / 2}


def known(router):
    return mesh(router).peers.known


def loads(router) -> list[int]:
    return [worker.load.requests for worker in router.table.workers.values()]


async def hang(_asked, _wire):
    await asyncio.sleep(30)


async def test_what_one_replica_has_in_flight_counts_for_the_other_until_it_ends():
    async with workers(hang, hang) as scripted, replicas(*(one.url for one in scripted)) as (first, second):
        clients = [await first.connect() for _ in range(3)]
        for client in clients:
            await client.send(request_bytes(chat(stream=True)))
        await until(lambda: sum(loads(second)) == 3, "the leases are heard of")
        assert [one.load for one in second.table.workers.values()] != []
        assert sorted(loads(second)) == sorted(loads(first)) == [1, 2]
        assert sum(one.load.prompt_tokens for one in second.table.workers.values()) > 0
        assert second.stats.in_flight == 0, "its own counts are its own"
        assert all(pool.in_flight == 0 for pool in second.stats.pools.values())
        for client in clients:
            client.leave()
        await until(lambda: sum(loads(second)) == 0, "their ends are heard of")
        await second.no_lease_is_left()


async def test_requests_through_two_replicas_meet_on_no_worker_while_others_are_idle():
    async with workers(hang, hang, hang, hang) as scripted, replicas(*(one.url for one in scripted)) as both:
        clients = []
        for number in range(4):
            client = await both[number % 2].connect()
            clients.append(client)
            await client.send(request_bytes(chat(stream=True)))
            await until(lambda: all(sum(loads(one)) == len(clients) for one in both), "both know")
        assert [len(one.asked) for one in scripted] == [1, 1, 1, 1]
        for client in clients:
            client.leave()


async def test_a_prompt_that_one_replica_sent_is_known_to_the_other_one():
    long = {"messages": [{"role": "user", "content": "tell me of forebays " * 500}]}
    async with workers(hello, hello, hello, hello) as scripted, replicas(*(one.url for one in scripted)) as both:
        await ask(both[0], chat(**long))
        (holder,) = [one for one in scripted if one.asked]
        entries = both[0].process.router.tools.placing.index.approximate.entries
        assert entries > 20
        await until(
            lambda: both[1].process.router.tools.placing.index.approximate.entries == entries, "the prompt is heard of"
        )
        assert cached_at(both[1], chat(**long)) == {holder.url}


async def test_a_replica_that_comes_later_is_told_what_is_held():
    async with workers(hang) as [worker]:
        ports = free_ports(2)
        async with running("--workers", worker.url, *flags(ports[0], ports)) as first:
            client = await first.connect()
            await client.send(request_bytes(chat(stream=True)))
            await until(lambda: worker.asked, "it runs")
            async with running("--workers", worker.url, *flags(ports[1], ports)) as second:
                await until(lambda: loads(second) == [1], "the lease is heard of")
                (peer,) = known(second).values()
                await until(lambda: peer.synced, "nothing is missing")
                client.leave()
                await until(lambda: loads(second) == [0], "its end is heard of")
            await until(lambda: not known(first), "the farewell is heard", bound_s=EXPIRY_S / 2)
            assert mesh(first).peers.counts.expired == 0


async def test_a_replica_that_takes_anothers_place_knows_where_prompts_went():
    """A rolling restart of a single replica: the old one has heard nobody until the new one comes."""
    long = {"messages": [{"role": "user", "content": "what came before " * 500}]}
    async with workers(hello, hello, hello, hello) as scripted:
        urls = [one.url for one in scripted]
        ports = free_ports(2)
        async with running("--workers", *urls, *flags(ports[0], ports)) as old:
            await ask(old, chat(**long))
            (holder,) = [one for one in scripted if any(asked.path == PATH for asked in one.asked)]
            entries = old.process.router.tools.placing.index.approximate.entries
            async with running("--workers", *urls, *flags(ports[1], ports)) as new:
                index = new.process.router.tools.placing.index.approximate
                await until(lambda: index.entries == entries, "the prompt is told")
                assert cached_at(new, chat(**long)) == {holder.url}


async def test_a_replica_that_falls_silent_is_forgotten_with_its_leases():
    """A peer by hand that takes leases and dies without a word."""
    context = zmq.asyncio.Context()
    publisher = context.socket(zmq.PUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    try:
        async with workers(hello) as [worker]:
            own = free_ports(1)[0]
            async with (
                running("--workers", worker.url, *flags(own, [port])) as router,
                httpx.AsyncClient(timeout=NEVER_S) as control,
            ):
                taken = Taken(1, worker.url, 900, 256)

                def tell() -> bool:
                    publisher.send_multipart([TOPIC, b"x", encode(Batch("x", 1, 1, (taken,)))])
                    return loads(router) == [1]

                await until(tell, "the lease is heard of")
                await publisher.send_multipart([TOPIC, b"x", b"garbage"])
                await publisher.send_multipart([b"forebay-mesh/2", b"x", b"of another version"])
                await until(lambda: mesh(router).peers.counts.malformed == 2, "they are counted")
                text = (await control.get(router.control + "/metrics")).text
                assert "forebay_router_mesh_peers 1" in text
                assert "forebay_router_mesh_leases 1" in text
                (told,) = (await control.get(router.control + "/state")).json()["peers"]
                assert (told["name"], told["leases"], told["complete"]) == ("x", 1, True)
                await until(lambda: loads(router) == [0], "its lease has expired")
                text = (await control.get(router.control + "/metrics")).text
                assert "forebay_router_mesh_expired_leases_total 1" in text
                assert "forebay_router_mesh_peers 0" in text
    finally:
        publisher.close(0)
        context.destroy(linger=0)


async def test_a_worker_limit_holds_over_all_replicas():
    gate = asyncio.Event()

    async def wait(asked, wire):
        await gate.wait()
        await hello(asked, wire)

    more = ("--worker-limit", "1")
    async with workers(wait) as [worker], replicas(worker.url, more=more) as (first, second):
        one = asyncio.create_task(ask(first, chat()))
        await until(lambda: loads(second) == [1], "the lease is heard of")
        other = asyncio.create_task(ask(second, chat()))
        await until(lambda: second.stats.pending == 1, "held")
        gate.set()
        assert ((await one).status, (await other).status) == (200, 200)
