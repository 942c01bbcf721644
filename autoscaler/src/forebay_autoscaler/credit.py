"""What the target leaves to be missed, and what of it was not used. Pure.

At a target of 95 % one request in twenty may be late. The laws of the need (model.py) are careful, so where they are held to
that share fewer are late, and workers stand by for a promise that nobody made. So what is missed is compared with what may be:

    saved' = (AIM * allowed * ended - bad) / (allowed * mean of ended), at most 1
                                                                   seconds in which all that is allowed was saved

and the share that is planned for is the allowed one times exp(saved / patience), at most `FACTOR_MAX` of it. It is an
integral: it ends where as many are late as is aimed at, whatever the laws are wrong by, and where demand goes far beyond its
mean, with fewer.

How patient it has to be follows from how late it sees what it did. Near its end the logarithm x of the share by which it is
off is x' = -AIM x(t - T) / patience, where T is the delay: a worker that is let go stays for the shrink window, one that is
ordered takes a start-up time, and in either case verdicts are of a rate window. That comes to rest for AIM T / patience < pi / 2,
and does not overshoot up to 1 / e = 0.37. With `PATIENCE_DELAYS` times T it is 0.32.

What was missed beyond the allowed is debt, which is worked off first; a service begins with it, so that
nothing is let go before the target was met for some minutes. They are minutes even where a day of silence made the mean tiny:
nothing is saved faster than time passes. It makes nobody plan for fewer misses than are allowed, since a rise that nothing
announced is not cured by a margin. Nothing changes while the verdicts are unknown.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from forebay_api.objective import Objective
from forebay_autoscaler.chance import quantile

AIM: Final = 0.8
"""Share of the allowed misses that is aimed at."""
PATIENCE_DELAYS: Final = 2.5
"""Delays of saved misses that let e times as many be planned for."""
PATIENCE_S: Final = 900.0
"""That many by default: a shrink window of five minutes and a rate window of one."""
FACTOR_MAX: Final = 4.0
"""Most that are planned for, in allowed misses."""
SHARE_MAX: Final = 0.5
"""And of all requests, unless more are allowed."""
DEBT_MAX_S: Final = 300.0
"""Most that has to be worked off: what went wrong long ago says nothing of now."""
MEMORY_S: Final = 86_400.0
"""Time over which the mean rate is taken: a day, as nights and days make one."""


@dataclass(frozen=True, slots=True)
class Credit:
    """Misses that were allowed and did not come."""

    saved_s: float = -DEBT_MAX_S
    """Negative: more were missed, or it is not known yet."""
    ended_per_s: float = 0.0
    """Mean of the requests that end, good or bad."""
    over_s: float = 0.0
    """Time that it is a mean of."""
    at_s: float | None = None
    """When verdicts were last known."""
    patience_s: float = PATIENCE_S
    """Seconds of saved misses that let e times as many be planned for."""

    def paced(self, delay_s: float) -> "Credit":
        """As patient as it takes where a decision shows so much later; plans for as many misses as before."""
        patience_s = PATIENCE_DELAYS * delay_s
        saved_s = self.saved_s * patience_s / self.patience_s if self.saved_s > 0.0 else self.saved_s
        return replace(self, patience_s=patience_s, saved_s=saved_s)

    def take(
        self, good_per_s: float | None, bad_per_s: float | None, *, target: float, now_s: float, longest_s: float
    ) -> "Credit":
        """After one more look at the verdicts. A gap beyond `longest_s` was not seen."""
        if good_per_s is None or bad_per_s is None:
            return self
        passed_s = 0.0 if self.at_s is None else now_s - self.at_s
        if not 0.0 < passed_s <= longest_s:
            return replace(self, at_s=now_s)
        ended = good_per_s + bad_per_s
        over_s = min(MEMORY_S, self.over_s + passed_s)
        mean = self.ended_per_s + passed_s / over_s * (ended - self.ended_per_s)
        most_s = self.patience_s * math.log(FACTOR_MAX)
        allowed = 1.0 - target
        saved_s = self.saved_s
        if allowed > 0.0 and mean > 0.0:
            saved_s += passed_s * min(1.0, (AIM * allowed * ended - bad_per_s) / (allowed * mean))
        return replace(
            self, saved_s=max(-DEBT_MAX_S, min(most_s, saved_s)), ended_per_s=mean, over_s=over_s, at_s=now_s
        )

    def planned(self, objective: Objective) -> Objective:
        """The objective with the target to plan for."""
        used = min(math.log(FACTOR_MAX), max(0.0, self.saved_s) / self.patience_s)
        share = (1.0 - objective.target) * math.exp(used)
        return replace(objective, target=min(objective.target, max(1.0 - SHARE_MAX, 1.0 - share)))

    def caution(self, objective: Objective) -> float:
        """Quantile of the target to plan for over that of the objective's, of what varies by chance; 1 where nothing is saved."""
        own, planned = quantile(objective), quantile(self.planned(objective))
        return planned / own if own > 0.0 else 1.0
