"""The pure choice."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_api.modelservice import Role
from forebay_router.choose import Candidate, Choice, Demand, Load, Rates, Reason, Snapshot, choose

SPLIT = Demand(prompt_tokens=100, output_tokens=10, splittable=True)
WHOLE = Demand(prompt_tokens=100, output_tokens=10)


def candidate(
    uid: str,
    requests: int = 0,
    role: Role = Role.MIXED,
    *,
    revision: str = "r",
    rates: Rates | None = None,
    **load: int,
):
    return Candidate(uid=uid, role=role, revision=revision, load=Load(requests=requests, **load), rates=rates)


def chosen(demand: Demand, *candidates: Candidate, seed: int = 0) -> Choice | None:
    return choose(demand, Snapshot.of(candidates), Random(seed), 0.0)


FAST, SLOW = Rates(10_000, 0.001), Rates(1_000, 0.01)
P, D = Role.PREFILL, Role.DECODE
TABLE = {
    "nobody": (WHOLE, [], None, None, None),
    "only one": (WHOLE, [candidate("a", 9)], "a", None, Reason.ONLY),
    "fewest requests": (WHOLE, [candidate("a", 3), candidate("b", 1), candidate("c", 2)], "b", None, Reason.LEAST_WORK),
    "one unknown rate makes it a count": (
        WHOLE, [candidate("a", 1, rates=SLOW, prompt_tokens=9000), candidate("b", 2)], "a", None, Reason.LEAST_WORK,
    ),
    "seconds where all rates are known": (
        WHOLE,
        [candidate("a", 1, rates=SLOW, prompt_tokens=9000), candidate("b", 2, rates=FAST, prompt_tokens=9000)],
        "b", None, Reason.LEAST_WORK,
    ),
    "decode work counts in seconds": (
        WHOLE,
        [candidate("a", 1, rates=FAST, output_tokens=5000), candidate("b", 3, rates=FAST, output_tokens=100)],
        "b", None, Reason.LEAST_WORK,
    ),
    "a pair": (SPLIT, [candidate("p", 0, P), candidate("d", 0, D)], "d", "p", Reason.PAIR),
    "the best of each side": (
        SPLIT, [candidate("p", 2, P), candidate("q", 1, P), candidate("d", 1, D), candidate("e", 2, D)], "d", "q", Reason.PAIR,
    ),
    "never across revisions": (
        SPLIT,
        [candidate("p", 0, P, revision="1"), candidate("d", 0, D, revision="2"), candidate("e", 9, D, revision="1")],
        "e", "p", Reason.PAIR,
    ),
    "no prefill worker: decode alone": (SPLIT, [candidate("d", 3, D), candidate("e", 2, D)], "e", None, Reason.NO_PREFILL),
    "no partner of its revision: decode alone": (
        SPLIT, [candidate("p", 0, P, revision="1"), candidate("d", 0, D, revision="2")], "d", None, Reason.NO_PREFILL,
    ),
    "not splittable: decode computes the prompt": (WHOLE, [candidate("p", 0, P), candidate("d", 0, D)], "d", None, Reason.ONLY),
    "prefill workers alone cannot answer": (SPLIT, [candidate("p", 0, P)], None, None, None),
    "failed workers are left out": (
        Demand(splittable=True, excluded=frozenset({"d", "p"})),
        [candidate("p", 0, P), candidate("q", 5, P), candidate("d", 0, D), candidate("e", 5, D)],
        "e", "q", Reason.PAIR,
    ),
    "every prefill worker failed: decode alone": (
        Demand(splittable=True, excluded=frozenset({"p"})), [candidate("p", 0, P), candidate("d", 0, D)], "d", None, Reason.NO_PREFILL,
    ),
    "all failed": (Demand(excluded=frozenset({"a"})), [candidate("a")], None, None, None),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_choice(case):
    demand, candidates, worker, prefill, reason = TABLE[case]
    choice = chosen(demand, *candidates)
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


def test_ties_are_spread():
    """C074: equal loads do not always pick the same worker."""
    rng = Random(74)
    snapshot = Snapshot.of([candidate(uid) for uid in "abcd"])
    counts = dict.fromkeys("abcd", 0)
    for _ in range(4000):
        counts[choose(WHOLE, snapshot, rng, 0.0).worker.uid] += 1
    assert all(850 < count < 1150 for count in counts.values())


def test_burst_is_spread_because_load_counts_at_dispatch():
    """C074: 200 requests at once over 4 idle prefill workers: 40 to 60 each."""
    rng = Random(1)
    prefill = [candidate(uid, 0, P) for uid in "pqrs"]
    decode = [candidate(uid, 0, D) for uid in "de"]
    snapshot = Snapshot.of([*prefill, *decode])
    for _ in range(200):
        choice = choose(SPLIT, snapshot, rng, 0.0)
        choice.prefill.load.requests += 1
        choice.worker.load.requests += 1
    assert [one.load.requests for one in prefill] == [50, 50, 50, 50]
    assert [one.load.requests for one in decode] == [100, 100]


_CANDIDATES = st.lists(
    st.builds(
        Candidate,
        uid=st.uuids().map(str),
        role=st.sampled_from(Role),
        revision=st.sampled_from("12"),
        load=st.builds(
            Load, requests=st.integers(0, 5), prompt_tokens=st.integers(0, 9999), output_tokens=st.integers(0, 999)
        ),
        rates=st.sampled_from([None, FAST, SLOW]),
        limit=st.sampled_from([None, 3]),
    ),
    max_size=8,
)


@given(_CANDIDATES, st.booleans(), st.integers(), st.data())
def test_laws_of_the_choice(candidates, splittable, seed, data):
    """A choice can serve, has room, has not failed, pairs one revision, and nobody who could take its place has less work."""
    excluded = (
        frozenset(data.draw(st.sets(st.sampled_from([one.uid for one in candidates])))) if candidates else frozenset()
    )
    demand = Demand(100, 10, splittable, excluded)
    snapshot = Snapshot.of(candidates)
    choice = choose(demand, snapshot, Random(seed), 0.0)

    def usable(one: Candidate) -> bool:
        return one.uid not in excluded and (one.limit is None or one.load.requests < one.limit)

    if choice is None:
        assert not any(usable(one) and one.role is not Role.PREFILL for one in candidates)
        return
    assert usable(choice.worker)
    assert choice.worker.role is not Role.PREFILL
    if choice.prefill is not None:
        assert splittable
        assert usable(choice.prefill)
        assert (choice.prefill.role, choice.worker.role) == (Role.PREFILL, Role.DECODE)
        assert choice.prefill.revision == choice.worker.revision
    works = dict(zip([one.uid for one in choice.candidates], choice.works, strict=True))
    same_side = {one.uid for one in candidates if (one.role is Role.PREFILL) == (choice.worker.role is Role.PREFILL)}
    assert choice.work_before(choice.worker) == min(work for uid, work in works.items() if uid in same_side)
    assert choice == choose(demand, snapshot, Random(seed), 0.0), "the same inputs give the same choice"
