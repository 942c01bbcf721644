"""One attempt: a request on one worker, or on a prefill worker and then on a decode worker.

    no prefill worker    send the request; its answer is the client's
    prefill worker       send a leg of one token; read its answer; send the request with what that answer says of the KV blocks

Nothing here waits. The answers call back, the attempt reads what is its own business (the leg, whether an opened answer is a
failure) and hands the client's answer to its request.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from forebay_router import rewriting
from forebay_router.accounting import Record
from forebay_router.admission.patience import patience_of
from forebay_router.answer import Answer
from forebay_router.bodies import Body
from forebay_router.endpoints import Endpoint
from forebay_router.errors import FailureReason, WorkerFailure
from forebay_router.headers import forwarded_lines
from forebay_router.judging import check_opening
from forebay_router.parsing import ParsedRequest
from forebay_router.place import Place
from forebay_router.reading import Received
from forebay_router.reply import Reply
from forebay_router.sse import EventScanner
from forebay_router.table import Service, Worker
from forebay_router.upstream import Upstreams

if TYPE_CHECKING:
    from forebay_router.tracing import RequestTrace

JOINED_MAX_BYTES = 16 * 1024
"""Up to this size head and body are joined into one buffer; a longer body is not copied."""


class Request(Protocol):
    """What an attempt needs of the request that it is made for."""

    endpoint: Endpoint
    received: Received
    request_id: bytes
    reply: Reply
    parsed: ParsedRequest
    service: Service
    strip_usage: bool
    """The token counts in a stream are for the router only."""
    record: Record
    trace: "RequestTrace | None"

    def step(self, step: Callable[..., None], *arguments: object) -> None:
        """Run something; WorkerFailure ends this attempt, anything else that it raises the request."""

    def opened(self, answer: Answer) -> None:
        """The client's answer has begun."""

    def ended(self, answer: Answer, failure: WorkerFailure | None) -> None:
        """The client's answer, or the prefill leg, has ended."""


class Attempt:
    """One attempt. Ends with `let_go`, called once."""

    cached_tokens: int | None = None
    """Prompt tokens that the prefill worker had cached, where there was one."""
    answer: Answer | None = None
    """What the worker asked last says; None before one is."""
    asked: Worker
    """The worker asked last."""
    sent_s: float
    """Monotonic time at which it was."""

    def __init__(self, request: Request, place: Place, upstreams: Upstreams) -> None:
        self.request = request
        self.place = place
        self.upstreams = upstreams
        self._head = b""
        """Header lines for the workers."""

    def ask(self) -> None:
        """Send the first request."""
        place, parsed = self.place, self.request.parsed
        if place.prefill is None or parsed.outline is None:
            self._ask_for_answer(parsed.body)
        else:
            leg = self._new_answer(None, prompt_answer=True)
            leg.collect_whole()
            fields, texts = parsed.parts
            assert fields is not None
            self._send(place.prefill.worker, rewriting.prefill_body(fields, texts), leg)
        parsed.put_away()

    def let_go(self) -> None:
        """It is over, one way or another: stop the worker where it still answers, give the leases back."""
        if self.answer is not None and not self.answer.over:
            self.answer.abandon()
        self.place.release()

    @property
    def lost(self) -> bool:
        """The worker was sent the request, and its connection ended."""
        return self.answer is not None and self.answer.carrier_lost

    @property
    def scanner(self) -> EventScanner | None:
        """What is known of an answer that is an event stream."""
        return self.answer.scanner if self.answer is not None else None

    def pause(self) -> None:
        """The client does not keep up with an answer that is passed on."""
        if self.answer is not None and self.answer.sink is not None:
            self.answer.pause()

    def resume(self) -> None:
        """The client takes more."""
        if self.answer is not None and self.answer.paused:
            self.answer.resume()

    # -- asking -------------------------------------------------------------------------------------------------------

    def _ask_for_answer(self, body: Body) -> None:
        request = self.request
        streamed = request.parsed.stream
        scanner = None
        if streamed:
            scanner = EventScanner(
                request.endpoint.dialect,
                strip_usage=request.strip_usage,
                cached_tokens=self.cached_tokens,
                error_event=request.reply.error_event(FailureReason.ABORTED),
            )
        answer = self._new_answer(scanner, prompt_answer=streamed)
        self._send(self.place.lease.worker, body, answer)

    def _new_answer(self, scanner: EventScanner | None, *, prompt_answer: bool) -> Answer:
        """An answer under the service's limits. One that comes only when all of it is made has no first-byte limit."""
        limits = self.request.service.spec.timeouts
        now_s = self.sent_s = time.monotonic()
        answer = self.answer = Answer(self, now_s=now_s, scanner=scanner)
        answer.total_deadline_s = self.request.received.received_s + limits.total_s
        answer.first_byte_deadline_s = now_s + limits.first_byte_s if prompt_answer else answer.total_deadline_s
        answer.idle_limit_s = limits.idle_s
        answer.patience = patience_of(self.request.received, stream=self.request.parsed.stream)
        return answer

    def _send(self, worker: Worker, body: Body, answer: Answer) -> None:
        self.asked = worker
        received, trace, access = self.request.received, self.request.trace, self.upstreams.access
        if not self._head:
            headers = received.headers if trace is None else trace.without_parent(received.headers)
            lines = forwarded_lines(headers, received.fields, access.withheld)
            self._head = b"%b%bx-request-id: %b\r\n" % (lines, access.authorization, self.request.request_id)
        head = b"POST %b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n" % (
            received.target,
            worker.peer.host_line,
            self._head if trace is None else self._begin_leg(trace, worker, answer) + self._head,
            len(body),
        )
        request: tuple[Body, ...] = (head + body,) if len(body) <= JOINED_MAX_BYTES else (head, body)
        self.upstreams.send(worker.peer, request, answer)

    def _begin_leg(self, trace: "RequestTrace", worker: Worker, answer: Answer) -> bytes:
        """The span of a sampled request's part."""
        name = "serve" if self.place.prefill is None else "prefill" if answer.collected else "decode"
        return trace.begin_leg(name, worker.spec.name, self.request.record.attempts)

    # -- what workers say ---------------------------------------------------------------------------------------------

    def answer_opened(self, answer: Answer) -> None:
        """The worker has begun to answer."""
        self.request.step(self._opened, answer)

    def answer_ended(self, answer: Answer, failure: WorkerFailure | None) -> None:
        """The answer has come to its end, or to an end."""
        self.request.ended(answer, failure)

    def _opened(self, answer: Answer) -> None:
        """Raises WorkerFailure where another worker may do better."""
        check_opening(answer, content_begun=self.request.reply.content_begun, own_key=self.upstreams.access.own_key)
        if answer.status < 400:
            self.place.answered(self.asked)
        if answer.collected:
            self._prefilled(answer)
        else:
            self.place.lease.prefilled()
            self.request.opened(answer)

    def _prefilled(self, leg: Answer) -> None:
        """The prefill worker has answered: ask for the answer itself, or pass on its error."""
        if leg.status != 200:
            self.request.opened(leg)
            return
        params, self.cached_tokens = rewriting.read_prefill_answer(leg.take_buffered())
        self._ask_for_answer(rewriting.decode_body(self.request.parsed.body, params))
        self.place.prefilled(leg.last_byte_s)
