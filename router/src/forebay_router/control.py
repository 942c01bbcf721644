"""The control port: health, readiness, metrics, state. FastAPI on uvicorn, in the data plane's own loop.

Same loop, not a thread: what it shows is then always one consistent moment of the table, /healthz fails exactly when the data
plane hangs, and nothing needs a lock. The price is that a scrape holds requests up for as long as it takes to write the text,
which `metrics` keeps short (about 1 us a line).
"""

import contextlib
import ssl
import time
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from math import isfinite
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from forebay_router import errors, metrics, showing
from forebay_router.compilation import compiled
from forebay_router.discovery.source import Discovery
from forebay_router.endpoints import ENDPOINTS
from forebay_router.explaining import explain_request
from forebay_router.kv_events import KvEvents
from forebay_router.mesh.peers import Counts
from forebay_router.mesh.sockets import Mesh
from forebay_router.protection_metrics import protection_samples
from forebay_router.router import Router
from forebay_router.table import Service, Worker, WorkerState

NO_COUNTS = Counts()


def _prefix_gauges(router: Router, service: Service, labels: metrics.Labels) -> Iterator[metrics.Sample]:
    known = router.tools.placing.index.services.get(str(service.spec.key))
    yield metrics.PREDICTED_TOKENS, labels, known.predicted_tokens if known else 0
    yield metrics.DELIVERED_TOKENS, labels, known.delivered_tokens if known else 0
    yield metrics.MISSED_TOKENS, labels, known.missed_tokens if known else 0


def _cache_gauges(
    router: Router, kv_events: KvEvents, service: Service, labels: metrics.Labels
) -> Iterator[metrics.Sample]:
    counts = kv_events.states(service.workers.values(), router.tools.placing.index.audits)
    for state, count in counts.items():
        yield metrics.INDEX_WORKERS, (*labels, ("state", state.value)), count


def _index_gauges(router: Router, kv_events: KvEvents) -> Iterator[metrics.Sample]:
    index, counts = router.tools.placing.index, kv_events.counts
    yield metrics.INDEX_BLOCKS, (), index.approximate.entries
    yield metrics.INDEX_RESETS, (), index.approximate.resets
    yield metrics.INDEX_FALLBACKS, (), index.fallbacks
    yield metrics.KV_SUBSCRIPTIONS, (), len(kv_events.connected)
    yield metrics.KV_MESSAGES, (), counts.messages
    for kind in ("malformed", "gaps", "restarts", "holes"):
        yield metrics.KV_TROUBLES, (("kind", kind),), getattr(counts, kind)
    yield metrics.KV_TROUBLES, (("kind", "orphans"),), index.precise.orphans
    if router.tools.placing.tokenizers is not None:
        tokenised = router.tools.placing.tokenizers.counts
        for result in ("exact", "late", "other"):
            yield metrics.TOKENISED, (("result", result),), getattr(tokenised, result)


def _mesh_gauges(mesh: Mesh | None) -> Iterator[metrics.Sample]:
    """All zero for a router that is alone."""
    peers, counts = (mesh.peers, mesh.peers.counts) if mesh is not None else (None, NO_COUNTS)
    yield metrics.MESH_PEERS, (), len(peers.known) if peers else 0
    yield metrics.MESH_MESSAGES, (("direction", "sent"),), mesh.sent_messages if mesh else 0
    yield metrics.MESH_MESSAGES, (("direction", "received"),), counts.received
    yield metrics.MESH_TROUBLES, (("kind", "dropped"),), mesh.outbox.dropped if mesh else 0
    for kind in ("gaps", "malformed", "refused", "restarts", "expired"):
        yield metrics.MESH_TROUBLES, (("kind", kind),), getattr(counts, kind)
    yield metrics.MESH_LEASES, (), peers.claims.count if peers else 0
    yield metrics.MESH_EXPIRED, (), counts.expired_leases
    yield metrics.MESH_SILENCE, (), peers.oldest_s(time.monotonic()) if peers else 0


