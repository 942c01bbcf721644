"""Several policies over several seeds: the same requests, faults and start-up draws for each of them.

Runs know nothing of each other, so they may be spread over processes. These are forked: a scenario holds functions, which cannot
be sent to a process but are there in a copy of this one. The bound's seeds are one after another, since a later one begins its
search where the one before ended.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace

from forebay_simulator.fleet.clairvoyance import MARGINS, Clairvoyant, cheapest
from forebay_simulator.fleet.courses import Course, course_of
from forebay_simulator.fleet.report import Line, Scores, scores_of
from forebay_simulator.fleet.scenarios import Scenario
from forebay_simulator.fleet.simulation import Setting, simulate

BOUND = "clairvoyant"


@dataclass(frozen=True, slots=True)
class Policy:
    """How requests are routed and pools sized, by name."""

    routing: str
    scaling: str

    def __str__(self) -> str:
        return self.routing if self.scaling == "static" else f"{self.routing} + {self.scaling}"


@dataclass(frozen=True, slots=True)
class Result:
    """One run."""

    scores: Scores
    course: Course


@dataclass(frozen=True, slots=True)
class Task:
    """Runs of one policy that belong together."""

    scenario: Scenario
    policy: Policy
    seeds: tuple[int, ...]


Progress = Callable[[Policy, int, float], None]
"""Hears policy, seed and the share of the run that is done."""


def compare(
    scenario: Scenario,
    policies: Sequence[Policy],
    seeds: Sequence[int],
    progress: Progress | None = None,
    *,
    processes: int = 1,
) -> list[Line]:
    """One line a policy."""
    return lines_of(run_all(tasks_of(scenario, policies, seeds), progress, processes=processes))


def tasks_of(scenario: Scenario, policies: Sequence[Policy], seeds: Sequence[int]) -> list[Task]:
    """All runs of one scenario."""
    tasks = []
    for policy in policies:
        together = [tuple(seeds)] if policy.scaling == BOUND else [(seed,) for seed in seeds]
        tasks += [Task(scenario, policy, part) for part in together]
    return tasks


def lines_of(done: Sequence[tuple[Task, Sequence[Result]]]) -> list[Line]:
    """The runs of one scenario by policy, in the order of the tasks."""
    runs: dict[Policy, list[Result]] = {}
    for task, results in done:
        runs.setdefault(task.policy, []).extend(results)
    return [
        Line(str(policy), tuple(one.scores for one in found), policy.scaling == BOUND, found[0].course)
        for policy, found in runs.items()
    ]


_tasks: list[Task] = []
"""What forked processes find their work in."""


def run_all(
    tasks: Sequence[Task], progress: Progress | None = None, *, processes: int = 1
) -> list[tuple[Task, Sequence[Result]]]:
    """Every task with its results, in order. With one process progress is told on the way, else at the end of each task."""
    if processes == 1:
        return [(task, run_task(task, progress)) for task in tasks]
    _tasks[:] = tasks
    found: dict[int, Sequence[Result]] = {}
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("fork")) as pool:
        going = {pool.submit(_run_numbered, number): number for number in range(len(tasks))}
        for ended in as_completed(going):
            number = going[ended]
            found[number] = ended.result()
            if progress is not None:
                progress(tasks[number].policy, tasks[number].seeds[-1], 1.0)
    return [(task, found[number]) for number, task in enumerate(tasks)]


def _run_numbered(number: int) -> Sequence[Result]:
    return run_task(_tasks[number])


def run_task(task: Task, progress: Progress | None = None) -> Sequence[Result]:
    """Run each seed."""
    results = []
    margin = MARGINS[0]
    for seed in task.seeds:

        def told(share: float, seed: int = seed) -> None:
            if progress is not None:
                progress(task.policy, seed, share)

        setting = setting_of(task.scenario, task.policy, seed)
        if task.policy.scaling == BOUND:
            margin, result = _bound(setting, margin, told)
        else:
            result = _result(setting, told)
        results.append(result)
    return results


def _result(setting: Setting, told: Callable[[float], None]) -> Result:
    run = simulate(setting, told)
    return Result(scores_of(run), course_of(run))


def _bound(setting: Setting, least: float, told: Callable[[float], None]) -> tuple[float, Result]:
    """The cheapest run that meets the target, and its margin, which is at least `least`."""
    found: dict[float, Result] = {}

    def attainment_of(margin: float) -> float | None:
        scaling = lambda fleet, trace, _spec: Clairvoyant(fleet, trace, margin)  # noqa: E731  (a policy of this margin)
        found[margin] = _result(replace(setting, scaling=scaling), told)
        return found[margin].scores.attainment

    chosen = cheapest(attainment_of, setting.fleet.objective.target, least=least)
    return chosen, found[chosen]


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
