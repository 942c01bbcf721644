"""What a run came to, and several runs of one policy with an interval over their seeds.

    attainment              good / (good + bad); rejected, failed and cut-off requests are bad
    goodput per GPU-hour    good requests over the GPU-hours taken, starting and draining included
    hit share               prompt tokens found in a prefix cache, of all prompt tokens of finished requests
    imbalance               prompt tokens computed per second of life, the busiest worker over the mean, of one role;
                            workers that lived less than a tenth of the run are left out
    scaling steps           changes of a pool's number
    cost                    price x GPU-hours, where every pool has a price

Intervals are Student's t at 95 % over the seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from forebay_api.modelservice import Role
from forebay_api.objective import Outcome, Verdict, attainment
from forebay_simulator.fleet.courses import Course
from forebay_simulator.fleet.jobs import Job
from forebay_simulator.fleet.simulation import Run
from forebay_simulator.fleet.traces.statistics import percentile

T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Two-sided 95 % quantile of Student's t by degrees of freedom, from 1."""

T_95_BEYOND = 2.131
"""For more: a little too wide."""
MOONCAKE_LIMITS_S = (30.0, 0.1)


@dataclass(frozen=True, slots=True)
class Scores:
    """One run in numbers. Times in seconds."""

    seed: int
    requests: int
    attainment: float | None
    goodput_per_s: float
    gpu_hours: float
    good_per_gpu_hour: float
    ttft_mean_s: float | None
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p90_s: float | None
    tpot_p99_s: float | None
    late_first_tokens: int
    """Finished requests over the TTFT."""
    slow_tokens: int
    """Finished requests over the TPOT."""
    rejected: int
    failed: int
    """Failed or cut off."""
    hit_share: float
    imbalance: float
    scaling_steps: int
    peak_gpus: int
    preemptions: int
    cpu_s: float
    """CPU time of the simulation."""
    good_per_s_as_vllm: float
    """What `vllm bench serve --goodput` counts: as above, but failures are not there and one token has no TPOT to miss."""
    good_share_of_finished: float | None
    """What inference-perf counts: good among finished requests only."""
    within_mooncake: float | None
    """Share of all requests within Mooncake's limits, 30 s and 100 ms; by the mean TPOT, where it takes the slowest tenth."""
    cost: float | None = None
    """Of the GPU-hours, in the unit of the pools' prices."""


def scores_of(run: Run) -> Scores:
    """Score a finished run."""
    jobs, objective = run.jobs, run.setting.fleet.objective
    verdicts = {verdict: sum(1 for job in jobs if job.verdict is verdict) for verdict in Verdict}
    good, bad = verdicts[Verdict.GOOD], verdicts[Verdict.BAD]
    finished = [job for job in jobs if job.outcome is Outcome.FINISHED]
    ttft = sorted(job.ttft_s for job in finished if job.ttft_s is not None)
    tpot = sorted(job.tpot_s for job in finished if job.tpot_s is not None)
    prompt_tokens = sum(job.arrival.prompt_tokens for job in finished)
    gpu_hours = run.gpu_seconds / 3600
    return Scores(
        seed=run.setting.seed,
        requests=len(jobs),
        attainment=attainment(good, bad),
        goodput_per_s=good / run.duration_s,
        gpu_hours=gpu_hours,
        good_per_gpu_hour=good / gpu_hours if gpu_hours else 0.0,
        ttft_mean_s=statistics.fmean(ttft) if ttft else None,
        ttft_p50_s=_percentile(ttft, 50),
        ttft_p90_s=_percentile(ttft, 90),
        ttft_p99_s=_percentile(ttft, 99),
        tpot_p50_s=_percentile(tpot, 50),
        tpot_p90_s=_percentile(tpot, 90),
        tpot_p99_s=_percentile(tpot, 99),
        late_first_tokens=sum(1 for one in ttft if one > objective.ttft_s),
        slow_tokens=sum(1 for one in tpot if one > objective.tpot_s),
        rejected=sum(1 for job in jobs if job.outcome is Outcome.REJECTED),
        failed=sum(1 for job in jobs if job.outcome in (Outcome.FAILED, Outcome.CUT_OFF)),
        hit_share=sum(job.cached_tokens for job in finished) / prompt_tokens if prompt_tokens else 0.0,
        imbalance=imbalance_of(run),
        scaling_steps=sum(max(0, len(pool.numbers) - 1) for pool in run.members.pools.values()),
        peak_gpus=run.peak_gpus,
        preemptions=sum(job.preemptions for job in jobs),
        cpu_s=run.cpu_s,
        good_per_s_as_vllm=_within(finished, objective.ttft_s, objective.tpot_s) / run.duration_s,
        good_share_of_finished=good / len(finished) if finished else None,
        within_mooncake=_within(finished, *MOONCAKE_LIMITS_S) / len(jobs) if jobs else None,
        cost=run.cost,
    )


def _within(finished: Sequence[Job], ttft_s: float, tpot_s: float) -> int:
    """Finished requests within two limits; one that has no TPOT meets any."""
    return sum(1 for job in finished if (job.ttft_s or 0.0) <= ttft_s and (job.tpot_s or 0.0) <= tpot_s)


