"""How long a client waits, by its own word. Pure.

Time limits that clients send are taken at their word:

    x-forebay-timeout               a duration (2s, 500ms) or seconds: for the whole answer
    x-envoy-expected-rq-timeout-ms  what an Envoy in front will wait for the whole answer
    x-stainless-read-timeout        what OpenAI's and Anthropic's own clients wait for the next byte: of a stream the first, of an
                                    answer in one piece all of it

A limit that cannot be read is none, but for our own header: there it is an error, which the client is told of.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Final

from forebay_api.durations import parse_duration_s
from forebay_router import errors
from forebay_router.reading import Received

TIMEOUT_HEADER: Final = b"x-forebay-timeout"
_ENVOY_HEADER: Final = b"x-envoy-expected-rq-timeout-ms"
_READ_HEADER: Final = b"x-stainless-read-timeout"


@dataclass(frozen=True, slots=True)
class Patience:
    """Monotonic times after which the client does not wait any more; infinite where it has not said."""

    first_byte_s: float = inf
    total_s: float = inf

    @property
    def until_s(self) -> float:
        """The answer must have begun by then."""
        return min(self.first_byte_s, self.total_s)


ENDLESS: Final = Patience()


def patience_of(received: Received, *, stream: bool) -> Patience:
    """How long the client waits, by its headers; raises RequestRefused for a limit of ours that cannot be read."""
    fields = received.fields
    if TIMEOUT_HEADER not in fields and _READ_HEADER not in fields and _ENVOY_HEADER not in fields:
        return ENDLESS
    read_s = _seconds(fields.get(_READ_HEADER))
    total_s = min(_own_timeout_s(fields), _seconds(fields.get(_ENVOY_HEADER)) / 1000)
    if not stream:
        total_s = min(total_s, read_s)
    return Patience(received.received_s + read_s, received.received_s + total_s)


def _own_timeout_s(fields: Mapping[bytes, bytes]) -> float:
    given = fields.get(TIMEOUT_HEADER)
    if given is None:
        return inf
    seconds = _seconds(given)
    if isfinite(seconds):
        return seconds
    try:
        seconds = parse_duration_s(given.decode())
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise errors.bad_header(TIMEOUT_HEADER, "write a time above zero, such as 30s or 500ms")
    return seconds


def _seconds(text: bytes | None) -> float:
    """A number of seconds above zero; infinite where there is none."""
    if text is None:
        return inf
    try:
        seconds = float(text)
    except ValueError:
        return inf
    return seconds if isfinite(seconds) and seconds > 0 else inf
