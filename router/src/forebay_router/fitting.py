"""Straight lines through what finished requests have shown, in one thing or in two. Pure.

    y = base + slope x + second z        none of the three is ever negative

Least squares of the relative error, with exponential forgetting over about `MEMORY` observations: prompts range over four orders
of magnitude, and absolute errors would let the longest alone decide. A fit starts from a seed, which counts as `SEED_WEIGHT`
observations at z = 0; a small ridge holds each slope at the seed's where all observations are alike and so tell nothing of it.
One observation moves a fit at most as if it had been `OUTLIER` times slower or faster than expected.

The equations are solved anew at each of the first `_EAGER` observations and at every `_LAZY`th from then on: solving costs more
than adding up, and one observation of fifty changes little.

Tokens deep in a prompt take longer, since they attend to all before them: n tokens of which p are cached are the work of

    (n - p) (1 + bend (n + p))        tokens at the very beginning

The bend is learnt beside the line, along its own derivative (`Bend`), and the line is fitted to work.

The spread of log(real / predicted) says how far a prediction can be trusted; times are taken as lognormal.
"""

from dataclasses import dataclass, field
from math import erfc, log, sqrt
from typing import Final

MEMORY: Final = 50
SEED_WEIGHT: Final = 4
OUTLIER: Final = 8.0
FIRST_SPREAD: Final = 0.4
"""Standard deviation of the logarithm before anything is measured: two thirds are within a factor of 1.5."""
SMALLEST_S: Final = 1e-6
_DECAY: Final = 1 - 1 / MEMORY
_EAGER: Final = 2 * MEMORY
_LAZY: Final = 4
_SIZES: Final = 24
"""Binary orders of size that are told apart."""


@dataclass(slots=True)
class Line:
    """One fit. Live."""

    base: float
    slope: float
    scale: float
    """An x that is usual, for the seed's weight."""
    second: float = 0.0
    scale2: float = 1.0
    """A z that is usual."""
    seen: int = 0
    """Real observations."""
    spread2: float = FIRST_SPREAD**2
    """Mean square of log(real / predicted)."""
    mean: float = 0.0
    """Mean of what is left of log(real / predicted) when that of alike requests is taken off."""
    _seed: tuple[float, float] = field(init=False)
    _ridge: tuple[float, float] = field(init=False)
    _least: float = field(init=False)
    """Relative errors are of no less than this."""
    _weight: float = field(init=False)
    _x: float = field(init=False)
    _y: float = field(init=False)
    _xx: float = field(init=False)
    _xy: float = field(init=False)
    _z: float = 0.0
    _zz: float = 0.0
    _xz: float = 0.0
    _zy: float = 0.0
    _alike: list[float] = field(default_factory=lambda: [0.0] * _SIZES)
    """Mean of log(real / predicted) by the binary order of size."""
    _alike_seen: list[int] = field(default_factory=lambda: [0] * _SIZES)

    def __post_init__(self) -> None:
        """Put the seed in as observations at 0 and at twice the scale."""
        usual = max(SMALLEST_S, self.at(self.scale))
        self._seed = (self.slope, self.second)
        self._least = usual / 32
        self._ridge = ((self.scale / usual / 6) ** 2, (self.scale2 / usual / 6) ** 2)
        far = 2 * self.scale
        half = SEED_WEIGHT / 2 / usual**2
        self._weight = 2 * half
        self._x, self._xx = half * far, half * far * far
        self._y, self._xy = half * (self.base + self.at(far)), half * far * self.at(far)

    def at(self, x: float, z: float = 0.0) -> float:
        """The predicted y."""
        return self.base + self.slope * x + self.second * z

    def note(self, size: int, deviation: float) -> float:
        """The log(real / predicted) of one observation, whichever worker made it; returns it without that of alike ones.

        Alike are those of about the same size: what grows faster than in a straight line is no worker's own.
        """
        at = min(size.bit_length(), _SIZES - 1)
        seen = self._alike_seen[at] = self._alike_seen[at] + 1
        self._alike[at] += max(1 / seen, 1 / MEMORY) * (deviation - self._alike[at])
        left = deviation - self._alike[at]
        self.mean += max(1 / (self.seen + 1 + SEED_WEIGHT), 1 / MEMORY) * (left - self.mean)
        return left

    def observe(self, x: float, y: float, z: float = 0.0) -> bool:
        """One real observation; returns whether the line has moved."""
        expected = max(SMALLEST_S, self.at(x, z))
        y = min(max(y, expected / OUTLIER), expected * OUTLIER)
        self.seen += 1
        self.spread2 += (log(y / expected) ** 2 - self.spread2) * max(1 / (self.seen + SEED_WEIGHT), 1 / MEMORY)
        weight = 1 / max(expected, self._least) ** 2
        self._weight = self._weight * _DECAY + weight
        self._x = self._x * _DECAY + weight * x
        self._y = self._y * _DECAY + weight * y
        self._z = self._z * _DECAY + weight * z
        self._xx = self._xx * _DECAY + weight * x * x
        self._xy = self._xy * _DECAY + weight * x * y
        self._zz = self._zz * _DECAY + weight * z * z
        self._xz = self._xz * _DECAY + weight * x * z
        self._zy = self._zy * _DECAY + weight * z * y
        moved = self.seen < _EAGER or self.seen % _LAZY == 0
        if moved:
            self._fit()
        return moved

    def _fit(self) -> None:
        mean_x, mean_z, mean_y = self._x / self._weight, self._z / self._weight, self._y / self._weight
        ridge_x, ridge_z = self._ridge
        slope, second = _solve(
            self._xx - mean_x * self._x + ridge_x,
            self._zz - mean_z * self._z + ridge_z,
            self._xz - mean_x * self._z,
            self._xy - mean_x * self._y + ridge_x * self._seed[0],
            self._zy - mean_z * self._y + ridge_z * self._seed[1],
        )
        base = mean_y - slope * mean_x - second * mean_z
        if base < 0:
            base = 0.0
            slope, second = _solve(
                self._xx + ridge_x,
                self._zz + ridge_z,
                self._xz,
                self._xy + ridge_x * self._seed[0],
                self._zy + ridge_z * self._seed[1],
            )
        self.base, self.slope, self.second = base, slope, second


