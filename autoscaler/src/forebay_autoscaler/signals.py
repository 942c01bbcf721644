"""From Prometheus' answers to readings. Pure.

The age of a service's readings is that of the router's last scrape, the age of a pool's readings that of its workers', both
by Prometheus' clock. Two samples where one is expected are unknown: they mean that a label is missing on the way.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter

from forebay_api.objective import Objective
from forebay_autoscaler.observation import PoolSignals, ServiceKey, ServiceSignals
from forebay_autoscaler.prometheus import Sample
from forebay_autoscaler.queries import POOL_LABELS, SERVICE_LABELS, Signal
from forebay_autoscaler.reading import TRUE_ZERO, UNKNOWN, Reading, read

Key = tuple[str, ...]
Answers = Mapping[Signal, Sequence[Sample]]
"""Samples of each query; a signal whose query failed is absent."""


class Signals:
    """The answers of one round of queries, looked up by model service and pool."""

    def __init__(self, answers: Answers, *, stale_after_s: float) -> None:
        self._stale_after_s = stale_after_s
        self._by_service = {signal: _index(answers.get(signal, ()), SERVICE_LABELS) for signal in _SERVICE_SIGNALS}
        self._by_pool = {signal: _index(answers.get(signal, ()), POOL_LABELS) for signal in _POOL_SIGNALS}

    def of_service(self, key: ServiceKey, objective: Objective) -> ServiceSignals:
        """The router's readings about one model service."""
        age_s = _age_s(self._by_service[Signal.ROUTER_SEEN].get(key, ()))

        def one(signal: Signal) -> Reading:
            return self._single(self._by_service[signal].get(key, ()), age_s)

        ttft = self._within(Signal.TTFT, key, objective.ttft_s, age_s)
        tpot = self._within(Signal.TPOT, key, objective.tpot_s, age_s)
        verdicts, lately = (
            {sample.labels.get("verdict"): sample for sample in self._by_service[signal].get(key, ())}
            for signal in (Signal.VERDICTS, Signal.VERDICTS_LATELY)
        )
        arrived = one(Signal.ARRIVED)
        return ServiceSignals(
            arrived_per_s=arrived,
            routers_gone=one(Signal.ROUTERS_GONE),
            burst_per_s=one(Signal.BURST),
            latest_per_s=one(Signal.LATEST),
            scrapes=one(Signal.SCRAPES),
            # A code's series may begin with its first answer: none beside known arrivals is zero.
            refused_per_s=one(Signal.REFUSED) | (TRUE_ZERO if arrived.known is not None else UNKNOWN),
            pending=one(Signal.PENDING),
            ttft_per_s=ttft[0],
            ttft_within_per_s=ttft[1],
            tpot_per_s=tpot[0],
            tpot_within_per_s=tpot[1],
            prompt_tokens_per_s=one(Signal.PROMPT_TOKENS),
            cached_tokens_per_s=one(Signal.CACHED_TOKENS),
            output_tokens_per_s=one(Signal.OUTPUT_TOKENS),
            good_per_s=self._single([verdicts["good"]] if "good" in verdicts else (), age_s),
            bad_per_s=self._single([verdicts["bad"]] if "bad" in verdicts else (), age_s),
            good_lately_per_s=self._single([lately["good"]] if "good" in lately else (), age_s),
            bad_lately_per_s=self._single([lately["bad"]] if "bad" in lately else (), age_s),
        )

    def caches_of(self, key: ServiceKey) -> Mapping[str, float] | None:
        """Workers of a model service by how routers know their caches; None when no router tells, or none of late."""
        age_s = _age_s(self._by_service[Signal.ROUTER_SEEN].get(key, ()))
        samples = self._by_service[Signal.CACHE_INDEX].get(key, ())
        if not samples or age_s is None or age_s > self._stale_after_s:
            return None
        return {sample.labels.get("state", ""): sample.value for sample in samples if math.isfinite(sample.value)}

    def of_pool(self, key: ServiceKey, pool: str) -> PoolSignals:
        """The readings about one pool: its workers' own, and the router's count of what they have."""
        where = (*key, pool)
        worker_age_s = _age_s(self._by_pool[Signal.WORKERS_SEEN].get(where, ()))
        router_age_s = _age_s(self._by_service[Signal.ROUTER_SEEN].get(key, ()))

        def one(signal: Signal, age_s: float | None = worker_age_s) -> Reading:
            return self._single(self._by_pool[signal].get(where, ()), age_s)

        count, total = one(Signal.SERVICE_COUNT), one(Signal.SERVICE_SUM)
        mean_s = total.known / count.known if total.known is not None and count.known else None
        return PoolSignals(
            running=one(Signal.RUNNING),
            running_mean=one(Signal.RUNNING_MEAN),
            waiting=one(Signal.WAITING),
            service_time_s=read(mean_s, age_s=worker_age_s, stale_after_s=self._stale_after_s),
            finished_per_s=count,
            in_flight=one(Signal.POOL_IN_FLIGHT, router_age_s),
        )

    def _single(self, samples: Sequence[Sample], age_s: float | None) -> Reading:
        if len(samples) != 1:
            return UNKNOWN
        return read(samples[0].value, age_s=age_s, stale_after_s=self._stale_after_s)

    def _within(self, signal: Signal, key: ServiceKey, bound: float, age_s: float | None) -> tuple[Reading, Reading]:
        """Samples a second of a histogram, and those at most `bound`."""
        samples = self._by_service[signal].get(key, ())
        order = _ascending(tuple(sample.labels.get("le", "") for sample in samples))
        total, within = count_within([(high, samples[place].value) for high, place in order], bound)
        return (
            read(total, age_s=age_s, stale_after_s=self._stale_after_s),
            read(within, age_s=age_s, stale_after_s=self._stale_after_s),
        )


