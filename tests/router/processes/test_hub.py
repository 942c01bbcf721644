"""What a child tells reaches the other children and other replicas, and nothing else does."""

import asyncio
from contextlib import asynccontextmanager

import zmq
import zmq.asyncio

from forebay_router.mesh.messages import TOPIC, TOPIC_FAMILY
from forebay_router.mesh.sockets import build_mesh
from forebay_router.options import HostPort
from forebay_router.processes.hub import Hub
from forebay_router.processes.part import Part, hub_addresses
from forebay_router.replicas import ReplicaSettings
from forebay_router.supervision import Supervisor
from tests.router.harness import running, until
from tests.router.mesh.test_sockets import free_ports, known
from tests.router.scripted import hello, workers


@asynccontextmanager
async def hub(directory: str, port: int):
    task = asyncio.create_task(Hub(directory, f"tcp://127.0.0.1:{port}").run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_messages_go_to_children_and_out_of_the_house_unchanged(tmp_path):
    (port,) = free_ports(1)
    taken, given = hub_addresses(str(tmp_path))
    context = zmq.asyncio.Context()
    teller, child, outside = context.socket(zmq.PUB), context.socket(zmq.SUB), context.socket(zmq.SUB)
    heard: dict[str, list[bytes]] = {}

    async def hear(name: str, socket: zmq.asyncio.Socket) -> None:
        heard[name] = await socket.recv_multipart()

    try:
        async with hub(str(tmp_path), port):
            teller.connect(taken)
            for socket, address in ((child, given), (outside, f"tcp://127.0.0.1:{port}")):
                socket.subscribe(TOPIC_FAMILY)
                socket.connect(address)
            tasks = [asyncio.create_task(hear("child", child)), asyncio.create_task(hear("outside", outside))]

            def tell() -> bool:
                teller.send_multipart([b"something else", b"x", b"y"])
                teller.send_multipart([TOPIC, b"router/0", b"payload"])
                return len(heard) == 2

            await until(tell, "both have heard")
            assert heard == {name: [TOPIC, b"router/0", b"payload"] for name in ("child", "outside")}
            await asyncio.gather(*tasks)
    finally:
        context.destroy(linger=0)


async def test_a_replica_elsewhere_and_a_child_hear_each_other_through_the_parent(tmp_path):
    """The replica listens at the parent's port, the child at the replica's."""
    house, elsewhere = free_ports(2)
    flags = ("--mesh", f"127.0.0.1:{elsewhere}", "--peers", f"127.0.0.1:{house}", "--replica-name", "elsewhere")
    async with (
        workers(hello) as [worker],
        hub(str(tmp_path), house),
        running("--workers", worker.url, *flags) as replica,
        running("--workers", worker.url) as child,
    ):
        settings = ReplicaSettings(
            mesh=HostPort("127.0.0.1", house),
            peers=(f"tcp://127.0.0.1:{elsewhere}",),
            name="house",
            processes=2,
            part=Part(1, str(tmp_path)),
        )
        mesh = build_mesh(settings, child.table, child.process.router.tools.placing.index, Supervisor())
        assert mesh is not None
        task = asyncio.create_task(mesh.run())
        await until(lambda: mesh.peers.known and known(replica), "they hear each other")
        assert (list(mesh.peers.known), list(known(replica))) == (["elsewhere"], ["house/1"])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: not known(replica), "the farewell is heard")
