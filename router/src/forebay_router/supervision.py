"""Keeps the router's background loops running, whatever one of them stumbles over.

Discovery, time limits, KV events, the watch for hanging workers, files and the mesh run beside the requests, in one loop with
them. Each reads what others wrote: workers' answers, the API server's objects, messages of engines and of other replicas. What
is known to go wrong there each handles by itself. Anything else that one raises is logged with its traceback, counted by loop
(`forebay_router_background_failures_total`), and the loop begins again after a pause that doubles from `FIRST_PAUSE_S` to
`LONGEST_PAUSE_S`, and starts anew after one that has lived `LIVED_S`. No client's stream ends because of it.

What follows one thing of many (a worker's probes, its events) is kept by itself, so that an odd one costs the others nothing.
Setting up is not kept: a port that is taken or a missing file ends the start, since nothing that waits would make it better.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.25
LONGEST_PAUSE_S: Final = 10.0
LIVED_S: Final = 30.0


class Background(StrEnum):
    """What runs beside the requests. Values are metric labels."""

    DISCOVERY = "discovery"
    TIME_LIMITS = "time_limits"
    KV_EVENTS = "kv_events"
    WATCH = "watch"
    FILES = "files"
    MESH = "mesh"


@dataclass(slots=True)
class Supervisor:
    """Counts failures of background loops and begins them again."""

    failures: dict[Background, int] = field(default_factory=lambda: dict.fromkeys(Background, 0))
    """So far."""
    first_pause_s: float = FIRST_PAUSE_S

    async def keep(self, background: Background, run: Callable[[], Awaitable[None]]) -> None:
        """Run a loop, again whenever it fails. Returns when it returns; cancellation goes through."""
        pause_s = self.first_pause_s
        while True:
            began_s = time.monotonic()
            try:
                await run()
            except Exception as error:  # noqa: BLE001 - the boundary of every background loop: `failed` logs and counts it
                if time.monotonic() - began_s >= LIVED_S:
                    pause_s = self.first_pause_s
                self.failed(background, error, pause_s=pause_s)
            else:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    async def attempt(self, background: Background, run: Callable[[], Awaitable[None]]) -> None:
        """Run something once; its failure is not its caller's."""
        try:
            await run()
        except Exception as error:  # noqa: BLE001 - as in `keep`
            self.failed(background, error)

    def failed(self, background: Background, error: Exception, *, pause_s: float = 0.0) -> None:
        """One of the loops has raised what it does not know."""
        self.failures[background] += 1
        log.error(
            "a background loop has failed and begins again",
            exc_info=error,
            extra={"loop": background.value, "pause_s": pause_s},
        )
