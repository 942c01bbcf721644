"""Learning how fast workers are, and how long their queues take."""

from math import exp, inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_api.objective import Objective
from forebay_router.backlog import Backlog
from forebay_router.fitting import Line, chance_within, work_of
from forebay_router.speed import ASSUMED, TRAFFIC_S, Origin, PoolSpeed, Speed


def test_a_line_is_learnt_from_noisy_requests():
    line, rng = Line(0.01, 1 / 20_000, 1024), Random(1)
    for _ in range(300):
        tokens = rng.choice([100, 500, 2000, 4000])
        line.observe(tokens, (0.03 + tokens / 8000) * exp(rng.gauss(0, 0.1)))
    assert line.at(100) == pytest.approx(0.0425, rel=0.25)
    assert line.at(4000) == pytest.approx(0.53, rel=0.1)
    assert 0.05 < line.spread2**0.5 < 0.3


def test_equal_requests_move_the_base_and_keep_the_slope():
    line = Line(0.01, 1 / 20_000, 1024)
    for _ in range(200):
        line.observe(100, 0.05)
    assert line.at(100) == pytest.approx(0.05, rel=0.02)
    assert line.slope == pytest.approx(1 / 20_000, rel=0.5)


def test_one_hung_request_hardly_moves_a_line():
    line = Line(0.01, 1 / 20_000, 1024)
    for tokens in (100, 1000, 3000) * 30:
        line.observe(tokens, 0.01 + tokens / 20_000)
    before = line.at(1000)
    line.observe(1000, 600.0)
    assert line.at(1000) < 1.3 * before


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(1e-6, 1e3)), max_size=50))
def test_lines_are_never_negative(seen):
    line = Line(0.01, 1 / 20_000, 1024)
    for x, y in seen:
        line.observe(x, y)
        assert line.base >= 0
        assert line.slope >= 0
        assert line.at(x) < 1e9


def test_equal_workers_are_exactly_equal_and_a_slow_one_is_found():
    pool, rng = PoolSpeed(), Random(3)
    workers = [Speed(pool) for _ in range(4)]
    for _ in range(150):
        for at, worker in enumerate(workers):
            tokens = rng.choice([200, 1000])
            slow = 2.0 if at == 3 else 1.0
            worker.saw_first_token(tokens, slow * (0.02 + tokens / 10_000) * exp(rng.gauss(0, 0.1)))
    assert pool.origin is Origin.MEASURED
    slow_factor = workers[3].first_token.value / workers[0].first_token.value
    assert slow_factor == pytest.approx(2.0, rel=0.25)


def test_a_worker_alone_is_its_pool():
    """While only one worker has been measured, the others are expected to be like it."""
    pool, rng = PoolSpeed(), Random(4)
    measured, fresh = Speed(pool), Speed(pool)
    for _ in range(30):
        measured.saw_first_token(100, 0.001 * exp(rng.gauss(0, 0.2)))
        measured.saw_output(2, 0.05)
        assert measured.first_token.value == fresh.first_token.value == 1.0
        assert measured.output_token.value == 1.0


def test_chance_beyond_doubt_and_coin_toss():
    assert chance_within(1.0, 1.0, 0.16) == pytest.approx(0.5)
    assert chance_within(1.0, 0.01, 0.16) > 0.999_999
    assert chance_within(1.0, 100.0, 0.16) < 1e-6
    assert chance_within(1.0, 0.0, 0.16) == 1.0


def test_a_queue_counts_from_dispatch_and_drains():
    queue = Backlog()
    assert queue.wait_s(0.001, 5.0) == 0
    queue.add(1, 100, 10.0, visible=True)
    queue.add(2, 200, 10.0, visible=True)
    assert queue.wait_s(0.001, 10.0) == pytest.approx(0.3)
    assert queue.wait_s(0.001, 10.06) == pytest.approx(0.24)
    queue.computed(1, 10.2)
    assert queue.wait_s(0.001, 10.25) == pytest.approx(0.15)
    queue.computed(2, 10.4)
    assert queue.wait_s(0.001, 10.4) == 0


def test_a_silent_worker_looks_longer_the_longer_it_is_silent():
    queue = Backlog()
    queue.add(1, 100, 0.0, visible=True)
    assert queue.wait_s(0.001, 0.1) == pytest.approx(0.0)
    assert queue.wait_s(0.001, 5.1) == pytest.approx(5.0)


