"""A request's claim on one worker: taken at dispatch, released exactly once on any exit."""

from enum import StrEnum
from typing import Generic, Protocol, TypeVar

Claimed = TypeVar("Claimed")
"""What is claimed: a worker."""


class LeaseEvent(StrEnum):
    """What happened to a lease."""

    TAKEN = "taken"
    PREFILLED = "prefilled"
    RELEASED = "released"


class Ledger(Protocol[Claimed]):
    """Who keeps the claims."""

    def prefilled(self, lease: "Lease[Claimed]") -> None:
        """The prompt of a claim's request is computed."""

    def release(self, lease: "Lease[Claimed]") -> None:
        """A claim ends."""


class Lease(Generic[Claimed]):
    """A request's claim on a worker. Released once; a second release is a programming error."""

    __slots__ = ("_ledger", "held", "number", "output_tokens", "prompt_tokens", "visible", "worker")

    def __init__(
        self,
        ledger: Ledger[Claimed],
        number: int,
        worker: Claimed,
        *,
        prompt_tokens: int,
        output_tokens: int,
        visible: bool,
    ) -> None:
        self._ledger = ledger
        self.number = number
        self.worker = worker
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.visible = visible
        self.held = True

    def prefilled(self) -> None:
        """The first token came: its prompt is no longer work to do."""
        if self.prompt_tokens:
            self._ledger.prefilled(self)

    def release(self) -> None:
        """End the claim."""
        self._ledger.release(self)