def _peers_state(mesh: Mesh | None, now_s: float) -> list[dict[str, Any]]:
    return [
        {
            "name": peer.name,
            "began": datetime.fromtimestamp(peer.incarnation / 1e9, UTC).isoformat(timespec="seconds"),
            "leases": len(peer.claims),
            "silent_s": round(now_s - peer.heard_s, 3),
            "complete": peer.synced,
        }
        for peer in (mesh.peers.known.values() if mesh is not None else ())
    ]


def _gauges(router: Router, discovery: Discovery, kv_events: KvEvents) -> Iterator[metrics.Sample]:
    table = router.table
    for service in table.services.values():
        of_service = (("namespace", service.spec.key.namespace), ("model_service", service.spec.key.name))
        for pool, stats in service.stats.pools.items():
            counts = dict.fromkeys(WorkerState, 0)
            for worker in service.workers.values():
                if worker.spec.pool == pool:
                    counts[worker.spec.state] += 1
            for state, count in counts.items():
                labels = (*of_service, ("pool", pool), ("role", stats.role), ("state", state.value))
                yield metrics.WORKERS, labels, count
        yield metrics.OBJECTIVE_TARGET, of_service, service.spec.objective.target
        yield from _prefix_gauges(router, service, of_service)
        yield from showing.samples(router.tools.placing, service, of_service)
        yield from _cache_gauges(router, kv_events, service, of_service)
    yield from _index_gauges(router, kv_events)
    yield from _mesh_gauges(router.mesh)
    yield metrics.SYNCED, (), int(discovery.synced)
    yield metrics.CONNECTIONS, (), len(router.connections.live) if router.connections else 0
    yield metrics.LEASES, (), len(table.leases)
    yield metrics.DISCOVERY_ERRORS, (), discovery.failures
    for loop, failures in router.tools.supervisor.failures.items():
        yield metrics.BACKGROUND_FAILURES, (("loop", loop.value),), failures
    yield metrics.PROCESSES, (), 1
    yield metrics.PROCESS_RESTARTS, (), 0
    yield from protection_samples(router.tools.protection)


def metrics_text(router: Router, discovery: Discovery, kv_events: KvEvents) -> bytes:
    """The exposition of everything the router counts."""
    services = [router.tools.unknown_stats, *router.table.service_stats()]
    return metrics.render(services, _gauges(router, discovery, kv_events))


def _speed_state(worker: Worker, now_s: float) -> dict[str, Any]:
    candidate = worker.candidate
    speed, pool = candidate.speed, candidate.speed.pool
    return {
        "wait_s": round(worker.load.backlog.wait_s(candidate.token_s, now_s), 4),
        "origin": pool.origin.value,
        "first_token_base_s": round(pool.first_token.base * speed.first_token.value, 5),
        "prefill_tokens_per_s": round(1 / candidate.token_s) if candidate.token_s > 0 else None,
        "output_token_s": round(pool.output_token.at(worker.load.requests + 1) * speed.output_token.value, 5),
        "slower_than_pool": round(speed.first_token.value, 3),
        "answered": speed.finished,
    }


def _cache_state(router: Router, uid: str) -> dict[str, Any]:
    index = router.tools.placing.index
    audit = index.audits.get(uid)
    mirror = index.approximate.mirrors.get(index.approximate.slots.of.get(uid, -1))
    if audit is None or mirror is None:
        return {}
    return {
        "source": audit.source(precise_speaks=index.precise.speaks(uid)).value,
        "blocks": mirror.blocks,
        "prompt_bytes": mirror.size_bytes,
        "prompt_bytes_max": mirror.bound_bytes if isfinite(mirror.bound_bytes) else None,
        "errors": {
            source.value: {"over": round(one.over, 4), "under": round(one.under, 4), "answers": one.answers}
            for source, one in audit.errors.items()
        },
        "fallbacks": audit.fallbacks,
    }


def _worker_state(router: Router, worker: Worker, now_s: float) -> dict[str, Any]:
    spec = worker.spec
    return {
        "uid": spec.uid,
        "name": spec.name,
        "address": f"{spec.host}:{spec.port}",
        "pool": spec.pool,
        "role": spec.role.value,
        "revision": spec.revision,
        "state": spec.state.value,
        "health": showing.health_state(worker.health, now_s),
        "requests": worker.load.requests,
        "prompt_tokens": worker.load.prompt_tokens,
        "output_tokens": worker.load.output_tokens,
        "speed": _speed_state(worker, now_s),
        "cache": _cache_state(router, spec.uid),
        "idle_connections": len(worker.peer.idle),
    }


