"""A prefill and a decode pool around `decide`, request by request but without engine steps: a whole hour takes about a second.

Prefill workers take prompts in turn. A decode worker's step takes as long as its cache is full, all its requests advance one
token a step, so each has a place on the worker's own count of steps: it is done when that has gone on by its tokens. What does
not fit into a cache waits. Prometheus scrapes everything every 15 seconds, and rates are taken over its samples.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from forebay_api.modelservice import AutoscalingMode, Role
from forebay_api.objective import Objective
from forebay_autoscaler.decide import decide
from forebay_autoscaler.decision import Decision
from forebay_autoscaler.fitted import Fitted
from forebay_autoscaler.observation import PoolCounts, PoolObservation, PoolSignals, ServiceObservation, ServiceSignals
from forebay_autoscaler.policy import PoolPolicy, ServicePolicy, Tuning
from forebay_autoscaler.reading import UNKNOWN, Reading, read
from forebay_autoscaler.state import ServiceState
from forebay_capacity.steptime import StepTimer

KEY = ("default", "split")
SCRAPE_S = 15.0
ZERO = dict.fromkeys(
    ("stream_s", "experts_s", "stream_per_token_s", "matrix_s", "matrix_per_token_s", "fixed_s", "per_sequence_s",
     "cache_per_token_s", "window_per_token_s", "attention_per_pair_s", "window_attention_per_pair_s",
     "transfer_per_token_s"),
    0.0,
)  # fmt: skip


def timer(**costs: float) -> StepTimer:
    """Step times with these costs, in seconds, and no others."""
    return StepTimer(**ZERO | {"expert_miss": 1.0, "window_tokens": 0} | costs)


@dataclass(eq=False)
class Decoder:
    """One decode worker."""

    kv_tokens: int
    steps: float = 0.0
    running: list[tuple[float, float, float]] = field(default_factory=list)
    """(ends at step, first token, began)"""
    draining: bool = False


@dataclass
class SplitPlant:
    """The two pools; `capacity_known` says whether the autoscaler has step times, which are those of the plant."""

    rate_per_s: Callable[[float], float]
    sizes: tuple[int, int] = (2, 2)
    startup_s: float = 120.0
    prompt: int = 8000
    output: int = 1000
    objective: Objective = field(default_factory=lambda: Objective(3.0, 0.035, 0.95))
    budget_gpus: int | None = 24
    scale_down_window_s: float = 30.0
    capacity_known: bool = True
    seed: int = 1
    prefill_timer: StepTimer = field(default_factory=lambda: timer(fixed_s=0.015, matrix_per_token_s=18.8e-6))
    decode_timer: StepTimer = field(default_factory=lambda: timer(fixed_s=0.014, cache_per_token_s=20e-9))
    kv_tokens: int = 1_048_576
    tick_s: float = 0.25
    tuning: Tuning = field(default_factory=Tuning)
    blind: Callable[[float], bool] = field(default=lambda _: False)

    def __post_init__(self) -> None:
        """Begin with ready workers."""
        known = self.capacity_known
        self.policy = ServicePolicy(
            key=KEY, uid="1", generation=1, mode=AutoscalingMode.AUTO, objective=self.objective,
            budget_gpus=self.budget_gpus, scale_up_window_s=0.0, scale_down_window_s=self.scale_down_window_s,
            pools=(
                PoolPolicy("prefill", Role.PREFILL, 1, 64, 1, 256, Fitted(self.prefill_timer, self.kv_tokens) if known else None),
                PoolPolicy("decode", Role.DECODE, 1, 64, 1, 256, Fitted(self.decode_timer, self.kv_tokens) if known else None),
            ),
            tuning=self.tuning,
        )  # fmt: skip
        self.chance = random.Random(self.seed)
        self.now_s, self.next_scrape_s, self.next_decision_s = 0.0, 0.0, 10.0
        self.wanted = dict(zip(("prefill", "decode"), self.sizes, strict=True))
        self.free_at = [0.0] * self.sizes[0]
        self.decoders = [Decoder(self.kv_tokens) for _ in range(self.sizes[1])]
        self.starting: dict[str, list[float]] = {"prefill": [], "decode": []}
        self.prompts: deque[float] = deque()
        self.in_prefill: list[tuple[float, float]] = []
        self.answers: deque[float] = deque()
        self.counts = dict.fromkeys(
            ("arrived", "prompt", "output", "ttft", "ttft_ok", "tpot", "tpot_ok", "good", "bad", "p_work", "p_done",
             "d_work", "d_done"), 0.0)  # fmt: skip
        self.samples: deque[tuple[float, dict[str, float]]] = deque(maxlen=30)
        self.state = ServiceState()
        self.decisions: list[Decision] = []
        self.gpu_s = 0.0
        self.by_minute: dict[int, list[int]] = {}
        self.prefill_s = self.prefill_timer.step_seconds(
            decode_sequences=0, decode_context_tokens=0, prefill_tokens=self.prompt, prefill_attention=self.prompt**2
        )

    def run(self, until_s: float) -> SplitPlant:
        """Advance."""
        while self.now_s < until_s:
            self._advance()
            if self.now_s >= self.next_scrape_s:
                self.next_scrape_s += SCRAPE_S
                if not self.blind(self.now_s):
                    self._scrape()
            if self.now_s >= self.next_decision_s:
                self.next_decision_s += 10.0
                self._decide()
        return self

    @property
    def attainment(self) -> float:
        """Of all requests that have ended."""
        return self.counts["good"] / max(1.0, self.counts["good"] + self.counts["bad"])

    @property
    def gpu_hours(self) -> float:
        """Starting and draining included."""
        return self.gpu_s / 3600

    def _advance(self) -> None:
        self.now_s += self.tick_s
        now_s = self.now_s
        for name in ("prefill", "decode"):
            came = [at_s for at_s in self.starting[name] if at_s <= now_s]
            self.starting[name] = [at_s for at_s in self.starting[name] if at_s > now_s]
            if name == "prefill":
                self.free_at += [now_s] * len(came)
            else:
                self.decoders += [Decoder(self.kv_tokens) for _ in came]
        mean = self.rate_per_s(now_s) * self.tick_s
        for _ in range(self._poisson(mean)):
            self.prompts.append(now_s)
            self.counts["arrived"] += 1
        self._prefill()
        self._decode()
        gpus = len(self.free_at) + len(self.decoders) + sum(len(one) for one in self.starting.values())
        self.gpu_s += gpus * self.tick_s

    def _prefill(self) -> None:
        while self.prompts and min(self.free_at) <= self.now_s:
            number = min(range(len(self.free_at)), key=self.free_at.__getitem__)
            begins_s = max(self.free_at[number], self.now_s - self.tick_s)
            self.free_at[number] = begins_s + self.prefill_s
            heapq.heappush(self.in_prefill, (self.free_at[number], self.prompts.popleft()))
        while self.in_prefill and self.in_prefill[0][0] <= self.now_s:
            _, arrived_s = heapq.heappop(self.in_prefill)
            self.counts["p_work"] += self.prefill_s
            self.counts["p_done"] += 1
            self.answers.append(arrived_s)

    def _decode(self) -> None:
        length = self.prompt + self.output
        for one in self.decoders:
            held = len(one.running) * (self.prompt + self.output / 2)
            if not one.running:
                continue
            step_s = self.decode_timer.step_seconds(decode_sequences=len(one.running), decode_context_tokens=held)
            one.steps += self.tick_s / step_s
            while one.running and one.running[0][0] <= one.steps:
                _, first_s, arrived_s = heapq.heappop(one.running)
                self._finish(first_s, arrived_s)
        taking = [one for one in self.decoders if not one.draining]
        while self.answers and taking:
            one = min(taking, key=lambda one: len(one.running))
            if (len(one.running) + 1) * length > self.kv_tokens or len(one.running) >= 256:
                break
            arrived_s = self.answers.popleft()
            heapq.heappush(one.running, (one.steps + self.output, self.now_s, arrived_s))
            self.counts["ttft"] += 1
            self.counts["ttft_ok"] += self.now_s - arrived_s <= self.objective.ttft_s
        self.decoders = [one for one in self.decoders if one.running or not one.draining]

    def _finish(self, first_s: float, arrived_s: float) -> None:
        tpot_s = (self.now_s - first_s) / (self.output - 1)
        good = first_s - arrived_s <= self.objective.ttft_s and tpot_s <= self.objective.tpot_s
        counts = self.counts
        counts["tpot"] += 1
        counts["tpot_ok"] += tpot_s <= self.objective.tpot_s
        counts["good" if good else "bad"] += 1
        counts["prompt"] += self.prompt
        counts["output"] += self.output
        counts["d_work"] += self.now_s - first_s
        counts["d_done"] += 1
        self.by_minute.setdefault(int(arrived_s // 60), []).append(good)

    def _poisson(self, mean: float) -> int:
        count, product, limit = 0, self.chance.random(), math.exp(-mean)
        while product > limit:
            count += 1
            product *= self.chance.random()
        return count

    def _scrape(self) -> None:
        running = sum(len(one.running) for one in self.decoders)
        gauges = {
            "p_running": len(self.in_prefill), "p_waiting": len(self.prompts),
            "d_running": running, "d_waiting": len(self.answers),
        }  # fmt: skip
        self.samples.append((self.now_s, self.counts | gauges))

    def _window(self, length_s: float) -> list[tuple[float, dict[str, float]]]:
        return [one for one in self.samples if one[0] > self.now_s - length_s]

    def _rate(self, name: str, length_s: float) -> float | None:
        window = self._window(length_s)
        if len(window) < 2:
            return None
        (first_s, first), (last_s, last) = window[0], window[-1]
        return (last[name] - first[name]) / (last_s - first_s)

    def observe(self) -> ServiceObservation:
        """What Prometheus and the API server say now."""
        tuning = self.tuning
        age_s = self.now_s - self.samples[-1][0]

        def one(number: float | None) -> Reading:
            return UNKNOWN if number is None else read(number, age_s=age_s, stale_after_s=60)

        def rate(name: str, length_s: float = tuning.rate_window_s) -> Reading:
            return one(self._rate(name, length_s))

        def last(name: str) -> Reading:
            return one(self.samples[-1][1][name])

        latest = list(self.samples)[-2:]
        latest_per_s = (
            (latest[1][1]["arrived"] - latest[0][1]["arrived"]) / (latest[1][0] - latest[0][0])
            if len(latest) > 1
            else None
        )
        signals = ServiceSignals(
            arrived_per_s=rate("arrived"), burst_per_s=rate("arrived", tuning.burst_window_s),
            latest_per_s=one(latest_per_s),
            scrapes=one(len(self._window(tuning.burst_window_s))), refused_per_s=one(0.0),
            pending=one(0.0),
            ttft_per_s=rate("ttft"), ttft_within_per_s=rate("ttft_ok"),
            tpot_per_s=rate("tpot"), tpot_within_per_s=rate("tpot_ok"),
            prompt_tokens_per_s=rate("prompt"), cached_tokens_per_s=one(0.0), output_tokens_per_s=rate("output"),
            good_per_s=rate("good", 300.0), bad_per_s=rate("bad", 300.0),
            good_lately_per_s=rate("good"), bad_lately_per_s=rate("bad"),
        )  # fmt: skip
        pools = []
        for name, short in (("prefill", "p"), ("decode", "d")):
            ready = len(self.free_at) if short == "p" else sum(not d.draining for d in self.decoders)
            work, done = (
                self._rate(short + "_work", tuning.rate_window_s),
                self._rate(short + "_done", tuning.rate_window_s),
            )
            window = self._window(tuning.rate_window_s)
            mean = sum(row[short + "_running"] for _, row in window) / max(1, len(window))
            pools.append(
                PoolObservation(
                    name, PoolCounts(self.wanted[name], ready),
                    PoolSignals(last(short + "_running"), one(mean), last(short + "_waiting"),
                                one(work / done if work is not None and done else None), one(done), UNKNOWN),
                )
            )  # fmt: skip
        return ServiceObservation(KEY, signals, tuple(pools))

    def _decide(self) -> None:
        decision = decide(self.policy, self.state, self.observe(), self.now_s)
        self.state = decision.state
        self.decisions.append(decision)
        for pool in decision.pools:
            self._scale(pool.name, pool.desired)

    def _scale(self, name: str, workers: int) -> None:
        while self.wanted[name] < workers:
            self.starting[name].append(self.now_s + self.startup_s)
            self.wanted[name] += 1
        while self.wanted[name] > workers:
            self.wanted[name] -= 1
            if self.starting[name]:
                self.starting[name].pop()
            elif name == "prefill":
                self.free_at.remove(min(self.free_at))
            else:
                min((d for d in self.decoders if not d.draining), key=lambda d: len(d.running)).draining = True
