"""Chats that share system prompts, over mock engines, in virtual time: the router's choice without its data plane.

The load: 64 system prompts of 2,000 words by Zipf's law, chats of three to six turns, 40 new chats a second over eight engines.
An engine computes one prompt at a time (5 ms and 22 us for each token that is not cached), gives every running request a token
each 8 ms, and keeps 1,200 blocks of 16 tokens, which is about nine system prompts, least recently used out. A token is seven
characters. The texts are real, so the router's own hashing, index, learning and choice are run on them.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from random import Random

from forebay_api.modelservice import Role
from forebay_api.objective import Objective, Outcome
from forebay_router.accounting import Record
from forebay_router.choose import Snapshot, choose
from forebay_router.index.approximate import ApproximateIndex
from forebay_router.index.content import content_of
from forebay_router.index.prefix_index import PrefixIndex
from forebay_router.learning import Trip, learn
from forebay_router.predicting import Candidate, Demand
from forebay_router.speed import ASSUMED, PoolSpeed, Speed
from forebay_router.usage import Usage

TOKEN_CHARACTERS = 7
BLOCK_TOKENS = 16
BLOCK_CHARACTERS = TOKEN_CHARACTERS * BLOCK_TOKENS
ENGINES = 8
CACHE_BLOCKS = 1200
FIRST_S = 0.005
TOKEN_S = 22e-6
STEP_S = 0.008
OUTPUT_TOKENS = 48
PROMPTS = 64
CHATS_PER_S = 40.0
OBJECTIVE = Objective(ttft_s=0.5, tpot_s=0.025, target=0.99)
"""As the router has it for listed workers."""


class Engine:
    """One mock engine: its cache and its queue."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.cache: OrderedDict[int, None] = OrderedDict()
        self.free_s = 0.0
        self.requests = 0

    def hold(self, text: str) -> int:
        """Put a text into the cache; returns the tokens that were there."""
        chain, last = [], 0
        for start in range(0, len(text) - BLOCK_CHARACTERS + 1, BLOCK_CHARACTERS):
            last = hash((last, text[start : start + BLOCK_CHARACTERS]))
            chain.append(last)
        held = next((at for at, block in enumerate(chain) if block not in self.cache), len(chain))
        for block in reversed(chain):
            self.cache[block] = None
            self.cache.move_to_end(block)
        while len(self.cache) > CACHE_BLOCKS:
            self.cache.popitem(last=False)
        return held * BLOCK_TOKENS


@dataclass
class Chat:
    """One chat."""

    system: int
    messages: list[dict[str, str]]
    further: list[str]
    """What the user says from now on."""
    think_s: list[float]
    text: str = ""


@dataclass
class Asked:
    """One request."""

    chat: Chat
    at_s: float
    engine: Engine
    prompt_tokens: int = 0
    cached_tokens: int = 0
    first_s: float = 0.0


@dataclass
class Outcomes:
    """What a run came to."""

    ttft_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    requests: dict[str, int] = field(default_factory=dict)
    computed_s: dict[str, float] = field(default_factory=dict)

    def add(self, asked: Asked) -> None:
        """Count a request."""
        self.ttft_s.append(asked.first_s - asked.at_s)
        self.prompt_tokens += asked.prompt_tokens
        self.cached_tokens += asked.cached_tokens
        uid = asked.engine.uid
        self.requests[uid] = self.requests.get(uid, 0) + 1
        cost_s = FIRST_S + TOKEN_S * (asked.prompt_tokens - asked.cached_tokens)
        self.computed_s[uid] = self.computed_s.get(uid, 0.0) + cost_s

    @property
    def cached_share(self) -> float:
        """Of all prompt tokens."""
        return self.cached_tokens / self.prompt_tokens

    @property
    def spread(self) -> float:
        """Requests of the busiest engine over the mean."""
        return max(self.requests.values()) * ENGINES / sum(self.requests.values())

    @property
    def work_spread(self) -> float:
        """Prefill seconds of the busiest engine over the mean."""
        return max(self.computed_s.values()) * ENGINES / sum(self.computed_s.values())

    def ttft_ms(self, percent: float) -> float:
        """A percentile."""
        ordered = sorted(self.ttft_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] * 1e3


