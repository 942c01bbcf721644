"""One request, from the parsed head to the end of its answer.

    read -> find the service -> place (choose, lease) or hold -> ask the worker(s) -> pass the answer on -> account

A state machine in callbacks. A step runs in the callback that brought what it was waiting for (the request, the opening of an
answer, its end), and most requests need no other. Only what may take its time for another reason runs in a task, one at most:
waiting for a model to become known, or for a worker to have room. `step` and `_slowly` are the two ways into a step; both turn
what it raises into the end of the attempt or of the request, and `_finish` is the one way out: it closes the worker's connection
where the answer is not complete (which makes the engine stop), gives the leases back, counts the request, and tells the client's
connection to go on. When the client leaves it is called at once.

Attempts. Until the first event or the whole JSON answer is in, nothing has reached the client, so a failed attempt is made again,
at most `attempts_max` times: on another worker, and where there is none on the same once it can be expected to do better
(`tried`). Afterwards a failure ends the answer: an event stream with an error event, anything else with a closed connection.
There is no continuation on another worker: the client would get the beginning twice. A request under which `DOWN_MAX` workers
may have gone down is not sent again: it may be what takes them down.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from forebay_api.objective import Objective, Outcome
from forebay_router import errors, rewriting
from forebay_router.access_log import AccessLog
from forebay_router.accounting import Record, account
from forebay_router.answer import Answer, Passing
from forebay_router.attempt import Attempt
from forebay_router.endpoints import Endpoint
from forebay_router.errors import FailureReason, RequestRefused, WorkerFailure
from forebay_router.explaining import EXPLAIN_HEADER, explain_line
from forebay_router.judging import failure_at_end
from forebay_router.metrics import ServiceStats
from forebay_router.parsing import ParsedRequest, parse_request
from forebay_router.place import Place
from forebay_router.placing import Placing
from forebay_router.protection import Admission, Protection
from forebay_router.reading import Received
from forebay_router.refusal import WorkerRefusal
from forebay_router.reply import Reply
from forebay_router.sse import EventScanner
from forebay_router.supervision import Supervisor
from forebay_router.table import Service
from forebay_router.tried import DOWN_MAX, Tried
from forebay_router.upstream import Upstreams
from forebay_router.usage import read_facts, with_cached_tokens

if TYPE_CHECKING:  # the SDK takes 0.2 s to import, and most routers do without it
    from forebay_router.tracing import RequestTrace, Tracing

log = logging.getLogger(__name__)
Waited = TypeVar("Waited")

_TOO_LATE = frozenset({FailureReason.TOTAL_TIMEOUT, FailureReason.DEADLINE})
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
    protection: Protection = field(kw_only=True)
    supervisor: Supervisor = field(default_factory=Supervisor)
    """Keeps what runs beside the requests."""
    tracing: "Tracing | None" = None
    """Makes spans; None when that is off."""


class Exchange:
    """One request and its answer."""

    parsed: ParsedRequest
    service: Service
    entered = False
    """The service counts it."""
    strip_usage = False
    tried: Tried | None = None
    """Attempts that failed; None while none has."""
    attempt: Attempt | None = None
    """The one that is being made."""
    last_place: Place | None = None
    admission: Admission | None = None
    """What it has taken of its key's limits."""
    trace: "RequestTrace | None" = None
    """Of a sampled request."""
    task: asyncio.Task[None] | None = None
    """Waits for something that is no answer."""
    finished = False

    def __init__(self, tools: Tools, endpoint: Endpoint, received: Received, request_id: bytes, reply: Reply) -> None:
        self.tools = tools
        self.endpoint = endpoint
        self.received = received
        self.request_id = request_id
        self.reply = reply
        self.record = Record(received.received_s, judged=endpoint.judged)

    # -- steps --------------------------------------------------------------------------------------------------------

    def step(self, step: Callable[..., None], *arguments: object) -> None:
        """Run a step of the request; what it raises ends the attempt, or the request."""
        try:
            step(*arguments)
        except Exception as error:  # noqa: BLE001 - the boundary of a request: `_failed` logs what it does not know
            self._failed(error)

    def _slowly(self, wait: Callable[[], Awaitable[Waited]], step: Callable[[Waited], None]) -> None:
        """Run a step when what it needs is there."""

        async def run() -> None:
            try:
                found = await wait()
            except Exception as error:  # noqa: BLE001 - as in `step`
                self.task = None
                self._failed(error)
            else:
                self.task = None
                self.step(step, found)

        self.task = asyncio.get_running_loop().create_task(run())

    def _failed(self, error: Exception) -> None:
        """A step has raised."""
        if isinstance(error, WorkerFailure):
            self.step(self._end_attempt, error)
            return
        if not isinstance(error, RequestRefused):
            log.error("request failed in the router", exc_info=error, extra={"request_id": self.request_id.decode()})
            error = errors.router_fault(self.request_id.decode())
        self._refuse(error)
        self._finish()

    def begin(self) -> None:
        """Serve the request."""
        self.step(self._read)

    def _read(self) -> None:
        """Understand the request and find its service."""
        received, record, placing = self.received, self.record, self.tools.placing
        if self.tools.tracing is not None:
            self.trace = self.tools.tracing.begin(received, self.request_id)
        parsed = self.parsed = parse_request(self.endpoint, received.fields, received.body)
        self.tools.protection.check_model(received, parsed.model)
        rewriting.scrub(parsed)
        self.strip_usage = rewriting.ask_for_usage(parsed)
        record.model = parsed.model
        record.streamed = parsed.stream
        record.choices = parsed.choices
        received.body = b""
        service = placing.known_service(parsed.model, received.fields)
        if service is None:
            self._slowly(partial(placing.find_service, parsed.model, received.fields), self._enter)
        else:
            self._enter(service)

    def _enter(self, service: Service) -> None:
        """Take the request on, within its key's limits."""
        self.admission = self.tools.protection.admit(
            self.reply, self.parsed, service, lambda: self.attempt.answer if self.attempt else None
        )
        self.service = service
        self.entered = True
        service.stats.arrived += 1
        service.stats.in_flight += 1
        self._place()

    # -- attempts -----------------------------------------------------------------------------------------------------

    def _place(self) -> None:
        """Find a worker, now or when there is one."""
        placing = self.tools.placing
        place = placing.place_now(self.service, self.parsed, self.received, self.tried)
        if place is None:
            self._slowly(partial(placing.place, self.service, self.parsed, self.received, self.tried), self._ask)
        else:
            self._ask(place)

    def _ask(self, place: Place) -> None:
        """One attempt."""
        self.last_place = place
        attempt = self.attempt = Attempt(self, place, self.tools.upstreams)
        self.record.attempts += 1
        place.note(self.record)
        if self.tools.explain and self.received.fields.get(EXPLAIN_HEADER) == b"1":
            self.reply.explanation = explain_line(place.choice, place.trip)
        attempt.ask()

    def _end_attempt(self, failure: WorkerFailure) -> None:
        """An attempt has failed: make another one, or tell the client."""
        attempt = self.attempt
        assert attempt is not None
        tried = self.tried = self.tried or Tried(self.service.spec.timeouts.hold_s)
        asked, now_s = attempt.asked, time.monotonic()
        tried.note(asked.spec.uid, failure, lost=attempt.lost, sent_s=attempt.sent_s, now_s=now_s)
        attempt.place.broke(asked, failure)
        if self.trace is not None:
            self.trace.leg_failed()
        self._let_go()
        if tried.attempts < self.tools.attempts_max and self._may_retry(failure, tried):
            self.service.stats.retries[failure.reason] += 1
            self._place()
        else:
            self._fail(failure)
            self._finish()

    def _may_retry(self, failure: WorkerFailure, tried: Tried) -> bool:
        """Nothing has reached the client, and a worker can take the request.

        A worker that gave an error answer is only worth replacing by one that is there: else its answer is relayed. A worker
        that gave none is worth waiting for: for a successor, or until it is back.
        """
        if self.reply.content_begun or failure.reason in _TOO_LATE or tried.down >= DOWN_MAX:
            return False
        return not failure.answered or self.tools.placing.possible(self.service, self.parsed, tried)

    def _let_go(self) -> None:
        """The attempt is over, one way or another."""
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            attempt.let_go()
            scanner = attempt.scanner
            if scanner is not None:
                self._note_stream(scanner)

    # -- passing on ---------------------------------------------------------------------------------------------------

    def opened(self, answer: Answer) -> None:
        """Write what has come of an answer to the client, and have the rest written as it comes."""
        reply = self.reply
        if reply.begun and not reply.takes(answer, self.record):
            self._finish()
            return
        if answer.passing is Passing.WHOLE and answer.complete:
            self._pass_whole(answer)
            return
        if self.record.opened_s is None:
            self.record.opened_s = answer.last_byte_s
        if not reply.begun:
            reply.begin(answer)
        block = answer.take_buffered()
        if block:
            reply.write(block)
        reply.content_begun = answer.scanner is None or answer.scanner.data_seen
        if reply.content_begun:
            self.parsed.forget()
            self.tools.protection.bodies.give_back(self.received)
        if answer.complete:
            self._end(answer)
            return
        answer.sink = reply.write_part
        answer.chunk_sink = reply.client.write if reply.chunked else None
        if reply.client.slow:
            answer.pause()

    def ended(self, answer: Answer, failure: WorkerFailure | None) -> None:
        """Nothing more comes from the worker."""
        scanner = answer.scanner
        if failure is None or (self.reply.begun and scanner is not None and scanner.told_all):
            self.step(self._end, answer)
        else:
            self._failed(failure)

    def _pass_whole(self, answer: Answer) -> None:
        """Write a complete answer."""
        body = answer.take_buffered()
        record = self.record
        record.streamed = False
        record.opened_s = answer.last_byte_s
        if answer.status == 200 and self.endpoint.judged and not answer.encoded:
            usage, aborted = read_facts(body)
            record.usage = usage
            cached_tokens = self.attempt.cached_tokens if self.attempt else None
            if usage and cached_tokens is not None and usage.cached_tokens != cached_tokens:
                record.usage = usage._replace(cached_tokens=cached_tokens)
                body = with_cached_tokens(body, cached_tokens)
            if aborted:
                record.outcome, record.reason = Outcome.CUT_OFF, FailureReason.ABORTED
        self.reply.whole(answer, body)
        if record.outcome is None:
            record.note_status(answer.status)
        self._finish()

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
        self._finish()

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

    # -- the client's side --------------------------------------------------------------------------------------------

    def client_left(self) -> None:
        """Nobody waits for the answer: stop at once."""
        self.record.outcome, self.record.reason = Outcome.CLIENT_LEFT, None
        self._finish()

    def give_up(self) -> None:
        """The router's drain is over."""
        self._refuse(errors.shutting_down())
        self._finish()

    def client_slow(self) -> None:
        """Read from the worker only as fast as the client takes it."""
        if self.attempt is not None:
            self.attempt.pause()

    def client_ready(self) -> None:
        """Go on reading."""
        if self.attempt is not None:
            self.attempt.resume()

    # -- the end ------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """The one way out."""
        if self.finished:
            return
        self.finished = True
        if self.task is not None:
            self.task.cancel()
        self._let_go()
        try:
            self._account()
        finally:
            self.reply.client.answered()

    def _note_stream(self, scanner: EventScanner) -> None:
        """What the stream said, however it ended."""
        record = self.record
        if scanner.data_seen:
            self.reply.content_begun = self.reply.begun
            record.first_content_s, record.last_content_s = scanner.first_content_s, scanner.last_content_s
            record.usage = scanner.usage()

    def _account(self) -> None:
        """The last step of every request."""
        record = self.record
        record.ended_s = time.monotonic()
        record.status = self.reply.status or CLIENT_LEFT_STATUS
        self.tools.protection.settle(self.admission, self.reply, record)
        if not self.entered:
            record.judged = False
            verdict = account(record, self.tools.unknown_stats, _NOT_JUDGED)
        else:
            service = self.service
            service.stats.in_flight -= 1
            verdict = account(record, service.stats, service.spec.objective)
            self.tools.placing.learn(self.last_place, record)
        if self.last_place is not None:
            record.prefilled_s = self.last_place.trip.prefilled_s
        if self.trace is not None:
            self.trace.end(record, verdict, str(self.service.spec.key) if self.entered else None)
        if self.tools.access_log.wants(record):
            path, grant = self.received.path, self.received.grant
            self.tools.access_log.write(record, verdict, request_id=self.request_id, path=path, grant=grant)
