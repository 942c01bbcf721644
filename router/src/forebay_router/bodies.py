"""A bound over the memory that request bodies take, all together.

A body is held from its first byte until its answer begins (then no second attempt can need it) or its request ends. Each is
bounded by itself; without a bound over all of them, a few hundred long ones at once, or a few clients that mean harm, take more
memory than there is. What a client says it will send counts only once it has come: else a claim alone would keep others out.

Counted are bytes as received. Parsing makes about as much again until the request is sent to a worker, so the process may need
twice the bound while all of them wait for one.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from forebay_router.errors import RequestRefused

Body = bytes | memoryview
"""A request's body, or a part of it: a view of the read's end where it came in one read behind other things."""
LONG_BYTES: Final = 32 * 1024
"""A body of this length or more is worth some care."""


def source_of(body: Body) -> tuple[bytes, int]:
    """The bytes that a body stands in, and where in them it begins; it goes on to their end."""
    if isinstance(body, bytes):
        return body, 0
    source = body.obj
    assert isinstance(source, bytes), "bodies are views of what was read"
    return source, len(source) - len(body)


class Holder(Protocol):
    """A request."""

    held_bytes: int
    """What it has taken."""


@dataclass(slots=True)
class BodyMemory:
    """Bytes of all bodies that are held now."""

    limit_bytes: int = 256 * 1024 * 1024
    held_bytes: int = 0
    refused: int = 0
    """Requests that found no room."""

    def room_for(self, size_bytes: int) -> bool:
        """A body of this size would fit now."""
        return self.held_bytes + size_bytes <= self.limit_bytes

    def take(self, request: Holder, size_bytes: int) -> bool:
        """Hold so much more of a request's body; False when there is no room."""
        if self.held_bytes + size_bytes > self.limit_bytes:
            return False
        self.held_bytes += size_bytes
        request.held_bytes += size_bytes
        return True

    def give_back(self, request: Holder) -> None:
        """The request's body is gone; may be said twice."""
        self.held_bytes -= request.held_bytes
        request.held_bytes = 0

    def full(self) -> RequestRefused:
        """What a client is told."""
        self.refused += 1
        return RequestRefused(
            503,
            "The router holds as many request bodies as it has memory for; try again later.",
            type="service_unavailable",
            code="out_of_body_memory",
            retry_after_s=1,
        )
