"""What Prometheus knows of a fleet: its targets, and the answers to the autoscaler's own questions.

Every `Signal` of the autoscaler is answered here as its query would be (forebay_autoscaler/queries.py has the text), and the
autoscaler's own code turns the answers into readings. Baselines ask for the same series in other ways (`Watch.sum_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from forebay_api.objective import Verdict
from forebay_autoscaler.policy import Tuning
from forebay_autoscaler.prometheus import Sample, sample_of
from forebay_autoscaler.queries import Signal
from forebay_router.metrics import TPOT_BUCKETS_S, TTFT_BUCKETS_S
from forebay_simulator.fleet.agenda import Agenda, Rank
from forebay_simulator.fleet.front import Front
from forebay_simulator.fleet.members import Member, Members, State
from forebay_simulator.fleet.scrapes import Row, Target, irate, mean, rate

NAMESPACE, SERVICE = "fleet", "service"
ROUTER_SERIES = ("arrived", "pending", "prompt_tokens", "cached_tokens", "output_tokens")
WORKER_SERIES = ("running", "waiting", "kv_usage", "work_s", "ended", "output_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scraping:
    """How Prometheus is set up."""

    interval_s: float = 15.0
    retention_s: float = 700.0
    """Longest window that anybody asks for, and a little."""
    outages: tuple[tuple[float, float], ...] = ()
    """(from, to), in seconds, in which it is down."""

    def down(self, now_s: float) -> bool:
        """Whether it is down now."""
        return any(begins_s <= now_s < ends_s for begins_s, ends_s in self.outages)


def _bucket_names(prefix: str, bounds: Iterable[float]) -> list[str]:
    return [f"{prefix}:{bound}" for bound in (*bounds, "+Inf")]


TTFT_SERIES = _bucket_names("ttft", TTFT_BUCKETS_S)
TPOT_SERIES = _bucket_names("tpot", TPOT_BUCKETS_S)


@dataclass(slots=True)
class Watch:
    """Prometheus with its targets."""

    scraping: Scraping
    agenda: Agenda
    front: Front
    members: Members
    chance: Random
    router: Target = field(init=False)
    workers: dict[str, Target] = field(default_factory=dict)
    """By uid. Those that have gone stay; their series end with them."""

    def __post_init__(self) -> None:
        """Find the router and begin."""
        pools = tuple(self.members.pools)
        names = (*ROUTER_SERIES, *Verdict, *TTFT_SERIES, *TPOT_SERIES, *(f"pool:{name}" for name in pools))
        self.router = Target(names, lambda: _router_row(self.front, pools))
        self._scrape_later(self.router, self.chance.random() * self.scraping.interval_s, lambda: False)
        self._discover()

    # ---- scraping

    def _discover(self) -> None:
        """Find new workers, as the pod watch does; looks once a second."""
        for pool in self.members.pools.values():
            for member in pool.members:
                if member.state in (State.READY, State.DRAINING) and member.uid not in self.workers:
                    self._add(member)
        self.agenda.at(self.agenda.now_s + 1.0, self._discover, Rank.SCRAPE)

    def _add(self, member: Member) -> None:
        target = Target(WORKER_SERIES, lambda: _worker_row(member), {"pool": member.pool.name})
        self.workers[member.uid] = target
        delay_s = self.chance.random() * self.scraping.interval_s
        self._scrape_later(target, delay_s, lambda: member.state is State.GONE)

    def _scrape_later(self, target: Target, delay_s: float, gone: Callable[[], bool]) -> None:
        def scrape() -> None:
            now_s = self.agenda.now_s
            if gone():
                target.gone = True
                return
            if not self.scraping.down(now_s):
                target.scrape(now_s, self.scraping.retention_s)
            self._scrape_later(target, self.scraping.interval_s, gone)

        self.agenda.at(self.agenda.now_s + delay_s, scrape, Rank.SCRAPE)

    # ---- asking

    @property
    def answering(self) -> bool:
        """Whether a query has an answer."""
        return not self.scraping.down(self.agenda.now_s)

    def router_rate(self, name: str, length_s: float) -> float | None:
        """rate(X[w]) and X of the router."""
        now_s = self.agenda.now_s
        if not self.router.seen(now_s):
            return None
        return rate(self.router.window(name, now_s, length_s), now_s, length_s)

    def seen_workers(self, pool: str) -> list[Target]:
        """Workers of a pool whose series exist now."""
        now_s = self.agenda.now_s
        return [one for one in self.workers.values() if one.labels["pool"] == pool and one.seen(now_s)]

    def sum_of(self, pool: str, of: Callable[[Target], float | None]) -> float | None:
        """Sum over a pool's workers that have a value; None when none has."""
        values = [value for one in self.seen_workers(pool) if (value := of(one)) is not None]
        return sum(values) if values else None

    def last(self, pool: str, name: str) -> float | None:
        """Sum of a gauge over a pool's workers."""
        return self.sum_of(pool, lambda one: one.last(name))

    def mean_over(self, pool: str, name: str, length_s: float) -> float | None:
        """Sum over a pool's workers of a gauge's mean over a window."""
        now_s = self.agenda.now_s
        return self.sum_of(pool, lambda one: mean(one.window(name, now_s, length_s)))

    def rate(self, pool: str, name: str, length_s: float) -> float | None:
        """Sum over a pool's workers of a counter's rate."""
        now_s = self.agenda.now_s
        return self.sum_of(pool, lambda one: rate(one.window(name, now_s, length_s), now_s, length_s))


