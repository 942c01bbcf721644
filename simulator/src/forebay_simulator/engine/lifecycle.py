"""From start to exit: when the port opens, what SIGTERM does, and how the process dies.

The port opens when the engine is ready and not before; until then connections are refused. On SIGTERM

- with `--shutdown-timeout 0`, every request ends within milliseconds with what it has (200, reason abort), the port
  closes 0.1 s later and the process is gone after 0.4 s;
- with a timeout, running requests go on, new ones are answered 500, `/health` stays 200. When the last has ended, the
  process lingers for some seconds, as vLLM does while it tears its engine down; when the time is over first, what is left
  gets an error event or a 500.

A second SIGTERM (or SIGINT) ends the grace. When the engine core dies, requests fail, `/health` is 503 for 0.1 s, and the
process exits with status 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from enum import Enum

from forebay_simulator.engine.engine import Engine
from forebay_simulator.engine.errors import StartupError
from forebay_simulator.engine.model import load_model
from forebay_simulator.engine.routes import Router
from forebay_simulator.engine.server import Server
from forebay_simulator.engine.settings import EngineSettings

ABORT_LINGER_S = 0.1
"""From the abort of all requests to the port being closed."""
TEARDOWN_S = 0.25
"""From the port being closed to the end of the process."""
DRAIN_LINGER_S = 3.6
"""From the end of the last request of a drain to the port being closed."""
DEATH_LINGER_S = 0.1


class End(Enum):
    """What ended the service."""

    STOPPED = 0
    DIED = 1


class Service:
    """One engine on one port."""

    def __init__(self, settings: EngineSettings, *, started_s: float) -> None:
        self._settings = settings
        self._started_s = started_s
        self._signals = 0
        self._signalled = asyncio.Event()
        self._insisted = asyncio.Event()
        self._died = asyncio.Event()

    async def run(self, announce: Callable[[str], None]) -> End:
        """Serve until a signal or the engine's death. Raises `StartupError`."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        model = load_model(self._settings)
        if not await self._start_up():
            return End.STOPPED
        engine = Engine(self._settings, model)
        engine.core.on_death = self._died.set
        router = Router(engine)
        server = Server(router.handle, router.observe, keep_alive_s=self._settings.keep_alive_s)
        try:
            await self._open(engine, server, announce)
            await _first(self._signalled, self._died)
            await self._shut_down(engine, server)
        finally:
            await engine.close()
        return End.DIED if self._died.is_set() else End.STOPPED

    def _on_signal(self) -> None:
        self._signals += 1
        self._signalled.set()
        if self._signals > 1:
            self._insisted.set()

    async def _start_up(self) -> bool:
        """Wait for the simulated start-up; False when a signal ended it."""
        simulation = self._settings.simulation
        left_s = simulation.startup_s / simulation.speed - (time.monotonic() - self._started_s)
        if left_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._signalled.wait(), left_s)
        return not self._signalled.is_set()

    async def _open(self, engine: Engine, server: Server, announce: Callable[[str], None]) -> None:
        try:
            await engine.open()
            port = await server.listen(self._settings.host, self._settings.port)
        except OSError as error:
            raise StartupError(f"cannot listen: {error}") from error
        host = self._settings.host or "0.0.0.0"  # noqa: S104  (what the server listens on)
        announce(f"Started engine {self._settings.name} on http://{host}:{port}")

    async def _shut_down(self, engine: Engine, server: Server) -> None:
        if self._died.is_set():
            await asyncio.sleep(DEATH_LINGER_S)
        elif self._settings.shutdown_timeout_s > 0:
            await self._drain(engine)
        else:
            engine.core.draining = True
            engine.core.abort_all(counted=True)
            await asyncio.sleep(ABORT_LINGER_S)
        server.stop_listening()
        await asyncio.sleep(TEARDOWN_S)

    async def _drain(self, engine: Engine) -> None:
        engine.core.draining = True
        idle = asyncio.Event()
        try:
            async with asyncio.timeout(self._settings.shutdown_timeout_s):
                engine.core.when_idle(idle.set)
                if engine.core.generations:
                    await _first(idle, self._insisted, self._died)
        except TimeoutError:
            engine.core.fail_all()
            return
        engine.core.abort_all(counted=True)  # nothing is left unless a second signal came
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._insisted.wait(), DRAIN_LINGER_S)


async def _first(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
