"""A second opinion: serving simulated step by step, one request at a time, with the model's step times.

Shares nothing with the closed forms but `StepTimer`: Poisson arrivals, first come first served, decode first, prompts in
chunks within the token budget, a slot limit, and each prompt sent to the lane with the least work.
"""

import heapq
import random
from collections import deque
from dataclasses import dataclass, field

from forebay_capacity.steptime import StepTimer


@dataclass(eq=False)
class Request:
    arrived_s: float
    computed: int
    made: int = 0
    first_s: float = 0.0
    last_s: float = 0.0


@dataclass(eq=False)
class Lane:
    timer: StepTimer
    prefills: bool
    decodes: bool
    waiting: deque[Request] = field(default_factory=deque)
    prefilling: list[Request] = field(default_factory=list)
    decoding: list[Request] = field(default_factory=list)
    busy: bool = False


@dataclass(frozen=True)
class Load:
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    rate_per_s: float


class StepSimulation:
    """Mixed lanes, or prefill lanes that hand over to decode lanes after `transfer_s`."""

    def __init__(self, load: Load, *, mixed: list[StepTimer], prefill: list[StepTimer], decode: list[StepTimer],
                 slots: int, budget: int = 8192, transfer_s: float = 0.0, seed: int = 1):  # fmt: skip
        self.load, self.slots, self.budget, self.transfer_s = load, slots, budget, transfer_s
        self.entry = [Lane(timer, prefills=True, decodes=True) for timer in mixed]
        self.entry += [Lane(timer, prefills=True, decodes=False) for timer in prefill]
        self.exit = [Lane(timer, prefills=False, decodes=True) for timer in decode]
        self.random = random.Random(seed)
        self.events: list[tuple[float, int, str, object]] = []
        self.count = 0
        self.finished_s: list[float] = []

    def run(self, requests: int) -> list[tuple[float, float]]:
        """(TTFT, TPOT) of the requests after a warm-up of a sixth of them."""
        now, made = 0.0, []
        for _ in range(requests):
            now += self.random.expovariate(self.load.rate_per_s)
            made.append(Request(now, self.load.cached_tokens))
            self._at(now, "arrive", made[-1])
        while self.events:
            now, _, kind, subject = heapq.heappop(self.events)
            getattr(self, f"_{kind}")(now, subject)
        self.finished_s = sorted(request.last_s for request in made)
        steps = max(1, self.load.output_tokens - 1)
        return [(r.first_s - r.arrived_s, (r.last_s - r.first_s) / steps) for r in made[requests // 6 :]]

    def _at(self, when: float, kind: str, subject: object) -> None:
        self.count += 1
        heapq.heappush(self.events, (when, self.count, kind, subject))

    def _arrive(self, now: float, request: Request) -> None:
        lane = min(self.entry, key=self._work)
        lane.waiting.append(request)
        self._step(now, lane)

    def _hand_over(self, now: float, request: Request) -> None:
        lane = min(self.exit, key=lambda one: len(one.waiting) + len(one.decoding))
        lane.waiting.append(request)
        self._step(now, lane)

    def _work(self, lane: Lane) -> float:
        prompts = sum(self.load.input_tokens - request.computed for request in (*lane.waiting, *lane.prefilling))
        return prompts + 64 * len(lane.decoding)

    def _step(self, now: float, lane: Lane) -> None:
        if lane.busy:
            return
        while lane.waiting and len(lane.prefilling) + len(lane.decoding) < self.slots:
            (lane.prefilling if lane.prefills else lane.decoding).append(lane.waiting.popleft())
        room, chunks, attention = self.budget - len(lane.decoding), [], 0
        for request in lane.prefilling:
            tokens = min(room, self.load.input_tokens - request.computed)
            if tokens <= 0:
                break
            attention += (request.computed + tokens) ** 2 - request.computed**2
            chunks.append((request, tokens))
            room -= tokens
        decoding = list(lane.decoding)
        if not decoding and not chunks:
            return
        seconds = lane.timer.step_seconds(
            decode_sequences=len(decoding),
            decode_context_tokens=sum(self.load.input_tokens + request.made for request in decoding),
            prefill_tokens=sum(tokens for _, tokens in chunks),
            prefill_attention=attention,
        )
        lane.busy = True
        self._at(now + seconds, "finish", (lane, decoding, chunks))

    def _finish(self, now: float, step: tuple[Lane, list[Request], list[tuple[Request, int]]]) -> None:
        lane, decoding, chunks = step
        lane.busy = False
        for request in decoding:
            request.made += 1
            request.first_s = request.first_s or now
            request.last_s = now
            if request.made >= self.load.output_tokens:
                lane.decoding.remove(request)
        for request, tokens in chunks:
            request.computed += tokens
            if request.computed < self.load.input_tokens:
                continue
            lane.prefilling.remove(request)
            if not lane.decodes:
                self._at(now + self.transfer_s, "hand_over", request)
                continue
            request.made, request.first_s, request.last_s = 1, now, now
            if self.load.output_tokens > 1:
                lane.decoding.append(request)
        self._step(now, lane)
