"""Bursts of tokens: what is passed on at once, and what waits for its turn.

An engine makes a token for all of its sequences at the same moment, so chunks come in bursts: a hundred connections become
readable together, and the loop has them all read before it looks at its sockets again. To pass one on costs some 10 us, mostly
the kernel's for writing it. A request that comes while a burst is passed on would wait a millisecond behind it, and its first
token once more; and a first token is what a client waits for.

So of a burst the first `AT_ONCE` chunks are passed on by the callback that read them. The rest is only read, and passed on after
the others by `TURN` connections at a time; between two turns the loop looks at its sockets, so what is no such chunk (a new
request, the beginning of an answer) goes first.

- Bytes of a stream keep their order: what comes while some of it waits, waits behind it, and is passed on together with it.
- A turn takes `SHARE` of those that wait at least, so that reads cannot starve them: after some turns every chunk read before
  them has gone, and no more can wait than there are streams.
- What a chunk says is dated by when it was read.

What is waited for longer: a chunk, by the reading of those that came with it and by whatever goes first.
"""

import asyncio
import logging
from typing import Final, Protocol

log = logging.getLogger(__name__)

AT_ONCE: Final = 4
"""Chunks that are passed on at once in each `WINDOW_S`: a turn for one that comes alone would cost more than it gains."""
WINDOW_S: Final = 0.25e-3
TURN: Final = 4
"""Connections whose chunks are passed on before the loop looks at its sockets again."""
SHARE: Final = 1 / 8


class Late(Protocol):
    """A connection with something that waits."""

    def pass_late(self) -> None:
        """Pass it on; nothing may be left of it by now."""

    def cut(self) -> None:
        """It cannot be passed on: end the connection."""


class Burst:
    """What waits, of all connections."""

    __slots__ = ("_at_once", "_since_s", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[Late] = []
        """In the order of their reads."""
        self._since_s = 0.0
        self._at_once = 0
        """Chunks passed on at once since then."""

    def crowded(self, now_s: float) -> bool:
        """Whether a chunk that is read now has to wait for its turn. It counts as passed on at once where it has not."""
        if self._waiting:
            return True
        if now_s - self._since_s > WINDOW_S:
            self._since_s = now_s
            self._at_once = 0
        self._at_once += 1
        return self._at_once > AT_ONCE

    def join(self, late: Late) -> None:
        """Let a connection wait for its turn."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._take_turn)
        self._waiting.append(late)

    def _take_turn(self) -> None:
        waiting = self._waiting
        count = max(TURN, int(len(waiting) * SHARE))
        turn, self._waiting = waiting[:count], waiting[count:]
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._take_turn)
        for late in turn:
            try:
                late.pass_late()
            except Exception:
                log.exception("what a worker sent could not be passed on")
                late.cut()
