"""What the capacity model expects of one worker for the mean request: what baselines are set up with, and the bound plans by.

A baseline's targets (requests in flight per worker, tokens a second, prefill workers per decode worker) are what a careful
operator would work out beforehand for the traffic as a whole; the baseline then keeps them while the traffic changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_autoscaler.model import utilisation_in_time
from forebay_autoscaler.seed import Mix, step_s
from forebay_capacity.batch import prefill_seconds
from forebay_capacity.steptime import Times
from forebay_simulator.fleet.spec import PoolSpec
from forebay_simulator.fleet.traces.trace import Arrival


@dataclass(frozen=True, slots=True)
class Expectation:
    """One worker with one kind of request."""

    mix: Mix
    work_s: float
    """Worker time (prefill) or slot time (else) of one request."""
    limit: float
    """Busy share (prefill) or requests at once (else) within the objective."""

    @property
    def good_rate_per_s(self) -> float:
        """Requests a second within the objective."""
        return self.limit / self.work_s


def mean_request(arrivals: Sequence[Arrival], hit_share: float = 0.0) -> Mix:
    """The mean of at least one request, to two digits: as fine as an expectation is, and few distinct ones."""
    prompt = sum(one.prompt_tokens for one in arrivals) / len(arrivals)
    output = sum(one.output_tokens for one in arrivals) / len(arrivals)
    return Mix(max(1, _rounded(prompt)), _rounded(prompt * hit_share), max(1, _rounded(output)))


def expectation(pool: PoolSpec, mix: Mix, objective: Objective) -> Expectation | None:
    """What one worker of a pool should do, by its own step times; None when it cannot meet the objective at all.

    Sequences are limited by the engine, by KV at full length, and by the TPOT with each one's share of prefill in every step.
    """
    served = pool.engine.served()
    timer, limits = cast("Times", served.timer), served.scheduler
    prefill_s = prefill_seconds(timer, mix.prompt, cached_tokens=mix.cached, chunk_tokens=limits.max_batched_tokens)
    if pool.role is Role.PREFILL:
        return Expectation(mix, prefill_s, utilisation_in_time(prefill_s, objective))
    low, high = 0, min(limits.max_sequences, limits.usable_blocks * limits.block_size // (mix.prompt + mix.output))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if step_s(timer, pool.role, mix, middle) <= objective.tpot_s else (low, middle - 1)
    if not low:
        return None
    work_s = mix.output * step_s(timer, pool.role, mix, low) + (prefill_s if pool.role is Role.MIXED else 0.0)
    return Expectation(mix, work_s, float(low))


def _rounded(tokens: float) -> int:
    return round(float(f"{tokens:.1e}"))
