"""The two sources behind one interface.

    look_up    a prompt -> how much of it each worker holds, by the source each worker is judged by
    sent       the prompt goes to a worker
    answered   the worker told what it had: correct the mirror, audit both sources, learn how many tokens a byte is

Bytes and tokens. The approximate index counts bytes of content; a service's tokens per byte are learnt from the prompt tokens
that answers tell (a quarter until the first one). What an answer delivered is put back into bytes by that answer's own ratio.

The precise source needs token ids. A request that brings them, or whose text was turned into them (`tokens`), is matched exactly;
for any other the approximate source answers. What is under way to a worker counts as held there, whatever events have told.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from forebay_router.index.approximate import ApproximateIndex, Bound, Sent
from forebay_router.index.audit import Audit, Source
from forebay_router.index.content import BLOCK_MIN_BYTES, Content
from forebay_router.index.holders import Held, slots_in, tokens_in
from forebay_router.index.precise import PreciseIndex
from forebay_router.index.sessions import Guess, Sessions
from forebay_router.index.sharing import CommonStart
from forebay_router.index.underway import Sending, Underway
from forebay_router.predicting import Displacement

FIRST_TOKENS_PER_BYTE: Final = 0.25
_TOKEN_ID_BYTES: Final = 4
_MEMORY: Final = 64
"""Answers over which tokens per byte are averaged."""
_MEMORY_OF_PUSHES: Final = 512
"""Prompts."""
_REGRET_MAX: Final = 0.8
_SLACK_TOKENS: Final = 64
_SLACK_SHARE: Final = 1 / 32
"""Twice the coarseness of the blocks."""


@dataclass(slots=True)
class Known:
    """What is learnt of one service's prompts."""

    common: CommonStart = field(default_factory=CommonStart)
    sessions: Sessions = field(default_factory=Sessions)
    tokens_per_byte: float = FIRST_TOKENS_PER_BYTE
    answers: int = 0
    predicted_tokens: int = 0
    """Expected in caches, summed over answers that told what was there."""
    delivered_tokens: int = 0
    missed_tokens: int = 0
    """Expected and not there."""

    pushed_out: float = 0.0
    """Bytes that gave way in caches to prompts, earlier ones forgotten exponentially."""
    regretted: float = 0.0
    """Of them, what was asked for again soon after."""
    victim_age: float = 0.0
    """Mean of the prompts that had been sent since what gave way was used last."""

    def note_push(self, sent: Sent, records: int) -> None:
        """A prompt went to a worker; `records` prompts so far."""
        self.pushed_out += sent.pushed_out_bytes - self.pushed_out / _MEMORY_OF_PUSHES
        self.regretted += sent.regretted_bytes - self.regretted / _MEMORY_OF_PUSHES
        if sent.pushed_out_bytes:
            self.victim_age += (records - sent.victim - self.victim_age) / (_MEMORY if self.victim_age else 1)

    def displacement(self, index: ApproximateIndex) -> Displacement | None:
        """What it costs to push content out of caches now; None where nothing that is pushed out is missed."""
        if min(self.regretted, self.pushed_out) < BLOCK_MIN_BYTES:
            return None  # what is regretted may be what a bound that shrank pushed out: no prompt's doing
        regret = min(_REGRET_MAX, self.regretted / self.pushed_out)
        return Displacement(regret / (1 - regret) * self.victim_age, index.records, index.victims)

    def note_audit(self, predicted: float, delivered: float) -> None:
        """An answer told its cached tokens."""
        self.predicted_tokens += round(predicted)
        self.delivered_tokens += round(delivered)
        self.missed_tokens += round(max(0.0, predicted - delivered))

    def note_ratio(self, tokens_per_byte: float) -> None:
        """An answer told its prompt tokens."""
        self.answers += 1
        self.tokens_per_byte += max(1 / self.answers, 1 / _MEMORY) * (tokens_per_byte - self.tokens_per_byte)


@dataclass(slots=True)
class LookUp:
    """What the index says of one prompt."""

    content: Content
    """Without its token ids, which are of no more use and may be megabytes."""
    prompt_tokens: int
    """Estimate; exact where token ids are known."""
    tokens_per_byte: float
    cached: Mapping[str, int]
    """Worker -> prompt tokens that it is thought to hold; workers that hold none are left out."""
    common_tokens: int
    """Tokens at the start that nearly every request shares."""
    precise: Mapping[str, int]
    """What events say, of every worker they tell of, whether or not it is used."""
    displacement: Displacement | None
    known: Known
    start: int = 0
    """Names the first block behind what nearly every request shares."""
    session: int | None = None
    guess: Guess | None = None
    """What the session's name adds to `cached`."""


