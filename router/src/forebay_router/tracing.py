"""Spans of sampled requests: the router's, and one for each request to a worker, whose `traceparent` the worker gets.

    router                      arrival ... end of the answer; events: chosen, first token
      prefill | decode | serve  a request to one worker ... the next one's beginning, or the end

A client's `traceparent` is taken over: what is sampled there is sampled here; what is not is not, and it goes on to the workers
as it came, as does every `tracestate`. A request without one is sampled with the share that is asked for. Whether a request is
sampled is decided here with one comparison; the SDK sees sampled ones only, so all others cost nothing.

Where spans go is told by the standard OTEL_* variables (OTEL_EXPORTER_OTLP_ENDPOINT, ..._HEADERS, OTEL_SERVICE_NAME,
OTEL_BSP_*). They are sent from a thread of the SDK's. This module is imported only when tracing is on.
"""

import os
import re
import time
from random import Random
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from forebay_api.objective import Verdict
from forebay_router.accounting import Record
from forebay_router.headers import Headers
from forebay_router.reading import Received

PARENT_HEADER: Final = b"traceparent"
_PARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?").fullmatch


def parent_of(value: bytes | None) -> SpanContext | None:
    """The client's span; None where there is none, or none that the standard allows."""
    found = _PARENT(value) if value is not None else None
    if found is None or found[1] == b"ff" or (found[1] == b"00" and found[5]):
        return None
    context = SpanContext(
        int(found[2], 16), int(found[3], 16), is_remote=True, trace_flags=TraceFlags(int(found[4], 16))
    )
    return context if context.is_valid else None


class RequestTrace:
    """The spans of one sampled request."""

    __slots__ = ("_leg", "_offset_ns", "_span", "_tracing")

    def __init__(self, tracing: "Tracing", span: Span, offset_ns: int) -> None:
        self._tracing = tracing
        self._span = span
        self._offset_ns = offset_ns
        """Wall time less monotonic time."""
        self._leg: Span | None = None

    @staticmethod
    def without_parent(headers: Headers) -> Headers:
        """The client's headers less its `traceparent`, which each worker gets a new one for."""
        return [header for header in headers if header[0] != PARENT_HEADER]

    def begin_leg(self, name: str, worker: str, attempt: int) -> bytes:
        """A worker is asked. Returns the header line for it."""
        self._end_leg()
        leg = self._leg = self._tracing.tracer.start_span(
            name,
            context=set_span_in_context(self._span),
            kind=SpanKind.CLIENT,
            attributes={"forebay.worker": worker, "forebay.attempt": attempt},
        )
        context = leg.get_span_context()
        return b"traceparent: 00-%032x-%016x-01\r\n" % (context.trace_id, context.span_id)

    def _end_leg(self, *, failed: bool = False) -> None:
        if self._leg is not None:
            if failed:
                self._leg.set_status(Status(StatusCode.ERROR))
            self._leg.end()
            self._leg = None

    def leg_failed(self) -> None:
        """The worker that was asked failed; another one may be asked."""
        self._end_leg(failed=True)

    def end(self, record: Record, verdict: Verdict | None, service: str | None) -> None:
        """The request has ended."""
        span, usage = self._span, record.usage
        told: dict[str, str | int | None] = {
            "http.response.status_code": record.status,
            "gen_ai.request.model": record.model,
            "gen_ai.usage.input_tokens": usage.prompt_tokens if usage else None,
            "gen_ai.usage.output_tokens": usage.output_tokens if usage else None,
            "forebay.cached_tokens": usage.cached_tokens if usage else None,
            "forebay.model_service": service,
            "forebay.worker": record.worker,
            "forebay.prefill_worker": record.prefill_worker,
            "forebay.attempts": record.attempts,
            "forebay.verdict": verdict.value if verdict else None,
            "error.type": record.reason.value if record.reason else None,
        }
        span.set_attributes({name: value for name, value in told.items() if value is not None})
        for name, at_s in (("chosen", record.chosen_s), ("first token", record.first_content_s)):
            if at_s is not None:
                span.add_event(name, timestamp=self._wall_ns(at_s))
        failed = record.reason is not None
        self._end_leg(failed=failed)
        if failed:
            span.set_status(Status(StatusCode.ERROR))
        span.end(self._wall_ns(record.ended_s))

    def _wall_ns(self, monotonic_s: float) -> int:
        return self._offset_ns + int(monotonic_s * 1e9)


class Tracing:
    """Samples requests and sends their spans."""

    def __init__(self, share: float, rng: Random, exporter: SpanExporter | None = None) -> None:
        self._share = share
        self._rng = rng
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "forebay-router"}
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=Resource.create(named), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
        self.tracer = self._provider.get_tracer("forebay_router")

    def begin(self, received: Received, request_id: bytes) -> RequestTrace | None:
        """The trace of a request that has arrived; None when it is not sampled."""
        parent = parent_of(received.fields.get(PARENT_HEADER))
        sampled = self._rng.random() < self._share if parent is None else parent.trace_flags.sampled
        if not sampled:
            return None
        offset_ns = time.time_ns() - time.monotonic_ns()
        path = received.path[:200].decode(errors="replace")
        span = self.tracer.start_span(
            f"POST {path}",
            context=Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), Context()),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": "POST", "url.path": path, "forebay.request_id": request_id.decode()},
            start_time=offset_ns + int(received.received_s * 1e9),
        )
        return RequestTrace(self, span, offset_ns)

    def close(self) -> None:
        """Send what is left; returns when it is sent or given up. Blocks."""
        self._provider.shutdown()