def test_prompts_whose_first_token_is_not_seen_drain_by_time():
    queue = Backlog()
    queue.add(1, 100, 0.0, visible=False)
    assert queue.wait_s(0.001, 0.05) == pytest.approx(0.05)
    assert queue.wait_s(0.001, 5.0) == 0
    queue.add(2, 100, 5.0, visible=False)
    assert queue.wait_s(0.001, 5.0) == pytest.approx(0.1), "it began when it came"


@given(st.lists(st.tuples(st.sampled_from(["add", "computed", "drop"]), st.integers(0, 9), st.booleans()), max_size=60))
def test_a_queue_never_loses_count(steps):
    queue, now = Backlog(), 0.0
    for action, lease, visible in steps:
        now += 0.01
        if action == "add" and lease not in queue.prompts:
            queue.add(lease, 10 * lease, now, visible=visible)
        elif action == "computed":
            queue.computed(lease, now)
            assert lease not in queue.prompts
        elif action == "drop":
            queue.drop(lease, now)
            assert lease not in queue.prompts
        assert queue.tokens == sum(one.tokens for one in queue.prompts.values())
        assert queue.wait_s(1e-3, now) >= 0
    assert ASSUMED.origin is Origin.ASSUMED


def test_what_queued_prompts_cost_is_told_from_their_tokens():
    """An engine that computes one prompt at a time, 5 ms each and 20 us a token."""
    line, rng = Line(0.01, 1 / 20_000, 1024, 0.0, 4.0), Random(5)
    for _ in range(300):
        ahead = rng.randrange(6)
        tokens = sum(rng.choice([50, 2000]) for _ in range(ahead + 1))
        line.observe(tokens, 0.005 * (ahead + 1) + tokens * 20e-6, ahead)
    assert line.slope == pytest.approx(20e-6, rel=0.1)
    assert line.second == pytest.approx(0.005, rel=0.15)
    assert line.at(100, 3) == pytest.approx(0.022, rel=0.1)


@pytest.mark.parametrize("stall_s", [0.0, 30e-6])
def test_whether_prompts_stall_their_neighbours_is_learnt(stall_s):
    pool, rng = PoolSpeed(), Random(6)
    worker = Speed(pool)
    for _ in range(400):
        sequences, beside = rng.randrange(1, 30), rng.choice([0, 500, 4000])
        worker.saw_output(sequences, 0.008 + sequences * 1e-4 + beside / 50 * stall_s, tokens=50, beside=beside)
    assert pool.output_token.second == pytest.approx(stall_s, abs=4e-6)
    assert pool.output_token.slope == pytest.approx(1e-4, rel=0.3)


OBJECTIVE = Objective(ttft_s=0.5, tpot_s=0.025, target=0.95)


def answers(worker: Speed, count: int, *, most: int, noise: float = 0.05) -> None:
    """Of 100 tokens each beside up to so many, with 500 prompt tokens for each; 34 at once keep to 25 ms without noise."""
    rng = Random(11)
    for _ in range(count):
        sequences = rng.randint(1, most)
        beside = 5.0 * sequences * 100 * exp(rng.gauss(0, noise))
        token_s = (0.008 + 3e-4 * sequences + 4e-5 * beside / 100) * exp(rng.gauss(0, noise))
        worker.saw_output(sequences, token_s, tokens=100, beside=beside)


def test_how_many_requests_run_in_time_is_learnt_with_the_prompts_that_come_with_them():
    pool = PoolSpeed()
    worker = Speed(pool)
    answers(worker, 400, most=30)
    pool.terms(OBJECTIVE)
    assert 26 <= worker.most <= 33, "34, less room for how uneven they are"
    worker.output_token.value = 1.5
    assert worker.most < 20, "a slow one runs fewer"


def test_how_many_run_in_time_is_not_known_from_few_answers_nor_far_beyond_them():
    few, narrow = Speed(PoolSpeed()), Speed(PoolSpeed())
    answers(few, 40, most=30)
    answers(narrow, 400, most=8)
    for worker in (Speed(), few, narrow):
        worker.pool.terms(OBJECTIVE)
        assert worker.most == inf


def test_uneven_answers_leave_more_room():
    found = []
    for noise in (0.02, 0.2):
        worker = Speed(PoolSpeed())
        answers(worker, 400, most=30, noise=noise)
        worker.pool.terms(OBJECTIVE)
        found.append(worker.most)
    assert found[1] < 0.85 * found[0]


