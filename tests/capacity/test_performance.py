"""The closed forms against a step-by-step simulation that shares only the step times."""

from dataclasses import replace

import pytest

from forebay_api.objective import Objective
from forebay_capacity.accelerators import accelerator_of
from forebay_capacity.layouts import MixedLayout, PoolSize, SplitLayout
from forebay_capacity.performance import Serving, evaluate, lane_cap
from forebay_capacity.shapes import shape_of
from forebay_capacity.steptime import timer_of
from forebay_capacity.transfer import TRANSFER_LATENCY_S, transfer_seconds
from forebay_capacity.worker import Parallelism, Worker
from forebay_capacity.workload import Workload
from tests.capacity.stepsim import Load, StepSimulation

H100 = accelerator_of("h100-sxm")
WORKER = Worker(shape_of("llama-3.1-8b"), H100)
TIMER = timer_of(WORKER)
OBJECTIVE = Objective(ttft_s=0.5, tpot_s=0.025, target=0.99)


def simulate(workload: Workload, *, mixed: int = 0, prefill: int = 0, decode: int = 0) -> tuple[float, list, list]:
    load = Load(workload.input_tokens, workload.output_tokens, workload.cached_tokens, workload.rate_per_s)
    moving_s = transfer_seconds(
        WORKER.shape,
        workload.input_tokens,
        bandwidth_bytes_per_s=H100.network_bytes_per_s,
        latency_s=TRANSFER_LATENCY_S,
    )
    simulation = StepSimulation(
        load,
        mixed=[TIMER] * mixed,
        prefill=[TIMER] * prefill,
        decode=[TIMER] * decode,
        slots=lane_cap(WORKER, workload, Serving()),
        transfer_s=moving_s,
    )
    times = simulation.run(max(700, min(2500, 300_000 // workload.output_tokens)))
    good = sum(ttft <= OBJECTIVE.ttft_s and tpot <= OBJECTIVE.tpot_s for ttft, tpot in times) / len(times)
    return good, sorted(ttft for ttft, _ in times), sorted(tpot for _, tpot in times)


def at(values: list[float], share: float) -> float:
    return values[int(share * len(values))]


MIXED = [
    (1, 2048, 256, 0.0, 3.0),
    (1, 2048, 256, 0.0, 6.0),
    (3, 2048, 256, 0.0, 20.0),
    (2, 2048, 28, 0.0, 10.0),
    (1, 1155, 211, 0.0, 10.0),
    (2, 12_035, 64, 0.374, 2.0),
]
SPLIT = [
    (2, 1, 2048, 256, 0.0, 20.0),
    (2, 1, 2048, 28, 0.0, 20.0),
    (1, 1, 1155, 211, 0.0, 20.0),
    (2, 1, 12_035, 343, 0.3, 2.0),
    (4, 2, 8192, 256, 0.0, 8.0),
]


@pytest.mark.parametrize(("replicas", "tokens", "answer", "cached", "rate"), MIXED)
def test_mixed_workers_attain_what_a_simulation_does(replicas, tokens, answer, cached, rate):
    workload = Workload(input_tokens=tokens, output_tokens=answer, cached_share=cached, rate_per_s=rate)
    model = evaluate(MixedLayout(PoolSize(WORKER, replicas)), workload, OBJECTIVE)
    good, ttft, tpot = simulate(workload, mixed=replicas)
    assert model.attainment == pytest.approx(good, abs=0.08)
    assert model.ttft_s == pytest.approx(at(ttft, 0.99), rel=0.5)
    assert model.tpot_s == pytest.approx(at(tpot, 0.99), rel=0.35)


@pytest.mark.parametrize(("prefills", "decodes", "tokens", "answer", "cached", "rate"), SPLIT)
def test_split_workers_attain_what_a_simulation_does(prefills, decodes, tokens, answer, cached, rate):
    workload = Workload(input_tokens=tokens, output_tokens=answer, cached_share=cached, rate_per_s=rate)
    layout = SplitLayout(PoolSize(WORKER, prefills), PoolSize(WORKER, decodes))
    model = evaluate(layout, workload, OBJECTIVE)
    good, ttft, tpot = simulate(workload, prefill=prefills, decode=decodes)
    assert model.attainment == pytest.approx(good, abs=0.08)
    assert model.ttft_s == pytest.approx(at(ttft, 0.99), rel=0.35)
    assert model.tpot_s == pytest.approx(at(tpot, 0.99), rel=0.1)


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
    slow = Worker(WORKER.shape, replace(H100, network_bytes_per_s=1e9), Parallelism())
    fast_ttft = evaluate(SplitLayout(PoolSize(WORKER, 2), PoolSize(WORKER, 1)), workload, OBJECTIVE).ttft_s
    slow_ttft = evaluate(SplitLayout(PoolSize(slow, 2), PoolSize(slow, 1)), workload, OBJECTIVE).ttft_s
    assert slow_ttft - fast_ttft == pytest.approx(8192 * 131_072 / 1e9, rel=0.05)
