"""The pure choice."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import exp
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_router.choose import FIELD_MAX, Choice, Reason, Snapshot, choose, kept_out
from forebay_router.index.holders import Held, Slots
from forebay_router.predicting import LOADED_MAX, Candidate, Demand, Displacement, Load, harm_of, predict
from forebay_router.scoring import RELIEF_SHARE, SLOW_START
from forebay_router.speed import TRAFFIC_S, Origin, PoolSpeed, Seed, Speed

OBJECTIVE = Objective(ttft_s=0.5, tpot_s=0.025, target=0.9)
SPLIT = Demand(prompt_tokens=1000, output_tokens=100, splittable=True, objective=OBJECTIVE)
WHOLE = Demand(prompt_tokens=1000, output_tokens=100, objective=OBJECTIVE)
ASSUMED = Seed(0.01, 1 / 10_000, 0.008, 0.0001, Origin.ASSUMED)
PLANNED = Seed(0.01, 1 / 10_000, 0.008, 0.0001, Origin.PLANNED)
SLOW = Seed(0.05, 1 / 1_000, 0.02, 0.001, Origin.PLANNED)
BENT = Seed(0.01, 1 / 10_000, 0.008, 0.0001, Origin.PLANNED, bend=2e-5)
STEEP = Seed(0.01, 1 / 10_000, 0.008, 0.0001, Origin.PLANNED, bend=1e-3)
P, D = Role.PREFILL, Role.DECODE


def candidate(
    uid: str,
    requests: int = 0,
    role: Role = Role.MIXED,
    *,
    queued: int = 0,
    seed: Seed = ASSUMED,
    revision: str = "r",
    finished: int = 1000,
    slower: float = 1.0,
):
    """A worker with so many requests in flight and prompt tokens queued since time 0, slower than its pool by a factor."""
    made = Candidate(
        uid, role, revision=revision, load=Load(requests=requests), speed=Speed(PoolSpeed(seed), finished=finished)
    )
    made.speed.first_token.value = slower
    if queued:
        made.load.backlog.add(1, queued, 0.0, visible=True)
    return made


def demand(base: Demand = WHOLE, **changes) -> Demand:
    return replace(base, **changes)


def chosen(asked: Demand, *candidates: Candidate, seed: int = 0) -> Choice | None:
    return choose(asked, Snapshot.of(candidates), Random(seed), 0.0)


TABLE = {
    "nobody": (WHOLE, [], None, None, None),
    "only one": (WHOLE, [candidate("a", 9)], "a", None, Reason.ONLY),
    "fewest requests": (WHOLE, [candidate("a", 3), candidate("b", 1), candidate("c", 2)], "b", None, Reason.LEAST_COST),
    "shortest queue": (WHOLE, [candidate("a", 1, queued=900), candidate("b", 2, queued=300)], "b", None, Reason.LEAST_COST),
    "the faster worker": (WHOLE, [candidate("a", 1, seed=SLOW), candidate("b", 3)], "b", None, Reason.LEAST_COST),
    "the one that holds the prompt": (
        demand(cached={"a": 900}), [candidate("a", 3), candidate("b", 1)], "a", None, Reason.CACHED,
    ),
    "not where the queue costs more than the prompt": (
        demand(cached={"a": 900}), [candidate("a", 3, queued=2000), candidate("b", 1)], "b", None, Reason.LEAST_COST,
    ),
    "not for what all requests share": (
        demand(cached={"a": 900}, common_tokens=900), [candidate("a", 3), candidate("b", 1)], "b", None, Reason.LEAST_COST,
    ),
    "not where its answer would come too slowly": (
        demand(cached={"a": 900}), [candidate("a", 200), candidate("b", 1)], "b", None, Reason.LEAST_COST,
    ),
    "the best chance where nobody will make it": (
        WHOLE, [candidate("a", 1, queued=90_000), candidate("b", 9, queued=20_000)], "b", None, Reason.BEST_CHANCE,
    ),
    "the best of the hopeless": (
        WHOLE, [candidate("a", 1, queued=10**9), candidate("b", 9, queued=10**8)], "b", None, Reason.BEST_CHANCE,
    ),
    "a pair": (SPLIT, [candidate("p", 0, P), candidate("d", 0, D)], "d", "p", Reason.PAIR),
    "the best of each side": (
        SPLIT,
        [candidate("p", 2, P, queued=50), candidate("q", 2, P), candidate("d", 1, D), candidate("e", 2, D)],
        "d", "q", Reason.PAIR,
    ),
    "prefill where the prompt is held": (
        demand(SPLIT, cached={"p": 900}), [candidate("p", 1, P), candidate("q", 0, P), candidate("d", 1, D)],
        "d", "p", Reason.PAIR,
    ),
    "never across revisions": (
        SPLIT,
        [candidate("p", 0, P, revision="1"), candidate("d", 0, D, revision="2"), candidate("e", 9, D, revision="1")],
        "e", "p", Reason.PAIR,
    ),
    "the best revision": (
        SPLIT,
        [candidate("p", 0, P, revision="1", queued=3000), candidate("d", 0, D, revision="1"),
         candidate("q", 0, P, revision="2"), candidate("e", 2, D, revision="2")],
        "e", "q", Reason.PAIR,
    ),
    "decode alone where prefill has a long queue and nobody decodes": (
        SPLIT,
        [candidate("p", 9, P, queued=3000, seed=PLANNED), candidate("d", 0, D, seed=PLANNED)], "d", None, Reason.LOCAL,
    ),
    "decode alone where the prompt takes no longer than a token": (
        demand(SPLIT, prompt_tokens=200),
        [candidate("p", 9, P, queued=3000, seed=PLANNED), candidate("d", 1, D, seed=PLANNED)], "d", None, Reason.LOCAL,
    ),
    "decode alone where little of the prompt has to be computed there": (
        demand(SPLIT, cached={"d": 800}),
        [candidate("p", 9, P, queued=3000, seed=PLANNED), candidate("d", 1, D, seed=PLANNED)], "d", None, Reason.LOCAL,
    ),
    "who decodes waits for no long prompt, however long the queue for prefill": (
        SPLIT,
        [candidate("p", 9, P, queued=30_000, seed=PLANNED), candidate("d", 1, D, seed=PLANNED)], "d", "p", Reason.PAIR,
    ),
    "who decodes on a slow worker waits for less of a prompt": (
        demand(SPLIT, prompt_tokens=200),
        [candidate("p", 9, P, queued=30_000, seed=PLANNED), candidate("d", 1, D, seed=PLANNED, slower=2.0)],
        "d", "p", Reason.PAIR,
    ),
    "who decodes waits for less of what is deep in a prompt": (
        demand(SPLIT, prompt_tokens=20_000, cached={"d": 19_800}),
        [candidate("p", 9, P, queued=30_000, seed=BENT), candidate("d", 1, D, seed=BENT)], "d", "p", Reason.PAIR,
    ),
    "nobody waits for a long prompt where more decode than are looked at": (
        SPLIT,
        [candidate("p", 9, P, queued=30_000, seed=PLANNED), candidate("d", 1, D, seed=PLANNED),
         *(candidate(f"d{at}", 9, D, seed=PLANNED) for at in range(30))],
        "d", "p", Reason.PAIR,
    ),
    "an idle worker where a busy one would cost less and hold others up": (
        demand(SPLIT, cached={"d": 500}),
        [candidate("p", 9, P, queued=3000, seed=PLANNED), candidate("d", 1, D, seed=PLANNED), candidate("e", 0, D, seed=PLANNED)],
        "e", None, Reason.LOCAL,
    ),
    "a busier worker where little is left to compute": (
        demand(SPLIT, cached={"d": 500, "e": 800}),
        [candidate("p", 9, P, queued=3000, seed=PLANNED), candidate("d", 1, D, seed=PLANNED), candidate("e", 8, D, seed=PLANNED)],
        "e", None, Reason.LOCAL,
    ),
    "a mixed worker where decode workers would cost less and hold others up": (
        SPLIT,
        [candidate("p", 9, P, queued=3000, seed=PLANNED), candidate("d", 1, D, seed=PLANNED), candidate("m", 3)],
        "m", None, Reason.LEAST_COST,
    ),
    "the pair where all that could do without it cost more or hold others up": (
        demand(SPLIT, cached={"d": 500}),
        [candidate("p", 9, P, queued=3000, seed=PLANNED), candidate("d", 1, D, seed=PLANNED),
         candidate("e", 0, D, seed=SLOW), candidate("m", 30, queued=3000)],
        "d", "p", Reason.PAIR,
    ),
    "never alone on a guess": (
        SPLIT, [candidate("p", 9, P, queued=3000), candidate("d", 1, D)], "d", "p", Reason.PAIR,
    ),
    "no decode work beside many others": (
        SPLIT,
        [candidate("p", 1, P, queued=200, seed=PLANNED), candidate("d", 20, D, seed=PLANNED)], "d", "p", Reason.PAIR,
    ),
    "no prefill worker: decode alone": (SPLIT, [candidate("d", 3, D), candidate("e", 2, D)], "e", None, Reason.NO_PREFILL),
    "no partner of its revision: decode alone": (
        SPLIT, [candidate("p", 0, P, revision="1"), candidate("d", 0, D, revision="2")], "d", None, Reason.NO_PREFILL,
    ),
    "not splittable: decode computes the prompt": (WHOLE, [candidate("p", 0, P), candidate("d", 0, D)], "d", None, Reason.ONLY),
    "prefill workers alone cannot answer": (SPLIT, [candidate("p", 0, P)], None, None, None),
    "failed workers are left out": (
        demand(SPLIT, excluded=frozenset({"d", "p"})),
        [candidate("p", 0, P), candidate("q", 5, P), candidate("d", 0, D), candidate("e", 5, D)],
        "e", "q", Reason.PAIR,
    ),
    "every prefill worker failed: decode alone": (
        demand(SPLIT, excluded=frozenset({"p"})), [candidate("p", 0, P), candidate("d", 0, D)], "d", None, Reason.NO_PREFILL,
    ),
    "all failed": (demand(excluded=frozenset({"a"})), [candidate("a")], None, None, None),
    "a fresh worker gets few at once": (
        WHOLE, [candidate("a", SLOW_START, finished=0), candidate("b", 30)], "b", None, Reason.LEAST_COST,
    ),
    "a fresh worker gets few at once beside a pair": (
        SPLIT,
        [candidate("p", 9, P, queued=3000, seed=PLANNED), candidate("d", 1, D, seed=PLANNED),
         candidate("m", SLOW_START, seed=PLANNED, finished=0)],
        "d", "p", Reason.PAIR,
    ),
    "a fresh worker that has few takes what a pair would be late with": (
        SPLIT,
        [candidate("p", 9, P, queued=3000, seed=PLANNED), candidate("d", 1, D, seed=PLANNED),
         candidate("m", SLOW_START - 1, seed=PLANNED, finished=0)],
        "m", None, Reason.LEAST_COST,
    ),
    "fresh workers alone get what there is": (
        WHOLE, [candidate("a", 40, finished=0), candidate("b", 30, finished=0)], "b", None, Reason.LEAST_COST,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_choice(case):
    asked, candidates, worker, prefill, reason = TABLE[case]
    choice = chosen(asked, *candidates)
    if worker is None:
        assert choice is None
        return
    assert choice is not None
    assert (choice.worker.uid, choice.prefill.uid if choice.prefill else None) == (worker, prefill)
    assert choice.reason is reason


def test_full_workers_get_nothing():
    full = Candidate("a", Role.MIXED, load=Load(requests=2), limit=2)
    room = Candidate("b", Role.MIXED, load=Load(requests=1), limit=2)
    assert chosen(WHOLE, full) is None
    assert chosen(WHOLE, full, room).worker is room


def test_predictions_are_the_formula():
    """TTFT = queue + base + own; TPOT with one more; cost in shares of the objective."""
    asked = demand(cached={"a": 400})
    told = chosen(asked, candidate("a", 4, queued=1500)).prediction
    assert told.wait_s == pytest.approx(0.15)
    assert told.uncached_tokens == 600
    assert told.ttft_s == pytest.approx(0.15 + 0.01 + 0.06)
    assert told.tpot_s == pytest.approx(0.008 + 5 * 0.0001)
    others = 4 * (0.06 / 100 + 0.0001)
    assert told.cost == pytest.approx(told.ttft_s / 0.5 + (told.tpot_s + others) / 0.025)
    bent = chosen(demand(asked, common_tokens=500), candidate("a", seed=BENT)).prediction
    assert bent.work_tokens == pytest.approx(600 * (1 + BENT.bend * (1000 + 400))), "the tokens from 400 on"
    assert bent.ttft_s == pytest.approx(0.01 + 500 * (1 + BENT.bend * (1000 + 500)) / 10_000), "from 500, as all have"


def test_ties_are_spread():
    """C074: equal loads do not always pick the same worker."""
    rng = Random(74)
    snapshot = Snapshot.of([candidate(uid) for uid in "abcd"])
    counts = Counter(choose(WHOLE, snapshot, rng, 0.0).worker.uid for _ in range(4000))
    assert all(850 < counts[uid] < 1150 for uid in "abcd")


def test_burst_is_spread_because_load_counts_at_dispatch():
    """C074: 200 requests at once over 4 idle prefill workers: 40 to 60 each."""
    rng = Random(1)
    prefill = [candidate(uid, 0, P) for uid in "pqrs"]
    decode = [candidate(uid, 0, D) for uid in "de"]
    snapshot = Snapshot.of([*prefill, *decode])
    for number in range(200):
        choice = choose(SPLIT, snapshot, rng, 0.0)
        choice.prefill.load.requests += 1
        choice.prefill.load.backlog.add(number, choice.prediction.uncached_tokens, 0.0, visible=True)
        choice.worker.load.requests += 1
    assert [one.load.requests for one in prefill] == [50, 50, 50, 50]
    assert [one.load.requests for one in decode] == [100, 100]


def test_misses_go_to_the_idle_worker_whatever_it_holds():
    """C073: a busy worker with few known prefixes, an idle one with many."""
    busy, idle = candidate("a", 64, queued=20_000), candidate("b", 0)
    for at in range(50):
        choice = choose(WHOLE, Snapshot.of([busy, idle]), Random(at), 0.0)
        assert choice.worker is idle


def test_a_worker_that_hangs_gets_nothing_new():
    """Its head is overdue, so its queue looks longer with time."""
    hung, others = candidate("a", 1, queued=1000), [candidate(uid, 1) for uid in "bc"]
    hung_held = demand(cached={"a": 1000})
    snapshot = Snapshot.of([hung, *others])
    assert choose(hung_held, snapshot, Random(0), 0.1).worker is hung
    assert choose(hung_held, snapshot, Random(0), 3.0).worker is not hung


def test_a_hot_prefix_spreads_over_as_many_workers_as_it_needs():
    """38 % of the requests share 6,000 tokens: its first worker gets more than its share, never so much that others idle."""
    rng, now_s = Random(38), 0.0
    workers = [candidate(uid) for uid in "abcdefgh"]
    snapshot = Snapshot.of(workers)
    held: dict[str, int] = {}
    computed = Counter()
    counts = Counter()
    for number in range(2000):
        now_s += rng.expovariate(100.0)
        hot = rng.random() < 0.38
        asked = demand(prompt_tokens=6500 if hot else 800, cached=held if hot else {})
        choice = choose(asked, snapshot, rng, now_s)
        worker = choice.worker
        for lease, prompt in tuple(worker.load.backlog.prompts.items()):
            if worker.load.backlog.began_s + prompt.tokens * 1e-4 < now_s:
                worker.load.backlog.computed(
                    lease, max(worker.load.backlog.began_s, prompt.sent_s) + prompt.tokens * 1e-4
                )
        worker.load.backlog.add(number, max(1, choice.prediction.uncached_tokens), now_s, visible=False)
        counts[worker.uid] += 1
        computed[worker.uid] += choice.prediction.uncached_tokens
        if hot:
            held[worker.uid] = 6000
    assert len(held) >= 2
    assert max(counts.values()) / (2000 / 8) < 1.6
    assert sum(computed.values()) < 2000 * 0.62 * 800 + 2000 * 0.38 * 500 + 60 * 6000


def cold(one: Candidate) -> bool:
    """Beyond its slow start."""
    return one.load.requests >= SLOW_START + 2 * one.speed.finished


_CANDIDATES = st.lists(
    st.builds(
        candidate,
        uid=st.uuids().map(str),
        role=st.sampled_from(Role),
        requests=st.integers(0, 40),
        revision=st.sampled_from("12"),
        queued=st.integers(0, 9999),
        seed=st.sampled_from([ASSUMED, PLANNED, SLOW, BENT]),
        finished=st.sampled_from([0, 1000]),
    ),
    max_size=8,
    unique_by=lambda one: one.uid,
)


@given(_CANDIDATES, st.booleans(), st.integers(), st.data())
def test_laws_of_the_choice(candidates, splittable, seed, data):
    """A choice can serve, has not failed, pairs one revision; nobody that could replace it is better; it can be repeated."""
    uids = [one.uid for one in candidates]
    some = st.sets(st.sampled_from(uids)) if uids else st.just(set())
    excluded = frozenset(data.draw(some))
    asked = demand(
        prompt_tokens=data.draw(st.sampled_from([5, 1000, 50_000])),
        splittable=splittable,
        excluded=excluded,
        cached=dict.fromkeys(data.draw(some), 600),
        common_tokens=data.draw(st.sampled_from([0, 300])),
        displacement=data.draw(st.sampled_from([None, Displacement(300.0, 1000, dict.fromkeys(data.draw(some), 900))])),
        adapter=data.draw(st.sampled_from([None, "french"])),
    )
    pools: dict[tuple[Seed, Role], PoolSpeed] = {}
    snapshot = Snapshot.of(candidates)
    for one in candidates:
        one.speed.pool = pools.setdefault((one.speed.pool.seed, one.role), one.speed.pool)
        one.speed.sent(0.0, data.draw(st.sampled_from([0, 20_000])))
    choice = choose(asked, snapshot, Random(seed), 0.01)
    if choice is None:
        assert all(one.uid in excluded or one.role is Role.PREFILL for one in candidates)
        return
    assert choice.worker.uid not in excluded
    assert choice.worker.role is not Role.PREFILL
    if choice.prefill is not None:
        assert splittable
        assert choice.prefill.uid not in excluded
        assert (choice.prefill.role, choice.worker.role) == (Role.PREFILL, Role.DECODE)
        assert choice.prefill.revision == choice.worker.revision
    else:
        able = [
            one
            for one in choice.considered
            if one.uid not in excluded and candidates[uids.index(one.uid)].role is not P
        ]
        warm = [one for one in able if not cold(candidates[uids.index(one.uid)])]
        assert choice.prediction.cost == pytest.approx(min(one.cost for one in warm or able), rel=1e-12)
    assert all(one.ttft_s >= 0 and one.cost > 0 and 0 <= one.chance <= 1 for one in choice.considered)
    assert choice == choose(asked, snapshot, Random(seed), 0.01), "the same inputs give the same choice"


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2000)), min_size=1, max_size=5),
    st.integers(1, 2000),
    st.integers(0, 20_000),
    st.sampled_from([PLANNED, BENT, STEEP]),
    st.sampled_from([0.5, 1.0, 3.0]),
    st.integers(),
)
def test_the_cheapest_wins_where_no_sequence_waits_longer_than_a_token(decoding, prompt, queued, learnt, slower, seed):
    """Each decode worker is held to that by itself: who would hold others up stands in no other's way."""
    decodes = [candidate(f"d{at}", requests, D, seed=learnt) for at, (requests, _) in enumerate(decoding)]
    decodes[0].speed.first_token.value = slower
    held = {one.uid: tokens for one, (_, tokens) in zip(decodes, decoding, strict=True)}
    asked = demand(SPLIT, prompt_tokens=prompt, cached=held)
    choice = chosen(asked, candidate("p", 1, P, queued=queued, seed=learnt), *decodes, seed=seed)
    told = {one.uid: one for one in predict(decodes, asked, 0.0)}
    free = [
        one for one in decodes if not one.load.requests or told[one.uid].work_tokens * one.token_s <= OBJECTIVE.tpot_s
    ]
    assert choice.prediction.cost <= min([told[one.uid].cost for one in free], default=9e9) * (1 + 1e-12)
    assert choice.prefill is not None or choice.worker in free


