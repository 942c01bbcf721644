"""A worker's answer to one attempt, from the first header to the end.

The upstream connection feeds it, the relay reads it. Three ways to pass on, decided by the headers:

    EVENTS  an event stream: opens with its first whole event, then goes on event by event
    WHOLE   JSON: opens when it is complete, since token counts and failures stand in it, or when it has grown large
    PIECES  anything else (audio, error pages): opens with its first bytes

Until it has opened, nothing of it has reached the client, so the relay may still throw it away and ask another worker. The
engine sends the head of an event stream while the request waits in its queue; the head is held here until the first event,
which is what lets a request whose worker dies in that time be answered by another.

A `Listener` is told of the two moments that matter, in the callback that brought the bytes: no task wakes up for them. Every
byte between them goes through `sink`.

    answer_opened   at most once, when the first part may be passed on; `complete` tells whether that is already all of it
    answer_ended    once, unless it was complete when it opened or was abandoned: the end, or the failure that ended it
"""

import math
import time
from collections.abc import Callable
from enum import Enum, auto
from string import hexdigits
from typing import Final, Protocol

from forebay_router.admission.patience import ENDLESS, Patience
from forebay_router.errors import FailureReason, WorkerFailure
from forebay_router.headers import Headers, index
from forebay_router.sse import EventScanner

WHOLE_MAX_BYTES = 1024 * 1024
"""A JSON answer above this size is passed on while it comes."""
COLLECTED_MAX_BYTES = 64 * 1024 * 1024
"""The most that is kept of an answer that the router itself reads to its end."""
_COLON: Final = 0x3A
"""First byte of a comment."""
_CR: Final = 0x0D
_LF: Final = 0x0A
_SIZE_MAX_DIGITS: Final = 7
_NO_DIGIT: Final = 16
_DIGITS: Final = bytes(int(chr(byte), 16) if chr(byte) in hexdigits else _NO_DIGIT for byte in range(256))
"""Byte -> its value as a hexadecimal digit."""


class Passing(Enum):
    """How an answer's body is passed on."""

    EVENTS = auto()
    WHOLE = auto()
    PIECES = auto()


class Listener(Protocol):
    """Who has asked."""

    def answer_opened(self, answer: "Answer") -> None:
        """The first part may be passed on."""

    def answer_ended(self, answer: "Answer", failure: WorkerFailure | None) -> None:
        """Nothing more will come; `failure` tells why, when it was not the end."""


class Carrier(Protocol):
    """The connection that brings an answer, or the attempt to make one."""

    def let_go(self) -> None:
        """Bring no more of it, at once: a connection is closed."""

    def pause(self) -> None:
        """Stop reading."""

    def resume(self) -> None:
        """Read again."""


class _Nobody:
    """Listens to an answer that is over, so that the answer does not hold on to who asked."""

    def answer_opened(self, answer: "Answer") -> None:
        """Nothing to do."""

    def answer_ended(self, answer: "Answer", failure: WorkerFailure | None) -> None:
        """Nothing to do."""


_NOBODY = _Nobody()


