"""Needs beyond what demand asks for: one worker for held requests, and warm spares. Pure.

They are part of the need itself, in all three of its numbers, so that the windows of growing and shrinking see them and no
constraint that holds the present number adds to it.
"""

from dataclasses import replace

from forebay_autoscaler.model import Need


def at_least_one(need: Need | None) -> Need:
    """The need, not below one worker."""
    if need is None:
        return Need(workers=1, with_backlog=1, to_keep=1, offered=0.0, margin=0.0)
    return replace(
        need,
        workers=max(1, need.workers),
        with_backlog=max(1, need.with_backlog),
        to_keep=max(1, need.to_keep),
    )


def with_spare(need: Need, spare: int) -> Need:
    """The need with warm spares on top."""
    if not spare:
        return need
    return replace(
        need,
        workers=need.workers + spare,
        with_backlog=need.with_backlog + spare,
        to_keep=need.to_keep + spare,
    )
