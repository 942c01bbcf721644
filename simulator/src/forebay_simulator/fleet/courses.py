"""The course of a run over time: what was asked, how many workers there were, how much of it was good. For plots.

Time is cut into equal parts. A part's attainment is of the requests that arrived in it; GPUs and workers are means over it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from forebay_api.objective import Verdict, attainment
from forebay_simulator.fleet.simulation import Run

PARTS = 120


@dataclass(frozen=True, slots=True)
class Course:
    """One value a part of the run's time, for each line."""

    part_s: float
    arrivals_per_s: tuple[float, ...]
    attainment: tuple[float | None, ...]
    """None where nothing arrived."""
    gpus: tuple[float, ...]
    """Accelerators taken."""
    wanted: dict[str, tuple[float, ...]]
    """Workers ordered, by pool."""


def course_of(run: Run, parts: int = PARTS) -> Course:
    """Cut a finished run into parts of the trace's time."""
    duration_s = max(run.setting.trace.duration_s, 1e-9)
    part_s = duration_s / parts
    arrived, good, bad = [0] * parts, [0] * parts, [0] * parts
    for job in run.jobs:
        part = min(parts - 1, int(job.at_s / part_s))
        arrived[part] += 1
        good[part] += job.verdict is Verdict.GOOD
        bad[part] += job.verdict is Verdict.BAD
    taken = [
        (member.placed_s, duration_s if member.gone_s is None else member.gone_s, float(member.pool.gpus))
        for member in run.members.all_members()
        if member.placed_s is not None
    ]
    wanted = {}
    for name, pool in run.members.pools.items():
        changes = [*pool.numbers, (duration_s, 0)]  # none in a pool that never had a worker
        spans = [(at_s, end_s, float(number)) for (at_s, number), (end_s, _) in pairwise(changes)]
        wanted[name] = means(spans, part_s, parts)
    return Course(
        part_s=part_s,
        arrivals_per_s=tuple(count / part_s for count in arrived),
        attainment=tuple(attainment(one, other) for one, other in zip(good, bad, strict=True)),
        gpus=means(taken, part_s, parts),
        wanted=wanted,
    )


def means(spans: Iterable[tuple[float, float, float]], part_s: float, parts: int) -> tuple[float, ...]:
    """The mean in each part of a sum of values that hold from one time to another."""
    sums = [0.0] * parts
    for begins_s, ends_s, value in spans:
        for part in range(int(begins_s / part_s), min(parts, int(ends_s / part_s) + 1)):
            inside_s = min(ends_s, (part + 1) * part_s) - max(begins_s, part * part_s)
            sums[part] += value * max(0.0, inside_s)
    return tuple(total / part_s for total in sums)
