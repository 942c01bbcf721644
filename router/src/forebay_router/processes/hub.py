"""The parent's part in the mesh: what a child tells goes to all children, and to other replicas.

Messages pass unread. They name the child that tells, which passes over its own.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import zmq
import zmq.asyncio

from forebay_router.mesh.messages import TOPIC_FAMILY
from forebay_router.mesh.sockets import QUEUE_MAX, bind_publisher
from forebay_router.processes.part import hub_addresses
from forebay_router.supervision import Background, Supervisor

_LINGER_MS: Final = 100


@dataclass(frozen=True, slots=True)
class Hub:
    """Between the children, and out of the house."""

    directory: str
    outside: str | None
    """ZeroMQ address where other replicas hear; None when there are none."""
    supervisor: Supervisor = field(default_factory=Supervisor)

    async def run(self) -> None:
        """Pass messages on for ever."""
        context = zmq.asyncio.Context()
        context.set(zmq.IPV6, 1)
        publisher = zmq.Context(context).socket(zmq.PUB)
        try:
            taken, given = hub_addresses(self.directory)
            publisher.set(zmq.SNDHWM, QUEUE_MAX)
            publisher.set(zmq.LINGER, _LINGER_MS)
            for address in (given, *((self.outside,) if self.outside else ())):
                bind_publisher(publisher, address)
            subscriber = context.socket(zmq.SUB)
            subscriber.set(zmq.RCVHWM, QUEUE_MAX)
            subscriber.subscribe(TOPIC_FAMILY)
            subscriber.bind(taken)
            await self.supervisor.keep(Background.MESH, partial(_pass_on, subscriber, publisher))
        finally:
            publisher.close()
            context.destroy(linger=0)


async def _pass_on(subscriber: zmq.asyncio.Socket, publisher: Any) -> None:
    while True:
        publisher.send_multipart(await subscriber.recv_multipart())