@pytest.mark.parametrize("role", [Role.MIXED, D])
def test_the_least_cost_is_that_of_the_predictions(role):
    """The loop that finds the cheapest has its own copy of the formula: alike workers, every term of it at work."""
    rng, pool = Random(9), PoolSpeed(BENT)
    pool.first_token.second, pool.output_token.second = 0.002, 1e-5
    for _ in range(400):
        workers = [
            Candidate(f"w{at}", role, load=Load(requests=rng.randrange(4)), speed=Speed(pool, finished=1000))
            for at in range(8)
        ]
        for one in workers:
            one.speed.sent(0.0, rng.randrange(20_000))
            if rng.random() < 0.5:
                one.load.backlog.add(1, rng.randrange(2000), 0.0, visible=True)
            if rng.random() < 0.5:
                one.adapters.use("french")
        victims = {one.uid: rng.randrange(990, 999) for one in workers if rng.random() < 0.8}
        asked = demand(
            prompt_tokens=rng.choice([2000, 20_000]),
            cached={one.uid: rng.randrange(2000) for one in workers if rng.random() < 0.8},
            common_tokens=rng.choice([0, 300]),
            displacement=Displacement(2.0, 1000, victims),
            adapter="french",
        )
        choice = choose(asked, Snapshot.of(workers), rng, 0.01)
        assert choice.prediction.cost == pytest.approx(min(one.cost for one in choice.considered), rel=1e-9)


