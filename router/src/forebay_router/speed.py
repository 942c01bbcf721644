"""How fast workers are, learnt from the requests they have finished. Pure.

Workers of a pool are alike, so a pool has straight lines (`fitting`):

    seconds to the first token = base + slope x work of the prompt tokens to compute + second x prompts queued ahead
    seconds per output token   = base + slope x sequences in flight + second x prompt tokens computed there per token meanwhile
    seconds of a handover      = base + slope x prompt tokens

Work is tokens, those deep in a prompt counting more (`fitting`): 100,000 may take twice what a line through short prompts says.

The tokens queued ahead count like its own. What each queued prompt costs besides its tokens differs between engines: next to
nothing where several are computed in one step, a whole step where they are not. The same goes for what prompts do to the
sequences that decode beside them: an engine that mixes both in its steps stalls them for the whole time, another not at all.
Hence both are learnt.

A line starts from a seed, the capacity model's or an assumed one, which the first real requests replace soon. A worker that hangs
is a matter for health, not for the fit.

A worker has a factor on its pool's lines: its own mean of log(real / predicted) less that of all the pool's requests, which is
not zero while the lines are still on their way from the seed. Only what is beyond doubt of the difference counts (what exceeds
two and a half standard errors): equal workers must be exactly equal, or the one that chance made look fastest gets everything.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from math import copysign, exp, inf, log, sqrt
from typing import Final, NamedTuple

from forebay_api.objective import Objective
from forebay_router.fitting import FIRST_SPREAD, MEMORY, OUTLIER, SEED_WEIGHT, SMALLEST_S, Bend, Line

_DEVIATIONS: Final[tuple[tuple[float, float], ...]] = (
    (0.5, 0.674),
    (0.75, 1.15),
    (0.9, 1.645),
    (0.95, 1.96),
    (0.99, 2.576),
    (0.999, 3.29),
)
"""Target -> standard deviations that leave both times within their limits together that often."""
_BEYOND_DOUBT: Final = 2.5
"""Standard errors."""


class Origin(StrEnum):
    """Where a worker's speed comes from."""

    ASSUMED = "assumed"
    PLANNED = "planned"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Seed:
    """What is expected of a worker before it has done anything."""

    first_token_s: float
    """Fixed part of the time to the first token."""
    prefill_token_s: float
    """Seconds a prompt token."""
    step_s: float
    """Seconds per output token of a sequence that is alone."""
    step_growth_s: float
    """What one more sequence adds to everybody's seconds per output token."""
    origin: Origin
    kv_tokens: int | None = None
    """Tokens that the KV cache of a worker holds, where that is known."""
    bend: float = 0.0
    """How much more a prompt token takes for each token before it, as a share."""


ASSUMED: Final = Seed(0.01, 1 / 20_000, 0.008, 0.000_05, Origin.ASSUMED)
"""An 8B model on a large GPU, roughly. Only used until a few requests have been measured."""
_USUAL_PROMPT: Final = 1024.0
_USUAL_BATCH: Final = 16.0
_USUAL_QUEUE: Final = 4.0
"""Prompts."""
_USUAL_STALL: Final = 32.0
"""Prompt tokens computed on a worker for each output token of a sequence there."""
_ADAPTER_S: Final = 0.1
"""Loading an adapter, until one load has been seen."""
_TRANSFER_BASE_S: Final = 0.005
_TRANSFER_TOKEN_S: Final = 5e-6
"""KV blocks of an 8B model over a 200 Gbit/s network, roughly; measured from the first handovers on."""
_MEASURED: Final = 8
"""Requests after which a speed counts as measured."""
TRAFFIC_S: Final = 30.0
"""Time over which traffic is averaged."""
BUSY_MAX: Final = 0.9
PACE_DEVIATIONS: Final = 1.3
"""Between the mean pace of a worker that runs as many as it can in time and the objective's: nine answers of ten keep to that."""
BEYOND_SEEN: Final = 2.0
"""A line that the capacity model has not planned is believed for so many times as many sequences as were seen at once."""
SHARE_MAX: Final = 1.45
"""Prompts of a worker over the mean of its pool that are still even."""


