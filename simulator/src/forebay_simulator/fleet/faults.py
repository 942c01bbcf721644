"""What goes wrong in a scenario, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from forebay_simulator.fleet.agenda import Agenda
from forebay_simulator.fleet.members import Members, State


class Fault(Protocol):
    """Something that happens to the fleet."""

    def plan(self, agenda: Agenda, members: Members) -> None:
        """Put it on the agenda."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerLoss:
    """Ready workers of a pool die, the longest serving ones first."""

    at_s: float
    pool: str
    workers: int = 1

    def plan(self, agenda: Agenda, members: Members) -> None:
        """Kill those that are ready then."""

        def strike() -> None:
            ready = [one for one in members.pools[self.pool].members if one.state is State.READY]
            for member in ready[: self.workers]:
                members.kill(member.uid)

        agenda.at(self.at_s, strike)


@dataclass(frozen=True, slots=True)
class NodeShortage:
    """Some accelerators cannot be had for a while; workers that run on them keep them."""

    begins_s: float
    ends_s: float
    gpus: int

    def plan(self, agenda: Agenda, members: Members) -> None:
        """Take them away and give them back."""
        agenda.at(self.begins_s, lambda: members.set_gpus_out(self.gpus))
        agenda.at(self.ends_s, lambda: members.set_gpus_out(0))


@dataclass(frozen=True, slots=True)
class SlowWorker:
    """One worker's steps take longer for a while, as on a throttled accelerator."""

    begins_s: float
    ends_s: float
    uid: str
    factor: float

    def plan(self, agenda: Agenda, members: Members) -> None:
        """Slow it down and let it recover."""
        agenda.at(self.begins_s, lambda: members.slow_down(self.uid, self.factor))
        agenda.at(self.ends_s, lambda: members.slow_down(self.uid, 1.0))