def test_a_slow_start_of_a_pairs_decode_side_lasts_while_others_are_in_time():
    """An answer takes half a minute: whoever waits for the first ones to finish leaves a fresh worker empty beside late ones."""
    prefill, fresh = candidate("p", 0, P, seed=PLANNED), candidate("fresh", SLOW_START, D, seed=PLANNED, finished=0)
    asked = demand(splittable=True, prompt_tokens=4000)
    for requests, expected in ((5, "busy"), (400, "fresh")):
        choice = chosen(asked, prefill, candidate("busy", requests, D, seed=PLANNED), fresh)
        assert (choice.prefill, choice.worker.uid) == (prefill, expected)


def test_of_equal_decode_workers_of_pairs_the_one_that_computed_fewer_prompts_is_taken():
    pool, prefill = PoolSpeed(ASSUMED), candidate("p", 0, P)
    busy, calm = (Candidate(uid, D, revision="r", speed=Speed(pool, finished=1000)) for uid in ("busy", "calm"))
    busy.speed.sent(0.0, 10_000)
    choices = [choose(SPLIT, Snapshot.of([prefill, busy, calm]), Random(at), 0.0) for at in range(20)]
    assert {(one.prefill is prefill, one.worker.uid) for one in choices} == {(True, "calm")}


def test_a_decode_worker_computes_prompts_only_as_far_as_its_tokens_leave_time():
    """With the time that is left used up by the prompts of the last half minute, waiting for a prefill worker harms fewer."""
    asked = demand(splittable=True, prompt_tokens=240)
    waiting = candidate("p", 9, P, queued=9999, seed=PLANNED)
    for busy_s, expected in ((0.0, Reason.LOCAL), (24.0, Reason.PAIR)):
        decodes = candidate("d", 8, D, seed=PLANNED)
        decodes.speed.busy.note(0.0, busy_s)
        assert chosen(asked, waiting, decodes).reason is expected


