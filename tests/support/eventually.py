"""Wait for a state by looking at it, and tell the last state when it does not come."""

import time
from collections.abc import Callable
from typing import TypeVar

State = TypeVar("State")


def eventually(
    read: Callable[[], State],
    accept: Callable[[State], object],
    *,
    within_s: float,
    what: str,
    every_s: float = 0.25,
) -> State:
    """The first accepted state; AssertionError names what was awaited and the last state or error seen."""
    deadline = time.monotonic() + within_s
    last: object = "nothing was read"
    while True:
        try:
            state = read()
        except Exception as error:  # noqa: BLE001  # a system under faults may fail to answer in any way; it is told below
            last = error
        else:
            if accept(state):
                return state
            last = state
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:g} s: {what}. Last seen: {last!r}")
        time.sleep(every_s)


def always(read: Callable[[], State], accept: Callable[[State], object], *, for_s: float, what: str) -> None:
    """Hold a state for a while; AssertionError tells the first that broke it."""
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        state = read()
        assert accept(state), f"broken: {what}. Seen: {state!r}"
        time.sleep(0.25)
