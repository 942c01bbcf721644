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
from typing import Final

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
    fits = [fit for one in tried if one <= longest and (fit := _fit(values, first, one)) is not None]
    if not fits:
        return None
    unexplained, season = min(((_squares(values, first, fit), fit) for fit in fits), key=lambda one: one[0])
    explained = 1.0 - max(0.0, unexplained / count - noise) / (variance - noise)
    return season if explained >= STRENGTH_MIN else None


def _strongest(values: Sequence[float], longest: float) -> float | None:
    best, most, period = None, 0.0, float(PERIOD_MIN)
    while period <= longest:
        turn, place, total = cmath.rect(1.0, 2 * math.pi / period), 1 + 0j, 0j
        for value in values:
            total += value * place
            place *= turn
        if abs(total) > most:
            best, most = period, abs(total)
        period *= GRID
    return best


def _squares(values: Sequence[float], first: int, season: Season) -> float:
    return math.fsum((value - season.at(first + number)) ** 2 for number, value in enumerate(values))


def _fit(values: Sequence[float], first: int, period: float) -> Season | None:
    """Least squares by the normal equations; None when they have no stable solution."""
    size = 2 * HARMONICS + 1
    sums = [[0.0] * (size + 1) for _ in range(size)]
    turn = cmath.rect(1.0, 2 * math.pi / period)
    place = cmath.rect(1.0, 2 * math.pi * first / period)
    for value in values:
        row, power = [1.0], place
        for _ in range(HARMONICS):
            row += (power.real, power.imag)
            power *= place
        row.append(value)
        for number, line in enumerate(sums):
            x = row[number]
            for column in range(number, size + 1):
                line[column] += x * row[column]
        place *= turn
    left = [[sums[min(i, j)][max(i, j)] for j in range(size)] for i in range(size)]
    for number in range(size):
        left[number][number] += 1e-6 * len(values)
    solved = _solve(left, [line[size] for line in sums])
    return None if solved is None else Season(period, tuple(solved))


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