def test_decode_workers_are_kept_out_only_where_prefill_workers_are():
    asked = demand(SPLIT, prompt_tokens=100_000)
    busy, idle, unknown = (
        candidate("busy", 1, D, seed=PLANNED),
        candidate("idle", 0, D, seed=PLANNED),
        candidate("u", 1, D),
    )
    pairs = Snapshot.of([candidate("p", role=P), busy, idle, unknown])
    assert kept_out(asked, pairs) == (busy,)
    assert kept_out(demand(asked, splittable=False), pairs) == ()
    assert kept_out(demand(SPLIT, prompt_tokens=100), pairs) == ()
    assert kept_out(asked, Snapshot.of([busy, idle, unknown])) == ()


def test_prompts_harm_every_sequence_beside_them_also_those_that_are_late_already():
    """Or whoever is overfull would be the best place for more."""
    idle, busy = candidate("a", 8, D), candidate("b", 8, D)
    busy.speed.busy.note(0.0, 0.8 * TRAFFIC_S)
    for tpot_s in (0.008, 0.05):
        harmed = [harm_of(one, tpot_s, 0.4, OBJECTIVE.tpot_s, 0.0) for one in (idle, busy)]
        assert harmed[1] > 3.9
        assert harmed[1] > harmed[0] >= 0
    assert harm_of(candidate("c", 0, D), 0.05, 0.4, OBJECTIVE.tpot_s, 0.0) == 0
    assert harm_of(idle, 0.02, 9.0, OBJECTIVE.tpot_s, 0.0) > 1.1 * harm_of(idle, 0.02, 0.1, OBJECTIVE.tpot_s, 0.0)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 20))