class Terms(NamedTuple):
    """What predictions for one pool and objective are made of."""

    base_s: float
    token_s: float
    prompt_s: float
    """Of each prompt queued ahead, besides its tokens."""
    step_s: float
    growth_s: float
    stall_s: float
    """What a prompt token costs each sequence that decodes beside it."""
    bounds: tuple[float, float]
    """What predicted TTFT and TPOT must keep to for the objective to be met with its target probability, seconds."""
    per_ttft: float
    """1 / the objective's."""
    per_tpot: float
    bend: float
    """How much more a prompt token takes for each token before it."""


@lru_cache(maxsize=64)
def deviations_for(target: float) -> float:
    """Standard deviations that a prediction must keep from its limit for a target share."""
    return next((deviations for share, deviations in _DEVIATIONS if target <= share), _DEVIATIONS[-1][1])


@dataclass(slots=True)
class Rate:
    """How much of something there is a second, over the last `TRAFFIC_S`."""

    value: float = 0.0
    """At the last one."""
    last_s: float = 0.0

    def note(self, now_s: float, amount: float) -> None:
        """So much now."""
        kept = exp(min(0.0, self.last_s - now_s) / TRAFFIC_S)
        self.value = self.value * kept + amount / TRAFFIC_S
        self.last_s = now_s

    def at(self, now_s: float) -> float:
        """As it is now, nothing having come since the last one."""
        return self.value * TRAFFIC_S / (TRAFFIC_S + max(0.0, now_s - self.last_s))


