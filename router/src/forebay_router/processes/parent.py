"""The parent of several processes: the port held, children kept, their control ports shown as one, the mesh's hub.

    /healthz   every child that runs answers          /readyz   every child is ready
    /metrics   sums (`exposition`)                    /state    each child's, side by side
    /ejected   of all children, and none when one does not answer: what it leaves alone is not known
    /explain   any child's

Stop, on SIGTERM or SIGINT: every child gets it and drains. A second signal is passed on too and ends the drain. Children that
are still there `STOP_SLACK_S` after the drain's limit are killed.
"""

import asyncio
import logging
import signal
import socket
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

import orjson
import uvloop
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from forebay_router import metrics
from forebay_router.control import control_server
from forebay_router.health.breaker import Condition
from forebay_router.listening import address_of, bind, reserve
from forebay_router.process import set_up_logging
from forebay_router.processes.children import Children, Told
from forebay_router.processes.exposition import Exposition
from forebay_router.processes.hub import Hub
from forebay_router.protection import Protection, build_protection
from forebay_router.settings import Settings
from forebay_router.supervision import Background, Supervisor
from forebay_router.worker_access import WorkerAccess

log = logging.getLogger(__name__)

STOP_SLACK_S: Final = 10.0


def parent_app(children: Children, exposition: Exposition, kept: Supervisor) -> FastAPI:
    """The application of the parent's control port."""
    app = FastAPI(title="Forebay router control", docs_url=None, redoc_url=None, openapi_url="/openapi.json")

    @app.get("/healthz")
    async def healthz() -> PlainTextResponse:
        """No child hangs; one that is being begun again does not count against it."""
        told = await children.ask("/healthz")
        hung = [one.part.number for one in children.children if one.answered and told[one.part.number] is None]
        return _verdict(dict.fromkeys(hung, "does not answer"))

    @app.get("/readyz")
    async def readyz() -> PlainTextResponse:
        """New requests are welcome in every child."""
        told = await children.ask("/readyz")
        return _verdict(_wrong(told))

    @app.get("/metrics")
    async def read_metrics() -> Response:
        """Prometheus text of all."""
        told = await children.ask("/metrics")
        texts = {number: (one.pid, one.body.decode()) for number, one in told.items() if one is not None}
        name = metrics.BACKGROUND_FAILURES.name
        own = {f'{name}{{loop="{loop.value}"}}': float(count) for loop, count in kept.failures.items()}
        text = exposition.combine(texts, {metrics.PROCESS_RESTARTS.name: children.restarts, **own})
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/state")
    async def read_state() -> JSONResponse:
        """What each child knows."""
        told = await children.ask("/state")
        return JSONResponse({"restarts": children.restarts, "processes": [_state(*item) for item in told.items()]})

    @app.get("/ejected")
    async def read_ejected() -> Response:
        """Workers that are left alone by a child, or were and are back."""
        told = await children.ask("/ejected")
        wrong = _wrong(told)
        if wrong:
            return _verdict(wrong)
        return JSONResponse({"workers": combine_ejected([one for one in told.values() if one is not None])})

    @app.post("/explain")
    async def explain(request: Request) -> Response:
        """A child's explanation; the mesh lets each know what the others do."""
        query = urlencode(list(request.query_params.items()))
        told = await children.ask_any(f"/explain?{query}", await request.body())
        if told is None:
            return JSONResponse({"error": "no process answers"}, status_code=503)
        return Response(told.body, status_code=told.status, media_type="application/json")

    return app


def combine_ejected(told: Sequence[Told]) -> list[dict[str, Any]]:
    """Each worker once: as a child sees it that leaves it alone, if one does."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for one in (worker for answer in told for worker in orjson.loads(answer.body)["workers"]):
        place = (one["namespace"], one["worker"])
        if place not in found or found[place]["condition"] == Condition.SOUND.value:
            found[place] = one
    return list(found.values())


def _wrong(told: Mapping[int, Told | None]) -> dict[int, str]:
    """What those say that did not answer 200."""
    return {
        number: "does not answer" if one is None else one.body.decode(errors="replace").strip()
        for number, one in told.items()
        if one is None or one.status != 200
    }


def _verdict(wrong: Mapping[int, str]) -> PlainTextResponse:
    if not wrong:
        return PlainTextResponse("ok\n")
    return PlainTextResponse("".join(f"process {number}: {text}\n" for number, text in wrong.items()), status_code=503)


def _state(number: int, told: Told | None) -> dict[str, Any]:
    if told is None:
        return {"number": number, "pid": None}
    state: dict[str, Any] = orjson.loads(told.body)
    return {"number": number, "pid": told.pid, **state}


@dataclass(slots=True)
class Parent:
    """One router of several processes."""

    settings: Settings
    arguments: Sequence[str]
    """Of the command line; each child gets the same."""
    protection: Protection = field(init=False)
    """For the control port's certificate; read here too so that a bad file ends the start."""
    listen: socket.socket = field(init=False)
    control: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        """Take the ports, so that one that is taken ends the start."""
        self.protection = build_protection(self.settings.protection, WorkerAccess())
        self.listen = reserve(self.settings.listen)
        self.control = bind(self.settings.control)

    async def run(self) -> None:
        """Serve until told to stop and every child has ended."""
        with tempfile.TemporaryDirectory(prefix="forebay-router-", ignore_cleanup_errors=True) as directory:
            where = ("--listen", str(address_of(self.listen)))
            children = Children.of(self.settings.replica.processes, directory, [*self.arguments, *where])
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, children.stop)
            log.info("processes begin", extra={"data": where[1], "control": str(address_of(self.control))})
            await self._keep(children, directory)

    async def _keep(self, children: Children, directory: str) -> None:
        mesh = self.settings.replica.mesh
        kept = Supervisor()
        hub = Hub(directory, f"tcp://{mesh}" if mesh is not None else None, kept)
        control = control_server(parent_app(children, Exposition(), kept), self.protection.control_tls)
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(kept.keep(Background.FILES, self.protection.follow), name="files")
            passing = tasks.create_task(hub.run(), name="hub")
            serving = tasks.create_task(control.serve(sockets=[self.control]), name="control")
            keeping = tasks.create_task(children.keep(), name="children")
            await children.stopping.wait()
            limit_s = self.settings.shutdown_delay_s + self.settings.drain_limit_s + STOP_SLACK_S
            _, left = await asyncio.wait([keeping], timeout=limit_s)
            if left:
                log.error("processes do not end: killed")
                children.kill()
                await keeping
            passing.cancel()
            following.cancel()
            control.should_exit = True
            control.force_exit = True
            await serving
        await children.close()


def run_several(settings: Settings, arguments: Sequence[str]) -> None:
    """Run a router of several processes until it is told to stop."""
    set_up_logging(settings.log_level)
    uvloop.run(Parent(settings, arguments).run())