def test_more_of_the_prompt_is_never_worse(less, more, requests):
    less, more = sorted((less, more))
    one, other = candidate("a", requests), candidate("b", requests)
    choice = chosen(demand(cached={"a": less, "b": more}), one, other)
    assert more == less or choice.worker is other


@pytest.mark.parametrize("workers", [10, 100, 1000])
def test_large_fields_are_sampled_and_holders_found(workers):
    candidates = [candidate(f"w{at}", at % 5) for at in range(workers)]
    snapshot = Snapshot.of(candidates)
    choice = choose(demand(cached={"w7": 900}), snapshot, Random(7), 0.0)
    assert choice.worker.uid == "w7"
    assert len(choice.considered) <= FIELD_MAX
    least = [choose(WHOLE, snapshot, Random(at), 0.0).worker.load.requests for at in range(50)]
    assert max(least) == 0


LOOKED_AT = {
    "few prefill workers among many decode workers that hold it": (P, 30, 2),
    "few decode workers among many prefill workers that hold it": (D, 30, 2),
    "equal ones": (Role.MIXED, 0, 30),
    "equal ones, more than are gone through": (Role.MIXED, 0, 300),
}


def held_by(uids: list[str], *, listed: bool) -> Mapping[str, int]:
    """So many tokens of the prompt held by each of these, as a table or as sets of slots."""
    if listed:
        return dict.fromkeys(uids, 900)
    slots = Slots()
    for uid in uids:
        slots.take(uid)
    return Held([((1 << len(uids)) - 1, 8)], 0.9, slots, {})


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("case", LOOKED_AT)
def test_all_that_hold_a_prompt_are_looked_at_in_time_whoever_else_holds_it(case, listed):
    """Decode workers hold the prompts of their pairs, too, which hides no prefill worker; some of equals hide no others."""
    role, others, holders = LOOKED_AT[case]
    other = {P: D, D: P}.get(role, role)
    names = [*(f"other{at}" for at in range(others)), *(f"holder{at}" for at in range(holders))]
    workers = [candidate(f"idle{at}", 0, role) for at in range(100)]
    workers += [candidate(f"holder{at}", 0, role) for at in range(holders)]
    workers += [candidate(f"other{at}", 0, other) for at in range(max(others, 1))]
    snapshot, asked = Snapshot.of(workers), demand(SPLIT, cached=held_by(names, listed=listed))
    rng, seen = Random(1), Counter()
    for _ in range(20 * holders):
        side = choose(asked, snapshot, rng, 0.0).looked_at[role is D]
        assert {one.role for one in side} == {role}
        assert len(side) <= FIELD_MAX
        first = [one.uid for one in side[: min(4, holders)]]
        assert all(uid.startswith("holder") for uid in first), "beside a random run"
        seen.update(first)
    assert set(seen) == set(names[others:])


