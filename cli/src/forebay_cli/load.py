"""An open-loop load of streamed chat requests that judges every request it sent.

Arrivals are a Poisson process whose rate follows a list of stages; a slow server does not slow the arrivals down, since
real users do not wait for one another. Every request ends in exactly one record, judged by the one definition of good
(`forebay_api.objective`):

    TTFT is the first chunk with content (not the role chunk), TPOT = (last - first content) / (tokens - 1) with the token
    count taken from the usage chunk. A stream without its `[DONE]`, with an error event, or with `finish_reason: abort` failed,
    whatever its HTTP status said.

The number of requests is bounded by the stages and by `MAX_REQUESTS`; the number in flight by `in_flight_max`, beyond which
a request is recorded as rejected by the generator itself, never silently dropped.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from forebay_api.objective import Objective, Outcome, Verdict, attainment, judge, time_per_output_token_s

MAX_REQUESTS: Final = 100_000
CONNECT_TIMEOUT_S: Final = 5.0
WORDS: Final = (
    "water", "gate", "turbine", "river", "basin", "flow", "level", "pressure", "valve", "spillway", "concrete", "season",
    "rain", "snow", "melt", "valley", "engineer", "control", "measure", "forecast", "power", "grid", "demand", "night",
    "morning", "reserve", "channel", "intake", "tunnel", "generator",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of constant arrival rate."""

    rate_rps: float
    """Mean arrivals per second."""
    duration_s: float
    """Length of the stretch, seconds."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What the requests look like."""

    model: str
    """Value of the `model` field."""
    prompt_words: int = 150
    """Words of each prompt, the shared beginning included."""
    shared_words: int = 60
    """Words that all prompts of one of the `families` begin with."""
    families: int = 4
    """Number of different shared beginnings."""
    output_tokens: int = 96
    """Tokens asked for; the engine is told not to stop before."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request, as the client saw it."""

    request_id: str
    started_s: float
    """Seconds since the load began."""
    duration_s: float
    outcome: Outcome
    verdict: Verdict
    ttft_s: float | None
    tpot_s: float | None
    output_tokens: int
    error: str | None
    """What went wrong, in the server's or the client library's words."""


@dataclass(slots=True)
class LoadReport:
    """All records, and the sums a person asks for."""

    records: list[RequestRecord] = field(default_factory=list)

    def count(self, verdict: Verdict) -> int:
        """Requests with one verdict."""
        return sum(1 for record in self.records if record.verdict is verdict)

    @property
    def failed(self) -> int:
        """Requests that did not finish, the client's own departures aside."""
        return sum(1 for record in self.records if record.outcome not in {Outcome.FINISHED, Outcome.CLIENT_LEFT})

    @property
    def attainment(self) -> float | None:
        """Share of judged requests that were good; None when none was judged."""
        return attainment(self.count(Verdict.GOOD), self.count(Verdict.BAD))

    def percentile_ttft_s(self, share: float) -> float | None:
        """TTFT below which `share` of the finished requests lie."""
        return _percentile([r.ttft_s for r in self.records if r.ttft_s is not None], share)

    def percentile_tpot_s(self, share: float) -> float | None:
        """TPOT below which `share` of the finished requests lie."""
        return _percentile([r.tpot_s for r in self.records if r.tpot_s is not None], share)

    def errors(self) -> Counter[str]:
        """Error texts and how often each was seen."""
        return Counter(record.error for record in self.records if record.error is not None)

    def summary(self) -> dict[str, Any]:
        """The report in numbers, ready for JSON."""
        return {
            "requests": len(self.records),
            "good": self.count(Verdict.GOOD),
            "bad": self.count(Verdict.BAD),
            "abandoned": self.count(Verdict.ABANDONED),
            "failed": self.failed,
            "attainment": self.attainment,
            "output_tokens": sum(record.output_tokens for record in self.records),
            "ttft_p50_s": self.percentile_ttft_s(0.5),
            "ttft_p99_s": self.percentile_ttft_s(0.99),
            "tpot_p50_s": self.percentile_tpot_s(0.5),
            "tpot_p99_s": self.percentile_tpot_s(0.99),
            "errors": dict(self.errors().most_common(10)),
        }


def _percentile(values: list[float], share: float) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def arrival_times_s(stages: Sequence[Stage], rng: random.Random) -> list[float]:
    """Poisson arrivals over the stages, seconds from the start; the same seed gives the same list."""
    arrivals: list[float] = []
    begin_s = 0.0
    for stage in stages:
        now_s = begin_s
        while stage.rate_rps > 0:
            now_s += rng.expovariate(stage.rate_rps)
            if now_s >= begin_s + stage.duration_s:
                break
            arrivals.append(now_s)
        begin_s += stage.duration_s
    if len(arrivals) > MAX_REQUESTS:
        raise ValueError(f"the stages ask for {len(arrivals)} requests, more than {MAX_REQUESTS}: shorten them")
    return arrivals


