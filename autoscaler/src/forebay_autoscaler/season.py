"""A rhythm in past rates: which period, and its shape as a few harmonics. Pure.

For a period of p bins the series y is fitted by least squares to

    y(k) = a0 + sum over j = 1..H of  a_j cos(2 pi j k / p) + b_j sin(2 pi j k / p)

Periods are tried from the shortest that bins can show to little more than half of the series, on a geometric grid, by the
power of one harmonic; around the strongest, all are fitted. It counts as a rhythm only when it explains most of the variance
that is not chance: `STRENGTH_MIN`. Whether it can be believed for a forecast is decided by its forecasts (forecast.py).
"""

import cmath
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, repeat
from operator import itemgetter, mul
from typing import Final, NamedTuple

HARMONICS: Final = 2
BINS_MIN: Final = 32
"""Bins below which no rhythm is looked for."""
PERIOD_MIN: Final = 12
"""Shortest period, in bins."""
PERIODS_SEEN_MIN: Final = 1.75
"""Periods that the series must hold."""
GRID: Final = 1.12
"""Ratio of one period tried to the last."""
STEPS: Final = (-1.0, -0.6, -0.3, 0.0, 0.3, 0.6, 1.0)
"""Periods around the strongest that are fitted, in steps of the grid."""
STRENGTH_MIN: Final = 0.7
"""Least share of the variance beyond chance that must be explained."""
SERIES_MAX: Final = 256
"""Harmonics kept for the next series of the same length: a few dozen periods of a few lengths."""


@dataclass(frozen=True, slots=True)
class Season:
    """A rhythm; bins are counted from the beginning of time."""

    period: float
    """In bins."""
    coefficients: tuple[float, ...]
    """a0, a1, b1, a2, b2, ..."""

    def at(self, position: float) -> float:
        """The mean rate of the bin at a position, in bins."""
        turn = cmath.rect(1.0, 2 * math.pi * position / self.period)
        total, power = self.coefficients[0], turn
        for number in range(1, len(self.coefficients), 2):
            total += self.coefficients[number] * power.real + self.coefficients[number + 1] * power.imag
            power *= turn
        return total


def find_season(values: Sequence[float], first: int, noise: float) -> Season | None:
    """The rhythm of values in consecutive bins, the first one numbered `first`; None without one.

    `noise` is the variance of a bin that is chance.
    """
    count = len(values)
    if count < BINS_MIN:
        return None
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / count
    if variance <= 2 * noise:
        return None
    longest = count / PERIODS_SEEN_MIN
    best = _strongest([value - mean for value in values], longest)
    if best is None:
        return None
    tried = [best * GRID**step for step in STEPS]
    fits = [fit for one in tried if one <= longest and (fit := _fit(values, one)) is not None]
    if not fits:
        return None
    unexplained, period, coefficients = min(fits, key=itemgetter(0))
    explained = 1.0 - max(0.0, unexplained / count - noise) / (variance - noise)
    if explained < STRENGTH_MIN:
        return None
    return Season(period, _counted_from(first, period, coefficients))


def _strongest(values: Sequence[float], longest: float) -> float | None:
    best, most, period = None, 0.0, float(PERIOD_MIN)
    while period <= longest:
        strength = abs(sum(map(mul, values, _turns(len(values), period))))
        if strength > most:
            best, most = period, strength
        period *= GRID
    return best


@lru_cache(maxsize=SERIES_MAX)
def _turns(count: int, period: float) -> tuple[complex, ...]:
    """The first harmonic in each bin, counted from the first."""
    turn = cmath.rect(1.0, 2 * math.pi / period)
    return tuple(accumulate(repeat(turn, count - 1), mul, initial=1 + 0j))


def _fit(values: Sequence[float], period: float) -> tuple[float, float, list[float]] | None:
    """Least squares: the sum of squares that is left, the period, and what solves the normal equations, if that is stable.

    Bins are counted from the first here: so the equations are the same for each series of a length, and solved once.
    """
    equations = _equations(len(values), period)
    if equations is None:
        return None
    right = [sum(map(mul, column, values)) for column in equations.columns]
    solved = [sum(map(mul, row, right)) for row in equations.inverse]
    of_fit = sum(one * sum(map(mul, row, solved)) for one, row in zip(solved, equations.products, strict=True))
    return sum(map(mul, values, values)) - 2 * sum(map(mul, solved, right)) + of_fit, period, solved


def _counted_from(first: int, period: float, coefficients: Sequence[float]) -> tuple[float, ...]:
    """The coefficients when the bin that they count as 0 is bin `first`."""
    counted = [coefficients[0]]
    turn = cmath.rect(1.0, 2 * math.pi * math.fmod(first, period) / period)
    power = turn
    for number in range(1, len(coefficients), 2):
        turned = complex(coefficients[number], coefficients[number + 1]) * power
        counted += [turned.real, turned.imag]
        power *= turn
    return tuple(counted)


class _Equations(NamedTuple):
    """The normal equations of a length and a period."""

    columns: list[list[float]]
    """What a0, a1, b1, a2, b2, ... are multiplied by in each bin."""
    products: list[list[float]]
    """Of each column with each."""
    inverse: list[list[float]]


@lru_cache(maxsize=SERIES_MAX)
def _equations(count: int, period: float) -> _Equations | None:
    """None when they have no stable solution."""
    columns = _columns(count, period)
    products = [[sum(map(mul, one, other)) for other in columns] for one in columns]
    size = len(columns)
    inverse = []
    for number in range(size):
        left = [[one + 1e-6 * count * (i == j) for j, one in enumerate(row)] for i, row in enumerate(products)]
        solved = _solve(left, [float(i == number) for i in range(size)])
        if solved is None:
            return None
        inverse.append(solved)  # symmetric: a column is a row
    return _Equations(columns, products, inverse)


def _columns(count: int, period: float) -> list[list[float]]:
    places = _turns(count, period)
    columns, powers = [[1.0] * count], list(places)
    for _ in range(HARMONICS):
        columns += [[power.real for power in powers], [power.imag for power in powers]]
        powers = list(map(mul, powers, places))
    return columns


def _solve(left: list[list[float]], right: list[float]) -> list[float] | None:
    """Gauss with pivots; the matrix is small."""
    size = len(right)
    rows = [[*line, value] for line, value in zip(left, right, strict=True)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda number: abs(rows[number][column]))
        if abs(rows[pivot][column]) < 1e-9:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for number in range(column + 1, size):
            factor = rows[number][column] / rows[column][column]
            for place in range(column, size + 1):
                rows[number][place] -= factor * rows[column][place]
    solution = [0.0] * size
    for column in reversed(range(size)):
        known = sum(rows[column][place] * solution[place] for place in range(column + 1, size))
        solution[column] = (rows[column][size] - known) / rows[column][column]
    return solution