def test_no_worker_of_another_revision_is_looked_at_for_holding_the_prompt():
    of = {
        revision: [
            candidate(f"{role}{revision}-{at}", 0, role, revision=revision) for role in (P, D) for at in range(25)
        ]
        for revision in "12"
    }
    snapshot = Snapshot.of([*of["1"], *of["2"]])
    asked = demand(
        SPLIT, cached={one.uid: 900 for one in of["2"]}, excluded=frozenset(one.uid for one in of["2"] if one.role is D)
    )
    for at in range(20):
        choice = choose(asked, snapshot, Random(at), 0.0)
        assert (choice.worker.revision, choice.prefill.revision) == ("1", "1")


def test_no_decode_worker_is_taken_alone_on_a_guess_for_holding_the_prompt():
    known = [candidate(f"known{at}", 9, D, seed=PLANNED) for at in range(25)]
    workers = [candidate("p", 9, P, queued=30_000), candidate("guessed", 0, D), *known]
    asked = demand(SPLIT, cached={"guessed": 1000})
    choices = [choose(asked, Snapshot.of(workers), Random(at), 0.0) for at in range(20)]
    assert {one.reason for one in choices} == {Reason.PAIR}


def choosing_s(asked: Demand, snapshot: Snapshot) -> float:
    """CPU seconds of one choice, the best of twenty means."""
    rng, best = Random(1), 1.0
    for _ in range(20):
        start = time.process_time()
        for _ in range(20):
            choose(asked, snapshot, rng, 0.0)
        best = min(best, (time.process_time() - start) / 20)
    return best


