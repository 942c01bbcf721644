"""What varies by chance: by how many standard deviations it is too much no more often than requests may be late. Pure."""

from statistics import NormalDist
from typing import Final

from forebay_api.objective import Objective

TARGET_MOST: Final = 0.9999
"""Beyond it there is no bound."""


def quantile(objective: Objective) -> float:
    """Standard deviations above the mean; 0 where half of the requests or more may be late."""
    return max(0.0, NormalDist().inv_cdf(min(objective.target, TARGET_MOST)))
