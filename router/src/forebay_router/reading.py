"""From bytes to requests: HTTP/1.1 server side, without I/O.

Framing is strict, since a proxy that reads a request differently from the worker behind it can be made to smuggle one.
llhttp refuses Content-Length with Transfer-Encoding, repeated or malformed lengths, bare CR or LF, folded headers and control
bytes; refused here besides: a missing or repeated Host, transfer codings other than chunked, HTTP versions other than 1.0 and
1.1, and an oversized head or body. Requests go upstream with a head and a Content-Length written anew.

`Upgrade` is ignored, as the standard allows: Java clients offer h2c on every first request. httptools skips the body of such a
request, so its body goes through a second parser that is primed with the same framing.
"""

import time
from collections import deque
from dataclasses import dataclass

import httptools

from forebay_router import errors
from forebay_router.headers import Headers, find


@dataclass(slots=True)
class Received:
    """One request as it came."""

    method: bytes
    target: bytes
    headers: Headers
    http_10: bool
    keep_alive: bool
    body: bytes = b""
    received_s: float = 0.0
    """Monotonic time at which it was complete."""
    refused: errors.RequestRefused | None = None
    """Set when the request is not valid HTTP or too large."""

    @property
    def path(self) -> bytes:
        """The target without its query."""
        return self.target.partition(b"?")[0]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may send."""

    head_bytes: int
    body_bytes: int


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
        "_parser",
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
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._head_bytes = 0

    @property
    def receiving(self) -> bool:
        """A request has begun and is not complete."""
        return self._in_head or self._receiving is not None

    def feed(self, data: bytes) -> None:
        """One read; complete requests are in `ready` afterwards."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on_past_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if not (self.ready and not self.ready[-1].keep_alive):
                self.refuse(errors.bad_http(str(error) or "unreadable"))
        else:
            if self._in_head:
                self._head_bytes += len(data)
                if self._head_bytes > self._limits.head_bytes:
                    self.refuse(errors.head_too_large(self._limits.head_bytes))

    def refuse(self, refused: errors.RequestRefused) -> None:
        """End with an error answer, after the requests that are complete."""
        if self.ended:
            return
        self.ended = True
        request = self._receiving or Received(b"", b"", [], http_10=False, keep_alive=False)
        self._receiving = None
        self._in_head = False
        request.keep_alive = False
        request.refused = refused
        request.received_s = time.monotonic()
        self.ready.append(request)

    def _go_on_past_upgrade(self, rest: bytes) -> None:
        """The parser has stopped behind the head of a request that offers an upgrade; the body follows."""
        if self.ended:
            return
        self._parser = httptools.HttpRequestParser(self)
        if self._receiving is None:
            if rest:
                self.feed(rest)
            return
        length = find(self._headers, b"content-length")
        framing = b"Transfer-Encoding: chunked" if self._chunked else b"Content-Length: " + (length or b"0")
        self._resumed = True
        self.feed(b"POST / HTTP/1.1\r\n%b\r\n\r\n%b" % (framing, rest))

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
        version = self._parser.get_http_version()
        request = Received(
            self._parser.get_method(),
            self._target,
            self._headers,
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
        size = len(request.target)
        hosts = codings = length = 0
        self._chunked = expects = False
        for name, value in request.headers:
            size += len(name) + len(value) + 4
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding":
                codings += 1
                self._chunked = value.lower() == b"chunked"
            elif name == b"expect":
                expects = value.lower() == b"100-continue" and not request.http_10
        if hosts > 1 or (hosts == 0 and not request.http_10):
            return errors.bad_http("exactly one Host header is required")
        if codings and (codings > 1 or not self._chunked or request.http_10):
            return errors.bad_http("the only transfer coding accepted is chunked, once, with HTTP/1.1")
        self.continue_due = expects and (length > 0 or self._chunked)
        return self._check_sizes(size, length)

    def _check_sizes(self, head_bytes: int, body_bytes: int) -> errors.RequestRefused | None:
        if head_bytes > self._limits.head_bytes:
            return errors.head_too_large(self._limits.head_bytes)
        if body_bytes > self._limits.body_bytes:
            return errors.body_too_large(self._limits.body_bytes)
        return None

    def on_body(self, data: bytes) -> None:
        """Called by the parser with the body, transfer coding removed."""
        if self.ended:
            return
        self._body_bytes += len(data)
        if self._body_bytes > self._limits.body_bytes:
            self.refuse(errors.body_too_large(self._limits.body_bytes))
            return
        self._body.append(data)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        request = self._receiving
        if self.ended or request is None:
            return
        if not self._resumed and self._parser.should_upgrade() and self._expects_body():
            return
        self._resumed = False
        self._receiving = None
        self.continue_due = False
        body = self._body
        request.body = body[0] if len(body) == 1 else b"".join(body)
        self._body = []
        request.received_s = time.monotonic()
        self.ready.append(request)

    def _expects_body(self) -> bool:
        return self._chunked or (find(self._headers, b"content-length") or b"0") != b"0"
