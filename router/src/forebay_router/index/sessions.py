"""What a session's name says of caches where the prompt's content says nothing.

Turns of a session share their beginning, which the index sees by itself. It does not see what an engine holds of a history that
the client rewrote in part, that came in another form, or that this index has forgotten while the engine (a tier beside the GPU,
say) has not. There a name helps: the worker that had the session's last prompt may hold a part of this one.

    expected = seen + share x (tokens of the last prompt, or of this one where it is shorter, - seen)

`seen` is the start that everybody holds. Where the content shows more than that the name adds nothing, and nothing is learnt of
it: a further turn finds all of its last prompt, which would make a name that many chats share look like that of one. The share
is learnt for each service from what answers told where a name was all there was: near nothing where it names a user with many
chats, much where it names one long chat. So a name is evidence of what is cached, never an order: it is weighed against queues
like any other, and a wrong one costs little.

Names are the client's, so they are kept as hashes, the last `SESSIONS_MAX` of a service.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from xxhash import xxh3_64_intdigest

SESSIONS_MAX: Final = 16_384
NAME_MAX_BYTES: Final = 256
"""A longer one names nothing."""
FIRST_SHARE: Final = 0.25
_FIRST_WEIGHT: Final = 4
_MEMORY: Final = 64
"""Answers."""
_HEADERS: Final = (b"x-session-id", b"x-dynamo-session-id", b"x-smg-routing-key", b"x-session-affinity", b"x-user-id")
_FIELDS: Final = ("prompt_cache_key", "session_id", "user")


def session_of(headers: Mapping[bytes, bytes], fields: Mapping[str, Any]) -> int | None:
    """The session that a request names, as a hash; None where it names none."""
    for header in _HEADERS:
        name = headers.get(header)
        if name:
            return _digest(name)
    for key in _FIELDS:
        told = fields.get(key)
        if told and isinstance(told, str):
            return _digest(told.encode())
    return None


def _digest(name: bytes) -> int | None:
    return xxh3_64_intdigest(name) if len(name) <= NAME_MAX_BYTES else None


class Guess(NamedTuple):
    """What a name lets expect of one worker."""

    uid: str
    seen: int
    """Tokens that are known to be there without it."""
    whole: int
    """Tokens that are there if all of the last prompt is."""
    expected: int


@dataclass(slots=True)
class Sessions:
    """The sessions of one service."""

    share: float = FIRST_SHARE
    """Of what a name lets hope for: what was there."""
    _last: OrderedDict[int, tuple[str, int]] = field(default_factory=OrderedDict)
    """Worker and prompt tokens of each session's last prompt; the longest unused first."""
    _told: int = 0

    def __len__(self) -> int:
        return len(self._last)

    def last(self, session: int) -> tuple[str, int] | None:
        """Where its last prompt went, and the tokens of that."""
        return self._last.get(session)

    def guess(self, uid: str, seen: int, whole: int) -> Guess:
        """What its worker may hold of a prompt of which so much is seen there and so much, which is more, may be."""
        return Guess(uid, seen, whole, seen + int(self.share * (whole - seen)))

    def went(self, session: int, uid: str, prompt_tokens: int) -> None:
        """A prompt of a session goes to a worker."""
        self._last[session] = (uid, prompt_tokens)
        self._last.move_to_end(session)
        if len(self._last) > SESSIONS_MAX:
            self._last.popitem(last=False)

    def answered(self, guess: Guess, cached_tokens: int) -> None:
        """The worker told what it had of a prompt that a name was evidence for."""
        share = (cached_tokens - guess.seen) / (guess.whole - guess.seen)
        self._told += 1
        weight = max(1 / (self._told + _FIRST_WEIGHT), 1 / _MEMORY)
        self.share += weight * (min(max(0.0, share), 1.0) - self.share)
