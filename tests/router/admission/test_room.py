"""When a request waits in the router rather than in an engine."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_api.modelservice import Role
from forebay_api.objective import Objective
from forebay_router.admission.room import cost_s, disturbs, excess_s, queued_work_s
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


@pytest.mark.parametrize(
    ("candidates", "held"),
    [
        ([candidate(queued=4_000)], False),
        ([candidate(queued=6_000)], True),
        ([candidate("a", 6_000), candidate("b", 7_000)], True),
        ([candidate("a", 6_000), candidate("b", 4_000)], False),
        ([candidate("a", 6_000), candidate("b", 0)], False),
        ([candidate(queued=60_000, prompts=1)], False),
        ([candidate(queued=60_000, of=pool(measured=False))], False),
    ],
    ids=[
        "less than the objective's time is queued",
        "more is queued",
        "on both",
        "on one of two",
        "one is idle",
        "one long prompt, and room for the next to be there when it is done",
        "a speed that is only assumed keeps nobody back",
    ],
)
def test_request_waits_while_every_worker_has_more_than_the_objective_queued(candidates, held):
    assert (excess_s(choice(*candidates), OBJECTIVE) > 0) is held


def test_excess_says_when_there_will_be_room():
    assert excess_s(choice(candidate(queued=8_000)), OBJECTIVE) == pytest.approx(0.3)


def test_prompt_that_is_overdue_counts_for_its_work_only():
    """A worker that is silent for long is one for the watch; what it has to compute is no more than before."""
    worker = candidate(queued=2_000)
    late = choice(worker, now_s=100.0)
    assert late.prediction.wait_s > 90
    assert queued_work_s(worker, late.prediction.wait_s) == pytest.approx(0.2)
    assert excess_s(late, OBJECTIVE) == 0


def test_of_a_pair_the_prefill_worker_s_queue_counts():
    split = DEMAND._replace(splittable=True)
    decode = candidate("d", prompts=3, role=Role.DECODE, of=pool(seed=Seed(1.0, 1e-3, 0.008, 0.001, Origin.PLANNED)))
    pair = choice(candidate("p", 8_000, role=Role.PREFILL), decode, demand=split)
    assert pair.prefill is not None
    assert excess_s(pair, OBJECTIVE) == pytest.approx(0.3)
    assert excess_s(choice(candidate("p", 3_000, role=Role.PREFILL), decode, demand=split), OBJECTIVE) == 0


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40_000), st.integers(1, 40), st.booleans()), min_size=1, max_size=5),
    st.integers(1, 50_000),
    st.floats(0, 5),
    st.floats(0.05, 5),
)
def test_whatever_could_meet_its_objective_is_not_kept_back(workers, prompt, now_s, ttft_s):
    """The rule's one promise."""
    objective = Objective(ttft_s=ttft_s, tpot_s=0.025, target=0.9)
    candidates = [
        candidate(str(number), queued, prompts=prompts, of=pool(measured=measured))
        for number, (queued, prompts, measured) in enumerate(workers)
    ]
    made = choice(*candidates, demand=Demand(prompt_tokens=prompt, objective=objective), now_s=now_s)
    if any(one.ttft_s <= ttft_s for one in made.considered):
        assert excess_s(made, objective) == 0


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
    assert cost_s(demand._replace(cached={}), candidate()) == pytest.approx(0.9 + 0.1)
    assert cost_s(demand, None) > 0, "also before there is any worker"
    bent = candidate()
    bent.speed.pool.bend.value = 1e-5
    assert cost_s(demand, bent) == pytest.approx(0.6 * (1 + 1e-5 * 14_000) + 0.1), "tokens deep in a prompt take longer"
