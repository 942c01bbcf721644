"""Traces: what is sampled, what workers get, and the spans that come of it."""

import gzip
import json
import logging
from contextlib import asynccontextmanager
from random import Random

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from forebay_router.settings import parse_settings
from forebay_router.tracing import Tracing, parent_of
from tests.router.harness import ask, chat, routed, routed_pairs, until
from tests.router.scripted import MODEL, completion, hello, workers

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
NOT_SAMPLED = f"00-{TRACE}-{PARENT}-00"


@pytest.mark.parametrize(
    ("value", "sampled"),
    [
        (SAMPLED.encode(), True),
        (NOT_SAMPLED.encode(), False),
        (f"cc-{TRACE}-{PARENT}-01-what-comes-later".encode(), True),
    ],
)
def test_a_parent_is_read(value, sampled):
    found = parent_of(value)
    assert found is not None
    assert (found.trace_id, found.span_id, found.trace_flags.sampled) == (int(TRACE, 16), int(PARENT, 16), sampled)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"rubbish",
        f"ff-{TRACE}-{PARENT}-01".encode(),
        f"00-{TRACE}-{PARENT}-01-more".encode(),
        f"00-{TRACE.upper()}-{PARENT}-01".encode(),
        f"00-{'0' * 32}-{PARENT}-01".encode(),
        f"00-{TRACE}-{'0' * 16}-01".encode(),
    ],
)
def test_what_the_standard_forbids_is_no_parent(value):
    assert parent_of(value) is None


@pytest.fixture
def exporter(monkeypatch):
    """Where spans go, at once."""
    made = InMemorySpanExporter()
    monkeypatch.setattr("forebay_router.tracing.OTLPSpanExporter", lambda: made)
    monkeypatch.setattr("forebay_router.tracing.BatchSpanProcessor", SimpleSpanProcessor)
    return made


@asynccontextmanager
async def traced(*scripted, share: str = "1"):
    async with routed(*scripted, flags=("--trace-share", share)) as router:
        yield router


async def spans(exporter: InMemorySpanExporter, count: int):
    await until(lambda: len(exporter.get_finished_spans()) >= count, "the spans are there")
    return {one.name: one for one in exporter.get_finished_spans()}


async def test_a_clients_trace_goes_through_the_router_to_the_worker(exporter):
    async with workers(hello) as [worker], traced(worker, share="0.000001") as router:
        headers = {"traceparent": SAMPLED, "tracestate": "vendor=1", "x-request-id": "r-1"}
        await ask(router, chat(stream=True), headers=headers)
        found = await spans(exporter, 2)
        root, leg = found["POST /v1/chat/completions"], found["serve"]
        assert root.parent.span_id == int(PARENT, 16)
        assert root.context.trace_id == leg.context.trace_id == int(TRACE, 16)
        assert leg.parent.span_id == root.context.span_id
        assert (root.kind, leg.kind) == (SpanKind.SERVER, SpanKind.CLIENT)
        got = worker.asked[-1].headers
        assert got["traceparent"] == f"00-{TRACE}-{leg.context.span_id:016x}-01"
        assert got["tracestate"] == "vendor=1"
        told = dict(root.attributes)
        assert told["http.response.status_code"] == 200
        assert told["forebay.worker"] == worker.url == leg.attributes["forebay.worker"]
        assert (told["forebay.model_service"], told["gen_ai.request.model"]) == (f"local/{MODEL}", MODEL)
        assert (told["forebay.verdict"], told["forebay.request_id"]) == ("good", "r-1")
        assert [event.name for event in root.events] == ["chosen", "first token"]
        assert root.start_time <= root.events[0].timestamp <= root.events[1].timestamp <= root.end_time
        assert root.status.status_code is StatusCode.UNSET


async def test_what_is_not_sampled_goes_on_as_it_came(exporter):
    async with workers(hello) as [worker], traced(worker, share="0.000001") as router:
        await ask(router, chat(), headers={"traceparent": NOT_SAMPLED})
        assert worker.asked[-1].headers["traceparent"] == NOT_SAMPLED
        await ask(router, chat())
        assert "traceparent" not in worker.asked[-1].headers
        assert exporter.get_finished_spans() == ()


async def test_without_the_flag_a_clients_header_is_passed_on():
    async with workers(hello) as [worker], routed(worker) as router:
        assert router.process.router.tools.tracing is None
        await ask(router, chat(), headers={"traceparent": SAMPLED})
        assert worker.asked[-1].headers["traceparent"] == SAMPLED