_SERVICE_SIGNALS = (
    Signal.ROUTER_SEEN, Signal.ROUTERS_GONE,
    Signal.ARRIVED, Signal.BURST, Signal.LATEST, Signal.SCRAPES, Signal.REFUSED,
    Signal.PENDING, Signal.TTFT, Signal.TPOT, Signal.PROMPT_TOKENS, Signal.CACHED_TOKENS, Signal.OUTPUT_TOKENS, Signal.VERDICTS,
    Signal.VERDICTS_LATELY, Signal.CACHE_INDEX,
)  # fmt: skip
_POOL_SIGNALS = (
    Signal.WORKERS_SEEN, Signal.RUNNING, Signal.RUNNING_MEAN, Signal.WAITING, Signal.SERVICE_SUM, Signal.SERVICE_COUNT,
    Signal.POOL_IN_FLIGHT,
)  # fmt: skip


@lru_cache(maxsize=1024)
def _ascending(bounds: tuple[str, ...]) -> list[tuple[float, int]]:
    """Bounds of buckets in ascending order, each with its place in the answer: the same for most services."""
    return sorted((_bucket_bound(text), place) for place, text in enumerate(bounds))


def count_within(ordered: Sequence[tuple[float, float]], bound: float) -> tuple[float | None, float | None]:
    """All samples of a cumulative histogram and those at most `bound`, interpolated within a bucket; buckets ascend.

    Samples above the highest finite bound are above any `bound`: how far is not known, and they are not assumed to be fast.
    (None, None) when there is no usable histogram.
    """
    if not ordered or ordered[-1][0] != math.inf or not all(math.isfinite(count) for _, count in ordered):
        return None, None
    total = ordered[-1][1]
    low, below = 0.0, 0.0
    for high, count in ordered:
        if high == math.inf:
            return total, min(below, total)
        if bound < high:
            share = max(0.0, bound - low) / (high - low)
            return total, below + share * max(0.0, count - below)
        low, below = high, count
    return total, below


def _bucket_bound(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _index(samples: Iterable[Sample], labels: Sequence[str]) -> dict[Key, list[Sample]]:
    """Samples by these labels; those that lack one belong to nobody."""
    key_of = itemgetter(*labels)
    indexed: defaultdict[Key, list[Sample]] = defaultdict(list)
    for sample in samples:
        try:
            indexed[key_of(sample.labels)].append(sample)
        except KeyError:
            continue
    return indexed


def _age_s(seen: Sequence[Sample]) -> float | None:
    """Seconds since the last scrape; the samples' values are its time."""
    if len(seen) != 1 or not math.isfinite(seen[0].value):
        return None
    return max(0.0, seen[0].evaluated_s - seen[0].value)