@dataclass(slots=True)
class Dispatch:
    """A prompt that was sent to a worker, and what was promised of it."""

    uid: str
    look_up: LookUp
    sent: Sent
    used: Source
    precise_tokens: int | None
    """What events promised; None when they told nothing."""
    sending: Sending | None
    """The prompt under way, where events are used."""


LISTED_MAX: Final = 32
"""Up to so many holders are listed; of more each is looked up when it is asked for."""
NOWHERE: Final[Mapping[str, int]] = {}


@dataclass(slots=True)
class PrefixIndex:
    """Which worker holds how much of a prompt."""

    approximate: ApproximateIndex
    precise: PreciseIndex = field(default_factory=PreciseIndex)
    audits: dict[str, Audit] = field(default_factory=dict)
    services: dict[str, Known] = field(default_factory=dict)
    bounds: dict[str, Bound] = field(default_factory=dict)
    """Sizes of caches by pool; kept while a pool has no worker, for the next one."""
    fallbacks: int = 0
    """Times that the precise source was given up for a worker, so far."""
    underway: Underway = field(default_factory=Underway)
    clock: Callable[[], float] = time.monotonic
    on_sent: list[Callable[[str, Content], None]] = field(default_factory=list)
    """Told of every prompt that this router sends to a worker."""

    # -- workers ------------------------------------------------------------------------------------------------------

    def add_worker(self, uid: str, pool: str = "", kv_tokens: int | None = None) -> None:
        """Know a worker, and the tokens its KV cache holds where that is known. Workers of a pool have caches of one size."""
        bound = self.bounds.get(pool) if pool else None
        if bound is None:
            bound = Bound(tokens=kv_tokens)
            bound.told(FIRST_TOKENS_PER_BYTE)
            if pool:
                self.bounds[pool] = bound
        self.approximate.add_worker(uid, bound)
        self.audits.setdefault(uid, Audit())

    def drop_worker(self, uid: str) -> None:
        """Forget a worker."""
        self.approximate.drop_worker(uid)
        self.precise.drop_worker(uid)
        self.audits.pop(uid, None)

    def drop_service(self, service: str) -> None:
        """Forget what was learnt of a service and of its pools. Requests that are under way may still end."""
        self.services.pop(service, None)
        for pool in [pool for pool in self.bounds if pool.startswith(f"{service}/")]:
            del self.bounds[pool]

    # -- a request ----------------------------------------------------------------------------------------------------

    def look_up(self, service: str, content: Content, *, lora: str | None = None, session: int | None = None) -> LookUp:
        """What each worker holds of a prompt. `lora` names the adapter, for requests to one."""
        known = self.services.get(service)
        if known is None:
            known = self.services[service] = Known()
        ratio = 1 / _TOKEN_ID_BYTES if content.of_ids else known.tokens_per_byte
        if content.token_ids is not None and content.size_bytes:
            ratio = len(content.token_ids) / content.size_bytes
        precise = NOWHERE
        if content.token_ids is not None and self.precise.ranks:
            precise = self._precise(content, ratio, lora)
        found = LookUp(
            content=content if content.token_ids is None else replace(content, token_ids=None),
            prompt_tokens=round(content.size_bytes * ratio),
            tokens_per_byte=ratio,
            cached=self._cached(content, ratio, precise) if content.hashes or precise else NOWHERE,
            common_tokens=int(known.common.bytes_in(content) * ratio),
            precise=precise,
            displacement=known.displacement(self.approximate) if content.hashes else None,
            known=known,
            start=known.common.start_of(content),
            session=session,
        )
        if session is not None:
            self._guess(found, known.sessions, session)
        return found

    def _guess(self, found: LookUp, sessions: Sessions, session: int) -> None:
        """Add what the session's name lets expect, at the worker that had its last prompt.

        Only where the content shows nothing there that not everybody holds: what follows upon a prompt that is known tells
        nothing of what the name is worth where none is.
        """
        last = sessions.last(session)
        if last is None or last[0] not in self.audits:
            return
        uid, tokens = last
        cached, common = found.cached, found.common_tokens
        seen, whole = max(cached.get(uid, 0), common), min(tokens, found.prompt_tokens)
        slack = _slack_tokens(found.content, found.tokens_per_byte)
        if seen > common + slack or whole - seen <= slack:
            return
        guess = found.guess = sessions.guess(uid, seen, whole)
        if guess.expected > seen:
            one = guess.expected
            found.cached = cached.with_one(uid, one) if isinstance(cached, Held) else {**cached, uid: one}

    def _precise(self, content: Content, ratio: float, lora: str | None) -> dict[str, int]:
        """What events tell, and what is under way."""
        assert content.token_ids is not None
        found = self.precise.match(content.token_ids, lora, content.salt)
        for uid, size in self.underway.match(content, self.clock()).items():
            if uid in found:
                found[uid] = max(found[uid], int(size * ratio))
        return found

    def _cached(self, content: Content, ratio: float, precise: Mapping[str, int]) -> Mapping[str, int]:
        """What each worker holds by the source that it is judged by."""
        judged = {uid: tokens for uid, tokens in precise.items() if self._source(uid) is Source.PRECISE}
        levels = self.approximate.levels(content)
        if not levels:
            return judged
        slots = self.approximate.slots
        if levels[0][0].bit_count() > LISTED_MAX:
            return Held(levels, ratio, slots, judged)
        found: dict[str, int] = {}
        seen = 0
        for mask, depth in reversed(levels):
            for slot in slots_in(mask & ~seen):
                name = slots.names[slot]
                if name is not None:
                    found[name] = tokens_in(depth, ratio)
            seen = mask
        return found | judged if judged else found

    def _source(self, uid: str) -> Source:
        audit = self.audits.get(uid)
        return Source.APPROXIMATE if audit is None else audit.source(precise_speaks=True)

    def arrived(self, look_up: LookUp) -> None:
        """A new request (not a further attempt) is being placed."""
        look_up.known.common.note(look_up.content)

    def sent(self, uid: str, look_up: LookUp) -> Dispatch:
        """The prompt goes to a worker."""
        sent, promised = self.passed_on(uid, look_up.content), look_up.precise.get(uid)
        look_up.known.note_push(sent, self.approximate.records)
        if look_up.session is not None:
            look_up.known.sessions.went(look_up.session, uid, look_up.prompt_tokens)
        sending = None if promised is None else self.underway.note(uid, look_up.content, self.clock())
        return Dispatch(uid, look_up, sent, self.source_of(uid, look_up), promised, sending)

    def source_of(self, uid: str, look_up: LookUp) -> Source:
        """What a worker's cache is judged by for this prompt."""
        return self._source(uid) if uid in look_up.precise else Source.APPROXIMATE

    def passed_on(self, uid: str, content: Content) -> Sent:
        """A worker gets a prompt, to compute it or with its KV cache from elsewhere."""
        for hook in self.on_sent:
            hook(uid, content)
        return self.approximate.record(uid, content)

    def answered(self, dispatch: Dispatch, *, prompt_tokens: int, cached_tokens: int | None) -> None:
        """The answer told its prompt tokens and, where the engine says so, how many of them were cached."""
        content, known = dispatch.look_up.content, dispatch.look_up.known
        if dispatch.sending is not None:
            dispatch.sending.over = True
        if prompt_tokens <= 0 or not content.size_bytes:
            return
        if not content.of_ids:
            known.note_ratio(prompt_tokens / content.size_bytes)
            bound = self.approximate.bound_of(dispatch.uid)
            if bound is not None:
                bound.told(known.tokens_per_byte)
        audit = self.audits.get(dispatch.uid)
        if cached_tokens is None or audit is None:
            return
        guess = dispatch.look_up.guess
        if guess is not None and guess.uid == dispatch.uid:
            known.sessions.answered(guess, cached_tokens)
        tokens_per_byte = prompt_tokens / content.size_bytes
        predicted: dict[Source, float] = {Source.APPROXIMATE: dispatch.sent.predicted_bytes * tokens_per_byte}
        if dispatch.precise_tokens is not None:
            predicted[Source.PRECISE] = dispatch.precise_tokens
        before = audit.fallbacks
        audit.note(predicted, cached_tokens, prompt_tokens)
        self.fallbacks += audit.fallbacks - before
        known.note_audit(predicted[dispatch.used], cached_tokens)
        slack_bytes = _slack_tokens(content, tokens_per_byte) / tokens_per_byte
        delivered = cached_tokens / tokens_per_byte
        self.approximate.correct(
            dispatch.uid, content, dispatch.sent, delivered_bytes=delivered, slack_bytes=slack_bytes
        )


def _slack_tokens(content: Content, tokens_per_byte: float) -> float:
    """Tokens by which what is known of a prompt and what a worker tells may differ without saying anything."""
    return max(_SLACK_TOKENS, max(2 * BLOCK_MIN_BYTES, _SLACK_SHARE * content.size_bytes) * tokens_per_byte)