def test_a_thousand_workers_take_no_longer_than_forty():
    def cost_s(workers: int) -> float:
        snapshot = Snapshot.of([candidate(f"w{at}", at % 5, queued=100 + at) for at in range(workers)])
        return choosing_s(WHOLE, snapshot)

    few, many = cost_s(40), cost_s(1000)
    print(f"choose: 40 workers {few * 1e6:.0f} us, 1,000 workers {many * 1e6:.0f} us")
    assert many < 4 * few, "more memory is touched, no more work is done: 25 times as many"
    assert many < 0.0005


def test_pairs_of_a_thousand_workers_take_no_longer_than_those_of_forty():
    def cost_s(workers: int) -> float:
        pools = [(role, PoolSpeed(PLANNED)) for role in (P, D)]
        snapshot = Snapshot.of(
            [
                Candidate(f"{role}{at}", role, revision="r", load=Load(at % 5), speed=Speed(pool, finished=1000))
                for role, pool in pools
                for at in range(workers)
            ]
        )
        return choosing_s(SPLIT, snapshot)

    few, many = cost_s(40), cost_s(1000)
    print(f"choose, pairs: 40 workers a side {few * 1e6:.0f} us, 1,000 a side {many * 1e6:.0f} us")
    assert many < 1.7 * few, "no side is gone through worker by worker"


def test_an_adapter_that_is_not_loaded_costs_its_loading():
    """Affinity of adapters is time: a little queue is waited for where it is loaded, a long one is not."""
    loaded, other = candidate("a", 2, queued=500), candidate("b", 1)
    loaded.adapters.use("french")
    asked = demand(adapter="french")
    assert chosen(asked, loaded, other).worker is loaded
    assert chosen(demand(adapter="german"), loaded, other).worker is other
    assert chosen(WHOLE, loaded, other).worker is other
    loaded.load.backlog.add(2, 3000, 0.0, visible=True)
    assert chosen(asked, loaded, other).worker is other


def test_few_adapters_are_thought_to_be_loaded():
    one = candidate("a")
    for at in range(LOADED_MAX + 1):
        one.adapters.use(f"adapter-{at}")
    assert list(one.adapters) == [f"adapter-{at}" for at in range(1, LOADED_MAX + 1)]
    one.adapters.use("adapter-1")
    one.adapters.use("another")
    assert "adapter-1" in one.adapters
    assert "adapter-2" not in one.adapters


def test_what_is_pushed_out_of_a_cache_is_part_of_the_cost():
    """A new prompt goes where what gives way has been idle for long, and where there is room at all."""
    fresh, stale, roomy = (candidate(uid, 1) for uid in "abc")
    victims = {"a": 990, "b": 100}
    asked = demand(displacement=Displacement(300.0, 1000, victims))
    assert chosen(asked, fresh, stale).worker is stale
    assert chosen(asked, fresh, stale, roomy).worker is roomy
    busy = candidate("c", 1, queued=4000)
    assert chosen(asked, fresh, stale, busy).worker is stale


def test_while_what_is_pushed_out_is_missed_hits_are_worth_a_little_more_waiting():
    holds, idle = candidate("a", 1, queued=1200), candidate("b", 1)
    asked = demand(cached={"a": 900})
    assert chosen(asked, holds, idle).worker is idle
    assert chosen(replace(asked, displacement=Displacement(300.0, 1000, {})), holds, idle).worker is holds


def test_a_busy_worker_is_dear_before_it_has_a_queue():
    """Work put on it delays more of those that come after."""
    busy, calm = candidate("a", 1), candidate("b", 1)
    for at in range(100):
        busy.speed.sent(at * 0.2, 1200)
        calm.speed.sent(at * 0.2, 100)
    snapshot = Snapshot.of([busy, calm])
    assert all(choose(WHOLE, snapshot, Random(at), 20.0).worker is calm for at in range(20))


def test_few_long_prompts_strain_a_worker_as_much_as_many_short_ones():
    """Those who come later are no fewer where few came before, or whoever got long prompts would get all of them."""
    pool = PoolSpeed()
    long, short = (Candidate(uid, Role.MIXED, speed=Speed(pool)) for uid in "ab")
    Snapshot.of([long, short])
    for at in range(100):
        short.speed.sent(at * 0.2, 800)
        if at % 10 == 9:
            long.speed.sent(at * 0.2, 8000)
    assert pool.workers == 2
    assert short.speed.busy.at(20.0) == pytest.approx(800 / 20_000 / 0.2 * (1 - exp(-20 / TRAFFIC_S)), rel=0.05)
    assert long.speed.strain(20.0) == pytest.approx(short.speed.strain(20.0), rel=0.1)
    comes_to_one = pool.prompts.at(20.0) / 2
    assert short.speed.strain(20.0) == pytest.approx(comes_to_one / (1 - short.speed.busy.at(20.0)))


