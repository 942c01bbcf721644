"""Comments that keep a silent event stream alive.

Proxies and load balancers close a connection on which nothing comes for a minute or so, and a prompt may wait or be computed for
longer. An event stream may hold comments, which clients skip: after `interval_s` without a byte the client gets `: keep-alive`.

When the silence is before the answer, the head of the stream goes out first, with status 200. From then on an error can only be
told as an event, no longer as a status; that is why this is an option. Another worker can still be tried, since no event has
been sent. One sweep looks at all streams; nothing is done for a token.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

COMMENT: Final = b": keep-alive\n\n"


class Heard(Protocol):
    """A worker's answer."""

    last_byte_s: float
    """When it last said something."""

    @property
    def takes_comments(self) -> bool:
        """It is made of events, and not within one."""
        ...


class Watch:
    """One stream."""

    __slots__ = ("heard", "quiet_since_s", "write")

    def __init__(self, since_s: float, write: Callable[[bytes], None], heard: Callable[[], Heard | None]) -> None:
        self.quiet_since_s = since_s
        """Since when the client has heard nothing, but for the answer."""
        self.write = write
        """Writes a comment where an event could stand."""
        self.heard = heard
        """The answer that is awaited or passed on; None while there is none."""

    def sweep(self, now_s: float, interval_s: float) -> bool:
        """Write a comment if it is time."""
        answer = self.heard()
        heard_s = self.quiet_since_s if answer is None else max(self.quiet_since_s, answer.last_byte_s)
        if now_s - heard_s < interval_s or (answer is not None and not answer.takes_comments):
            return False
        self.quiet_since_s = now_s
        self.write(COMMENT)
        return True


@dataclass(slots=True)
class KeepAlive:
    """All streams that are watched."""

    interval_s: float
    watches: set[Watch] = field(default_factory=set)
    comments: int = 0
    """Written so far."""

    def watch(self, write: Callable[[bytes], None], heard: Callable[[], Heard | None]) -> Watch:
        """Keep a stream alive from now on."""
        watch = Watch(time.monotonic(), write, heard)
        self.watches.add(watch)
        return watch

    def forget(self, watch: Watch) -> None:
        """The stream has ended."""
        self.watches.discard(watch)

    def sweep(self, now_s: float) -> None:
        """Look at every stream."""
        for watch in tuple(self.watches):
            self.comments += watch.sweep(now_s, self.interval_s)
