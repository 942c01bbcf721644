"""The closed forms against a step-by-step simulation that shares only the step times."""

from dataclasses import replace

import pytest

from forebay_api.objective import Objective
from forebay_capacity.layouts import Layout, MixedLayout, PoolSize, SplitLayout
from forebay_capacity.performance import evaluate
from forebay_capacity.shapes import shape_of
from forebay_capacity.worker import Worker
from forebay_capacity.workload import Workload
from tests.capacity.report import CASES, H100, OBJECTIVE, WORKER, layout_name, simulate_layout


@pytest.mark.parametrize(("layout", "workload"), CASES, ids=[layout_name(*case) for case in CASES])
def test_a_layout_attains_what_a_simulation_does(layout: Layout, workload: Workload):
    model = evaluate(layout, workload, OBJECTIVE)
    simulated = simulate_layout(layout, workload)
    split = isinstance(layout, SplitLayout)
    assert model.attainment == pytest.approx(simulated.attainment, abs=0.08)
    assert model.ttft_s == pytest.approx(simulated.ttft_s, rel=0.35 if split else 0.5)
    assert model.tpot_s == pytest.approx(simulated.tpot_s, rel=0.1 if split else 0.35)


def test_an_overloaded_layout_attains_nothing():
    workload = Workload(input_tokens=2048, output_tokens=256, rate_per_s=500)
    assert evaluate(MixedLayout(PoolSize(WORKER, 1)), workload, OBJECTIVE).attainment == 0


def test_a_worker_without_room_for_one_request_attains_nothing():
    worker = Worker(shape_of("llama-3.1-70b"), H100)
    workload = Workload(input_tokens=2048, output_tokens=256, rate_per_s=0.1)
    assert evaluate(MixedLayout(PoolSize(worker, 4)), workload, OBJECTIVE).attainment == 0


def test_answers_of_one_token_have_no_time_per_output_token():
    workload = Workload(input_tokens=2048, output_tokens=1, rate_per_s=5)
    performance = evaluate(MixedLayout(PoolSize(WORKER, 1)), workload, Objective(0.5, 1e-6, 0.99))
    assert performance.tpot_s == 0
    assert performance.attainment > 0.95


def test_moving_the_cache_over_a_slow_network_costs_the_first_token_time():
    workload = Workload(input_tokens=8192, output_tokens=64, rate_per_s=1)
    slow = Worker(WORKER.shape, replace(H100, network_bytes_per_s=1e9))
    fast_ttft = evaluate(SplitLayout(PoolSize(WORKER, 2), PoolSize(WORKER, 1)), workload, OBJECTIVE).ttft_s
    slow_ttft = evaluate(SplitLayout(PoolSize(slow, 2), PoolSize(slow, 1)), workload, OBJECTIVE).ttft_s
    assert slow_ttft - fast_ttft == pytest.approx(8192 * 131_072 / 1e9, rel=0.05)
