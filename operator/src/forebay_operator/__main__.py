"""Wires the operator and runs it.

    control port (thread)  <-  health        elector  <-  Lease
    Kopf watches  ->  queue  ->  reconcilers  ->  API server

A process first waits for the Lease; a standby serves the control port and does nothing else. The leader runs watches and
reconcilers beside the elector. The process ends

- with 0 after SIGTERM or SIGINT: reconcilers are stopped first, then the Lease is given back, so the next leader starts at
  once;
- with 1, immediately and without cleaning up, when another process has the Lease;
- with 1 when a watch, a reconciler, the elector, the lease's guard or the heartbeat ends unexpectedly. Kubernetes starts the
  container again.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import uvloop

from forebay_api.election import Elector
from forebay_operator.cluster import KubernetesCluster, load_configuration
from forebay_operator.control import HEARTBEAT_PERIOD_S, ControlServer, Health
from forebay_operator.election import ClusterLease
from forebay_operator.errors import SettingError
from forebay_operator.leading import Leader
from forebay_operator.logs import set_up_logging
from forebay_operator.metrics import Metrics
from forebay_operator.schemas import watch_schemas
from forebay_operator.settings import Settings, load_settings

_log = logging.getLogger(__name__)

FAILED: Final = 1
GUARD_PERIOD_S: Final = 0.2
"""How often a leader without a good lease looks whether somebody else has it."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script."""
    try:
        settings = load_settings(sys.argv[1:] if arguments is None else arguments)
    except SettingError as e:
        sys.exit(f"forebay-operator: {e}")
    set_up_logging(level=settings.log_level, log_format=settings.log_format)
    try:
        uvloop.run(_run(settings))
    except Exception:  # noqa: BLE001 - the process's boundary: logged as every line, then the container starts again
        _log.exception("the operator ends")
        sys.exit(FAILED)


async def _run(settings: Settings) -> None:
    metrics, health = Metrics(), Health()
    metrics.watch_namespaces(settings.namespaces)
    configuration = await load_configuration()
    stop = asyncio.Event()
    _stop_on_signals(stop)
    with ControlServer(settings.control, health, metrics.registry):
        async with KubernetesCluster(configuration, timeout_s=settings.api_timeout_s) as free:
            elector = Elector(
                store=ClusterLease(free, settings.lease_namespace, settings.lease_name),
                identity=settings.identity,
                terms=settings.terms,
            )
            may_write = (lambda: elector.leading) if settings.leader_election else (lambda: True)
            async with KubernetesCluster(
                configuration, timeout_s=settings.api_timeout_s, may_write=may_write
            ) as guarded:
                leader = Leader(
                    settings=settings,
                    configuration=configuration,
                    cluster=guarded,
                    metrics=metrics,
                    health=health,
                    on_watching=lambda: _stop_on_signals(stop),
                )
                async with asyncio.TaskGroup() as beside:
                    beating = beside.create_task(_beat(health), name="heartbeat")
                    comparing = beside.create_task(watch_schemas(free, health), name="schemas")
                    await _take_part(leader, elector, stop)
                    beating.cancel()
                    comparing.cancel()
    _log.info("stopped")


async def _take_part(leader: Leader, elector: Elector, stop: asyncio.Event) -> None:
    """Stand by, then lead, until told to stop."""
    if not leader.settings.leader_election:
        await leader.run(stop)
        return
    async with (
        asyncio.TaskGroup() as beside
    ):  # waits for the elector, which gives the lease back, when the leader has ended
        electing = beside.create_task(elector.run(), name="elector")
        if await _stand_by(elector, leader.health, stop):
            _set_leading(leader, leading=True)
            guarding = beside.create_task(_guard_lease(elector, leader), name="lease guard")
            await leader.run(stop)
            guarding.cancel()
        electing.cancel()


async def _stand_by(elector: Elector, health: Health, stop: asyncio.Event) -> bool:
    """Wait for the lease; False when told to stop first. A standby is ready as soon as it has seen who leads."""
    leading = asyncio.create_task(elector.until_leading(), name="until leading")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        while not leading.done() and not stopping.done():
            await asyncio.wait({leading, stopping}, timeout=HEARTBEAT_PERIOD_S, return_when=asyncio.FIRST_COMPLETED)
            if elector.holder and not elector.leading:
                health.not_ready_because = None
        return leading.done() and not stopping.done()
    finally:
        leading.cancel()
        stopping.cancel()


async def _guard_lease(elector: Elector, leader: Leader) -> NoReturn:
    """Follow the lease while leading.

    A lease that could not be renewed in time is not good any more, and the guarded client refuses every write from that moment
    on. As long as nobody else has taken it (the API server was away, so nobody could), the process waits and goes on when it
    is renewed. When somebody else has it, the process ends at once: its successor starts from fresh reads, and so will it.
    """
    while True:
        await elector.until_lost()
        _set_leading(leader, leading=False)
        _log.warning("the lease could not be renewed in time; nothing is written until it is")
        regaining = asyncio.create_task(elector.until_leading(), name="until leading again")
        try:
            while not regaining.done():
                if elector.holder != elector.identity:
                    _log.error("the lease is held by %s; the process ends at once", elector.holder)
                    logging.shutdown()
                    os._exit(FAILED)
                await asyncio.wait({regaining}, timeout=GUARD_PERIOD_S)
        finally:
            regaining.cancel()
        _set_leading(leader, leading=True)


def _set_leading(leader: Leader, *, leading: bool) -> None:
    leader.metrics.leader.set(int(leading))
    leader.health.leading = leading


async def _beat(health: Health) -> None:
    while True:
        health.beat()
        await asyncio.sleep(HEARTBEAT_PERIOD_S)


def _stop_on_signals(stop: asyncio.Event) -> None:
    """Set `stop` on SIGTERM and SIGINT; called again once Kopf runs, which installs handlers of its own."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


if __name__ == "__main__":
    main()
