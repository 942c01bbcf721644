"""What a request may claim of a queue: its priority, its tenant's share, and the time until which it is worth answering. Pure.

Priority comes from the header `x-forebay-priority` (high, normal, low), else from the body's `priority` as vLLM has it (below
zero goes first, above zero last), else from OpenAI's `service_tier` (`priority`, `flex`). An API key may set a ceiling; a
request above it is lowered to it, not refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import Any, Final

from forebay_router import errors
from forebay_router.admission.patience import patience_of
from forebay_router.parsing import ParsedRequest
from forebay_router.reading import Received

PRIORITY_HEADER: Final = b"x-forebay-priority"
TENANT_HEADER: Final = b"x-forebay-tenant"
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


_NORMAL: Final = Priority.NORMAL
_WORDS: Final = {one.label.encode(): one for one in Priority}
_TIERS: Final = {"flex": Priority.LOW, "priority": Priority.HIGH}


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
    grant = received.grant
    if grant is not None:
        return grant.tenant, grant.weight
    return received.fields.get(TENANT_HEADER, b"")[:TENANT_MAX_BYTES].decode(errors="replace"), 1


def priority_of(received: Received, fields: Mapping[str, Any] | None) -> Priority:
    """The priority asked for, lowered to the key's ceiling; raises RequestRefused for a header that is no priority."""
    grant = received.grant
    plain = not fields or ("priority" not in fields and "service_tier" not in fields)
    if plain and grant is None and PRIORITY_HEADER not in received.fields:
        return _NORMAL
    asked = _asked_priority(received, fields)
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


def claim_of(received: Received, parsed: ParsedRequest) -> Claim:
    """All that a request may claim; raises RequestRefused (400) for headers of ours that cannot be read."""
    tenant, weight = tenant_of(received)
    patience = patience_of(received, stream=parsed.stream)
    return Claim(priority_of(received, parsed.outline), tenant, weight, patience.until_s)
