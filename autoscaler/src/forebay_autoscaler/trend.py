"""Where the last bins lead: a level, a slope, a growth. Pure.

*Slope*: the median of the slopes between all pairs of bins (Theil and Sen), over a long and a short stretch; that of the short
one counts as far as the long one agrees, less what chance alone gives. A step is no slope: the long stretch sees none until most
of it lies behind the step, and the short one none any more by then.

*Growth*: what grows from little tends to grow by a share, not by an amount. Where each of three pairs of bins holds more than
the one before it, counted from the last bin and from the one before (a step shows in at most one of the two), the trend is at
least an exponential with the last growth, less a standard deviation of what chance gives such a ratio.

What a trend gains is bounded by what was gained in the last lead, and by the most there was if it has been there before.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

LEVEL_BINS: Final = 3
TREND_BINS: Final = 10
SHORT_BINS: Final = 5
SLOPE_DEVIATIONS: Final = 1.0
"""Deviations of a slope that are chance."""
STEEPER: Final = 1.5
"""How much steeper than over the long stretch the slope may be over the short one: it grows while a rise begins."""
GROWTH_MAX: Final = math.log(4.0)
"""Most that demand is taken to grow within a lead, as a logarithm."""
GROWTH_PROOF: Final = 0.3
"""Deviations by which the earlier of two growths must be above chance."""
KNOWN_MAX: Final = 1.15
"""Share of the most there was to which a trend is believed when it was there before."""
RISE_MAX: Final = 3.0
"""Most that a trend may gain, in gains of the last lead."""


@dataclass(frozen=True, slots=True)
class Line:
    """Level, slope and growth at one moment. Times in bins."""

    centre: float
    """Middle of the stretch that level was taken over."""
    level: float
    """Rate there, with the slope."""
    plain: float
    """Rate there, without one."""
    slope: float
    """Rate per bin."""
    last: float = 0.0
    """Mean of the last two bins."""
    last_at: float = 0.0
    """Their middle."""
    growth: float = 0.0
    """Growth of its logarithm per bin; 0 unless it surely grows."""
    rise_max: float = math.inf
    """Most that a trend may add."""

    def at(self, position: float) -> float:
        """The rate on the line."""
        gain = self.slope * max(0.0, position - self.centre)
        return max(0.0, self.level + min(self.rise_max, gain))

    def grown_at(self, position: float) -> float:
        """The rate if it goes on to grow by the same share; 0 unless it surely grows."""
        if not self.growth:
            return 0.0
        grown = self.last * math.exp(min(GROWTH_MAX, self.growth * max(0.0, position - self.last_at)))
        return min(grown, self.last + self.rise_max)


NO_LINE: Final = Line(0.0, 0.0, 0.0, 0.0)
"""Before there is a past."""


def line_of(values: Sequence[float], end: int, *, dispersion: float, lead: float, bin_s: float) -> Line:
    """The line through the last bins, of which the last one ends at `end`."""
    few = values[-LEVEL_BINS:]
    plain = math.fsum(few) / len(few)
    long, short = values[-TREND_BINS:], values[-SHORT_BINS:]
    slope = 0.0
    if len(values) >= SHORT_BINS:
        chance = math.sqrt(max(plain, 1.0 / bin_s) * dispersion / bin_s)
        slopes = (_sure(_slope(long), chance, len(long)), _slope(short))
        if slopes[0] * slopes[1] > 0:
            slope = math.copysign(min(STEEPER * abs(slopes[0]), abs(slopes[1])), slopes[0])
    stretch = short if slope else few
    return Line(
        centre=end - len(stretch) / 2,
        level=math.fsum(stretch) / len(stretch),
        plain=plain,
        slope=slope,
        last=math.fsum(values[-2:]) / len(values[-2:]),
        last_at=end - len(values[-2:]) / 2,
        growth=_growth(values, dispersion, bin_s),
        rise_max=_rise_max(values, plain, lead),
    )


def _rise_max(values: Sequence[float], plain: float, lead: float) -> float:
    """Some times what it gained in the last lead; where it has been higher before, hardly beyond that."""
    lately = max(TREND_BINS, math.ceil(lead))
    rise = RISE_MAX * max(0.0, plain - min(values[-lately:]))
    most = max(values[:-lately], default=0.0)
    return min(rise, max(KNOWN_MAX * most - plain, rise / RISE_MAX / 2)) if most > plain else rise


def _slope(values: Sequence[float]) -> float:
    """The median of the slopes between all pairs."""
    return median((values[j] - values[i]) / (j - i) for i in range(len(values)) for j in range(i + 1, len(values)))


def _growth(values: Sequence[float], dispersion: float, bin_s: float) -> float:
    """Growth of the logarithm per bin, as far as it is sure."""
    if len(values) < 7:
        return 0.0
    found = []
    for end in (len(values), len(values) - 1):
        first, second, third = (bin_s * math.fsum(values[end - n : end - n + 2]) for n in (6, 4, 2))
        if first <= 0 or second <= 0:
            return 0.0
        earlier = second / first - 1.0 - GROWTH_PROOF * math.sqrt(dispersion * (1.0 / first + 1.0 / second))
        later = third / second * (1.0 - math.sqrt(dispersion * (1.0 / second + 1.0 / max(1.0, third))))
        if earlier <= 0 or later <= 1.0:
            return 0.0
        found.append(math.log(later) / 2)
    return min(found)


def _sure(slope: float, deviation: float, count: int) -> float:
    """What of a slope is beyond chance: a bin varies by `deviation`."""
    of_slope = deviation / math.sqrt(max(1.0, count * (count * count - 1) / 12))
    return math.copysign(max(0.0, abs(slope) - SLOPE_DEVIATIONS * of_slope), slope)
