"""One request, from the parsed head to the end of its answer.

    read -> find the service -> place (choose, lease) or hold -> ask the worker(s) -> pass the answer on -> account

One task a request. It waits at three points only: for a place, for the answer to open, for the answer to close; everything
between runs in callbacks without a task switch. The task is cancelled when the client leaves: `finally` blocks then close the
worker's connection (which makes the engine stop), release the leases and count the request as abandoned.

Attempts. Until the first event or the whole JSON answer is in, nothing has reached the client, so a failed attempt is made again
on another worker, never on the same, at most `attempts_max` times. Afterwards a failure ends the answer: an event stream with
an error event, anything else with a closed connection. There is no continuation on another worker: the client would get the
beginning twice.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass

from forebay_api.objective import Objective, Outcome
from forebay_router import errors, rewriting
from forebay_router.access_log import AccessLog
from forebay_router.accounting import Record, account
from forebay_router.answer import Answer, Passing, WorkerRefusal
from forebay_router.endpoints import Endpoint
from forebay_router.errors import FailureReason, RequestRefused, WorkerFailure
from forebay_router.explaining import EXPLAIN_HEADER, explain_line
from forebay_router.headers import forwarded_lines
from forebay_router.judging import check_opening, failure_at_end
from forebay_router.metrics import ServiceStats
from forebay_router.parsing import ParsedRequest, parse_request
from forebay_router.placing import Place, Placing
from forebay_router.reading import Received
from forebay_router.reply import Reply
from forebay_router.sse import EventScanner
from forebay_router.table import Service, Worker
from forebay_router.upstream import UpstreamConnection, Upstreams
from forebay_router.usage import read_facts, with_cached_tokens

log = logging.getLogger(__name__)

JOINED_MAX_BYTES = 16 * 1024
"""Up to this size head and body are joined into one buffer; a longer body is not copied."""
CLIENT_LEFT_STATUS = 499
"""Counted for a client that left before it got a status."""
_NOT_JUDGED = Objective(ttft_s=float("inf"), tpot_s=float("inf"), target=1.0)


@dataclass(frozen=True, slots=True)
class Tools:
    """What every exchange uses."""

    placing: Placing
    upstreams: Upstreams
    access_log: AccessLog
    attempts_max: int
    unknown_stats: ServiceStats
    """Counts of requests that name no known model."""
    explain: bool = True
    """Answer `x-forebay-explain: 1` with a header that tells the choice."""


class Exchange:
    """One request and its answer."""

    service: Service | None = None
    parsed: ParsedRequest | None = None
    strip_usage = False
    tried: frozenset[str] = frozenset()
    """Workers that failed on this request."""
    asked: Worker | None = None
    """The worker asked last."""
    cached_tokens: int | None = None
    """Prompt tokens that the prefill worker had cached, where there was one."""
    forwarded: bytes | None = None
    """Header lines for the workers."""
    last_place: Place | None = None

    def __init__(self, tools: Tools, endpoint: Endpoint, received: Received, request_id: bytes, reply: Reply) -> None:
        self.tools = tools
        self.endpoint = endpoint
        self.received = received
        self.request_id = request_id
        self.reply = reply
        self.record = Record(received.received_s, judged=endpoint.judged)

    async def run(self) -> None:
        """Serve the request; returns when its answer has been written or cannot be."""
        try:
            parsed = self._read()
            placing, fields = self.tools.placing, self.received.fields
            service = placing.known_service(parsed.model, fields)
            if service is None:
                service = await placing.find_service(parsed.model, fields)
            self._enter(service)
            await self._attempts(service, parsed)
        except RequestRefused as refused:
            self._refuse(refused)
        except asyncio.CancelledError:
            self._note_cancelled()
            raise
        except Exception:
            log.exception("request failed in the router", extra={"request_id": self.request_id.decode()})
            self._refuse(errors.router_fault(self.request_id.decode()))
        finally:
            self._account()

    def _read(self) -> ParsedRequest:
        """Understand the request."""
        parsed = self.parsed = parse_request(self.endpoint, self.received.fields, self.received.body)
        rewriting.scrub(parsed)
        self.strip_usage = rewriting.ask_for_usage(parsed)
        self.record.streamed = parsed.stream
        self.received.body = b""
        return parsed

    def _enter(self, service: Service) -> None:
        self.service = service
        service.stats.arrived += 1
        service.stats.in_flight += 1

    # -- attempts -----------------------------------------------------------------------------------------------------

    async def _attempts(self, service: Service, parsed: ParsedRequest) -> None:
        """Try workers until one answers."""
        placing = self.tools.placing
        for attempt in range(1, self.tools.attempts_max + 1):
            place = placing.place_now(service, parsed, self.received, self.tried)
            if place is None:
                place = await placing.place(service, parsed, self.received, self.tried)
            with place:
                self._note_attempt(attempt, place)
                try:
                    await self._ask(place, service, parsed)
                except WorkerFailure as failure:
                    self._note_failed_worker(place, failure)
                    if attempt == self.tools.attempts_max or not self._may_retry(failure, service, parsed):
                        self._fail(failure)
                        return
                    service.stats.retries[failure.reason] += 1
                else:
                    return

    def _note_attempt(self, attempt: int, place: Place) -> None:
        self.last_place = place
        self.record.attempts = attempt
        place.note(self.record)
        if self.received.fields.get(EXPLAIN_HEADER) == b"1" and self.tools.explain:
            self.reply.explanation = explain_line(place.choice, place.trip)

    def _note_failed_worker(self, place: Place, failure: WorkerFailure) -> None:
        """The worker asked last is not asked again; one that fails much is left alone by everybody for a while."""
        assert self.asked is not None
        self.tried |= {self.asked.spec.uid}
        self.tools.placing.failed(place, self.asked, failure)

    def _may_retry(self, failure: WorkerFailure, service: Service, parsed: ParsedRequest) -> bool:
        """Nothing has reached the client, and another worker can take the request.

        A worker that gave an error answer is only worth replacing by one that is there: else its answer is relayed. A worker
        that gave none is worth waiting for a successor.
        """
        if self.reply.content_begun or failure.reason is FailureReason.TOTAL_TIMEOUT:
            return False
        return not isinstance(failure, WorkerRefusal) or self.tools.placing.possible(service, parsed, self.tried)

    async def _ask(self, place: Place, service: Service, parsed: ParsedRequest) -> None:
        """One attempt: the prefill leg where there is one, then the answer."""
        body = parsed.body
        self.cached_tokens = None
        if place.prefill is not None and parsed.fields is not None:
            leg = await self._ask_prefill(place.prefill.worker, service, rewriting.prefill_body(parsed.fields))
            if leg.status != 200:
                if self.reply.begun:
                    raise WorkerFailure(FailureReason.WORKER_ERROR, f"prefill answered {leg.status} within a stream")
                self._pass_whole(leg)
                return
            params, self.cached_tokens = rewriting.read_prefill_answer(leg.take_buffered())
            body = rewriting.decode_body(body, params)
            place.prefilled()
        scanner = self._new_scanner() if parsed.stream else None
        answer = self._new_answer(service, scanner, prompt_answer=parsed.stream)
        try:
            connection = await self._send(place.lease.worker, body, answer)
            body = b""
            place.lease.prefilled()
            self._check_opening(answer, place.lease.worker)
            await self._pass_on(answer, connection)
        finally:
            if scanner is not None:
                self._note_stream(scanner)
            self._let_go(answer)

    def _new_scanner(self) -> EventScanner:
        return EventScanner(
            self.endpoint.dialect,
            strip_usage=self.strip_usage,
            cached_tokens=self.cached_tokens,
            error_event=self.reply.error_event(FailureReason.ABORTED),
        )

    async def _ask_prefill(self, worker: Worker, service: Service, body: bytes) -> Answer:
        """The prefill leg's complete answer; raises WorkerFailure where another worker may do better."""
        answer = self._new_answer(service, None, prompt_answer=True)
        answer.collect_whole()
        try:
            await self._send(worker, body, answer)
            self._check_opening(answer, worker)
        finally:
            self._let_go(answer)
        return answer

    def _new_answer(self, service: Service, scanner: EventScanner | None, *, prompt_answer: bool) -> Answer:
        """An answer under the service's limits. One that comes only when all of it is made has no first-byte limit."""
        limits = service.spec.timeouts
        now_s = time.monotonic()
        answer = Answer(asyncio.get_running_loop(), now_s=now_s, scanner=scanner)
        answer.total_deadline_s = self.received.received_s + limits.total_s
        answer.first_byte_deadline_s = now_s + limits.first_byte_s if prompt_answer else answer.total_deadline_s
        answer.idle_limit_s = limits.idle_s
        self.tools.upstreams.in_flight.add(answer)
        return answer

    def _let_go(self, answer: Answer) -> None:
        """The attempt is over, one way or another."""
        self.tools.upstreams.in_flight.discard(answer)
        if not answer.complete:
            answer.abandon()

    def _send(self, worker: Worker, body: bytes, answer: Answer) -> Coroutine[None, None, UpstreamConnection]:
        """Send the request to a worker; what is returned waits until its answer opens, or raises WorkerFailure."""
        self.asked = worker
        if self.forwarded is None:
            received = self.received
            lines = forwarded_lines(received.headers, received.fields)
            self.forwarded = b"%bx-request-id: %b\r\n" % (lines, self.request_id)
        head = b"POST %b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n" % (
            self.received.target,
            worker.peer.host_line,
            self.forwarded,
            len(body),
        )
        request = [head + body] if len(body) <= JOINED_MAX_BYTES else [head, body]
        return self.tools.upstreams.send(worker.peer, request, answer)

    def _check_opening(self, answer: Answer, worker: Worker) -> None:
        """The worker has answered: see whether another one should."""
        check_opening(answer, content_begun=self.reply.content_begun)
        if not worker.health.sound and answer.status < 400:
            self.tools.placing.guard.answered(worker)

    # -- passing on ---------------------------------------------------------------------------------------------------

    async def _pass_on(self, answer: Answer, connection: UpstreamConnection) -> None:
        """Write the answer to the client, to its end."""
        reply = self.reply
        if reply.begun and answer.passing is not Passing.EVENTS:
            raise WorkerFailure(FailureReason.WORKER_ERROR, f"the worker answered {answer.status} within a stream")
        if answer.passing is Passing.WHOLE and answer.complete:
            self._pass_whole(answer)
            return
        if not reply.begun:
            reply.begin(answer)
        block = answer.take_buffered()
        if block:
            reply.write(block)
        reply.content_begun = answer.scanner is None or answer.scanner.data_seen
        if reply.content_begun and self.parsed is not None:
            self.parsed.forget()
        if not answer.complete:
            self._watch_flow(answer, connection)
            answer.sink = reply.write_part
            answer.chunk_sink = reply.client.write if reply.chunked else None
            await answer.closed
        self._end(answer)

    def _watch_flow(self, answer: Answer, connection: UpstreamConnection) -> None:
        """Read from the worker only as fast as the client takes it."""

        def pause() -> None:
            if not answer.complete:  # else the connection is another request's by now
                answer.paused = True
                connection.pause()

        def resume() -> None:
            if not answer.complete:
                answer.paused = False
                answer.last_byte_s = time.monotonic()
                connection.resume()

        self.reply.client.watch_flow(pause, resume)

    def _pass_whole(self, answer: Answer) -> None:
        """Write a complete answer."""
        body = answer.take_buffered()
        record = self.record
        record.streamed = False
        if answer.status == 200 and self.endpoint.judged and not answer.encoded:
            facts = read_facts(body)
            record.usage = facts.usage
            if facts.usage and self.cached_tokens is not None and facts.usage.cached_tokens != self.cached_tokens:
                record.usage = facts.usage._replace(cached_tokens=self.cached_tokens)
                body = with_cached_tokens(body, self.cached_tokens)
            if facts.aborted:
                record.outcome, record.reason = Outcome.CUT_OFF, FailureReason.ABORTED
        self.reply.whole(answer, body)
        if record.outcome is None:
            record.note_status(answer.status)

    def _end(self, answer: Answer) -> None:
        """The worker's answer has ended; see whether it was whole."""
        scanner = answer.scanner
        failed = failure_at_end(answer)
        if failed is not None and scanner is not None and not scanner.complete and scanner.error is None:
            self.reply.write(self.reply.error_event(failed))
        self.reply.end()
        if failed is not None:
            self.record.outcome, self.record.reason = Outcome.CUT_OFF, failed
        elif scanner is None or not scanner.client_error:  # a client's error has no outcome, like an answer 4xx
            self.record.note_status(answer.status)

    # -- failing ------------------------------------------------------------------------------------------------------

    def _fail(self, failure: WorkerFailure) -> None:
        """No attempt is left, or the answer had begun."""
        record = self.record
        record.outcome = Outcome.CUT_OFF if self.reply.begun else Outcome.FAILED
        record.reason = failure.reason
        if isinstance(failure, WorkerRefusal) and not self.reply.begun:
            self._pass_whole(failure.answer)
        else:
            self.reply.fail(failure.reason)
        log.warning(
            "request failed: %s",
            failure.message,
            extra={"request_id": self.request_id.decode(), "reason": failure.reason.value, "worker": record.worker},
        )

    def _refuse(self, refused: RequestRefused) -> None:
        """The router's own answer."""
        self.record.reason = refused.reason
        if refused.reason is not None:
            self.record.outcome = Outcome.REJECTED if refused.status in {429, 503} else Outcome.FAILED
        self.reply.refuse(refused)

    # -- accounting ---------------------------------------------------------------------------------------------------

    def _note_stream(self, scanner: EventScanner) -> None:
        """What the stream said, however it ended."""
        record = self.record
        if scanner.data_seen:
            self.reply.content_begun = self.reply.begun
            record.first_content_s, record.last_content_s = scanner.first_content_s, scanner.last_content_s
            record.usage = scanner.usage()

    def _note_cancelled(self) -> None:
        """The client has left, or the router gives up its drain."""
        if self.reply.client.connected:
            self._refuse(errors.shutting_down())
        else:
            self.record.outcome, self.record.reason = Outcome.CLIENT_LEFT, None

    def _account(self) -> None:
        """The last step of every request."""
        record = self.record
        record.ended_s = time.monotonic()
        record.status = self.reply.status or CLIENT_LEFT_STATUS
        service = self.service
        if service is None:
            record.judged = False
            verdict = account(record, self.tools.unknown_stats, _NOT_JUDGED)
        else:
            service.stats.in_flight -= 1
            verdict = account(record, service.stats, service.spec.objective)
            self.tools.placing.learn(self.last_place, record)
        if self.tools.access_log.wants(record):
            self.tools.access_log.write(
                record,
                verdict,
                request_id=self.request_id,
                path=self.received.path,
                model=self.parsed.model if self.parsed else None,
            )
