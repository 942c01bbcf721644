"""One run: a fleet, a trace, a routing policy, a seed -> what became of every request.

The run ends when every request has; GPU time counts until the end of the trace, or of the last request if that is later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from forebay_simulator.fleet.agenda import Agenda, Rank
from forebay_simulator.fleet.front import Front
from forebay_simulator.fleet.jobs import Job, jobs_of
from forebay_simulator.fleet.members import Members
from forebay_simulator.fleet.routing import Routing
from forebay_simulator.fleet.spec import FleetSpec
from forebay_simulator.fleet.traces.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything that a run depends on."""

    fleet: FleetSpec
    trace: Trace
    routing: Callable[[Random], Routing]
    seed: int = 0
    strides: bool = True
    """Off: one event an engine step. The outcomes are the same."""


@dataclass(slots=True)
class Run:
    """A fleet at work."""

    setting: Setting
    agenda: Agenda = field(init=False)
    front: Front = field(init=False)
    members: Members = field(init=False)
    jobs: list[Job] = field(init=False)
    cpu_s: float = 0.0
    """CPU time of the run."""

    def __post_init__(self) -> None:
        """Build the fleet."""
        setting = self.setting
        self.agenda = Agenda()
        routing = setting.routing(_generator(setting.seed, "routing"))
        self.front = Front(setting.fleet, self.agenda, routing, _generator(setting.seed, "router"))
        self.members = Members(
            setting.fleet,
            self.agenda,
            self.front.hooks,
            _generator(setting.seed, "workers"),
            strides=setting.strides,
        )
        self.front.attach(self.members)
        self.jobs = jobs_of(setting.trace, engine_block=setting.fleet.block_tokens)

    def to_end(self, progress: Callable[[float], None] | None = None) -> Run:
        """Let everything happen. `progress` hears the share of the trace's time that has passed, now and then."""
        began_s = time.process_time()
        self._enter(0)
        duration_s = max(self.setting.trace.duration_s, 1e-9)
        parts = 100 if progress else 1
        for part in range(1, parts + 1):
            self.agenda.run(duration_s * part / parts)
            if progress is not None:
                progress(part / parts)
        self.agenda.run()
        self.cpu_s += time.process_time() - began_s
        assert all(job.outcome is not None for job in self.jobs), "a request was lost on the way"  # noqa: S101  (a fault of ours, on in production)
        return self

    def _enter(self, number: int) -> None:
        """Put arrivals on the agenda one at a time: a heap of thousands would cost every other event."""
        if number >= len(self.jobs):
            return
        job = self.jobs[number]

        def arrive() -> None:
            self.front.arrive(job)
            self._enter(number + 1)

        self.agenda.at(job.at_s, arrive, Rank.ARRIVAL)

    @property
    def duration_s(self) -> float:
        """From the trace's beginning to its end, or to the last request's if that is later."""
        last_s = max((job.ended_s or 0.0 for job in self.jobs), default=0.0)
        return max(self.setting.trace.duration_s, last_s)


def simulate(setting: Setting, progress: Callable[[float], None] | None = None) -> Run:
    """Run a setting to its end."""
    return Run(setting).to_end(progress)


def _generator(seed: int, part: str) -> Random:
    """A generator of its own for each part, so that one part's draws do not shift another's."""
    return Random(f"{seed}/{part}")  # noqa: S311  (a simulation, not secrets)
