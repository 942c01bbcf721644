"""When a request waits in the router rather than in an engine."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_router.admission.room import ANYHOW, FIRST, Cause, Held, Turn, cost_s, disturbs, queued_work_s, settle
from forebay_router.choose import Choice, Snapshot, choose
from forebay_router.predicting import Candidate, Demand, Load
from forebay_router.speed import Origin, PoolSpeed, Seed, Speed

OBJECTIVE = Objective(ttft_s=0.5, tpot_s=0.025, target=0.9)
SEED = Seed(0.01, 1 / 10_000, 0.008, 0.001, Origin.PLANNED)
"""10,000 prompt tokens a second; 17 sequences keep to 25 ms a token."""
DEMAND = Demand(prompt_tokens=1000, output_tokens=100, objective=OBJECTIVE)


def pool(*, measured: bool = True, seed: Seed = SEED) -> PoolSpeed:
    made = PoolSpeed(seed)
    if measured:
        made.first_token.seen = made.output_token.seen = 100
    return made


def candidate(
    uid: str = "a", queued: int = 0, *, prompts: int = 5, of: PoolSpeed | None = None, role: Role = Role.MIXED
) -> Candidate:
    """A worker with so many prompt tokens queued since time 0, in so many prompts."""
    made = Candidate(uid, role, load=Load(requests=prompts), speed=Speed(of or pool(), finished=1000))
    for number in range(prompts if queued else 0):
        made.load.backlog.add(number, queued // prompts, 0.0, visible=True)
    return made


def choice(*candidates: Candidate, demand: Demand = DEMAND, now_s: float = 0.0) -> Choice:
    made = choose(demand, Snapshot.of(candidates), Random(1), now_s)
    assert made is not None
    return made


def held(made: Choice, arrived_s: float, turn: Turn) -> Held | None:
    """Why it is not sent yet."""
    settled = settle(made, Snapshot.of(tuple(made.field.values())), Random(2), arrived_s, turn)
    return settled if isinstance(settled, Held) else None


def held_for_prompts(made: Choice, turn: Turn = FIRST) -> float:
    """For how many seconds; 0 when it is not."""
    why = held(made, made.now_s, turn)
    assert why is None or why.cause is Cause.PROMPTS
    return 0.0 if why is None else why.again_s


@pytest.mark.parametrize(
    ("candidates", "waits"),
    [
        ([candidate(queued=2_000)], False),
        ([candidate(queued=3_000)], True),
        ([candidate("a", 3_000), candidate("b", 4_000)], True),
        ([candidate("a", 3_000), candidate("b", 2_000)], False),
        ([candidate("a", 3_000), candidate("b", 0)], False),
        ([candidate(queued=60_000, prompts=1)], False),
        ([candidate(queued=60_000, of=pool(measured=False))], False),
    ],
    ids=[
        "less than half of the objective's time is queued",
        "more is queued",
        "on both",
        "on one of two",
        "one is idle",
        "one long prompt, and room for the next to be there when it is done",
        "a speed that is only assumed keeps nobody back",
    ],
)
def test_request_waits_while_every_worker_has_half_of_the_objective_queued(candidates, waits):
    assert (held_for_prompts(choice(*candidates)) > 0) is waits
    assert (held_for_prompts(choice(*candidates), ANYHOW) > 0) is waits, "it would wait in the engine, and gain nothing"


def test_it_is_told_when_there_will_be_room():
    assert held_for_prompts(choice(candidate(queued=8_000))) == pytest.approx(0.55)


def test_prompt_that_is_overdue_counts_for_its_work_only():
    """A worker that is silent for long is one for the watch; what it has to compute is no more than before."""
    worker = candidate(queued=2_000)
    overdue = choice(worker, now_s=100.0)
    assert overdue.prediction.wait_s > 90
    assert queued_work_s(worker, overdue.prediction.wait_s) == pytest.approx(0.2)
    assert held_for_prompts(overdue) == 0


def test_of_a_pair_the_prefill_worker_s_queue_counts():
    split = replace(DEMAND, splittable=True)
    decode = candidate("d", prompts=3, role=Role.DECODE, of=pool(seed=Seed(1.0, 1e-3, 0.008, 0.001, Origin.PLANNED)))
    pair = choice(candidate("p", 8_000, role=Role.PREFILL), decode, demand=split)
    assert pair.prefill is not None
    assert held_for_prompts(pair) == pytest.approx(0.55)
    assert held_for_prompts(choice(candidate("p", 2_000, role=Role.PREFILL), decode, demand=split)) == 0


WORKERS = st.lists(
    st.tuples(st.integers(0, 40_000), st.integers(0, 40), st.booleans(), st.floats(0.5, 2.0)), min_size=1, max_size=5
)


def drawn(workers, *, split: bool) -> list[Candidate]:
    made = []
    for number, (queued, prompts, measured, pace) in enumerate(workers):
        one = candidate(str(number), queued, prompts=max(1, prompts) if queued else prompts, of=pool(measured=measured))
        one.speed.output_token.value = pace
        made.append(one)
    if split:
        made += [
            candidate(f"d{one.uid}", prompts=one.load.requests, role=Role.DECODE, of=one.speed.pool) for one in made
        ]
        made = [replace(one, role=Role.PREFILL) if one.role is Role.MIXED else one for one in made]
    return made


@settings(deadline=None)
@given(WORKERS, st.booleans(), st.integers(1, 50_000), st.floats(0, 5), st.floats(0.05, 5), st.floats(0.004, 0.1))
def test_nobody_waits_while_a_worker_is_idle(workers, split, prompt, now_s, ttft_s, tpot_s):
    """Whatever the objective, and whether it can be met there or not."""
    objective = Objective(ttft_s=ttft_s, tpot_s=tpot_s, target=0.9)
    candidates = drawn([*workers, (0, 0, True, 1.0)], split=split)
    demand = Demand(prompt_tokens=prompt, objective=objective, splittable=split)
    made = choice(*candidates, demand=demand, now_s=now_s)
    assert held(made, now_s, FIRST) is None


@settings(deadline=None)
@given(WORKERS, st.booleans(), st.integers(1, 50_000), st.floats(0, 5), st.floats(0.05, 5), st.floats(0.004, 0.1))
def test_it_costs_no_time_to_wait_for_prompts_and_none_beyond_its_part_to_wait_for_pace(
    workers, split, prompt, now_s, ttft_s, tpot_s
):
    """Never for ever: while prompts are held for, engines have work; for pace a request that is due does not wait."""
    objective = Objective(ttft_s=ttft_s, tpot_s=tpot_s, target=0.9)
    demand = Demand(prompt_tokens=prompt, objective=objective, splittable=split)
    made = choice(*drawn(workers, split=split), demand=demand, now_s=now_s)
    why = held(made, now_s, ANYHOW)
    if why is not None:
        assert why.cause is Cause.PROMPTS
        least_s = min(one.wait_s for one in made.considered if made.field[one.uid].role is not Role.DECODE)
        assert 0 < why.again_s <= least_s, "when it is asked again, some engine still has work"


@pytest.mark.parametrize(
    ("requests", "of", "waits"),
    [
        (14, pool(), False),
        (16, pool(), True),
        (200, pool(measured=False), False),
        (200, pool(seed=Seed(0.01, 1e-4, 0.05, 0.001, Origin.PLANNED)), False),
        (200, pool(seed=Seed(0.01, 1e-4, 0.008, 0.0, Origin.PLANNED)), False),
    ],
    ids=[
        "within the objective",
        "as many as it can run in time",
        "not measured",
        "it cannot be met there at all",
        "however many run, they are in time",
    ],
)
def test_request_waits_while_every_worker_runs_as_many_as_it_can_in_time(requests, of, waits):
    """17 sequences keep to 25 ms; a little less leaves room for chance."""
    worker = candidate(prompts=requests, of=of)
    of.unevenness = 0.05**2
    made = choice(worker)
    assert (held(made, 0.0, FIRST) == Held(Cause.PACE)) is waits
    assert held(made, 0.0, ANYHOW) is None
    idle = candidate("b", prompts=0, of=of)
    assert held(choice(worker, idle), 0.0, FIRST) is None


def test_limit_is_not_believed_far_beyond_what_was_seen():
    """Without the capacity model's word: a line through few sequences says little of many."""
    of = pool(seed=Seed(0.01, 1 / 10_000, 0.008, 0.001, Origin.ASSUMED))
    of.unevenness = 0.05**2
    of.widest = 4.0
    assert held(choice(candidate(prompts=100, of=of)), 0.0, FIRST) is None
    of.widest = 12.0
    of.changed()
    assert held(choice(candidate(prompts=100, of=of)), 0.0, FIRST) == Held(Cause.PACE)


