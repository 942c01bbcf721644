"""What a perfect forecast would be worth on the ramps: Forebay's autoscaler, told the law of the rate in place of its forecast.

    python -m tests.bench.autoscaler.foresight --situation ramp --seeds 3

All else is its own: what it learns of workers, margins, windows, start-up times. It does not know the chance of arrivals, nor
that the run ends. So this is what forecasts can come to at best, where the clairvoyant bound, which knows both and keeps no
window, is what anything can.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from unittest.mock import patch

from forebay_autoscaler import offers
from forebay_autoscaler.forecast import Forecast
from forebay_autoscaler.policy import Tuning
from forebay_cli.replay_html import Section
from forebay_simulator.fleet.comparing import lines_of, run_task
from forebay_simulator.fleet.scenarios import RAMP

from .__main__ import text_of
from .situations import SITUATIONS

RAMPS = ("ramp", "ramp-quick-start")
LOOK_S = 5
"""Seconds between two looks at the law."""
LATE_S = 15
"""And for so long after an order given now could be there: until the next one could."""


def foreseen(forecast: Forecast, rate_per_s: float, tuning: Tuning, *, now_s: float, lead_s: float) -> float:
    """The most that the law says until a worker that is ordered at the next look is ready."""
    return max(RAMP(now_s + ahead_s) for ahead_s in range(0, int(lead_s) + LATE_S + 1, LOOK_S))


def section_of(name: str, seeds: tuple[int, ...]) -> Section:
    """One ramp, run with foresight."""
    situation = SITUATIONS[name]
    with patch.object(offers, "planned_rate", foreseen):
        done = [(task, run_task(task)) for task in situation.tasks(("forebay",), seeds)]
    return Section(name, situation.scenario.about, situation.scenario.fleet.objective, lines_of(done))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, and print."""
    parser = argparse.ArgumentParser(prog="foresight", description="Forebay's autoscaler with a perfect forecast.")
    parser.add_argument("--situation", action="append", choices=RAMPS, help="repeat; both by default")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args(arguments)
    for name in given.situation or RAMPS:
        print(text_of(section_of(name, tuple(range(1, given.seeds + 1)))))


if __name__ == "__main__":
    main()
