"""The router as a process: parts joined, started, drained and stopped.

Stop, on SIGTERM or SIGINT:

    1. readiness goes false; every answer says `Connection: close`; idle client connections are closed
    2. for `shutdown_delay_s` new connections are still served, since load balancers need a moment to notice
    3. the listening socket closes; accepted requests, held ones included, are placed and finished, within `drain_limit_s`
    4. what is left is cancelled; its clients see an error event or a closed connection

Discovery and the control port run until the end, so that held requests can still be placed and the drain can be watched. A
second signal skips to step 4.
"""

import asyncio
import gc
import logging
import random
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import uvloop
from pythonjsonlogger.json import JsonFormatter

from forebay_api.objective import Objective
from forebay_router.access_log import AccessLog
from forebay_router.allocator import keep_memory
from forebay_router.client import ClientConnections
from forebay_router.compilation import compiled
from forebay_router.control import ControlServer, control_app, control_server
from forebay_router.discovery.source import Discovery
from forebay_router.discovery.static import Address, Layout, ServiceDefaults, StaticDiscovery
from forebay_router.discovery.worker_file import WorkerFile
from forebay_router.health.watch import Watch
from forebay_router.index.approximate import ApproximateIndex
from forebay_router.index.prefix_index import PrefixIndex
from forebay_router.kv_events import KvEvents
from forebay_router.listening import LISTEN_BACKLOG, address_of, bind
from forebay_router.mesh.sockets import build_mesh
from forebay_router.metrics import ServiceStats
from forebay_router.options import HostPort
from forebay_router.placing import Placing
from forebay_router.processes.part import Part
from forebay_router.protection import build_protection
from forebay_router.reading import Limits
from forebay_router.relay import Tools
from forebay_router.replies import Cors
from forebay_router.router import ClientLimits, Router
from forebay_router.settings import Settings
from forebay_router.supervision import Background
from forebay_router.table import Timeouts, WorkerTable
from forebay_router.upstream import Upstreams

if TYPE_CHECKING:
    from forebay_router.tokens.tokenizers import Tokenizers
    from forebay_router.tracing import Tracing

log = logging.getLogger(__name__)

GC_ALLOCATIONS = 20_000
"""Between two looks for garbage in cycles: a request makes about 100 objects, hardly any of them in a cycle."""


def build_router(settings: Settings) -> Router:
    """The data plane, not listening yet."""
    table = WorkerTable(worker_limit=settings.worker_limit)
    index = PrefixIndex(ApproximateIndex(settings.index_blocks))
    upstreams = Upstreams(connect_timeout_s=settings.connect_timeout_s, idle_s=settings.upstream_idle_s)
    protection = build_protection(settings.protection, upstreams.access)
    tools = Tools(
        placing=Placing(
            table=table,
            index=index,
            rng=random.Random(),  # noqa: S311 - ties between workers
            hold_limit=settings.hold_limit,
            hold_s=settings.hold_timeout_s,
            hold_bytes=settings.hold_bytes,
            tokenizers=_load_tokenizers(settings, index),
        ),
        upstreams=upstreams,
        access_log=AccessLog(settings.access_log),
        attempts_max=settings.attempts,
        unknown_stats=ServiceStats(),
        explain=settings.explain,
        protection=protection,
        tracing=build_tracing(settings.trace_share),
    )
    router = Router(
        table=table,
        tools=tools,
        cors=Cors(settings.cors_origins),
        client_limits=ClientLimits(idle_s=settings.client_idle_s, request_s=settings.client_request_s),
    )
    limits = Limits(
        head_bytes=settings.head_limit_bytes,
        body_bytes=settings.body_limit_bytes,
        bodies=protection.bodies,
        check=protection.gate.check if protection.gate else None,
    )
    router.connections = ClientConnections(limits=limits, serve=router.serve)
    return router


def _load_tokenizers(settings: Settings, index: PrefixIndex) -> "Tokenizers | None":
    """The tokenizers that the settings name; ends the program with a sentence where one cannot be read."""
    if not settings.tokenizers:
        return None
    from forebay_router.tokens.tokenizers import Tokenizers  # noqa: PLC0415 - loaded where it is used only: 0.1 s, 20 MB

    try:
        return Tokenizers.load(dict(settings.tokenizers), index.precise)
    except ValueError as error:
        raise SystemExit(f"forebay-router: --tokenizer: {error}") from error


def build_tracing(share: float | None) -> "Tracing | None":
    """What makes spans; None when nobody asks for them."""
    if share is None:
        return None
    from forebay_router.tracing import Tracing  # noqa: PLC0415 - 0.2 s that most routers spare

    return Tracing(share, random.Random())  # noqa: S311 - a sample


def build_discovery(settings: Settings, table: WorkerTable, tools: Tools) -> Discovery:
    """The source of workers that the settings ask for."""
    upstreams, protection = tools.upstreams, tools.protection
    defaults = ServiceDefaults(
        objective=Objective(
            ttft_s=settings.objective_ttft_s, tpot_s=settings.objective_tpot_s, target=settings.objective_target
        ),
        timeouts=Timeouts(
            hold_s=settings.hold_timeout_s,
            first_byte_s=settings.first_byte_timeout_s,
            idle_s=settings.idle_timeout_s,
            total_s=settings.total_timeout_s,
        ),
    )
    if settings.kubernetes:
        from forebay_router.discovery.kubernetes import KubernetesDiscovery  # noqa: PLC0415 - 0.5 s that static mode spares

        return KubernetesDiscovery(table, settings.namespaces, upstreams, supervisor=tools.supervisor)
    port = settings.kv_events_port
    layout = Layout(tuple(Address(url, role, kv_events_port=port) for url, role in settings.workers))
    discovery = StaticDiscovery(
        table, layout, defaults, upstreams, settings.probe_interval_s, supervisor=tools.supervisor
    )
    if settings.worker_file is not None:
        tls = settings.protection.worker_authority is not None
        protection.follow_workers(WorkerFile(settings.worker_file, defaults, tls=tls), discovery.take)
    return discovery