_BEND_RIDGE: Final = 16_384.0**2
"""What a bend is held by: prompts that are shorter than that tell little of it."""
BEND_MAX: Final = 1e-3


@dataclass(slots=True)
class Bend:
    """How much more a prompt token takes for each token before it, as a share. Live."""

    value: float = 0.0
    _seen: float = _BEND_RIDGE

    def observe(self, deviation: float, reach: float) -> None:
        """One request: its log(real / predicted), and how much of that one more of the bend would explain."""
        self._seen = self._seen * _DECAY + (1 - _DECAY) * _BEND_RIDGE + reach * reach
        self.value = min(max(0.0, self.value + deviation * reach / self._seen), BEND_MAX)


def work_of(tokens: float, to_compute: float, bend: float) -> float:
    """The work of the last `to_compute` of so many prompt tokens."""
    return to_compute * (1 + bend * (2 * tokens - to_compute))


def _solve(xx: float, zz: float, xz: float, xy: float, zy: float) -> tuple[float, float]:
    """The slopes of least squares, given the moments; a slope that would be negative is left out."""
    determinant = xx * zz - xz * xz
    if determinant > 1e-12 * xx * zz:
        slope = (xy * zz - zy * xz) / determinant
        second = (zy * xx - xy * xz) / determinant
        if slope >= 0 and second >= 0:
            return slope, second
        if slope < 0 <= second:
            return 0.0, max(0.0, zy / zz)
        if second < 0 <= slope:
            return max(0.0, xy / xx), 0.0
        return 0.0, 0.0
    return max(0.0, xy / xx), 0.0


def chance_within(limit_s: float, predicted_s: float, spread2: float) -> float:
    """Chance that a lognormal time with this median and log-variance is within a limit."""
    if predicted_s <= 0:
        return 1.0
    spread = max(1e-3, sqrt(spread2))
    return 0.5 * erfc(log(predicted_s / limit_s) / (spread * sqrt(2))) if limit_s > 0 else 0.0
