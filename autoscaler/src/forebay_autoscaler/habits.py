"""What the past says of how demand moves: what followed moments like this one, how far it rises, how random it is. Pure.

*Echo*: the moments of the past are compared by their rate then and some bins before, each a mean of two bins; what the nearest
of them gained by a lead later is gained again. It knows a rise after the first one, long before a rhythm can be told.

*Burst*: a share of the rises that were seen within a lead, at a high percentile, up to the most there was.

*Dispersion*: variance over mean of what a bin counts, 1 for Poisson arrivals. From second differences, which a slope does not
touch: their variance is six times a bin's. The median of a squared normal deviate is 0.455 of its mean, so a step among the
bins does not count as chance.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from operator import sub
from statistics import median
from typing import Final

BURST_SHARE: Final = 0.5
"""Share of a large rise within a lead that there is room for."""
BURST_PERCENTILE: Final = 0.75
"""Which of the rises is large: one step among many quiet minutes is none."""
BURST_BINS: Final = 40
"""Bins that it takes to say what is usual."""
ECHO_BEFORE: Final = 4
"""Bins between the two rates that moments are compared by."""
ECHO_LATE: Final = 2
"""Bins by which the last rate is older than now."""
ECHO_MOMENTS: Final = 5
"""Nearest moments that make an echo, at most."""
ECHO_MIN: Final = 2
"""And at least: one moment is an anecdote."""
ECHO_DEVIATIONS: Final = 3.0
"""Distance, in deviations of a bin, of moments that look alike: what chance keeps apart in one case of twenty."""
DISPERSION_MAX: Final = 4.0
DISPERSION_BINS: Final = 40
"""Bins that it takes to tell chance from change."""


def in_pairs(values: Sequence[float]) -> list[float]:
    """The mean of each two neighbours: what echo and burst compare."""
    return [(a + b) / 2 for a, b in pairwise(values)]


def echo_of(rates: Sequence[float], lead: int, *, dispersion: float, bin_s: float) -> float | None:
    """Rate a lead from now, if what followed moments like this one follows again; None where there was none."""
    lead += ECHO_LATE
    if len(rates) <= ECHO_BEFORE:
        return None
    here, before = rates[-1], rates[-1 - ECHO_BEFORE]
    near = ECHO_DEVIATIONS * math.sqrt(dispersion * max(here, 1.0 / bin_s) / bin_s)
    # Before the first bin it is taken to have been as in it.
    moments = zip([*[rates[0]] * ECHO_BEFORE, *rates], rates, rates[lead:], strict=False)
    low, high = here - near - 1e-6, here + near + 1e-6  # most moments are out by one rate alone
    alike = [
        (distance, later - then)
        for earlier, then, later in moments
        if low <= then <= high and (distance := abs(then - here) + abs(earlier - before)) <= near
    ]
    if len(alike) < ECHO_MIN:
        return None
    alike.sort()
    return max(0.0, here + median(gain for _, gain in alike[:ECHO_MOMENTS]))


def burst_of(rates: Sequence[float], lead: int) -> float:
    """A share of a large rise within a lead; not beyond the most there was."""
    if len(rates) < BURST_BINS - 1:
        return 0.0
    rises: list[float] = sorted(map(sub, rates[lead:], rates))
    if not rises:
        return 0.0
    large = rises[min(len(rises) - 1, int(BURST_PERCENTILE * len(rises)))]
    return max(0.0, min(BURST_SHARE * large, max(rates) - rates[-1]))


def dispersion_of(values: Sequence[float], bin_s: float) -> float:
    """From second differences, which a slope does not touch: their variance is six times a bin's."""
    recent = values[-40:]
    if len(recent) < DISPERSION_BINS:
        return 1.0
    triples = zip(recent, recent[1:], recent[2:], strict=False)
    ratios = [(a - 2 * b + c) ** 2 / (2 * (a + b + c)) for a, b, c in triples if a + b + c > 0]
    # The median of a squared normal deviate is 0.455 of its mean: a step among the bins does not count as chance.
    return max(1.0, min(DISPERSION_MAX, median(ratios) / 0.455 * bin_s)) if ratios else 1.0