def _service_state(router: Router, service: Service, now_s: float) -> dict[str, Any]:
    spec = service.spec
    known = router.tools.placing.index.services.get(str(spec.key))
    return {
        "namespace": spec.key.namespace,
        "name": spec.key.name,
        "models": list(spec.models),
        "objective": {
            "ttft_s": spec.objective.ttft_s,
            "tpot_s": spec.objective.tpot_s,
            "target": spec.objective.target,
        },
        "in_flight": service.stats.in_flight,
        "pending": service.stats.pending,
        "queue": showing.queue_state(router.tools.placing, service, now_s),
        "prompt_tokens_per_byte": round(known.tokens_per_byte, 4) if known else None,
        "workers": [_worker_state(router, worker, now_s) for worker in service.workers.values()],
    }


def state_of(router: Router, discovery: Discovery) -> dict[str, Any]:
    """Everything a person asks first: services, workers, loads, leases, and names that are served twice."""
    table = router.table
    now_s = time.monotonic()
    return {
        "ready": router.ready,
        "compiled": compiled(),
        "draining": router.connections is not None and router.connections.draining,
        "discovery": {"synced": discovery.synced, "errors": discovery.failures},
        "leases": len(table.leases),
        "replica": router.mesh.name if router.mesh else None,
        "peers": _peers_state(router.mesh, now_s),
        "services": [_service_state(router, service, now_s) for service in table.services.values()],
        "shadowed": [
            {
                "model": model,
                "served_by": str(served),
                "shadowed": str(shadowed),
                "reachable_by": f"header x-forebay-model-service: {shadowed}",
            }
            for model, served, shadowed in table.shadowed()
        ],
    }


def control_app(router: Router, discovery: Discovery, kv_events: KvEvents) -> FastAPI:
    """The application of the control port."""
    app = FastAPI(title="Forebay router control", docs_url=None, redoc_url=None, openapi_url="/openapi.json")

    @app.get("/healthz")
    async def healthz() -> PlainTextResponse:
        """The loop runs."""
        return PlainTextResponse("ok\n")

    @app.get("/readyz")
    async def readyz() -> PlainTextResponse:
        """New requests are welcome."""
        if router.ready:
            return PlainTextResponse("ok\n")
        draining = router.connections is not None and router.connections.draining
        return PlainTextResponse("draining\n" if draining else "workers are not known yet\n", status_code=503)

    @app.get("/metrics")
    async def read_metrics() -> Response:
        """Prometheus text."""
        return Response(
            metrics_text(router, discovery, kv_events), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    @app.get("/state")
    async def read_state() -> JSONResponse:
        """Services, workers, loads, leases."""
        return JSONResponse(state_of(router, discovery))

    @app.get("/ejected")
    async def read_ejected() -> JSONResponse:
        """Workers that are left alone, or were and are back."""
        return JSONResponse({"workers": showing.left_alone(router.table)})

    @app.post("/explain")
    async def explain(request: Request, path: str = "/v1/chat/completions") -> JSONResponse:
        """Candidates, predictions and the choice for the request in the body; it is not sent to a worker."""
        endpoint = ENDPOINTS.get(path.encode())
        try:
            if endpoint is None:
                raise errors.not_found(path)
            headers = dict(request.headers.raw)
            return JSONResponse(explain_request(router.tools.placing, endpoint, headers, await request.body()))
        except errors.RequestRefused as refused:
            return JSONResponse({"error": refused.message}, status_code=refused.status)

    return app


class ControlServer(uvicorn.Server):
    """uvicorn without its own signal handling: the router's main decides when to stop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals alone."""
        yield


def control_server(app: FastAPI, tls: ssl.SSLContext | None = None, *, path: str | None = None) -> ControlServer:
    """A server for the control port, with TLS or without; it is given its socket when it runs, unless it makes a file."""
    factory = None if tls is None else lambda *_: tls
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        log_level="warning",
        ssl_context_factory=factory,
        uds=path,
    )
    return ControlServer(config)