def _router_row(front: Front, pools: tuple[str, ...]) -> Row:
    counts = front.counts
    return (
        counts.arrived,
        counts.pending,
        counts.prompt_tokens,
        counts.cached_tokens,
        counts.output_tokens,
        *(counts.verdicts[verdict] for verdict in Verdict),
        *counts.ttft.cumulated(),
        *counts.tpot.cumulated(),
        *(front.pool_in_flight[name] for name in pools),
    )


def _worker_row(member: Member) -> Row:
    engine = member.engine
    return (
        engine.running,
        engine.waiting,
        engine.scheduler.usage,
        member.work_s,
        member.ended,
        engine.output_tokens,
    )


# ---- the autoscaler's questions


def answer_all(watch: Watch, tuning: Tuning, attainment_window_s: float) -> dict[Signal, list[Sample]]:
    """The answers to every question of the autoscaler; none while Prometheus is down."""
    if not watch.answering:
        return {}
    answers: dict[Signal, list[Sample]] = {}
    for signal, value in _router_values(watch, tuning).items():
        answers[signal] = [] if value is None else [_sample(watch, value)]
    answers[Signal.TTFT] = _buckets(watch, TTFT_SERIES, tuning.rate_window_s)
    answers[Signal.TPOT] = _buckets(watch, TPOT_SERIES, tuning.rate_window_s)
    answers[Signal.VERDICTS] = _verdicts(watch, attainment_window_s)
    answers[Signal.VERDICTS_LATELY] = _verdicts(watch, tuning.rate_window_s)
    # Simulated engines publish no KV events: their caches are judged by what was sent.
    unheard = sum(len(watch.seen_workers(pool)) for pool in watch.members.pools)
    answers[Signal.CACHE_INDEX] = (
        [_sample(watch, unheard, state="none")] if watch.router.seen(watch.agenda.now_s) else []
    )
    for pool in watch.members.pools:
        for signal, value in _pool_values(watch, pool, tuning).items():
            answers.setdefault(signal, [])
            if value is not None:
                answers[signal].append(_sample(watch, value, pool=pool))
    return answers


def _sample(watch: Watch, value: float, **labels: str) -> Sample:
    return sample_of({"namespace": NAMESPACE, "model_service": SERVICE, **labels}, float(value), watch.agenda.now_s)


def _router_values(watch: Watch, tuning: Tuning) -> dict[Signal, float | None]:
    router, now_s = watch.router, watch.agenda.now_s
    seen = router.seen(now_s)
    burst = router.window("arrived", now_s, tuning.burst_window_s)
    window_s = tuning.rate_window_s
    return {
        Signal.ROUTER_SEEN: router.rows[-1][0] if seen else None,
        Signal.ROUTERS_GONE: 0.0 if seen else None,
        Signal.ARRIVED: watch.router_rate("arrived", window_s),
        Signal.BURST: watch.router_rate("arrived", tuning.burst_window_s),
        Signal.LATEST: irate(burst) if seen else None,
        Signal.SCRAPES: len(burst) or None,
        Signal.REFUSED: 0.0 if seen else None,
        Signal.PENDING: router.last("pending") if seen else None,
        Signal.PROMPT_TOKENS: watch.router_rate("prompt_tokens", window_s),
        Signal.CACHED_TOKENS: watch.router_rate("cached_tokens", window_s),
        Signal.OUTPUT_TOKENS: watch.router_rate("output_tokens", window_s),
    }


def _pool_values(watch: Watch, pool: str, tuning: Tuning) -> dict[Signal, float | None]:
    window_s = tuning.rate_window_s
    seen = [one.rows[-1][0] for one in watch.seen_workers(pool)]
    router_seen = watch.router.seen(watch.agenda.now_s)
    return {
        Signal.WORKERS_SEEN: max(seen, default=None),
        Signal.RUNNING: watch.last(pool, "running"),
        Signal.RUNNING_MEAN: watch.mean_over(pool, "running", window_s),
        Signal.WAITING: watch.last(pool, "waiting"),
        Signal.SERVICE_SUM: watch.rate(pool, "work_s", window_s),
        Signal.SERVICE_COUNT: watch.rate(pool, "ended", window_s),
        Signal.POOL_IN_FLIGHT: watch.router.last(f"pool:{pool}") if router_seen else None,
    }


def _verdicts(watch: Watch, length_s: float) -> list[Sample]:
    return [
        _sample(watch, value, verdict=verdict.value)
        for verdict in Verdict
        if (value := watch.router_rate(verdict, length_s)) is not None
    ]


def _buckets(watch: Watch, series: list[str], length_s: float) -> list[Sample]:
    return [
        _sample(watch, value, le=name.partition(":")[2])
        for name in series
        if (value := watch.router_rate(name, length_s)) is not None
    ]
