"""One run: a fleet, a trace, a routing policy, a seed -> what became of every request.

The run ends when every request has; GPU time counts until the end of the trace, or of the last request if that is later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from forebay_simulator.fleet.agenda import Agenda, Rank
from forebay_simulator.fleet.autoscaling import AutoscalerSpec
from forebay_simulator.fleet.faults import Fault
from forebay_simulator.fleet.front import Front
from forebay_simulator.fleet.jobs import Job, jobs_of
from forebay_simulator.fleet.members import Members
from forebay_simulator.fleet.metrics import Scraping, Watch
from forebay_simulator.fleet.policies import ROUTING, SCALING, MakeScaling
from forebay_simulator.fleet.scaling import Scaling, bounded
from forebay_simulator.fleet.spec import FleetSpec
from forebay_simulator.fleet.traces.trace import Trace

OVERTIME_S = 10.0
"""How often it is asked whether the last request has ended, once the trace is over."""
OVERTIME_MAX_S = 36_000.0
"""Longest time that requests may take after the end of the trace; a run that takes longer is stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything that a run depends on."""

    fleet: FleetSpec
    trace: Trace
    routing: str = "forebay"
    """Name of a policy."""
    seed: int = 0
    scaling: str | MakeScaling = "static"
    """Name of a policy, or what makes one."""
    autoscaler: AutoscalerSpec = field(default_factory=AutoscalerSpec)
    """Settings of Forebay's own."""
    scraping: Scraping = field(default_factory=Scraping)
    faults: tuple[Fault, ...] = ()
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
    watch: Watch = field(init=False)
    scaling: Scaling = field(init=False)
    cpu_s: float = 0.0
    """CPU time of the run."""

    def __post_init__(self) -> None:
        """Build the fleet."""
        setting = self.setting
        self.agenda = Agenda()
        self.front = Front(setting.fleet, self.agenda)
        self.members = Members(
            setting.fleet,
            self.agenda,
            self.front.hooks,
            _generator(setting.seed, "workers"),
            strides=setting.strides,
        )
        make_routing = ROUTING[setting.routing]
        parts = ["routing", *(f"routing {number}" for number in range(1, setting.fleet.routers))]
        self.front.attach(
            self.members,
            [make_routing(_generator(setting.seed, part), self.members.by_uid, setting.fleet) for part in parts],
        )
        self.watch = Watch(
            setting.scraping, self.agenda, self.front, self.members, _generator(setting.seed, "prometheus")
        )
        make = SCALING[setting.scaling] if isinstance(setting.scaling, str) else setting.scaling
        self.scaling = make(setting.fleet, setting.trace, setting.autoscaler)
        for fault in setting.faults:
            fault.plan(self.agenda, self.members)
        self.jobs = jobs_of(setting.trace, engine_block=setting.fleet.block_tokens)

    def to_end(self, progress: Callable[[float], None] | None = None) -> Run:
        """Let everything happen. `progress` hears the share of the trace's time that has passed, now and then."""
        began_s = time.process_time()
        self._enter(0)
        self._scale_later()
        duration_s = max(self.setting.trace.duration_s, 1e-9)
        parts = 100 if progress else 1
        for part in range(1, parts + 1):
            self.agenda.run(duration_s * part / parts)
            if progress is not None:
                progress(part / parts)
        while self.front.counts.in_flight and self.agenda.now_s < duration_s + OVERTIME_MAX_S:
            self.agenda.run(self.agenda.now_s + OVERTIME_S)
        self.cpu_s += time.process_time() - began_s
        assert all(job.outcome is not None for job in self.jobs), "a request was lost on the way"
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

    def _scale_later(self) -> None:
        self.agenda.at(self.agenda.now_s + self.scaling.interval_s, self._scale, Rank.DECISION)

    def _scale(self) -> None:
        """Ask the scaling policy, and do what it says within bounds and budget."""
        current = {name: pool.wanted for name, pool in self.members.pools.items()}
        wanted = self.scaling.decide(self.watch, self.agenda.now_s)
        for name, number in bounded(self.setting.fleet, current, wanted).items():
            self.members.scale(name, number)
        self._scale_later()

    @property
    def duration_s(self) -> float:
        """From the trace's beginning to its end, or to the last request's if that is later."""
        last_s = max((job.ended_s or 0.0 for job in self.jobs), default=0.0)
        return max(self.setting.trace.duration_s, last_s)

    @property
    def gpu_seconds(self) -> float:
        """GPU time taken from the beginning to the end."""
        return self.members.gpu_seconds(self.duration_s)

    @property
    def cost(self) -> float | None:
        """Price of that GPU time; None where some pool has no price."""
        return self.members.cost(self.duration_s)

    @property
    def peak_gpus(self) -> int:
        """Most accelerators taken at once."""
        changes: list[tuple[float, int]] = []
        for member in self.members.all_members():
            if member.placed_s is not None:
                changes.append((member.placed_s, member.pool.gpus))
                changes.append((self.duration_s if member.gone_s is None else member.gone_s, -member.pool.gpus))
        used = peak = 0
        for _, gpus in sorted(changes):
            used += gpus
            peak = max(peak, used)
        return peak


def simulate(setting: Setting, progress: Callable[[float], None] | None = None) -> Run:
    """Run a setting to its end."""
    return Run(setting).to_end(progress)


def _generator(seed: int, part: str) -> Random:
    """A generator of its own for each part, so that one part's draws do not shift another's."""
    return Random(f"{seed}/{part}")  # noqa: S311  (a simulation, not secrets)