@dataclass(slots=True)
class PoolSpeed:
    """What the workers of one pool have in common. Live: finished requests change it."""

    seed: Seed = ASSUMED
    first_token: Line = field(init=False)
    """Seconds to the first token by the work of prompt tokens to compute and prompts queued ahead."""
    bend: Bend = field(init=False)
    output_token: Line = field(init=False)
    """Seconds per output token by sequences in flight and by prompt tokens that are computed there per output token."""
    transfer: Line = field(init=False)
    """Of decode workers: seconds from the end of prefill elsewhere to the first token, by prompt tokens."""
    adapter_s: float = _ADAPTER_S
    """What loading an adapter adds to the first token."""
    prompts: Rate = field(default_factory=Rate)
    """That are computed, by all workers."""
    work_s: Rate = field(default_factory=Rate)
    """Of all of them."""
    relief_s: Rate = field(default_factory=Rate)
    """What relieving workers cost: what was computed again, and what requests waited longer."""
    workers: int = 1
    """That prompts are sent to now."""
    beside: float = 0.0
    """Prompt tokens that were computed beside the last answers' sequences."""
    written: float = 0.0
    """Output tokens of the last answers."""
    company: float = 0.0
    """Output tokens of all sequences that ran while the last answers were written."""
    unevenness: float = FIRST_SPREAD**2
    """Mean square of log(real / expected of so many sequences and the prompts that they bring)."""
    widest: float = 0.0
    """The most sequences beside which answers were written of late."""
    most: float = inf
    """Requests at once that a worker runs in time; infinite while that is not known. As of the last change."""
    most_s: float = inf
    """Within this time per output token."""
    _terms: Terms | None = None
    """As of the last change."""
    _objective: Objective | None = None
    """That they are for."""

    def __post_init__(self) -> None:
        """Start from the seed."""
        self._begin()

    def plan(self, seed: Seed) -> None:
        """Another seed: taken over while nothing has been measured."""
        changed = seed != self.seed
        self.seed = seed
        if changed and self.origin is not Origin.MEASURED:
            self._begin()

    def _begin(self) -> None:
        self._terms = None
        seed = self.seed
        self.first_token = Line(seed.first_token_s, seed.prefill_token_s, _USUAL_PROMPT, 0.0, _USUAL_QUEUE)
        self.bend = Bend(seed.bend)
        self.output_token = Line(seed.step_s, seed.step_growth_s, _USUAL_BATCH, seed.prefill_token_s, _USUAL_STALL)
        self.transfer = Line(_TRANSFER_BASE_S, _TRANSFER_TOKEN_S, _USUAL_PROMPT)

    def terms(self, objective: Objective) -> Terms:
        """What predictions are made of now."""
        if self._terms is not None and self._objective is objective:
            return self._terms
        first, output = self.first_token, self.output_token
        deviations = deviations_for(objective.target)
        self._objective = objective
        self._terms = terms = Terms(
            first.base,
            first.slope,
            first.second,
            output.base + output.second * self.mixing,
            output.slope,
            output.second,
            (
                objective.ttft_s * exp(-deviations * sqrt(first.spread2)),
                objective.tpot_s * exp(-deviations * sqrt(output.spread2)),
            ),
            1 / objective.ttft_s,
            1 / objective.tpot_s,
            self.bend.value,
        )
        self.most_s = objective.tpot_s * exp(-PACE_DEVIATIONS * sqrt(self.unevenness))
        self.most = self.most_within(self.most_s)
        return terms

    def saw_pace(self, sequences: float, token_s: float) -> None:
        """An answer took so long for each token beside so many: how far that is from what is expected in the long run."""
        line = self.output_token
        steady_s = line.base + self.each_s * sequences
        deviation = log(min(max(token_s / max(SMALLEST_S, steady_s), 1 / OUTLIER), OUTLIER))
        self.unevenness += (deviation * deviation - self.unevenness) * max(1 / (line.seen + SEED_WEIGHT), 1 / MEMORY)

    @property
    def each_s(self) -> float:
        """What a sequence adds to everybody's seconds per output token in the long run: itself, and prompts that come with it."""
        line = self.output_token
        return line.slope + line.second * self.beside / max(1.0, self.company)

    def most_within(self, tpot_s: float) -> float:
        """Requests at once that write a token each within such a time, infinite where that is not known.

        Known is what was measured; and, where the capacity model has not planned it, not far beyond what was seen. A worker that
        cannot write even one answer in such a time has no such number.
        """
        line = self.output_token
        each_s = self.each_s
        if line.seen < MEMORY or each_s <= 0:
            return inf
        most = (tpot_s - line.base) / each_s
        sure = self.seed.origin is Origin.PLANNED or most <= BEYOND_SEEN * self.widest
        return most if most >= 1 and sure else inf

    def saw_adapter(self, seconds: float) -> None:
        """A first token came so much later, its adapter having to be loaded."""
        self.adapter_s += (min(max(0.0, seconds), OUTLIER * self.adapter_s + 1.0) - self.adapter_s) / 8

    def changed(self) -> None:
        """A line has moved."""
        self._terms = None

    @property
    def mixing(self) -> float:
        """Prompt tokens that are computed beside a sequence for each output token of it."""
        return self.beside / self.written if self.written else 0.0

    @property
    def origin(self) -> Origin:
        """Measured once enough requests were."""
        return Origin.MEASURED if self.first_token.seen >= _MEASURED else self.seed.origin


@dataclass(slots=True)
class Factor:
    """How one worker differs from its pool."""

    value: float = 1.0
    """Multiplies the pool's times; 1 unless the difference is beyond doubt."""
    _mean: float = 0.0
    """Of log(real / predicted by the pool's line)."""
    _square: float = FIRST_SPREAD**2
    """Of the deviation from that mean."""
    _seen: int = 0

    def observe(self, deviation: float, pool_mean: float) -> None:
        """One request: its log(real / predicted by the pool's line), and the mean of that over the pool's requests."""
        deviation -= self._mean
        self._seen += 1
        weight = max(1 / (self._seen + SEED_WEIGHT), 1 / MEMORY)
        self._mean += weight * deviation
        self._square += weight * (deviation * deviation - self._square)
        error = sqrt(self._square / min(self._seen + SEED_WEIGHT, MEMORY))
        difference = self._mean - pool_mean
        beyond = abs(difference) - _BEYOND_DOUBT * error
        self.value = exp(copysign(beyond, difference)) if beyond > 0 else 1.0