def pool_of(*shares: int, at_s: float = 100.0, start: int = 7) -> list[Candidate]:
    """Idle workers of one pool, each of which was sent so many prompts of 1,000 tokens until then, all with one start."""
    pool = PoolSpeed(PLANNED)
    made = [
        Candidate(f"w{at}", Role.MIXED, revision="r", speed=Speed(pool, finished=1000)) for at in range(len(shares))
    ]
    Snapshot.of(made)
    for one, share in zip(made, shares, strict=True):
        for at in range(share):
            one.speed.sent(at_s - 10 + 10 * at / share, 1000)
        one.speed.last_start = start
    return made


HOT = demand(cached={"w0": 900}, start=7)
RELIEF = {
    "even shares": (HOT, (50, 50, 50), "w0"),
    "far more than its share": (HOT, (200, 10, 50), "w1"),
    "more by chance, perhaps": (HOT, (5, 0, 0), "w0"),
    "not for what did not come twice in a row": (replace(HOT, start=8), (200, 10, 50), "w0"),
}


@pytest.mark.parametrize("case", RELIEF)
def test_a_hot_prefix_gets_another_home_where_its_worker_has_too_many_requests(case):
    asked, shares, uid = RELIEF[case]
    choice = choose(asked, Snapshot.of(pool_of(*shares)), Random(1), 100.0)
    assert choice.worker.uid == uid
    assert (choice.reason is Reason.RELIEF) == (uid == "w1")
    assert choice.relief_s == pytest.approx(900 * PLANNED.prefill_token_s if uid == "w1" else 0)


def test_nobody_is_relieved_of_what_everybody_holds():
    workers = pool_of(200, 10)
    workers[1].load.requests = 3
    choice = choose(replace(HOT, common_tokens=950), Snapshot.of(workers), Random(1), 100.0)
    assert workers[0].speed.overrun(100.0)
    assert (choice.worker.uid, choice.reason) == ("w0", Reason.LEAST_COST)


def test_nobody_is_relieved_by_a_worker_that_would_be_late():
    workers = pool_of(200, 10)
    workers[1].load.requests = 400
    assert choose(HOT, Snapshot.of(workers), Random(1), 100.0).worker.uid == "w0"


@pytest.mark.parametrize("held", [900, 990])
def test_nobody_is_relieved_by_a_worker_with_a_queue(held):
    """Nothing is copied where the other one holds as much, or more; waiting longer there is a cost all the same."""
    workers = pool_of(200, 10)
    workers[1].load.backlog.add(1, round(0.3 / PLANNED.prefill_token_s), 100.0, visible=True)
    asked = replace(HOT, cached={"w0": 900, "w1": held}, objective=Objective(ttft_s=2.0, tpot_s=0.025, target=0.9))
    assert predict(workers, asked, 100.0)[1].comfortable
    assert {choose(asked, Snapshot.of(workers), Random(at), 100.0).worker.uid for at in range(40)} == {"w0"}
    assert workers[0].speed.overrun(100.0)


@pytest.mark.parametrize("held", [900, 990])
def test_relief_by_a_worker_that_holds_as_much_costs_nothing(held):
    workers = pool_of(200, 10)
    for _ in range(3):
        workers[1].load.requests += 1
    choice = choose(replace(HOT, cached={"w0": 900, "w1": held}), Snapshot.of(workers), Random(1), 100.0)
    assert (choice.worker.uid, choice.reason, choice.relief_s) == ("w1", Reason.RELIEF, 0)
    choice.worker.speed.sent(100.0, choice.prediction.work_tokens, choice.relief_s)
    assert workers[0].speed.pool.relief_s.at(100.0) == 0


def test_a_fresh_worker_relieves_nobody_beyond_its_slow_start():
    for requests, expected in ((SLOW_START - 1, "w1"), (SLOW_START, "w0")):
        workers = pool_of(200, 10)
        workers[1].speed.finished, workers[1].load.requests = 0, requests
        assert choose(HOT, Snapshot.of(workers), Random(1), 100.0).worker.uid == expected


def test_copies_take_a_small_share_of_the_time():
    workers = pool_of(200, 10, 10)
    snapshot, pool = Snapshot.of(workers), workers[0].speed.pool
    copied, spent_s, before_s = 0, 0.0, 220 * 1000 * PLANNED.prefill_token_s
    for at in range(400):
        now_s = 100 + at / 20
        choice = choose(HOT, snapshot, Random(at), now_s)
        choice.worker.speed.sent(now_s, choice.prediction.work_tokens, choice.relief_s)
        choice.worker.speed.last_start = 7
        copied += choice.reason is Reason.RELIEF
        spent_s += choice.relief_s
        assert pool.relief_s.at(now_s) <= RELIEF_SHARE * pool.work_s.at(now_s) * 1.1
    assert copied
    assert spent_s < RELIEF_SHARE * (before_s + 400 * 1000 * PLANNED.prefill_token_s)


def test_of_two_equal_workers_the_one_that_had_less_to_do_is_taken():
    snapshot = Snapshot.of(pool_of(30, 20, 40))
    taken = Counter(choose(demand(prompt_tokens=5), snapshot, Random(seed), 100.0).worker.uid for seed in range(300))
    assert taken["w2"] == 0
    assert taken["w1"] > 1.5 * taken["w0"] > 0
