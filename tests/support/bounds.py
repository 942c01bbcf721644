"""Bounds of waits in tests, for machines that stall.

What must not take longer has a tight bound and three tries: `quickest_of_three` runs a test again that raises `LateError`. It
fails when all three are late, and at once for any other reason.
"""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Final, ParamSpec

Given = ParamSpec("Given")

NEVER_S: Final = 30.0
"""What has not come after so long does not come.

For waits whose failure is that something never happens: far above what a loaded or stalled machine takes.
"""
STALL_S: Final = 10.0
"""Longer than a machine stands still, shorter than what a test would otherwise wait for: a test that takes it says why."""
TRIES = 3


class LateError(AssertionError):
    """What had to happen did, but not in time."""


def in_time(took_s: float, bound_s: float) -> None:
    """For a test that is `quickest_of_three`. Raises LateError."""
    if took_s >= bound_s:
        raise LateError(f"took {took_s:.2f} s, has to take less than {bound_s} s")


def in_order(holds: object, what: str) -> None:
    """The same for what is seen of a time limit that had not come yet, unless the machine stood still. Raises LateError."""
    if not holds:
        raise LateError(f"the time limit came before {what}")


def quickest_of_three_runs(test: Callable[Given, None]) -> Callable[Given, None]:
    """`quickest_of_three` of a test that does not await."""

    @wraps(test)
    def tried(*args: Given.args, **kwargs: Given.kwargs) -> None:
        for _ in range(TRIES - 1):
            try:
                return test(*args, **kwargs)
            except LateError:
                continue
        return test(*args, **kwargs)

    return tried


def quickest_of_three(test: Callable[Given, Awaitable[None]]) -> Callable[Given, Awaitable[None]]:
    """A test that may be late twice: the machine may stand still during one try."""

    @wraps(test)
    async def tried(*args: Given.args, **kwargs: Given.kwargs) -> None:
        for _ in range(TRIES - 1):
            try:
                return await test(*args, **kwargs)
            except LateError:
                continue
        return await test(*args, **kwargs)

    return tried
