"""How fast workers are, learnt from the requests they have finished. Pure.

Workers of a pool are alike, so a pool has straight lines, each fitted by least squares with exponential forgetting (about
`MEMORY` requests):

    seconds to the first token = base + slope x prompt tokens to compute, those queued ahead included
    seconds per output token   = base + slope x sequences in flight
    seconds of a handover      = base + slope x prompt tokens

A line starts from a seed: the capacity model's or an assumed one. The seed counts as `SEED_WEIGHT` requests, so the first real
ones replace it soon; its slope holds on where all requests are alike and so tell nothing of the slope. One request moves a line
at most as if it had been `OUTLIER` times slower or faster than expected: a worker that hangs is a matter for health, not for
the fit.

A worker has a factor on its pool's lines: its own mean of log(real / predicted) less that of all the pool's requests, which is
not zero while the lines are still on their way from the seed. It is 1 until the difference is beyond doubt (two standard errors):
equal workers must be exactly equal, or the one that chance made look fastest gets everything.

The spread of the logarithm of (real / predicted) says how far a prediction can be trusted; times are taken as lognormal.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from math import erfc, exp, log, sqrt
from typing import Final

MEMORY: Final = 50
SEED_WEIGHT: Final = 4
OUTLIER: Final = 8.0
_BEYOND_DOUBT: Final = 2.0
"""Standard errors."""
_DECAY: Final = 1 - 1 / MEMORY
_SMALLEST_S: Final = 1e-6
_FIRST_SPREAD: Final = 0.4
"""Standard deviation of the logarithm before anything is measured: two thirds are within a factor of 1.5."""


class Origin(StrEnum):
    """Where a worker's speed comes from."""

    ASSUMED = "assumed"
    PLANNED = "planned"
    MEASURED = "measured"


@dataclass(slots=True)
class Line:
    """One fitted line, y = base + slope x; both are never negative."""

    base: float
    slope: float
    scale: float
    """An x that is usual, for the seed's weight."""
    seen: int = 0
    """Real observations."""
    spread2: float = _FIRST_SPREAD**2
    """Mean square of log(real / predicted)."""
    mean: float = 0.0
    """Mean of log(real / predicted)."""
    _seed_slope: float = field(init=False)
    _weight: float = field(init=False)
    _x: float = field(init=False)
    _y: float = field(init=False)
    _xx: float = field(init=False)
    _xy: float = field(init=False)

    def __post_init__(self) -> None:
        """Put the seed in as observations at 0 and at twice the scale."""
        self._seed_slope = self.slope
        half = SEED_WEIGHT / 2
        far = 2 * self.scale
        y_far = self.base + self.slope * far
        self._weight = SEED_WEIGHT
        self._x, self._xx = half * far, half * far * far
        self._y, self._xy = half * (self.base + y_far), half * far * y_far

    def at(self, x: float) -> float:
        """The predicted y."""
        return self.base + self.slope * x

    def note(self, deviation: float) -> None:
        """The log(real / predicted) of one observation, whichever worker made it."""
        self.mean += max(1 / (self.seen + 1 + SEED_WEIGHT), 1 / MEMORY) * (deviation - self.mean)

    def observe(self, x: float, y: float) -> None:
        """One real observation."""
        expected = max(_SMALLEST_S, self.at(x))
        y = min(max(y, expected / OUTLIER), expected * OUTLIER)
        self.seen += 1
        self.spread2 += (log(y / expected) ** 2 - self.spread2) * max(1 / (self.seen + SEED_WEIGHT), 1 / MEMORY)
        self._weight = self._weight * _DECAY + 1
        self._x = self._x * _DECAY + x
        self._y = self._y * _DECAY + y
        self._xx = self._xx * _DECAY + x * x
        self._xy = self._xy * _DECAY + x * y
        self._fit()

    def _fit(self) -> None:
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        ridge = (self.scale / 16) ** 2
        variance = self._xx - mean_x * self._x + ridge
        covariance = self._xy - mean_x * self._y + ridge * self._seed_slope
        slope = max(0.0, covariance / variance)
        base = mean_y - slope * mean_x
        if base < 0:
            base, slope = 0.0, self._xy / max(self._xx, _SMALLEST_S)
        self.base, self.slope = base, slope


