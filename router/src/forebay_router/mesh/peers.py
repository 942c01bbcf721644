"""What other replicas have told. Pure: `apply` takes messages in any order, with losses and repetitions.

    a number seen before            ignored
    a number left out               what comes is applied, Everything is asked for: a release may have been missed
    Everything                      replaces all that is known of its sender
    a higher incarnation            the sender began anew: what its predecessor held has ended
    a lower one                     ignored
    silence for `EXPIRY_S`          the sender is taken for dead: its leases have ended

So a load is never negative, equals the truth as of the last message once Everything has come, and holds nothing of a replica
`EXPIRY_S` after its last word. A replica that was only cut off is a newcomer when it is heard again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from forebay_router.mesh.claims import Claim, Claims
from forebay_router.mesh.messages import (
    Ask,
    Batch,
    Everything,
    Farewell,
    Message,
    Prefilled,
    Prompts,
    Released,
    Sent,
    Taken,
)

EXPIRY_S: Final = 3.0
"""Six heartbeats."""
ASK_PAUSE_S: Final = 0.5
PEERS_MAX: Final = 256


@dataclass(slots=True)
class Peer:
    """One other replica."""

    name: str
    incarnation: int
    heard_s: float
    sequence: int = 0
    """Highest number heard."""
    synced: bool = True
    """Nothing is known to be missing."""
    claims: dict[int, Claim] = field(default_factory=dict)
    """By the peer's own lease numbers."""
    asked_s: float = -inf
    """When its Everything was asked for."""


@dataclass(slots=True)
class Counts:
    """For the metrics, since the start."""

    received: int = 0
    gaps: int = 0
    malformed: int = 0
    refused: int = 0
    """Messages beyond `PEERS_MAX` peers."""
    expired_leases: int = 0
    expired: int = 0
    """Peers that were silent for too long."""
    restarts: int = 0
    """Peers that came back as others."""


@dataclass(slots=True)
class Peers:
    """All other replicas."""

    own_name: str
    claims: Claims
    on_sent: Callable[[Sent], None]
    """Told of prompts that went to workers."""
    on_ask: Callable[[], None]
    """Told that a peer wants this replica's Everything."""
    on_new: Callable[[str], None]
    """Told the name of a peer that is heard for the first time; it wants to know everything too."""
    known: dict[str, Peer] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)

    def apply(self, message: Message, now_s: float) -> str | None:
        """Take a message in. Returns the name of a peer whose Everything is to be asked for."""
        if message.name == self.own_name:
            return None
        self.counts.received += 1
        peer = self._peer_of(message, now_s)
        if peer is None:
            return None
        peer.heard_s = now_s
        match message:
            case Ask(of=to) | Prompts(to=to):
                if to == self.own_name:
                    self._apply_to_us(message)
            case Farewell():
                self._drop(peer, now_s)
                return None
            case Everything():
                self._apply_everything(peer, message, now_s)
            case Batch():
                self._apply_batch(peer, message, now_s)
        if peer.synced or now_s - peer.asked_s < ASK_PAUSE_S:
            return None
        peer.asked_s = now_s
        return peer.name

    def _peer_of(self, message: Message, now_s: float) -> Peer | None:
        """Who speaks; None for one that has been replaced, or is one too many."""
        peer = self.known.get(message.name)
        if peer is not None and message.incarnation < peer.incarnation:
            return None
        if peer is not None and message.incarnation > peer.incarnation:
            self.counts.restarts += 1
            self._drop(peer, now_s)
            peer = None
        if peer is None:
            if isinstance(message, Farewell):
                return None
            if len(self.known) >= PEERS_MAX:
                self.counts.refused += 1
                return None
            peer = self.known[message.name] = Peer(message.name, message.incarnation, now_s)
            self.on_new(message.name)
        return peer

    def _apply_to_us(self, message: Ask | Prompts) -> None:
        if isinstance(message, Ask):
            self.on_ask()
        else:
            for prompt in message.prompts:
                self.on_sent(prompt)

    def _apply_everything(self, peer: Peer, message: Everything, now_s: float) -> None:
        if message.sequence <= peer.sequence:
            return
        peer.sequence, peer.synced = message.sequence, True
        held = {one.number for one in message.leases}
        for number in peer.claims.keys() - held:
            self.claims.release(peer.claims.pop(number), now_s)
        for one in message.leases:
            known = peer.claims.get(one.number)
            if known is None:
                peer.claims[one.number] = self.claims.take(one, now_s)
            elif not one.prompt_tokens:
                self.claims.computed(known, now_s)

    def _apply_batch(self, peer: Peer, message: Batch, now_s: float) -> None:
        if message.sequence <= peer.sequence:
            return
        if message.sequence > peer.sequence + 1:
            peer.synced = False
            if peer.sequence:
                self.counts.gaps += 1
        peer.sequence = message.sequence
        for event in message.events:
            if isinstance(event, Sent):
                self.on_sent(event)
            else:
                self._apply_event(peer.claims, event, now_s)

    def _apply_event(self, claims: dict[int, Claim], event: Taken | Prefilled | Released, now_s: float) -> None:
        """Events of leases that are not known, or known already, change nothing."""
        claim = claims.get(event.number)
        if isinstance(event, Taken):
            if claim is None:
                claims[event.number] = self.claims.take(event, now_s)
        elif claim is not None and isinstance(event, Prefilled):
            self.claims.computed(claim, now_s)
        elif claim is not None:
            del claims[event.number]
            self.claims.release(claim, now_s)

    def _drop(self, peer: Peer, now_s: float) -> None:
        for claim in peer.claims.values():
            self.claims.release(claim, now_s)
        peer.claims.clear()
        del self.known[peer.name]

    def expire(self, now_s: float) -> list[Peer]:
        """Give up those that have been silent for too long; returns them."""
        dead = [peer for peer in self.known.values() if now_s - peer.heard_s >= EXPIRY_S]
        for peer in dead:
            self.counts.expired += 1
            self.counts.expired_leases += len(peer.claims)
            self._drop(peer, now_s)
        return dead

    def oldest_s(self, now_s: float) -> float:
        """Time since the peer that has been silent longest was heard."""
        return max((now_s - peer.heard_s for peer in self.known.values()), default=0.0)
