"""The answer to the client: its head, its body, and how it ends when something fails.

It knows how far it has come, which decides what may still happen:

    nothing written        any answer, also a second worker's
    head written           only an event stream can have come so far without content; a second worker's events may follow
    content written        only the end: the rest of this answer, or an error event, or a closed connection
"""

from collections.abc import Callable

from forebay_router import errors
from forebay_router.accounting import Record
from forebay_router.answer import Answer, Passing
from forebay_router.client import ClientConnection
from forebay_router.errors import FailureReason, RequestRefused, Shape, WorkerFailure
from forebay_router.headers import returned_lines
from forebay_router.reading import Received
from forebay_router.replies import write_refusal


class Reply:
    """One answer. Defaults stand in the class, since most answers need few of them."""

    explanation = b""
    """Header line that tells where the last attempt went, and why; empty unless the client asked."""
    begun = False
    """The head has been written."""
    content_begun = False
    """Something has been written that a second attempt would repeat."""
    events = False
    """It is an event stream."""
    chunked = False
    status = 0

    def __init__(self, client: ClientConnection, received: Received, shape: Shape, own_lines: bytes) -> None:
        self.client = client
        self.received = received
        self.shape = shape
        self.own_lines = own_lines
        """Header lines that the router adds to every answer: request id, CORS."""

    def begin(self, answer: Answer) -> None:
        """Write the head of an answer that is passed on while it comes."""
        self.begun = True
        self.status = answer.status
        self.events = answer.passing is Passing.EVENTS
        lines = returned_lines(answer.headers, answer.fields, self.own_lines + self.explanation)
        if self.events:
            lines += b"x-accel-buffering: no\r\n"
            if b"cache-control" not in answer.fields:
                lines += b"cache-control: no-cache\r\n"
        length = None if self.events else answer.length
        self.chunked = self.client.begin(self.received, answer.status, lines, length)

    def begin_early(self) -> None:
        """Write the head of an event stream before there is an answer."""
        self.begun = self.events = True
        self.status = 200
        lines = (
            b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"
        )
        self.chunked = self.client.begin(self.received, 200, lines + self.own_lines + self.explanation, None)

    def comment(self, text: bytes) -> None:
        """Write a comment where an event could stand."""
        if not self.begun:
            self.begin_early()
        self.write(text)

    def takes(self, answer: Answer, record: Record) -> bool:
        """Whether an answer goes on a stream that has begun; raises WorkerFailure for one that another worker may do better.

        A client error ends the stream, in the worker's own words.
        """
        if answer.passing is Passing.EVENTS and not answer.encoded:
            return True
        if not answer.complete or not 400 <= answer.status < 500:
            raise WorkerFailure(FailureReason.WORKER_ERROR, f"the worker answered {answer.status} within a stream")
        self._end_with_error(answer.take_buffered())
        record.note_status(answer.status)
        return False

    def _end_with_error(self, body: bytes) -> None:
        prefix = b"event: error\n" if self.shape is Shape.ANTHROPIC else b""
        self.write(b"%bdata: %b\n\n" % (prefix, b" ".join(body.splitlines())))
        self.end()

    @property
    def write_part(self) -> Callable[[bytes], None]:
        """Writes a part of the body."""
        return self.client.write_chunk if self.chunked else self.client.write

    def write(self, block: bytes) -> None:
        """Write a part of the body."""
        write = self.write_part  # called in one go, mypyc takes the property for a method
        write(block)

    def end(self) -> None:
        """The body is complete."""
        if self.chunked:
            self.client.end_chunks()

    def whole(self, answer: Answer, body: bytes) -> None:
        """Write a worker's complete answer."""
        self.begun = self.content_begun = True
        self.status = answer.status
        self.client.whole(
            self.received,
            answer.status,
            returned_lines(answer.headers, answer.fields, self.own_lines + self.explanation),
            body,
        )

    def error_event(self, reason: FailureReason) -> bytes:
        """An event that tells the client that the stream has failed."""
        return errors.failure_event(self.shape, reason)

    def refuse(self, refused: RequestRefused) -> None:
        """The router's own error answer; an answer that has begun is broken off instead."""
        if self.begun:
            self.break_off(refused.reason or FailureReason.ROUTER_ERROR)
            return
        self.begun = True
        self.status = refused.status
        write_refusal(self.client, self.received, refused, self.own_lines + self.explanation)

    def fail(self, reason: FailureReason) -> None:
        """No worker could do it."""
        status, message = errors.failure_status(reason)
        retry_after_s = 1 if status == 503 else None
        self.refuse(
            RequestRefused(
                status, message, type="server_error", code=reason.value, retry_after_s=retry_after_s, reason=reason
            )
        )

    def break_off(self, reason: FailureReason) -> None:
        """End an answer that has begun and cannot go on."""
        if self.events:
            self.write(self.error_event(reason))
            self.end()
        else:
            self.client.cut()