class Answer:
    """What one worker says to one attempt.

    Defaults stand in the class, since most answers need few of them.
    """

    status = 0
    length: int | None = None
    """Content-Length, where there is one."""
    passing = Passing.PIECES
    opened = False
    complete = False
    over = False
    """It is complete, has failed, or is not wanted any more."""
    sink: Callable[[bytes], None] | None = None
    """Takes each part as it comes, once the relay has set it."""
    chunk_sink: Callable[[bytes], None] | None = None
    """Takes whole chunks with their framing, when the client's answer is chunked too."""
    paused = False
    """The client does not keep up: silence is not the worker's."""
    first_byte_deadline_s = math.inf
    total_deadline_s = math.inf
    idle_limit_s = math.inf
    patience: Patience = ENDLESS
    """How long the client waits."""
    collected = False
    """The router itself reads it, as one piece."""
    carrier_lost = False
    """A connection that the request had been written to ended."""
    _buffered_bytes = 0

    def __init__(self, listener: Listener, *, now_s: float, scanner: EventScanner | None = None) -> None:
        self.listener: Listener = listener
        self.carrier: Carrier | None = None
        """Brings the answer, from when it is sent for until it is over."""
        self.headers: Headers = []
        self.fields: dict[bytes, bytes] = {}
        """Headers by name."""
        self.scanner = scanner
        """Reads the event stream; taken away when the answer is none."""
        self.last_byte_s = now_s
        self._buffer: list[bytes] = []

    def collect_whole(self) -> None:
        """Open only when complete, whatever the type; above COLLECTED_MAX_BYTES the answer fails."""
        self.collected = True
        self.scanner = None

    def begin(self, status: int, headers: Headers, now_s: float) -> None:
        """The head is complete."""
        self.status = status
        self.headers = headers
        fields = self.fields = index(headers)
        self.last_byte_s = now_s
        length = fields.get(b"content-length")
        self.length = int(length) if length is not None else None
        if self.collected:
            self.passing = Passing.WHOLE
            return
        content_type = fields.get(b"content-type", b"")
        if content_type.startswith(b"text/event-stream") and status == 200:
            self.passing = Passing.EVENTS
            if self.encoded:
                self.scanner = None
            return
        self.scanner = None
        if content_type.startswith(b"application/json"):
            self.passing = Passing.WHOLE

    @property
    def encoded(self) -> bool:
        """The body has a content encoding, so nothing can be read in it."""
        coding = self.fields.get(b"content-encoding")
        return coding is not None and coding.lower() != b"identity"

    @property
    def takes_comments(self) -> bool:
        """A comment may stand between what has been passed on and what comes."""
        return self.collected or (self.scanner is not None and not self.scanner.torn)

    @property
    def steady(self) -> bool:
        """Content has been passed on, and what comes can be more of it as it is."""
        scanner = self.scanner
        return self.chunk_sink is not None and scanner is not None and scanner.first_content_s is not None

    def pass_chunk(self, data: bytes, now_s: float) -> bool:
        """Pass on what was read at `now_s`, if it is one whole chunk of plain content, as it is; False leaves it to be parsed."""
        sink, scanner = self.chunk_sink, self.scanner
        if sink is None or scanner is None or not data.endswith(b"\n\n\r\n"):
            return False
        start = _start_of(data)
        if not start or data[start] == _COLON or not scanner.passes(data, start, now_s):
            return False
        self.last_byte_s = now_s
        sink(data)
        return True

    def take_in(self, block: bytes, now_s: float, *, last: bool = False) -> None:
        """A part of the body, without transfer coding; `finish` follows at once where it is the last."""
        self.last_byte_s = now_s
        if self.scanner is not None:
            block = self.scanner.feed(block, now_s)
        if not block:
            return
        if self.sink is not None:
            self.sink(block)
            return
        self._buffer.append(block)
        self._buffered_bytes += len(block)
        if self.collected:
            if self._buffered_bytes > COLLECTED_MAX_BYTES:
                self._buffer.clear()
                self.fail(FailureReason.BAD_ANSWER, f"the worker's answer is larger than {COLLECTED_MAX_BYTES} bytes")
        elif (
            not self.opened
            and not last
            and (self.passing is not Passing.WHOLE or self._buffered_bytes > WHOLE_MAX_BYTES)
        ):
            self.opened = True
            self.listener.answer_opened(self)

    def finish(self) -> None:
        """The body is complete as HTTP counts it."""
        self.complete = self.over = True
        self.carrier = None
        listener, self.listener = self.listener, _NOBODY
        if self.scanner is not None:
            rest = self.scanner.finish()
            if rest and self.sink is not None:
                self.sink(rest)
            elif rest:
                self._buffer.append(rest)
        if self.opened:
            listener.answer_ended(self, None)
        else:
            self.opened = True
            listener.answer_opened(self)

    def fail(self, reason: FailureReason, message: str, *, refused: bool = False) -> None:
        """The answer will not come to its end; the connection is given up. Nothing happens when it is over already."""
        if not self.over:
            listener = self.listener
            self.abandon()
            listener.answer_ended(self, WorkerFailure(reason, message, refused=refused))

    def abandon(self) -> None:
        """Nobody wants the rest: the worker's connection is closed at once, which makes the engine stop."""
        self.over = True
        self.listener = _NOBODY
        self.sink = self.chunk_sink = None
        carrier, self.carrier = self.carrier, None
        if carrier is not None:
            carrier.let_go()

    def pause(self) -> None:
        """The client does not keep up: read no more until `resume`."""
        if self.carrier is not None:
            self.paused = True
            self.carrier.pause()

    def resume(self) -> None:
        """The client takes more."""
        if self.carrier is not None:
            self.paused = False
            self.last_byte_s = time.monotonic()
            self.carrier.resume()

    def buffered(self) -> bytes:
        """What has come so far and was not taken."""
        return b"".join(self._buffer)

    def take_buffered(self) -> bytes:
        """What has come so far, once."""
        block = self._buffer[0] if len(self._buffer) == 1 else b"".join(self._buffer)
        self._buffer = []
        self._buffered_bytes = 0
        return block

    def overdue(self, now_s: float) -> FailureReason | None:
        """Which limit is exceeded at `now_s`, if any."""
        patience = self.patience
        if patience is not ENDLESS and (
            now_s > patience.total_s or (not self.opened and now_s > patience.first_byte_s)
        ):
            return FailureReason.DEADLINE
        if now_s > self.total_deadline_s:
            return FailureReason.TOTAL_TIMEOUT
        if not self.opened:
            return FailureReason.FIRST_BYTE_TIMEOUT if now_s > self.first_byte_deadline_s else None
        if not self.paused and now_s > self.last_byte_s + self.idle_limit_s:
            return FailureReason.IDLE_TIMEOUT
        return None


def _start_of(data: bytes) -> int:
    """Where the content begins of what is one whole chunk; 0 of anything else.

    By hand: a pattern's match costs several times as much, and this is done for every token.
    """
    size = 0
    for at in range(min(len(data) - 1, _SIZE_MAX_DIGITS + 1)):
        byte = data[at]
        if byte == _CR:
            start = at + 2
            return start if at and data[at + 1] == _LF and size == len(data) - start - 2 else 0
        digit = _DIGITS[byte]
        if digit == _NO_DIGIT:
            return 0
        size = size * 16 + digit
    return 0
