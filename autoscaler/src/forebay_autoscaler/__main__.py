"""Wiring: settings, clients, election, loop, control port; ends in order on SIGTERM and SIGINT."""

import asyncio
import gc
import logging
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from pythonjsonlogger.json import JsonFormatter

from forebay_api.election import Elector
from forebay_autoscaler.act import Actor
from forebay_autoscaler.cluster import Cluster, Lease, connect
from forebay_autoscaler.configmaps import ConfigMaps
from forebay_autoscaler.control import build_app, build_server
from forebay_autoscaler.errors import AutoscalerError
from forebay_autoscaler.history import History
from forebay_autoscaler.history_file import HistoryFile
from forebay_autoscaler.loop import Alone, Loop
from forebay_autoscaler.memory import Memory
from forebay_autoscaler.metrics import Metrics
from forebay_autoscaler.observe import Observer
from forebay_autoscaler.prometheus import Prometheus
from forebay_autoscaler.queries import build_queries
from forebay_autoscaler.routers import Routers
from forebay_autoscaler.settings import Settings, environment_of_process, parse_settings
from forebay_autoscaler.waker import Waker

_log = logging.getLogger("forebay_autoscaler")


class TokenFile(httpx.Auth):
    """A bearer token from a file that somebody else renews."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Add the token as it is now."""
        request.headers["Authorization"] = f"Bearer {self._path.read_text().strip()}"
        yield request


def main() -> None:
    """Entry point of `forebay-autoscaler`."""
    settings = parse_settings(sys.argv[1:], environment_of_process())
    configure_logging(settings.log_level)
    tune_collector()
    try:
        asyncio.run(serve(settings))
    except AutoscalerError as error:
        sys.exit(f"forebay-autoscaler: {error}")


def tune_collector() -> None:
    """Collect garbage less often.

    A cycle over many pools makes 100,000 objects that live until its end; looking among them took half of its time.
    """
    gc.set_threshold(100_000, 50, 100)


def configure_logging(level: str) -> None:
    """One JSON object a line on standard error."""
    handler = logging.StreamHandler()
    names = {"asctime": "time", "levelname": "level", "name": "logger"}
    fields = "%(asctime)s %(levelname)s %(name)s %(message)s"
    handler.setFormatter(JsonFormatter(fields, rename_fields=names, json_ensure_ascii=False))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)


async def serve(settings: Settings) -> None:
    """Work until a signal ends the process; AutoscalerError when it cannot begin."""
    stop = asyncio.Event()
    running = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        running.add_signal_handler(number, stop.set)
    async with wire(settings) as (loop, waker, elector):
        server = build_server(build_app(loop), settings.control_host, settings.control_port)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(loop.run()), group.create_task(waker.run())]
            if elector is not None:
                tasks.append(group.create_task(elector.run()))
            control = group.create_task(server.serve())
            _log.info("started", extra={"identity": settings.identity, "prometheus": settings.prometheus_url})
            await stop.wait()
            _log.info("stopping")
            await loop.save()
            server.should_exit = True
            for task in tasks:
                task.cancel()
            await control


def trusted(ca_file: str | None) -> ssl.SSLContext:
    """Whom to trust about Prometheus: the system's authorities, or those in a file; AutoscalerError when it cannot be used."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise AutoscalerError(
            f"--prometheus-ca-file {ca_file}: no certificates in PEM form can be read: {error}"
        ) from error


@asynccontextmanager
async def wire(settings: Settings) -> AsyncIterator[tuple[Loop, Waker, Elector | None]]:
    """Make the parts of one replica and close what they hold."""
    verify = trusted(settings.prometheus_ca_file)
    api = await connect(settings.kubeconfig, timeout_s=settings.timeout_s)
    auth = TokenFile(settings.prometheus_token_file) if settings.prometheus_token_file else None
    async with (
        httpx.AsyncClient(timeout=settings.timeout_s, verify=verify, auth=auth) as http,
        httpx.AsyncClient(timeout=settings.wake_interval_s, trust_env=False) as to_routers,
    ):
        try:
            cluster = Cluster(api, namespaces=settings.namespaces)
            elector = None
            if settings.elects:
                lease = Lease(api, namespace=settings.lease_namespace, name=settings.lease_name)
                elector = Elector(lease, settings.identity)
            loop = build_loop(settings, cluster, Prometheus(settings.prometheus_url, http), elector)
            if settings.state_maps:
                maps = ConfigMaps(api, namespace=settings.lease_namespace, name=settings.lease_name)
                interval_s = settings.state_interval_s
                loop.memory = Memory(maps, loop.metrics, parts=settings.state_maps, interval_s=interval_s)
            loop.routers = routers = Routers(api, to_routers, namespace=settings.lease_namespace)
            yield loop, Waker(loop, routers, settings.wake_interval_s), elector
        finally:
            await api.close()


def build_loop(settings: Settings, cluster: Cluster, prometheus: Prometheus, elector: Elector | None) -> Loop:
    """The loop of one replica."""
    metrics = Metrics()
    queries = build_queries(
        settings.tuning, attainment_window_s=settings.attainment_window_s, namespaces=settings.namespaces
    )
    observer = Observer(cluster, prometheus, queries, tuning=settings.tuning, stale_after_s=settings.stale_after_s)
    actor = Actor(cluster, metrics, identity=settings.identity, numbers_interval_s=settings.status_interval_s)
    return Loop(
        observer=observer,
        actor=actor,
        leadership=elector or Alone(),
        metrics=metrics,
        history=History(settings.history, _keeper(settings)),
        interval_s=settings.interval_s,
    )


def _keeper(settings: Settings) -> HistoryFile | None:
    if settings.history_file is None:
        return None
    return HistoryFile(Path(settings.history_file), settings.history_file_megabytes * 10**6)


if __name__ == "__main__":
    main()