def test_slow_worker_runs_fewer_in_time():
    of = pool()
    of.unevenness = 0.05**2
    slow = candidate(prompts=10, of=of)
    assert held(choice(slow), 0.0, FIRST) is None
    slow.speed.output_token.value = 1.5
    assert held(choice(slow), 0.0, FIRST) == Held(Cause.PACE)


def test_prompts_that_the_requests_bring_count_against_the_pace():
    of = pool()
    of.unevenness = 0.05**2
    of.output_token.second = 1e-4
    of.beside, of.company = 500.0, 100.0  # five prompt tokens for each output token: half a millisecond a sequence
    worker = candidate(prompts=12, of=of)
    assert held(choice(worker), 0.0, FIRST) == Held(Cause.PACE)


def test_request_goes_past_full_workers_to_one_that_has_room():
    """Though that one has answered nothing yet, and has what a fresh worker gets at once."""
    of = pool()
    of.unevenness = 0.05**2
    full = [candidate(uid, prompts=17, of=of) for uid in "ab"]
    fresh = candidate("c", prompts=5, of=of)
    fresh.speed.finished = 0
    made = choice(*full, fresh)
    assert made.worker.uid != "c"
    settled = settle(made, Snapshot.of((*full, fresh)), Random(1), 0.0, FIRST)
    assert not isinstance(settled, Held)
    assert settled.worker is fresh