def build_body(workload: Workload, rng: random.Random) -> dict[str, Any]:
    """One streamed chat request of the workload."""
    family = random.Random(rng.randrange(workload.families))  # noqa: S311  # text, not secrets
    shared = " ".join(family.choices(WORDS, k=workload.shared_words))
    own = " ".join(rng.choices(WORDS, k=max(1, workload.prompt_words - workload.shared_words)))
    return {
        "model": workload.model,
        "messages": [{"role": "system", "content": shared}, {"role": "user", "content": own}],
        "max_tokens": workload.output_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@dataclass(slots=True)
class _Stream:
    """What a stream has shown so far; times are seconds on the loop's clock."""

    first_content_s: float | None = None
    last_content_s: float | None = None
    output_tokens: int = 0
    finished: bool = False
    """A `[DONE]` was seen."""
    error: str | None = None

    def take(self, payload: bytes, now_s: float) -> None:
        """Take the payload of one `data:` event."""
        if payload == b"[DONE]":
            self.finished = True
            return
        event = json.loads(payload)
        if "error" in event:
            self.error = f"error event: {str(event['error'].get('message', event['error']))[:200]}"
            return
        if usage := event.get("usage"):
            self.output_tokens = usage.get("completion_tokens", self.output_tokens)
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            if delta.get("content") or delta.get("reasoning") or delta.get("tool_calls"):
                self.first_content_s = self.first_content_s or now_s
                self.last_content_s = now_s
            if choice.get("finish_reason") == "abort":
                self.error = "finish_reason: abort"

    def outcome(self) -> Outcome:
        """How the stream ended, once it has."""
        if self.error is not None:
            return Outcome.FAILED
        if not self.finished:
            self.error = "stream ended without [DONE]"
            return Outcome.CUT_OFF
        return Outcome.FINISHED


async def _data_events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Payloads of the `data:` lines of an event stream."""
    async for line in content:
        if line.startswith(b"data:"):
            yield line[5:].strip()


OnRecord = Callable[[RequestRecord], None]
"""Called with every record as its request ends."""
Sender = Callable[[Sequence[Stage]], Awaitable[None]]
"""Sends the arrivals of some stages."""


class LoadGenerator:
    """Sends one workload to one address and keeps the records."""

    def __init__(
        self, url: str, workload: Workload, objective: Objective, *, seed: int = 0, in_flight_max: int = 2000
    ) -> None:
        self.url = url
        """Base address, such as http://127.0.0.1:8080."""
        self.workload = workload
        self.objective = objective
        self.report = LoadReport()
        self.in_flight = 0
        self._rng = random.Random(seed)  # noqa: S311  # arrivals and prompts, not secrets
        self._seed = seed
        self._in_flight_max = in_flight_max
        self._sent = 0
        self._begun_s = time.monotonic()

    async def run(self, stages: Sequence[Stage], on_record: OnRecord | None = None) -> LoadReport:
        """Send the stages' arrivals and wait for every answer; cancelling ends all requests at once."""
        async with self.sending(on_record) as send:
            await send(stages)
        return self.report

    @asynccontextmanager
    async def sending(self, on_record: OnRecord | None = None) -> AsyncIterator[Sender]:
        """Give a function that sends stages and returns at their end; leaving the block waits for every answer."""
        self._begun_s = asyncio.get_running_loop().time()
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            asyncio.TaskGroup() as tasks,
        ):

            async def send(stages: Sequence[Stage]) -> None:
                loop = asyncio.get_running_loop()
                begun_s = loop.time()
                for arrival_s in arrival_times_s(stages, self._rng):
                    await asyncio.sleep(max(0.0, begun_s + arrival_s - loop.time()))
                    tasks.create_task(self._one(session, self._sent, on_record))
                    self._sent += 1
                await asyncio.sleep(max(0.0, begun_s + sum(stage.duration_s for stage in stages) - loop.time()))

            yield send

    async def _one(self, session: aiohttp.ClientSession, number: int, on_record: OnRecord | None) -> None:
        request_id = f"load-{self._seed}-{number}"
        begun_s = asyncio.get_running_loop().time()
        stream = _Stream()
        if self.in_flight >= self._in_flight_max:
            stream.error = f"not sent: {self._in_flight_max} requests in flight already"
            outcome = Outcome.REJECTED
        else:
            self.in_flight += 1
            try:
                outcome = await self._send(session, request_id, stream)
            finally:
                self.in_flight -= 1
        record = self._record(request_id, begun_s, stream, outcome)
        self.report.records.append(record)
        if on_record is not None:
            on_record(record)

    async def _send(self, session: aiohttp.ClientSession, request_id: str, stream: _Stream) -> Outcome:
        loop = asyncio.get_running_loop()
        body = build_body(self.workload, self._rng)
        try:
            async with session.post(
                f"{self.url}/v1/chat/completions", json=body, headers={"X-Request-Id": request_id}
            ) as response:
                if response.status != 200:
                    stream.error = f"HTTP {response.status}: {(await response.text())[:200]}"
                    return Outcome.REJECTED if response.status in {429, 503} else Outcome.FAILED
                async for payload in _data_events(response.content):
                    stream.take(payload, loop.time())
        except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError) as error:
            stream.error = f"{type(error).__name__}: {error}"
            return Outcome.CUT_OFF if stream.first_content_s is not None else Outcome.FAILED
        return stream.outcome()

    def _record(self, request_id: str, begun_s: float, stream: _Stream, outcome: Outcome) -> RequestRecord:
        ttft_s = tpot_s = None
        if stream.first_content_s is not None and stream.last_content_s is not None:
            ttft_s = stream.first_content_s - begun_s
            tpot_s = time_per_output_token_s(stream.first_content_s, stream.last_content_s, stream.output_tokens)
        return RequestRecord(
            request_id=request_id,
            started_s=begun_s - self._begun_s,
            duration_s=asyncio.get_running_loop().time() - begun_s,
            outcome=outcome,
            verdict=judge(outcome, ttft_s, tpot_s, self.objective),
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            output_tokens=stream.output_tokens,
            error=stream.error,
        )