@dataclass(slots=True)
class Speed:
    """One worker's speed. Live."""

    pool: PoolSpeed = field(default_factory=PoolSpeed)
    first_token: Factor = field(default_factory=Factor)
    output_token: Factor = field(default_factory=Factor)
    busy: Rate = field(default_factory=Rate)
    """Share of the time in which it computes prompts."""
    prompts: Rate = field(default_factory=Rate)
    """That are sent here."""
    last_start: int = 0
    """How the last one began."""
    finished: int = 0
    """Requests that the worker has answered."""

    def sent(self, now_s: float, work: float, relief_s: float = 0.0) -> None:
        """A prompt is sent that is so much work, its cached part left out; to relieve another worker at such a cost."""
        pool, factor = self.pool, self.first_token.value
        line = pool.first_token
        work_s = (line.slope * work + line.second) * factor
        self.busy.note(now_s, work_s)
        self.prompts.note(now_s, 1)
        pool.prompts.note(now_s, 1)
        pool.work_s.note(now_s, work_s)
        if relief_s:
            pool.relief_s.note(now_s, relief_s)

    @property
    def most(self) -> float:
        """Requests at once that it runs in time; infinite while that is not known. As of its pool's last terms."""
        pool, pace = self.pool, self.output_token.value
        return pool.most if pace == 1.0 else pool.most_within(pool.most_s / pace)

    def overrun(self, now_s: float) -> bool:
        """The worker gets more than its share of the pool's prompts, by more than chance explains."""
        fair = self.pool.prompts.at(now_s) / self.pool.workers
        return self.prompts.at(now_s) > SHARE_MAX * fair + 2 * sqrt(fair / TRAFFIC_S)

    def strain(self, now_s: float) -> float:
        """Prompts a second that will be sent here, over the share of time in which it has nothing to compute.

        A prompt that takes x seconds behind a queue of w delays those that come after it by strain * x * (w + x / 2) in all: by x
        each that comes while the queue lasts, and it lasts the longer the busier the worker is (M/G/1). Those that come are as
        many here as elsewhere, however many came of late: by that count, whoever got long prompts would get more of them.
        """
        pool = self.pool
        return pool.prompts.at(now_s) / pool.workers / (1 - min(BUSY_MAX, self.busy.at(now_s)))

    def saw_first_token(self, work: float, seconds: float, prompts: float = 0.0, *, bent: float = 0.0) -> None:
        """A first token came after so long, with so much work to do until then and prompts queued ahead.

        `bent` is how much more that would have been for each unit of the bend.
        """
        pool = self.pool
        line = pool.first_token
        reach = line.slope * bent / max(SMALLEST_S, line.at(work, prompts))
        deviation = self._observe(line, self.first_token, (work, prompts), seconds, size=int(work))
        if bent:
            pool.bend.observe(deviation, reach)

    def saw_output(
        self, sequences: float, token_s: float, *, tokens: int = 1, beside: float = 0.0, prompt: int = 0
    ) -> None:
        """An answer of so many tokens took so long for each, beside so many sequences and prompt tokens computed there.

        `prompt` is the tokens of its own prompt, which each of its steps reads.
        """
        pool = self.pool
        pool.saw_pace(sequences, token_s / self.output_token.value)
        pool.beside += beside - pool.beside / MEMORY
        pool.written += tokens - pool.written / MEMORY
        pool.company += tokens * sequences - pool.company / MEMORY
        pool.widest = max(sequences, pool.widest - (pool.widest - sequences) / MEMORY)
        self._observe(pool.output_token, self.output_token, (sequences, beside / tokens), token_s, size=prompt)

    def _observe(self, line: Line, factor: Factor, at: tuple[float, float], y: float, *, size: int) -> float:
        """Returns log(real / predicted) of the worker, before it is learnt from."""
        x, z = at
        deviation = log(min(max(y / max(SMALLEST_S, line.at(x, z)), 1 / OUTLIER), OUTLIER))
        expected = factor.value
        factor.observe(line.note(size, deviation), line.mean)
        if line.observe(x, y / factor.value, z):
            self.pool.changed()
        return deviation - log(expected)