def test_request_goes_past_full_workers_to_one_of_many_that_was_not_looked_at():
    of = pool()
    of.unevenness = 0.05**2
    many = [candidate(f"{number:03}", prompts=17 if number < 100 else 5, of=of) for number in range(200)]
    held_back = 0
    for seed in range(100):
        made = choose(DEMAND, Snapshot.of(many), Random(seed), 0.0)
        assert made is not None
        held_back += isinstance(settle(made, Snapshot.of(many), Random(seed + 1000), 0.0, FIRST), Held)
    assert held_back < 40, "both random looks found full ones only"


def test_request_goes_to_one_with_many_prompts_where_the_others_run_as_many_as_they_can():
    """Until it runs as many itself."""
    of = pool()
    of.unevenness = 0.05**2
    full, queued = candidate("a", prompts=17, of=of), candidate("b", 4_000, of=of)
    made = choice(full, queued)
    assert settle(made, Snapshot.of((full, queued)), Random(1), 0.0, FIRST) is made
    assert made.worker is queued
    queued.load.requests = 17
    assert held(made, 0.0, FIRST) == Held(Cause.PACE)


def test_request_that_cannot_be_in_time_is_late_unless_it_is_known_to_be():
    made = choice(candidate(), now_s=10.0)
    assert made.prediction.ttft_s == pytest.approx(0.11)
    for arrived_s, late in ((9.65, False), (9.6, True)):
        why = held(made, arrived_s, Turn())
        assert (why is not None and why.cause is Cause.LATE) is late
        assert held(made, arrived_s, Turn(late=True)) is None


@pytest.mark.parametrize(
    ("requests", "seed", "measured", "disturbed"),
    [
        (0, SEED, True, False),
        (10, SEED, True, False),
        (20, SEED, True, True),
        (20, SEED, False, False),
        (20, Seed(0.01, 1e-4, 0.05, 0.001, Origin.PLANNED), True, False),
    ],
    ids=["idle", "room left", "over the objective", "not measured", "the objective cannot be met there at all"],
)
def test_low_priority_leaves_the_others_their_pace(requests, seed, measured, disturbed):
    worker = candidate(prompts=requests, of=pool(seed=seed, measured=measured))
    assert disturbs(choice(worker), OBJECTIVE) is disturbed


def test_cost_is_worker_time():
    demand = Demand(prompt_tokens=10_000, output_tokens=100, cached={"a": 4_000}, common_tokens=1_000)
    assert cost_s(demand, candidate()) == pytest.approx(0.6 + 0.1)
    assert cost_s(replace(demand, cached={}), candidate()) == pytest.approx(0.9 + 0.1)
    assert cost_s(demand, None) > 0, "also before there is any worker"
    bent = candidate()
    bent.speed.pool.bend.value = 1e-5
    assert cost_s(demand, bent) == pytest.approx(0.6 * (1 + 1e-5 * 14_000) + 0.1), "tokens deep in a prompt take longer"