class Policy:
    """What is asked for each request."""

    def route(self, asked_at_s: float, fields: dict, engines: Sequence[Engine]) -> Engine:
        """Choose an engine."""
        raise NotImplementedError

    def first_token(self, asked: Asked, now_s: float) -> None:
        """Its first token has come."""

    def ended(self, asked: Asked, now_s: float) -> None:
        """It has ended."""


class Forebay(Policy):
    """The router's choice, index and learning, as `Placing` and the table join them."""

    def __init__(self, engines: Sequence[Engine], seed: int, kv_tokens: int | None = None) -> None:
        self.rng = Random(seed)
        self.pool = PoolSpeed(ASSUMED)
        self.index = PrefixIndex(ApproximateIndex(250_000))
        candidates = [Candidate(one.uid, Role.MIXED, speed=Speed(self.pool)) for one in engines]
        for one in engines:
            self.index.add_worker(one.uid, "mixed", kv_tokens)
        self.snapshot = Snapshot.of(candidates)
        self.by_uid = {one.uid: one for one in engines}
        self.trips: dict[int, tuple[Trip, int, int]] = {}
        self.numbers = count()
        self.last: tuple[Trip, int, int] | None = None

    def route(self, asked_at_s: float, fields: dict, engines: Sequence[Engine]) -> Engine:  # noqa: ARG002  (knows them)
        """As `Placing` does."""
        content = content_of(fields)
        look_up = self.index.look_up("s", content)
        self.index.arrived(look_up)
        demand = Demand(
            prompt_tokens=look_up.prompt_tokens,
            output_tokens=OUTPUT_TOKENS,
            cached=look_up.cached,
            common_tokens=look_up.common_tokens,
            objective=OBJECTIVE,
            displacement=look_up.displacement,
            start=look_up.start,
        )
        choice = choose(demand, self.snapshot, self.rng, asked_at_s)
        worker = choice.worker
        uncached = max(1, round(choice.prediction.work_tokens))
        dispatch = self.index.sent(worker.uid, look_up)
        trip = Trip.begin(choice, look_up, dispatch, asked_at_s)
        number = next(self.numbers)
        worker.load.requests += 1
        worker.load.prompt_tokens += uncached
        worker.load.output_tokens += OUTPUT_TOKENS
        worker.load.backlog.add(number, uncached, asked_at_s, visible=True)
        self.last = (trip, number, uncached)
        return self.by_uid[worker.uid]

    def sent(self, asked: Asked) -> None:
        """Remember what was promised."""
        self.trips[id(asked)] = self.last

    def first_token(self, asked: Asked, now_s: float) -> None:
        """The prompt is no longer work to do."""
        _, number, uncached = self.trips[id(asked)]
        load = self.snapshot.by_uid[asked.engine.uid].load
        load.backlog.computed(number, now_s)
        load.prompt_tokens -= uncached

    def ended(self, asked: Asked, now_s: float) -> None:
        """Learn from it."""
        trip, _, _ = self.trips.pop(id(asked))
        load = self.snapshot.by_uid[asked.engine.uid].load
        record = Record(asked.at_s)
        record.outcome = Outcome.FINISHED
        record.streamed = True
        record.first_content_s, record.last_content_s = asked.first_s, now_s
        record.usage = Usage(asked.prompt_tokens, OUTPUT_TOKENS, asked.cached_tokens)
        computed_tokens = load.backlog.computed_tokens
        learn(trip, record, self.index, in_flight=load.requests, computed_tokens=computed_tokens)
        load.requests -= 1
        load.output_tokens -= OUTPUT_TOKENS


