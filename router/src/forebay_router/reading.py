"""From bytes to requests: HTTP/1.1 server side, without I/O.

Framing is strict, since a proxy that reads a request differently from the worker behind it can be made to smuggle one.
llhttp refuses Content-Length with Transfer-Encoding, repeated or malformed lengths, bare CR or LF, folded headers and control
bytes; refused here besides: a missing or repeated Host, transfer codings other than chunked, HTTP versions other than 1.0 and
1.1, CONNECT (what follows it is no request), and an oversized head or body. Requests go upstream with a head and a
Content-Length written anew.

A body of known length needs no parser, and the parser would copy it: from `LONG_BYTES` on it is taken as it comes, and a new
parser begins behind it. A request that comes in one read is not copied at all; its body is a view of that read.

`Upgrade` is ignored, as the standard allows: Java clients offer h2c on every first request. httptools skips the body of such a
request, so its body goes through a second parser that is primed with the same framing.
"""

import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import httptools

from forebay_router import errors
from forebay_router.bodies import LONG_BYTES, Body, BodyMemory
from forebay_router.headers import Headers, index
from forebay_router.tenancy.keys import Grant

_head_end: Final = re.compile(rb"\r\n\r\n").search


@dataclass(slots=True)
class Received:
    """One request as it came."""

    method: bytes
    target: bytes
    headers: Headers
    fields: dict[bytes, bytes]
    """Headers by name."""
    http_10: bool
    keep_alive: bool
    body: Body = b""
    received_s: float = 0.0
    """Monotonic time at which it was complete."""
    refused: errors.RequestRefused | None = None
    """Set when the request is not valid HTTP, too large, or brings no valid key."""
    grant: Grant | None = None
    """Whose request it is and what its key allows; None where no keys are asked for."""
    held_bytes: int = 0
    """What its body takes of the memory for bodies."""

    @property
    def path(self) -> bytes:
        """The target without its query."""
        return self.target.partition(b"?")[0] if b"?" in self.target else self.target


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may send."""

    head_bytes: int
    body_bytes: int
    bodies: BodyMemory = field(default_factory=BodyMemory)
    """Shared by all connections."""
    check: Callable[[Received], errors.RequestRefused | None] | None = None
    """Says, by its head, whether a request is let in; None lets all in."""


class RequestReader:
    """Reads the requests of one connection."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_chunked",
        "_head_bytes",
        "_headers",
        "_in_head",
        "_limits",
        "_missing_bytes",
        "_parser",
        "_read_bytes",
        "_receiving",
        "_resumed",
        "_target",
        "continue_due",
        "ended",
        "ready",
        "since_s",
    )

    def __init__(self, limits: Limits) -> None:
        self.ready: deque[Received] = deque()
        """Requests in order, taken out by the connection. A refused one is the last."""
        self.ended = False
        """A request was refused: nothing behind it can be trusted."""
        self.continue_due = False
        """The client waits for 100 Continue before it sends its body."""
        self.since_s = time.monotonic()
        """Monotonic time at which the request that is being received began."""
        self._limits = limits
        self._parser = httptools.HttpRequestParser(self)
        self._receiving: Received | None = None
        self._resumed = False
        self._chunked = False
        self._in_head = False
        self._headers: Headers = []
        self._target = b""
        self._body: list[Body] = []
        self._body_bytes = 0
        self._missing_bytes = 0
        """Of a long body, what has not come yet."""
        self._head_bytes = 0
        """Bytes of an incomplete head that earlier reads brought."""
        self._read_bytes = 0
        """An upper bound of the size of a head that ends in this read."""

    @property
    def receiving(self) -> bool:
        """A request has begun and is not complete."""
        return self._in_head or self._receiving is not None

    def feed(self, data: bytes) -> None:
        """One read; complete requests are in `ready` afterwards."""
        rest: Body = data
        while rest:
            rest = self._take_long(rest, len(data)) if self._missing_bytes else self._feed_some(rest)

    def _take_long(self, data: Body, read_bytes: int) -> Body:
        """A part of a long body, from a read of so many bytes; returns what is behind it.

        A small part is copied, lest a view of a few counted bytes should keep all of its read; so is one that other requests
        follow, so that views go on to the end of what they are of.
        """
        whole = memoryview(data)
        part = whole[: self._missing_bytes]
        viewed = 2 * len(part) >= read_bytes and len(part) == len(whole)
        self.on_body(part if viewed else bytes(part))
        if self.ended:
            return b""
        if not self._missing_bytes:
            self._parser = httptools.HttpRequestParser(self)  # the last one still waits for this body
            self.on_message_complete()
        return whole[len(part) :]

    def _feed_some(self, data: Body) -> Body:
        """Up to the body of a long request, or the next request that offers an upgrade; returns what is behind its head."""
        head: Body = data
        rest: Body = b""
        if len(data) >= LONG_BYTES and self._receiving is None:
            found = _head_end(data)
            if found is not None:
                whole = memoryview(data)
                head, rest = whole[: found.end()], whole[found.end() :]
        self._read_bytes = self._head_bytes + len(head)
        try:
            self._parser.feed_data(head)
        except httptools.HttpParserUpgrade as upgrade:
            if not self.ended:
                self._go_on_past_upgrade()
                return memoryview(data)[upgrade.args[0] :]
            return b""
        except httptools.HttpParserError as error:
            if not (self.ready and not self.ready[-1].keep_alive):
                self.refuse(errors.bad_http(str(error) or "unreadable"))
            return b""
        if self._in_head:
            self._head_bytes = self._read_bytes
            if self._head_bytes > self._limits.head_bytes:
                self.refuse(errors.head_too_large(self._limits.head_bytes))
        return rest

    def refuse(self, refused: errors.RequestRefused) -> None:
        """End with an error answer, after the requests that are complete."""
        if self.ended:
            return
        self.ended = True
        request = self._receiving or Received(b"", b"", [], {}, http_10=False, keep_alive=False)
        self._limits.bodies.give_back(request)
        self._body = []
        self._missing_bytes = 0
        self._receiving = None
        self._in_head = False
        request.keep_alive = False
        request.refused = refused
        request.received_s = time.monotonic()
        self.ready.append(request)

    def abandon(self) -> None:
        """The connection is gone: nothing of it is needed."""
        bodies = self._limits.bodies
        for request in self.ready:
            bodies.give_back(request)
        self.ready.clear()
        if self._receiving is not None:
            bodies.give_back(self._receiving)
        self._receiving = None
        self._body = []
        self._missing_bytes = 0

    def _go_on_past_upgrade(self) -> None:
        """The parser has stopped behind the head of a request that offers an upgrade; its body, if it has one, follows."""
        self._parser = httptools.HttpRequestParser(self)
        if self._receiving is None:
            return
        length = self._receiving.fields.get(b"content-length", b"0")
        framing = b"Transfer-Encoding: chunked" if self._chunked else b"Content-Length: " + length
        self._resumed = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)

    # -- httptools ----------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Called by the parser."""
        if self._resumed:
            return
        self._headers = []
        self._target = b""
        self._body = []
        self._body_bytes = 0
        self._head_bytes = 0
        self._in_head = True
        self.since_s = time.monotonic()

    def on_url(self, url: bytes) -> None:
        """Called by the parser, once or more."""
        if not self._resumed:
            self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser; trailers are dropped."""
        if self._in_head:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        if self._resumed:
            return
        self._in_head = False
        self._head_bytes = 0
        version = self._parser.get_http_version()
        request = Received(
            self._parser.get_method(),
            self._target,
            self._headers,
            index(self._headers),
            http_10=version == "1.0",
            keep_alive=self._parser.should_keep_alive(),
        )
        self._receiving = request
        refused = self._check_head(request, version)
        if refused is not None:
            self.refuse(refused)

    def _check_head(self, request: Received, version: str) -> errors.RequestRefused | None:
        """What is wrong with a head beyond what the parser refuses."""
        if version not in {"1.1", "1.0"}:
            return errors.bad_http(f"version {version} is not HTTP/1.0 or HTTP/1.1")
        if request.method == b"CONNECT":
            return errors.no_tunnels()
        fields = request.fields
        if (b"host" not in fields and not request.http_10) or self._repeats(b"host"):
            return errors.bad_http("exactly one Host header is required")
        coding = fields.get(b"transfer-encoding")
        self._chunked = coding is not None
        if coding is not None and (
            coding.lower() != b"chunked" or request.http_10 or self._repeats(b"transfer-encoding")
        ):
            return errors.bad_http("the only transfer coding accepted is chunked, once, with HTTP/1.1")
        length = int(fields.get(b"content-length", b"0"))
        if b"expect" in fields:
            expects = fields[b"expect"].lower() == b"100-continue" and not request.http_10
            self.continue_due = expects and (length > 0 or self._chunked)
        refused = self._check_sizes(length)
        if refused is None and self._limits.check is not None:
            refused = self._limits.check(request)
        if refused is None and not self._limits.bodies.room_for(length):
            refused = self._limits.bodies.full()
        if refused is None and length >= LONG_BYTES and request.keep_alive and b"upgrade" not in fields:
            self._missing_bytes = length
        return refused

    def _repeats(self, name: bytes) -> bool:
        """A header stands there more than once."""
        if self._receiving is not None and len(self._receiving.fields) == len(self._headers):
            return False
        return sum(key == name for key, _ in self._headers) > 1

    def _check_sizes(self, body_bytes: int) -> errors.RequestRefused | None:
        limits = self._limits
        if self._read_bytes > limits.head_bytes:
            head_bytes = len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._headers)
            if head_bytes > limits.head_bytes:
                return errors.head_too_large(limits.head_bytes)
        if body_bytes > limits.body_bytes:
            return errors.body_too_large(limits.body_bytes)
        return None

    def on_body(self, data: Body) -> None:
        """Called by the parser with the body, transfer coding removed."""
        if self.ended:
            return
        if self._missing_bytes:
            self._missing_bytes -= len(data)
        self._body_bytes += len(data)
        if self._body_bytes > self._limits.body_bytes:
            self.refuse(errors.body_too_large(self._limits.body_bytes))
            return
        request, bodies = self._receiving, self._limits.bodies
        if request is not None and not bodies.take(request, len(data)):
            self.refuse(bodies.full())
            return
        self._body.append(data)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        request = self._receiving
        if self.ended or request is None:
            return
        if not self._resumed and b"upgrade" in request.fields and self._skips_body(request):
            return
        self._resumed = False
        self._receiving = None
        self.continue_due = False
        body = self._body
        request.body = body[0] if len(body) == 1 else b"".join(body)
        self._body = []
        request.received_s = time.monotonic()
        self.ready.append(request)

    def _skips_body(self, request: Received) -> bool:
        """The parser has left out a body because the request offers an upgrade."""
        return self._parser.should_upgrade() and (self._chunked or request.fields.get(b"content-length", b"0") != b"0")
