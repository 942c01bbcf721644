"""What a request may claim of a queue: its priority, its tenant's share, and the time until which it is worth answering. Pure.

Priority comes from the header `x-forebay-priority` (high, normal, low), else from the body's `priority` as vLLM has it (below
zero goes first, above zero last), else from OpenAI's `service_tier` (`priority`, `flex`). An API key may set a ceiling; a
request above it is lowered to it, not refused.

Time limits that clients send are taken at their word:

    x-forebay-timeout               a duration (2s, 500ms) or seconds: for the whole answer
    x-envoy-expected-rq-timeout-ms  what an Envoy in front will wait for the whole answer
    x-stainless-read-timeout        what OpenAI's and Anthropic's own clients wait for the next byte: of a stream the first, of an
                                    answer in one piece all of it

A limit that cannot be read is none, but for our own header: there it is an error, which the client is told of.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from math import inf, isfinite
from typing import Any, Final

from forebay_api.durations import parse_duration_s
from forebay_router import errors
from forebay_router.parsing import ParsedRequest
from forebay_router.reading import Received

PRIORITY_HEADER: Final = b"x-forebay-priority"
TENANT_HEADER: Final = b"x-forebay-tenant"
TIMEOUT_HEADER: Final = b"x-forebay-timeout"
_ENVOY_HEADER: Final = b"x-envoy-expected-rq-timeout-ms"
_READ_HEADER: Final = b"x-stainless-read-timeout"
TENANT_MAX_BYTES: Final = 64
"""Of a tenant's name that no key vouches for."""


class Priority(IntEnum):
    """Classes of requests that wait; a higher number is served a larger share."""

    LOW = -1
    NORMAL = 0
    HIGH = 1

    @property
    def label(self) -> str:
        """As in headers, metrics and `/state`."""
        return self.name.lower()


_WORDS: Final = {one.label.encode(): one for one in Priority}
_TIERS: Final = {"flex": Priority.LOW, "priority": Priority.HIGH}


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


@dataclass(frozen=True, slots=True)
class Claim:
    """Of one request."""

    priority: Priority = Priority.NORMAL
    tenant: str = ""
    weight: int = 1
    """The tenant's share, against tenants with 1."""
    until_s: float = inf
    """Monotonic time by which the answer must have begun."""


def tenant_of(received: Received) -> tuple[str, int]:
    """Whose request it is, with the tenant's weight: the API key's tenant, else who the client says it is."""
    grant = getattr(received, "grant", None)
    if grant is not None:
        return grant.tenant, grant.weight
    return received.fields.get(TENANT_HEADER, b"")[:TENANT_MAX_BYTES].decode(errors="replace"), 1


def priority_of(received: Received, fields: Mapping[str, Any] | None) -> Priority:
    """The priority asked for, lowered to the key's ceiling; raises RequestRefused for a header that is no priority."""
    asked = _asked_priority(received, fields)
    grant = getattr(received, "grant", None)
    ceiling = None if grant is None else grant.priority_max
    if ceiling is not None and asked > ceiling:
        return Priority(max(Priority.LOW, min(Priority.HIGH, ceiling)))
    return asked


def _asked_priority(received: Received, fields: Mapping[str, Any] | None) -> Priority:
    given = received.fields.get(PRIORITY_HEADER)
    if given is not None:
        named = _WORDS.get(given.strip().lower())
        if named is None:
            raise errors.bad_header(PRIORITY_HEADER, "write high, normal or low")
        return named
    if not fields:
        return Priority.NORMAL
    number = fields.get("priority")
    if isinstance(number, int) and number:
        return Priority.HIGH if number < 0 else Priority.LOW
    tier = fields.get("service_tier")
    return _TIERS.get(tier, Priority.NORMAL) if isinstance(tier, str) else Priority.NORMAL


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


def claim_of(received: Received, parsed: ParsedRequest) -> Claim:
    """All that a request may claim; raises RequestRefused (400) for headers of ours that cannot be read."""
    tenant, weight = tenant_of(received)
    patience = patience_of(received, stream=parsed.stream)
    return Claim(priority_of(received, parsed.fields), tenant, weight, patience.until_s)
