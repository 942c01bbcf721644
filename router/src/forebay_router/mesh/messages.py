"""What goes over the mesh: msgpack arrays, one message a frame.

    Batch        what happened since the last message; empty as a heartbeat
    Everything   all leases that are held: for newcomers, and for peers that missed something
    Ask          please send Everything
    Prompts      for one newcomer: what the sender sent where of late
    Farewell     the sender stops; its leases have ended

A sender is a name and an incarnation, the wall time in nanoseconds at which it began: a higher one under the same name has
replaced the lower. Batch and Everything are numbered together, from 1, so that a receiver notices what it missed.

A prompt is told as the chained hashes of its blocks, eight bytes each: 1,000 tokens make some 250 bytes, 100,000 some 4 KB.
Workers go by the UID of their pod or, from a list of addresses, by their address.
"""

from array import array
from typing import Final

import msgspec

from forebay_router.index.content import Content

TOPIC: Final = b"forebay-mesh/1"
"""First frame of every message; another number is another format."""
TOPIC_FAMILY: Final = b"forebay-mesh/"


class MalformedMessageError(Exception):
    """A message that cannot be read."""


class Taken(msgspec.Struct, array_like=True, frozen=True, tag=0, gc=False):
    """A lease was taken."""

    number: int
    worker: str
    prompt_tokens: int
    """To be computed before the first token; 0 once that has come."""
    output_tokens: int
    visible: bool = True
    """Its first token will be seen."""
    age_ms: int = 0
    """Since when, in Everything."""


class Prefilled(msgspec.Struct, array_like=True, frozen=True, tag=1, gc=False):
    """The first token of a lease's request came."""

    number: int


class Released(msgspec.Struct, array_like=True, frozen=True, tag=2, gc=False):
    """A lease ended."""

    number: int


class Sent(msgspec.Struct, array_like=True, frozen=True, tag=3, gc=False):
    """A prompt went to a worker."""

    worker: str
    size_bytes: int
    hashes: bytes
    """Eight bytes a block, little-endian."""

    @classmethod
    def of(cls, worker: str, content: Content) -> "Sent":
        """The telling of a prompt."""
        return cls(worker, content.size_bytes, content.hashes.tobytes())

    def content(self) -> Content:
        """The prompt as the prefix index takes it; raises MalformedMessageError."""
        hashes = array("Q")
        try:
            hashes.frombytes(self.hashes)
        except ValueError as error:
            raise MalformedMessageError(f"{len(self.hashes)} bytes are no whole number of hashes") from error
        return Content(hashes[:], self.size_bytes)  # a copy has no room to grow; the prefix index keeps it


Event = Taken | Prefilled | Released | Sent


class Batch(msgspec.Struct, array_like=True, frozen=True, tag=0):
    """What happened since the sender's last message, in order."""

    name: str
    incarnation: int
    sequence: int
    events: tuple[Event, ...] = ()


class Everything(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """All leases that the sender holds."""

    name: str
    incarnation: int
    sequence: int
    leases: tuple[Taken, ...] = ()


class Ask(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """The sender wants another's Everything."""

    name: str
    incarnation: int
    of: str


class Prompts(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """What one newcomer should know of workers' caches, the oldest first."""

    name: str
    incarnation: int
    to: str
    prompts: tuple[Sent, ...] = ()


class Farewell(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """The sender stops."""

    name: str
    incarnation: int


Message = Batch | Everything | Ask | Prompts | Farewell

encode = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(Message)


def decode(payload: bytes) -> Message:
    """A message; raises MalformedMessageError."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedMessageError(str(error)) from error