def chance_within(limit_s: float, predicted_s: float, spread2: float) -> float:
    """Chance that a lognormal time with this median and log-variance is within a limit."""
    if predicted_s <= 0:
        return 1.0
    spread = max(1e-3, sqrt(spread2))
    return 0.5 * erfc(log(predicted_s / limit_s) / (spread * sqrt(2))) if limit_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Seed:
    """What is expected of a worker before it has done anything."""

    first_token_s: float
    """Fixed part of the time to the first token."""
    prefill_token_s: float
    """Seconds a prompt token."""
    step_s: float
    """Seconds per output token of a sequence that is alone."""
    step_growth_s: float
    """What one more sequence adds to everybody's seconds per output token."""
    origin: Origin


ASSUMED: Final = Seed(0.01, 1 / 20_000, 0.008, 0.000_05, Origin.ASSUMED)
"""An 8B model on a large GPU, roughly. Only used until a few requests have been measured."""
_USUAL_PROMPT: Final = 1024.0
_USUAL_BATCH: Final = 16.0
_TRANSFER_BASE_S: Final = 0.005
_TRANSFER_TOKEN_S: Final = 5e-6
"""KV blocks of an 8B model over a 200 Gbit/s network, roughly; measured from the first handovers on."""
_MEASURED: Final = 8
"""Requests after which a speed counts as measured."""


@dataclass(slots=True)
class PoolSpeed:
    """What the workers of one pool have in common. Live: finished requests change it."""

    seed: Seed = ASSUMED
    first_token: Line = field(init=False)
    """Seconds to the first token by prompt tokens to compute."""
    output_token: Line = field(init=False)
    """Seconds per output token by sequences in flight."""
    transfer: Line = field(init=False)
    """Of decode workers: seconds from the end of prefill elsewhere to the first token, by prompt tokens."""

    def __post_init__(self) -> None:
        """Start from the seed."""
        self._begin()

    def plan(self, seed: Seed) -> None:
        """Another seed: taken over while nothing has been measured."""
        changed = seed != self.seed
        self.seed = seed
        if changed and self.origin is not Origin.MEASURED:
            self._begin()

    def _begin(self) -> None:
        seed = self.seed
        self.first_token = Line(seed.first_token_s, seed.prefill_token_s, _USUAL_PROMPT)
        self.output_token = Line(seed.step_s, seed.step_growth_s, _USUAL_BATCH)
        self.transfer = Line(_TRANSFER_BASE_S, _TRANSFER_TOKEN_S, _USUAL_PROMPT)

    @property
    def origin(self) -> Origin:
        """Measured once enough requests were."""
        return Origin.MEASURED if self.first_token.seen >= _MEASURED else self.seed.origin


@dataclass(slots=True)
class Factor:
    """How one worker differs from its pool."""

    value: float = 1.0
    """Multiplies the pool's times; 1 unless the difference is beyond doubt."""
    _mean: float = 0.0
    """Of log(real / predicted by the pool's line)."""
    _square: float = _FIRST_SPREAD**2
    """Of the deviation from that mean."""
    _seen: int = 0

    def observe(self, deviation: float, pool_mean: float) -> None:
        """One request: its log(real / predicted by the pool's line), and the mean of that over the pool's requests."""
        deviation -= self._mean
        self._seen += 1
        weight = max(1 / (self._seen + SEED_WEIGHT), 1 / MEMORY)
        self._mean += weight * deviation
        self._square += weight * (deviation * deviation - self._square)
        error = sqrt(self._square / min(self._seen + SEED_WEIGHT, MEMORY))
        difference = self._mean - pool_mean
        self.value = exp(difference) if abs(difference) > _BEYOND_DOUBT * error else 1.0


@dataclass(slots=True)
class Speed:
    """One worker's speed. Live."""

    pool: PoolSpeed = field(default_factory=PoolSpeed)
    first_token: Factor = field(default_factory=Factor)
    output_token: Factor = field(default_factory=Factor)
    finished: int = 0
    """Requests that the worker has answered."""

    def saw_first_token(self, tokens: float, seconds: float) -> None:
        """A request's first token came after so long, with so many prompt tokens to compute until then."""
        self._observe(self.pool.first_token, self.first_token, tokens, seconds)

    def saw_output(self, sequences: float, token_s: float) -> None:
        """A request's output came at so many seconds a token, with so many sequences in flight."""
        self._observe(self.pool.output_token, self.output_token, sequences, token_s)

    @staticmethod
    def _observe(line: Line, factor: Factor, x: float, y: float) -> None:
        deviation = log(min(max(y / max(_SMALLEST_S, line.at(x)), 1 / OUTLIER), OUTLIER))
        line.note(deviation)
        factor.observe(deviation, line.mean)
        line.observe(x, y / factor.value)
