"""Prompts that were sent and whose blocks no event has told of yet.

An engine tells of a block when it is full, so of ten requests with one new beginning the other nine would find nothing held
anywhere and be spread, and the beginning be computed ten times. What is on its way to a worker counts as held there: an engine
that begins a prompt while another with the same start is being computed shares its blocks.

A prompt is under way from when it was sent until its answer tells its cached tokens, for `LIFE_S` at most: by then events have
told, or nothing was stored.

Found by a hash near its beginning: prompts are kept under their hashes at `DEPTHS` blocks, and looked for under the deepest
first, the newest `WIDTH` in each. Bounded: at most `PROMPTS_MAX` prompts, the oldest forgotten first.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from forebay_router.index.content import Content
from forebay_router.index.sharing import agreement

LIFE_S: Final = 10.0
DEPTHS: Final = (127, 31, 0)
WIDTH: Final = 16
PROMPTS_MAX: Final = 4096


@dataclass(slots=True, eq=False)
class Sending:
    """One prompt under way."""

    uid: str
    content: Content
    until_s: float
    over: bool = False


@dataclass(slots=True)
class Underway:
    """All prompts under way."""

    by_hash: dict[int, deque[Sending]] = field(default_factory=dict)
    order: deque[Sending] = field(default_factory=deque)

    def note(self, uid: str, content: Content, now_s: float) -> Sending:
        """A prompt was sent to a worker. `now_s` is monotonic."""
        sending = Sending(uid, content, now_s + LIFE_S)
        for depth in DEPTHS:
            if depth < len(content.hashes):
                self.by_hash.setdefault(content.hashes[depth], deque(maxlen=WIDTH)).append(sending)
        self.order.append(sending)
        while len(self.order) > PROMPTS_MAX or self.order[0].until_s <= now_s or self.order[0].over:
            self._forget(self.order.popleft())
        return sending

    def _forget(self, sending: Sending) -> None:
        sending.over = True
        for depth in DEPTHS:
            if depth < len(sending.content.hashes):
                key = sending.content.hashes[depth]
                kept = self.by_hash.get(key)
                if kept is not None and all(one.over for one in kept):
                    del self.by_hash[key]

    def match(self, content: Content, now_s: float) -> dict[str, int]:
        """Worker -> bytes of the prompt that are on their way to it."""
        found: dict[str, int] = {}
        for depth in DEPTHS:
            kept = self.by_hash.get(content.hashes[depth]) if depth < len(content.hashes) else None
            if not kept:
                continue
            for one in kept:
                if not one.over and one.until_s > now_s:
                    size = content.bytes_of(agreement(content.hashes, one.content.hashes))
                    found[one.uid] = max(size, found.get(one.uid, 0))
            if found:
                return found
        return found