class _Words:
    def __init__(self, seed: int) -> None:
        rng = Random(12345)
        syllables = [c + v for c in (*"bcdfghjklmnprstvw", "st", "tr", "pl", "ch") for v in (*"aeiou", "ea", "ou")]
        found: set[str] = set()
        while len(found) < 4000:
            word = "".join(rng.choice(syllables) for _ in range(rng.choice((1, 2, 2, 2, 3, 3))))
            found.add(word + rng.choice(("", "n", "s", "r", "")))
        self.vocabulary = sorted(found)
        rng.shuffle(self.vocabulary)
        self.weights = list(accumulate(1 / (at + 10) for at in range(4000)))
        self.rng = Random(seed)

    def text(self, words: int) -> str:
        return " ".join(self.rng.choices(self.vocabulary, cum_weights=self.weights, k=words))


def chats(seed: int, sessions: int, chats_per_s: float = CHATS_PER_S) -> list[tuple[float, Chat]]:
    """(start, chat), in order; fixed by the seed."""
    rng, words = Random(seed), _Words(seed + 1)
    systems = [words.text(2000) for _ in range(PROMPTS)]
    weights = list(accumulate(1 / (at + 1) for at in range(PROMPTS)))
    made, at_s = [], 0.0
    for _ in range(sessions):
        at_s += rng.expovariate(chats_per_s)
        system = rng.choices(range(PROMPTS), cum_weights=weights)[0]
        turns = rng.choice((3, 4, 5, 6))
        further = [words.text(rng.randint(20, 100)) for _ in range(turns)]
        think_s = [rng.expovariate(1.0) for _ in range(turns)]
        made.append((at_s, Chat(system, [{"role": "system", "content": systems[system]}], further, think_s)))
    return made


class _Serving:
    """Chats on engines, event by event."""

    def __init__(self, policy: Policy, engines: Sequence[Engine], counted: tuple[float, float]) -> None:
        self.policy, self.engines = policy, engines
        self.counted = counted
        """Requests that arrive between these are counted."""
        self.outcomes = Outcomes()
        self._order = count()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []

    def later(self, at_s: float, what: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), what))

    def play(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            now_s, _, what = heapq.heappop(self._events)
            what(now_s)

    def arrive(self, chat: Chat, now_s: float) -> None:
        chat.messages.append({"role": "user", "content": chat.further.pop(0)})
        engine = self.policy.route(now_s, {"model": "mock", "messages": chat.messages}, self.engines)
        text = "".join(f"<|{one['role']}|>{one['content']}" for one in chat.messages)
        asked = Asked(chat, now_s, engine, len(text) // TOKEN_CHARACTERS, engine.hold(text))
        if isinstance(self.policy, Forebay):
            self.policy.sent(asked)
        chat.text = text
        cost_s = FIRST_S + TOKEN_S * (asked.prompt_tokens - asked.cached_tokens)
        engine.free_s = max(now_s, engine.free_s) + cost_s
        asked.first_s = engine.free_s
        self.later(engine.free_s, lambda at_s: self._begin(asked, at_s))

    def _begin(self, asked: Asked, now_s: float) -> None:
        self.policy.first_token(asked, now_s)
        self.later(now_s + STEP_S * (OUTPUT_TOKENS - 1), lambda at_s: self._end(asked, at_s))

    def _end(self, asked: Asked, now_s: float) -> None:
        chat = asked.chat
        answer = "".join(f" {chr(97 + at % 26)}ab" for at in range(OUTPUT_TOKENS))
        asked.engine.hold(chat.text + answer)
        self.policy.ended(asked, now_s)
        if self.counted[0] <= asked.at_s <= self.counted[1]:
            self.outcomes.add(asked)
        if chat.further:
            chat.messages.append({"role": "assistant", "content": answer})
            self.later(now_s + chat.think_s[len(chat.further) - 1], lambda at_s: self.arrive(chat, at_s))


def run(make: Callable[[Sequence[Engine]], Policy], *, seed: int = 1, sessions: int = 800) -> Outcomes:
    """Serve the chats; the first third warms up and is not counted."""
    engines = [Engine(f"e{at}") for at in range(ENGINES)]
    plan = chats(seed, sessions)
    last_s = plan[-1][0]
    serving = _Serving(make(engines), engines, (last_s / 3, last_s))
    for at_s, chat in plan:
        serving.later(at_s, lambda now_s, chat=chat: serving.arrive(chat, now_s))
    serving.play(last_s + 3)
    return serving.outcomes