def _percentile(ordered: Sequence[float], percent: float) -> float | None:
    return percentile(ordered, percent) if ordered else None


def imbalance_of(run: Run) -> float:
    """Computed prompt tokens a second of the busiest worker that computes prompts, over the mean."""
    rates = []
    for member in run.members.all_members():
        if member.pool.role is Role.DECODE or member.placed_s is None:
            continue
        life_s = (run.duration_s if member.gone_s is None else member.gone_s) - member.placed_s
        if life_s >= run.duration_s / 10:
            rates.append(member.engine.computed_prompt_tokens / life_s)
    mean = statistics.fmean(rates) if rates else 0.0
    return max(rates) / mean if mean else 1.0


@dataclass(frozen=True, slots=True)
class Interval:
    """Mean over seeds, and the half-width of its 95 % interval (0 for one seed)."""

    mean: float
    half_width: float


def interval(values: Sequence[float]) -> Interval:
    """Summarise at least one value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, 0.0)
    quantile = T_95[len(values) - 2] if len(values) - 2 < len(T_95) else T_95_BEYOND
    return Interval(mean, quantile * statistics.stdev(values) / math.sqrt(len(values)))


@dataclass(frozen=True, slots=True)
class Line:
    """One policy's runs."""

    policy: str
    runs: tuple[Scores, ...]
    bound: bool = False
    """This is the clairvoyant bound."""
    course: Course | None = None
    """Of the first run."""

    def over_seeds(self, field: str) -> Interval | None:
        """A field's mean and interval; None when some run has no value for it."""
        values = [getattr(one, field) for one in self.runs]
        return None if not values or any(value is None for value in values) else interval(values)


def _plain(digits: int, factor: float = 1.0) -> Callable[[float], str]:
    return lambda value: f"{value * factor:.{digits}f}"


COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("attainment", "attainment %", _plain(1, 100)),
    ("gpu_hours", "GPU-hours", _plain(2)),
    ("cost", "cost", _plain(2)),
    ("good_per_gpu_hour", "good/GPU-hour", _plain(0)),
    ("ttft_p50_s", "TTFT p50 s", _plain(2)),
    ("ttft_p99_s", "TTFT p99 s", _plain(2)),
    ("tpot_p50_s", "TPOT p50 ms", _plain(1, 1000)),
    ("tpot_p99_s", "TPOT p99 ms", _plain(1, 1000)),
    ("hit_share", "hit %", _plain(1, 100)),
    ("imbalance", "imbalance", _plain(2)),
    ("scaling_steps", "steps", _plain(0)),
    ("rejected", "rejected", _plain(0)),
    ("failed", "failed", _plain(0)),
)
"""Fields of the table: name, heading, how a number is written."""
WHERE_KNOWN = frozenset({"cost"})
"""Fields that have no column where no line has a value."""


def columns_of(lines: Sequence[Line]) -> list[tuple[str, str, Callable[[float], str]]]:
    """The columns of a table of these lines."""
    return [
        column
        for column in COLUMNS
        if column[0] not in WHERE_KNOWN or any(line.over_seeds(column[0]) is not None for line in lines)
    ]


def cell(line: Line, field: str, write: Callable[[float], str]) -> str:
    """A field's mean, with its interval where there is one."""
    summary = line.over_seeds(field)
    if summary is None:
        return "-"
    text = write(summary.mean)
    width = write(summary.half_width)
    return f"{text} ±{width}" if len(line.runs) > 1 and float(width) > 0 else text


def over_bound(line: Line, lines: Sequence[Line]) -> float | None:
    """By how much of the bound's GPU-hours a line takes more; None for the bound itself, and without one."""
    bound = next((one for one in lines if one.bound), None)
    if bound is None or line.bound:
        return None
    least, taken = bound.over_seeds("gpu_hours"), line.over_seeds("gpu_hours")
    return None if least is None or taken is None or not least.mean else taken.mean / least.mean - 1


def table(lines: Sequence[Line]) -> list[list[str]]:
    """Rows of text, headings first."""
    bounded = any(line.bound for line in lines)
    columns = columns_of(lines)
    rows = [["policy", *(heading for _, heading, _ in columns), *(["over bound %"] if bounded else [])]]
    for line in lines:
        row = [line.policy, *(cell(line, field, write) for field, _, write in columns)]
        more = over_bound(line, lines)
        rows.append([*row, *(["-" if more is None else f"{100 * more:+.0f}"] if bounded else [])])
    return rows


def document(lines: Sequence[Line], about: Mapping[str, Any]) -> dict[str, Any]:
    """The whole as JSON: what was run, and per policy each seed and the means with their intervals."""
    fields = [name for name in Scores.__dataclass_fields__ if name != "seed"]
    return {
        **about,
        "policies": [
            {
                "policy": line.policy,
                "gpu_hours_over_bound": over_bound(line, lines),
                "seeds": [asdict(one) for one in line.runs],
                "summary": {
                    name: None if (summary := line.over_seeds(name)) is None else asdict(summary) for name in fields
                },
                "course": None if line.course is None else asdict(line.course),
            }
            for line in lines
        ],
    }
