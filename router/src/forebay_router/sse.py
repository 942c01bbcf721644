"""Reading an event stream while it passes: first content, token counts, failure, end.

The relay hands over what came from the worker; `feed` returns what goes to the client now. Bytes pass unchanged, but whole
events only: an event that is still incomplete is held, so that a stream that breaks can end with a well-formed error event.
(An event above `HELD_MAX_BYTES` is let through in pieces.) Three changes are made, each only where it is needed:

- the usage chunk that the router itself asked for is taken out again;
- an error event goes before the end marker of an answer that the engine aborted, or the client would take it for complete;
- cached-token counts are replaced by the prefill worker's, since a decode worker calls everything it was handed "cached".

Cost. A stream is nearly all plain content events, one a read. After the first content, a read that ends with a blank line and
holds none of a few byte strings (`"usage"`, `[DONE]`, `"error"`, ...) can be nothing but content: no split, no JSON. These
strings cannot occur inside JSON text, where a quote is escaped; `[DONE]` can, so it is looked at again. Cheaper still: the events
of one stream differ in their text only, so what stands before and after it is compared as a whole, and the text must be free of
quotes and backslashes, which leaves it no way out of its string. Anything else takes the slow path: events are split (LF, CRLF
or CR) and their JSON is parsed.
"""

import re
from collections.abc import Callable
from typing import Any, Final

import orjson

from forebay_router.endpoints import Dialect
from forebay_router.serialising import TooDeepError, serialise
from forebay_router.usage import Usage, read_usage

HELD_MAX_BYTES = 1024 * 1024
"""Largest event that is held until it is complete."""

_BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
"""Two line ends in a row. A search for it is linear; a pattern for a whole event would be tried from every byte."""
_TEXT = re.compile(rb'[^"\\\\\r\n]*').fullmatch
"""Text within a JSON string, without anything escaped."""
_SHORT_BYTES: Final = 48
"""Up to this length a text is faster looked at byte by byte than by a pattern, compiled."""
_QUOTE: Final = 0x22
_BACKSLASH: Final = 0x5C
_CR: Final = 0x0D
_LF: Final = 0x0A
_TEXT_VALUE = re.compile(rb'"(?:content|text|reasoning|reasoning_content|delta)": ?"([^"\\\\\r\n]*)"').search
_NEVER = b"\xff"
"""Occurs in no UTF-8 text."""
LEARNS_MAX = 16
"""How often the surroundings of the text are learnt anew; streams with several choices alternate for ever."""
_LINES = re.compile(rb"\r\n|\n|\r")

_OPENAI_NEEDLES = (b'"usage"', b"[DONE]", b'"error"', b'"abort"')
_NEEDLES: dict[Dialect, tuple[bytes, ...]] = {
    Dialect.CHAT: _OPENAI_NEEDLES,
    Dialect.COMPLETION: _OPENAI_NEEDLES,
    Dialect.RESPONSES: (
        b'"usage"',
        b'"error"',
        b'"response.completed"',
        b'"response.incomplete"',
        b'"response.failed"',
    ),
    Dialect.MESSAGES: (b'"usage"', b'"error"', b'"message_stop"'),
    Dialect.OPAQUE: (),
}


def _is_text(block: bytes, start: int, end: int) -> bool:
    """A part of a block is text within a JSON string, without anything escaped."""
    if end - start > _SHORT_BYTES:
        return _TEXT(block, start, end) is not None
    for at in range(start, end):
        byte = block[at]
        if byte in (_QUOTE, _BACKSLASH, _CR, _LF):
            return False
    return start <= end


def event_data(event: bytes) -> bytes | None:
    """The data of an event, its lines joined; None when it has no data (a comment, an id, a retry time)."""
    lines = []
    for line in _LINES.split(event):
        if line.startswith(b"data:"):
            lines.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line == b"data":
            lines.append(b"")
    return b"\n".join(lines) if lines else None


def split_events(block: bytes, searched: int = 0) -> tuple[list[bytes], bytes]:
    """Whole events with their blank lines, and the incomplete rest.

    `searched` bytes at the start are known to hold no blank line.
    """
    events = []
    start = 0
    for found in _BLANK_LINE.finditer(block, max(0, searched - 3)):
        events.append(block[start : found.end()])
        start = found.end()
    return events, block[start:]


