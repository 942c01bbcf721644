"""Several policies over several seeds: the same requests, faults and start-up draws for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from forebay_simulator.fleet.clairvoyance import Clairvoyant, cheapest
from forebay_simulator.fleet.report import Line, Scores, scores_of
from forebay_simulator.fleet.scenarios import Scenario
from forebay_simulator.fleet.simulation import Setting, simulate


@dataclass(frozen=True, slots=True)
class Policy:
    """How requests are routed and pools sized, by name."""

    routing: str
    scaling: str

    def __str__(self) -> str:
        return self.routing if self.scaling == "static" else f"{self.routing} + {self.scaling}"


Progress = Callable[[Policy, int, float], None]
"""Hears policy, seed and the share of the run that is done."""


def compare(
    scenario: Scenario, policies: Sequence[Policy], seeds: Sequence[int], progress: Progress | None = None
) -> Iterator[Line]:
    """One line a policy, as they come."""
    for policy in policies:
        runs = tuple(run_one(scenario, policy, seed, progress) for seed in seeds)
        yield Line(str(policy), runs)


def run_one(scenario: Scenario, policy: Policy, seed: int, progress: Progress | None = None) -> Scores:
    """One run. The clairvoyant bound takes several and keeps the cheapest that meets the target."""

    def told(share: float) -> None:
        if progress is not None:
            progress(policy, seed, share)

    setting = setting_of(scenario, policy, seed)
    if policy.scaling != "clairvoyant":
        return scores_of(simulate(setting, told))
    found: dict[float, Scores] = {}

    def attainment_of(margin: float) -> float | None:
        bound = Setting(
            fleet=setting.fleet,
            trace=setting.trace,
            routing=setting.routing,
            scaling=lambda fleet, trace, _spec: Clairvoyant(fleet, trace, margin),
            scraping=setting.scraping,
            faults=setting.faults,
            seed=seed,
        )
        found[margin] = scores_of(simulate(bound, told))
        return found[margin].attainment

    return found[cheapest(attainment_of, scenario.fleet.objective.target)]


def setting_of(scenario: Scenario, policy: Policy, seed: int) -> Setting:
    """The scenario with a policy and a seed."""
    return Setting(
        fleet=scenario.fleet,
        trace=scenario.trace(seed),
        routing=policy.routing,
        scaling=policy.scaling,
        autoscaler=scenario.autoscaler,
        scraping=scenario.scraping,
        faults=scenario.faults,
        seed=seed,
    )