def test_a_line_fits_short_prompts_though_long_ones_are_there():
    """Relative errors count: 60,000 tokens take longer than a line says, and 20 tokens still take what they take."""
    line, rng = Line(0.01, 1 / 20_000, 1024), Random(7)
    for _ in range(500):
        tokens = rng.choice([20, 500, 5000, 20_000, 60_000])
        line.observe(tokens, 0.012 + tokens * 28e-6 + tokens**2 * 4e-10)
    assert line.at(20) == pytest.approx(0.0126, rel=0.25)
    assert line.at(20_000) == pytest.approx(0.73, rel=0.35)


def test_a_worker_that_gets_long_prompts_is_not_called_slow():
    """Times grow faster than in a straight line; which worker gets the long prompts is the router's own choice."""
    pool, rng = PoolSpeed(), Random(8)
    short, long = Speed(pool), Speed(pool)
    for _ in range(300):
        for worker, sizes in ((short, (500, 1000, 2000)), (long, (20_000, 40_000, 60_000))):
            tokens = rng.choice(sizes)
            worker.saw_first_token(tokens, (0.012 + tokens * 28e-6 + tokens**2 * 4e-10) * exp(rng.gauss(0, 0.05)))
            worker.saw_output(3, 0.008 + tokens * 1e-7, tokens=100, prompt=tokens)
    assert short.first_token.value == pytest.approx(1.0, abs=0.03)
    assert long.first_token.value == pytest.approx(1.0, abs=0.03)
    assert long.output_token.value == pytest.approx(1.0, abs=0.03)


def test_a_worker_that_is_slow_at_prompts_only_it_gets_is_found_once_others_get_them():
    pool, rng = PoolSpeed(), Random(9)
    fast, slow = Speed(pool), Speed(pool)
    for _ in range(200):
        for worker, pace in ((fast, 1.0), (slow, 2.0)):
            tokens = rng.choice([1000, 20_000])
            worker.saw_first_token(tokens, pace * (0.012 + tokens * 28e-6 + tokens**2 * 4e-10))
    assert slow.first_token.value / fast.first_token.value == pytest.approx(2.0, rel=0.3)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0, 1e-3))
def test_the_work_of_a_prompt_is_that_of_its_parts(first, second, bend):
    whole = first + second
    assert work_of(first, first, bend) + work_of(whole, second, bend) == pytest.approx(work_of(whole, whole, bend))
    assert work_of(whole, second, bend) >= second


@pytest.mark.parametrize("bend", [0.0, 2e-5])
def test_how_much_more_deep_tokens_take_is_learnt(bend):
    """Prompts of 100 to 100,000 tokens in an engine whose attention is felt, or is not."""
    pool, rng = PoolSpeed(), Random(8)
    worker = Speed(pool)
    for _ in range(600):
        tokens = round(100 * 10 ** (3 * rng.random()))
        seconds = (0.01 + work_of(tokens, tokens, bend) / 30_000) * exp(rng.gauss(0, 0.1))
        worker.saw_first_token(work_of(tokens, tokens, pool.bend.value), seconds, bent=tokens * tokens)
    predicted = pool.first_token.at(work_of(80_000, 80_000, pool.bend.value))
    assert predicted == pytest.approx(0.01 + work_of(80_000, 80_000, bend) / 30_000, rel=0.2)
    assert pool.bend.value == pytest.approx(bend, abs=5e-6)


def test_a_worker_has_too_many_prompts_only_beyond_chance():
    pool = PoolSpeed()
    pool.workers = 2
    one, other = Speed(pool), Speed(pool)
    for at in range(4):
        one.sent(at / 10, 100)
    assert not one.overrun(0.4), "four of four may be chance"
    for at in range(4, 400):
        (other if at % 8 == 0 else one).sent(at / 10, 100)
    assert one.overrun(40.0)
    assert not other.overrun(40.0)


def test_a_worker_with_a_third_more_than_its_share_is_not_overrun_however_sure_that_is():
    pool = PoolSpeed()
    pool.workers = 2
    one, other = Speed(pool), Speed(pool)
    for at in range(2000):
        (one if at % 20 < 13 else other).sent(at / 50, 100)
    assert one.prompts.at(40.0) > 1.25 * pool.prompts.at(40.0) / 2
    assert not one.overrun(40.0)


def test_a_prompt_keeps_a_worker_busy_beside_its_tokens_too():
    pool = PoolSpeed()
    pool.first_token.second = 0.02
    worker = Speed(pool)
    worker.sent(0.0, 2000)
    assert worker.busy.at(0.0) == pytest.approx((0.02 + 2000 * ASSUMED.prefill_token_s) / TRAFFIC_S)
