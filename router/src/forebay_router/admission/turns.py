"""Gives out places to those that wait, in the queue's order and as far as they go. Pure: the router's and the fleet simulator's.

A request at the head that turns out to be late is set back before it takes a place (`FairQueue.set_back`), and the next one is
asked. So it is when no worker that is there can take the first: that one leaves the queue, and waits elsewhere. One that is held
keeps its priority from being served, and no other: a lower one may be content with another worker.
"""

from collections.abc import Callable
from typing import Final

from forebay_router.admission.claim import Priority
from forebay_router.admission.fair_queue import FairQueue
from forebay_router.admission.lane import Entry, Item
from forebay_router.admission.room import Cause, Held

LOOK_AGAIN_MIN_S: Final = 0.002
"""Least time between two looks that nothing but the passing of time gives rise to."""


def give_out(queue: FairQueue[Item], take: Callable[[Entry[Item]], Held | None], now_s: float) -> dict[Priority, Held]:
    """Let `take` take places for who is next, and next; returns why those that still wait do, by priority."""
    held: dict[Priority, Held] = {}
    while (entry := queue.head(held, now_s)) is not None:
        why = take(entry)
        if why is None:
            queue.serve(entry)
        elif why.cause is Cause.LATE:
            assert not entry.late, "a late request is set back once"
            queue.set_back(entry)
        elif why.cause is Cause.NOT_HERE:
            queue.remove(entry)
        else:
            priority = entry.claim.priority
            held[priority] = why if why.cause is not Cause.PACE else why._replace(again_s=queue.due_s(priority) - now_s)
    return held
