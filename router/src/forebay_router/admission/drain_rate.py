"""How fast a queue is served: cost per second, measured, from a first guess. Pure.

Both sums forget with time, over about `MEMORY_S`; the guess counts as `GUESS_S` seconds of observation. Unknown stays unknown:
where there was no guess, there is no rate before `LEAST_S` have been observed.

    rate = (guess x GUESS_S + cost served) / (GUESS_S + time)     each with exponential forgetting
"""

from dataclasses import dataclass
from math import exp
from typing import Final

MEMORY_S: Final = 20.0
GUESS_S: Final = 2.0
LEAST_S: Final = 1.0


@dataclass(slots=True)
class DrainRate:
    """Of one queue, while somebody waits in it."""

    _cost: float = 0.0
    _time_s: float = 0.0
    _last_s: float = 0.0

    def begin(self, now_s: float, guess: float | None) -> None:
        """The queue begins to fill. `guess` is cost per second, None when unknown."""
        self._cost = GUESS_S * guess if guess else 0.0
        self._time_s = GUESS_S if guess else 0.0
        self._last_s = now_s

    def served(self, cost: float, now_s: float) -> None:
        """Somebody got its turn."""
        self._pass(now_s)
        self._cost += cost

    def per_s(self, now_s: float) -> float | None:
        """Cost per second; None while unknown, or when nothing moves."""
        self._pass(now_s)
        if self._time_s < LEAST_S or self._cost <= 0:
            return None
        return self._cost / self._time_s

    def _pass(self, now_s: float) -> None:
        elapsed_s = max(0.0, now_s - self._last_s)
        self._last_s = now_s
        kept = exp(-elapsed_s / MEMORY_S)
        self._cost *= kept
        self._time_s = self._time_s * kept + MEMORY_S * (1 - kept)