async def test_prefill_and_decode_are_spans_of_their_own(exporter):
    async def prefill(_asked, wire):
        await wire.json({**completion("x"), "kv_transfer_params": {"remote_block_ids": [1]}})

    async with workers(prefill, hello) as (first, second):
        flags = ("--trace-share", "1")
        async with routed_pairs([first], [second], flags=flags) as router:
            await ask(router, chat(stream=True, messages=[{"role": "user", "content": "long " * 4000}]))
            found = await spans(exporter, 3)
            root = found["POST /v1/chat/completions"]
            for name, worker in (("prefill", first), ("decode", second)):
                leg = found[name]
                assert leg.parent.span_id == root.context.span_id
                assert leg.attributes["forebay.worker"] == worker.url
                assert worker.asked[-1].headers["traceparent"].split("-")[2] == f"{leg.context.span_id:016x}"
            assert found["prefill"].end_time <= found["decode"].end_time


async def test_each_attempt_is_a_span_and_the_failed_one_says_so(exporter):
    async def refuse(_asked, wire):
        await wire.json({"error": {"message": "full"}}, status=503)

    async with workers(refuse) as [bad], workers(hello) as [good], traced(bad, good) as router:
        for _ in range(8):
            await ask(router, chat())
            if len([one for one in exporter.get_finished_spans() if one.name == "serve"]) > len(good.asked):
                break
        await until(
            lambda: [one for one in exporter.get_finished_spans() if one.attributes.get("forebay.attempt") == 2], "2"
        )
        legs = {one.attributes["forebay.attempt"]: one for one in exporter.get_finished_spans() if one.name == "serve"}
        retried = [one for one in exporter.get_finished_spans() if one.attributes.get("forebay.attempts") == 2]
        assert legs[2].status.status_code is StatusCode.UNSET
        failed = [one for one in exporter.get_finished_spans() if one.attributes.get("forebay.worker") == bad.url]
        assert all(one.status.status_code is StatusCode.ERROR for one in failed)
        assert retried[0].attributes["forebay.worker"] == good.url
        assert retried[0].status.status_code is StatusCode.UNSET


async def test_spans_reach_a_collector_where_the_standard_variables_say(monkeypatch):
    """OTLP over HTTP, as the SDK sends it; what is left is sent when the router stops."""
    bodies: list[bytes] = []

    async def collect(request: web.Request) -> web.Response:
        assert request.headers["authorization"] == "secret"
        bodies.append(await request.read())
        return web.Response(body=b"", content_type="application/x-protobuf")

    collector = web.Application()
    collector.router.add_post("/v1/traces", collect)
    runner = web.AppRunner(collector)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{runner.addresses[0][1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret")
        async with workers(hello) as [worker], traced(worker) as router:
            await ask(router, chat(), headers={"traceparent": SAMPLED})
    finally:
        await runner.cleanup()
    sent = ExportTraceServiceRequest()
    sent.ParseFromString(b"".join(gzip.decompress(one) if one[:2] == b"\x1f\x8b" else one for one in bodies))
    (resource,) = sent.resource_spans
    spans = {one.name: one for scope in resource.scope_spans for one in scope.spans}
    assert spans.keys() == {"POST /v1/chat/completions", "serve"}
    assert all(one.trace_id.hex() == TRACE for one in spans.values())


def test_the_service_name_is_ours_unless_the_environment_names_another(monkeypatch, exporter):
    def name() -> str:
        tracing = Tracing(1.0, Random(1))
        made: str = tracing._provider.resource.attributes["service.name"]
        tracing.close()
        return made

    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    assert name() == "forebay-router"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "edge")
    assert name() == "edge"


def test_the_share_is_off_by_default_and_read_as_a_share(capsys):
    flags = ["--workers", "http://10.0.0.1:8000"]
    assert parse_settings(flags, {}).trace_share is None
    assert parse_settings([*flags, "--trace-share", "0.01"], {}).trace_share == 0.01
    with pytest.raises(SystemExit):
        parse_settings([*flags, "--trace-share", "2"], {})
    assert "--trace-share" in capsys.readouterr().err


async def test_the_access_log_tells_the_stages_in_order(caplog):
    async with workers(hello) as [worker], routed(worker, flags=("--access-log", "all")) as router:
        caplog.set_level(logging.INFO, logger="forebay_router.access")
        await ask(router, chat(stream=True))
        await ask(router, chat())
        await until(
            lambda: len([one for one in caplog.records if one.name == "forebay_router.access"]) == 2, "two lines"
        )
        streamed, whole = [one for one in caplog.records if one.name == "forebay_router.access"]
        stages = (streamed.chosen_seconds, streamed.first_byte_seconds, streamed.ttft_seconds, streamed.seconds)
        assert list(stages) == sorted(stages)
        assert stages[0] > 0
        assert streamed.prefilled_seconds is None
        assert 0 < whole.chosen_seconds < whole.first_byte_seconds <= whole.seconds
        assert json.dumps(stages)