def _delta_has_content(choice: Any) -> bool:
    """Text, reasoning or a tool call in one choice of a chunk."""
    if not isinstance(choice, dict):
        return False
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return False
    return any(
        delta.get(name)
        for name in ("content", "reasoning_content", "reasoning", "tool_calls", "function_call", "refusal", "audio")
    )


def _chunk_has_content(chunk: dict[str, Any]) -> bool:
    choices = chunk.get("choices")
    return isinstance(choices, list) and any(map(_delta_has_content, choices))


def _response_has_content(event: dict[str, Any]) -> bool:
    return str(event.get("type", "")).endswith(".delta") and bool(event.get("delta"))


def _message_has_content(event: dict[str, Any]) -> bool:
    if event.get("type") == "content_block_delta":
        return True
    block = event.get("content_block")
    return event.get("type") == "content_block_start" and isinstance(block, dict) and block.get("type") == "tool_use"


_HAS_CONTENT: dict[Dialect, Callable[[dict[str, Any]], bool]] = {
    Dialect.CHAT: _chunk_has_content,
    Dialect.COMPLETION: _chunk_has_content,
    Dialect.RESPONSES: _response_has_content,
    Dialect.MESSAGES: _message_has_content,
}


class EventScanner:
    """One event stream on its way through. Not for streams with a content encoding."""

    __slots__ = (
        "_after",
        "_before",
        "_dialect",
        "_edits_usage",
        "_error_event",
        "_held",
        "_last_usage",
        "_learns",
        "_needles",
        "_strip_usage",
        "aborted",
        "cached_tokens",
        "client_error",
        "complete",
        "data_seen",
        "error",
        "first_content_s",
        "last_content_s",
        "torn",
    )

    def __init__(
        self, dialect: Dialect, *, strip_usage: bool = False, cached_tokens: int | None = None, error_event: bytes = b""
    ) -> None:
        self._dialect = dialect
        self._needles = _NEEDLES[dialect]
        self._before, self._after = _NEVER, _NEVER
        """What stood around the text of the last content event."""
        self._learns = LEARNS_MAX
        self._strip_usage = strip_usage
        self._edits_usage = strip_usage or cached_tokens is not None
        self._error_event = error_event
        self._held = b""
        self._last_usage: Any = None
        self.cached_tokens = cached_tokens
        """The prefill worker's count, which replaces the decode worker's; None leaves counts alone."""
        self.first_content_s: float | None = None
        self.last_content_s: float | None = None
        self.torn = False
        """A large event passed in pieces: what comes next may be within it."""
        self.data_seen = False
        """An event with data has passed: the answer has begun."""
        self.complete = dialect is Dialect.OPAQUE
        """The end marker came."""
        self.aborted = False
        self.error: str | None = None
        """Message of an error event that the worker sent."""
        self.client_error = False
        """That error is the client's (code 4xx): no other worker will see it differently."""

    @property
    def told_all(self) -> bool:
        """Its end or an error has passed: when its connection breaks afterwards, there is nothing to add."""
        return self.error is not None or (self.complete and self._dialect is not Dialect.OPAQUE)

    def passes(self, block: bytes, start: int, now_s: float) -> bool:
        """Whether a block of whole events is plain content that came at `now_s`; nothing else is then to be done with it.

        `start` bytes of framing stand before it, and some may stand behind it; none of the needles can occur in them.
        """
        if self._held or self.first_content_s is None:
            return False
        before, after = self._before, self._after
        if block.startswith(before, start) and block.endswith(after):
            if _is_text(block, start + len(before), len(block) - len(after)):
                self.last_content_s = now_s
                return True
        elif self._learns:
            self._learn(block, start)
        for needle in self._needles:
            if needle in block:
                return False
        self.last_content_s = now_s
        return True

    def _learn(self, block: bytes, start: int) -> None:
        """Take what stands around the text of a block as what stands around the text of those that follow."""
        for needle in self._needles:
            if needle in block:
                return
        found = _TEXT_VALUE(block, start)
        if found is not None:
            self._learns -= 1
            self._before, self._after = block[start : found.start(1)], block[found.end(1) :]

    def feed(self, block: bytes, now_s: float) -> bytes:
        """Take what came at `now_s` (monotonic seconds); returns what the client gets now, maybe nothing."""
        if self._held:
            searched = len(self._held)
            block = self._held + block
            self._held = b""
            return self._feed_slowly(block, now_s, searched)
        if block[-2:] == b"\n\n" and block[:1] != b":" and self.passes(block, 0, now_s):
            return block
        return self._feed_slowly(block, now_s)

    def _feed_slowly(self, block: bytes, now_s: float, searched: int = 0) -> bytes:
        events, rest = split_events(block, searched)
        passed = b"".join([self._pass_event(event, now_s) for event in events])
        if len(rest) > HELD_MAX_BYTES:
            self.data_seen = self.torn = True
            return passed + rest
        self._held = rest
        return passed

    def _pass_event(self, event: bytes, now_s: float) -> bytes:
        """Note what an event says; returns what becomes of it."""
        data = event_data(event)
        if data is None:
            return event
        if self._dialect is Dialect.OPAQUE:
            self.data_seen = True
            return event
        if data == b"[DONE]":
            return self._end(event)
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            self.data_seen = True
            return event
        if not isinstance(chunk, dict):
            self.data_seen = True
            return event
        return self._pass_chunk(event, chunk, now_s)

    def _end(self, event: bytes) -> bytes:
        self.complete = True
        if self.aborted and self.error is None:
            return self._error_event + event
        return event

    def _pass_chunk(self, event: bytes, chunk: dict[str, Any], now_s: float) -> bytes:
        self._note_failure(chunk)
        if _HAS_CONTENT[self._dialect](chunk):
            if self.first_content_s is None:
                self.first_content_s = now_s
            self.last_content_s = now_s
        kind = chunk.get("type")
        if isinstance(kind, str) and kind in {"message_stop", "response.completed", "response.incomplete"}:
            self.complete = True
        usage = self._usage_of(chunk)
        if usage is None:
            self.data_seen = True
            return event
        self._remember(usage)
        if not self._edits_usage:
            self.data_seen = True
            return event
        return self._edit_usage(event, chunk, usage)

    def _usage_of(self, chunk: dict[str, Any]) -> dict[str, Any] | None:
        """The usage object in a chunk, wherever its dialect puts it."""
        for holder in (chunk, chunk.get("response"), chunk.get("message")):
            usage = holder.get("usage") if isinstance(holder, dict) else None
            if isinstance(usage, dict):
                return usage
        return None

    def _remember(self, usage: dict[str, Any]) -> None:
        """Anthropic's streams tell prompt and output counts in different events: keep what is known."""
        if self._dialect is Dialect.MESSAGES and isinstance(self._last_usage, dict):
            self._last_usage = {**self._last_usage, **usage}
        else:
            self._last_usage = usage

    def _edit_usage(self, event: bytes, chunk: dict[str, Any], usage: dict[str, Any]) -> bytes:
        if self._strip_usage and chunk.get("choices") == []:
            return b""
        self.data_seen = True
        if self.cached_tokens is None or not isinstance(usage.get("prompt_tokens"), int):
            return event
        details = usage.get("prompt_tokens_details")
        if not isinstance(details, dict) or details.get("cached_tokens") == self.cached_tokens:
            return event
        details["cached_tokens"] = self.cached_tokens
        try:
            return b"data: %b\n\n" % serialise(chunk)
        except TooDeepError:
            return event

    def _note_failure(self, chunk: dict[str, Any]) -> None:
        error = chunk.get("error")
        if error is not None and self.error is None:
            message = error.get("message", "without a message") if isinstance(error, dict) else error
            self.error = message if isinstance(message, str) else f"of type {type(message).__name__}"
            code = error.get("code") if isinstance(error, dict) else None
            self.client_error = isinstance(code, int) and 400 <= code < 500
        if chunk.get("type") == "response.failed" and self.error is None:
            self.error = "response.failed"
        choices = chunk.get("choices")
        if isinstance(choices, list):
            for choice in choices:
                if isinstance(choice, dict) and choice.get("finish_reason") == "abort":
                    self.aborted = True

    def usage(self) -> Usage | None:
        """Token counts, once the stream has told them."""
        found = read_usage(self._last_usage)
        if found is None or self.cached_tokens is None:
            return found
        return Usage(found.prompt_tokens, found.output_tokens, self.cached_tokens)

    def finish(self) -> bytes:
        """The stream has ended: what is left of it for the client.

        An end marker without its blank line counts. Anything else that is incomplete is dropped from a stream that lacks its
        end, since an error event follows, which it would run into.
        """
        rest, self._held = self._held, b""
        if rest and event_data(rest) == b"[DONE]":
            return self._end(rest)
        return rest if self.complete else b""