@dataclass(slots=True)
class Process:
    """One running router."""

    settings: Settings
    router: Router = field(init=False)
    discovery: Discovery = field(init=False)
    kv_events: KvEvents = field(init=False)
    watch: Watch = field(init=False)
    listen_address: HostPort | None = None
    """Where clients are served, once they are."""
    control_address: HostPort | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by the first signal."""
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by the second."""

    def __post_init__(self) -> None:
        """Join the parts."""
        self.router = build_router(self.settings)
        self.discovery = build_discovery(self.settings, self.router.table, self.router.tools)
        tools = self.router.tools
        self.router.mesh = build_mesh(self.settings.replica, self.router.table, tools.placing.index, tools.supervisor)
        kept = tools.supervisor
        self.watch = Watch(self.router.table, tools.placing.guard, tools.upstreams, supervisor=kept)
        self.kv_events = KvEvents(self.router.table, tools.placing.index.precise, tools.upstreams, supervisor=kept)

    def on_signal(self) -> None:
        """Drain; at once the second time."""
        (self.hurry if self.stop.is_set() else self.stop).set()

    async def run(self) -> None:
        """Serve until told to stop, then drain."""
        loop = asyncio.get_running_loop()
        connections = self.router.connections
        assert connections is not None
        part, protection = self.settings.replica.part, self.router.tools.protection
        data_socket = bind(self.settings.listen, shared=part is not None)
        self.listen_address = address_of(data_socket)
        server = await loop.create_server(
            connections.make, sock=data_socket, backlog=LISTEN_BACKLOG, **protection.data_tls
        )
        control, control_sockets = self._control(part)
        addresses = {"data": str(self.listen_address), "control": str(self.control_address)}
        log.info("router listens", extra={**addresses, "compiled": compiled()})
        async with asyncio.TaskGroup() as tasks:
            background = self._begin_background(tasks)
            serving = tasks.create_task(control.serve(sockets=control_sockets), name="control")
            await self.stop.wait()
            await self._drain(server, connections)
            for task in background:
                task.cancel()
            control.should_exit = True
            control.force_exit = True
            await serving
        connections.close()
        tools = self.router.tools
        tools.upstreams.close()
        if tools.tracing is not None:
            await asyncio.to_thread(tools.tracing.close)
        if tools.placing.tokenizers is not None:
            tools.placing.tokenizers.close()
        await asyncio.sleep(0)

    def _begin_background(self, tasks: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """All that runs beside the requests, until it is cancelled."""
        router, kept = self.router, self.router.tools.supervisor
        loops: list[tuple[Background, Callable[[], Awaitable[None]]]] = [
            (Background.DISCOVERY, self.discovery.run),
            (Background.TIME_LIMITS, router.sweep),
            (Background.KV_EVENTS, self.kv_events.run),
            (Background.WATCH, self.watch.run),
            (Background.FILES, router.tools.protection.follow),
        ]
        begun = [tasks.create_task(kept.keep(*one), name=one[0].value) for one in loops]
        if router.mesh is not None:
            begun.append(tasks.create_task(router.mesh.run(), name=Background.MESH.value))
        return begun

    def _control(self, part: Part | None) -> tuple[ControlServer, list[socket.socket] | None]:
        """The control port: TCP, or a socket file for the parent."""
        app = control_app(self.router, self.discovery, self.kv_events)
        if part is not None:
            return control_server(app, path=part.control_path), None
        bound = bind(self.settings.control)
        self.control_address = address_of(bound)
        return control_server(app, self.router.tools.protection.control_tls), [bound]

    async def _drain(self, server: asyncio.Server, connections: ClientConnections) -> None:
        """Steps 1 to 4 above."""
        log.info("draining", extra={"requests": connections.busy})
        connections.drain()
        await self._wait(self.settings.shutdown_delay_s)
        server.close()
        connections.drain()
        waits = [asyncio.create_task(connections.finished()), asyncio.create_task(self.hurry.wait())]
        await asyncio.wait(waits, timeout=self.settings.drain_limit_s, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        left = connections.give_up()
        log.info("drained", extra={"cut_off": left})

    async def _wait(self, seconds: float) -> None:
        """Wait, or until in a hurry."""
        try:
            async with asyncio.timeout(seconds):
                await self.hurry.wait()
        except TimeoutError:
            return


def set_up_logging(level: str) -> None:
    """JSON lines on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter(
            "%(asctime)s %(levelname)s %(name)s %(message)s",
            rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _stop_with_parent(process: Process) -> None:
    """Drain when standard input ends: it is a pipe from the parent."""
    loop, pipe = asyncio.get_running_loop(), sys.stdin.fileno()

    def parent_gone() -> None:
        loop.remove_reader(pipe)
        process.on_signal()

    loop.add_reader(pipe, parent_gone)


def run(settings: Settings) -> None:
    """Run a router until it is told to stop."""
    set_up_logging(settings.log_level)
    keep_memory()

    async def main() -> None:
        process = Process(settings)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, process.on_signal)
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_ALLOCATIONS, 20, 50)
        if settings.replica.part is not None:
            _stop_with_parent(process)
        await process.run()

    uvloop.run(main())
