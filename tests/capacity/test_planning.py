import math
from dataclasses import replace

import pytest

from forebay_api.objective import Objective
from forebay_capacity.accelerators import Accelerator, accelerator_of
from forebay_capacity.batch import prefill_seconds
from forebay_capacity.errors import ImpossibleError, UnknownAcceleratorError
from forebay_capacity.layouts import MixedLayout, PoolSize, SplitLayout, usd_per_million_output_tokens
from forebay_capacity.options import can_pair, find_options, highest_rate
from forebay_capacity.performance import Serving, evaluate
from forebay_capacity.planning import Demand, Limit, Plan, make_plan
from forebay_capacity.refusals import Cause, idle_ttft_s
from forebay_capacity.shapes import shape_of
from forebay_capacity.steptime import ROOFLINE, timer_of
from forebay_capacity.worker import Parallelism, Worker
from forebay_capacity.workload import Workload

H100 = accelerator_of("h100-sxm")
CHAT = Workload(input_tokens=2048, output_tokens=256, rate_per_s=20)
OBJECTIVE = Objective(ttft_s=0.5, tpot_s=0.025, target=0.99)


def plan(model: str = "llama-3.1-8b", *, objective: Objective = OBJECTIVE, workload: Workload = CHAT, **more) -> Plan:
    accelerators: tuple[Accelerator, ...] = more.pop("accelerators", (H100,))
    more = {"tensor": (1, 2), **more}
    return make_plan(
        Demand(shape=shape_of(model), accelerators=accelerators, workload=workload, objective=objective, **more)
    )


def test_six_numbers_of_8b_on_an_h100():
    one = plan().workers[0]
    assert one.weight_bytes_per_gpu == pytest.approx(16.06e9, rel=1e-3)
    assert one.kv_tokens == pytest.approx(445_000, rel=0.03)
    assert one.sequences_by_memory == 445_008 // 2304
    assert one.sequences_by_tpot == pytest.approx(167, abs=3)
    assert one.output_tokens_per_s == pytest.approx(167 / 0.025, rel=0.02)
    assert one.usd_per_million_output_tokens == pytest.approx(3.0 / 3600 / one.output_tokens_per_s * 1e6)
    assert one.limit is Limit.TPOT


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"objective": Objective(0.5, 0.1, 0.99)}, Limit.MEMORY),
        ({"serving": Serving(max_sequences=8)}, Limit.ENGINE),
        ({"model": "llama-3.1-70b"}, Limit.WEIGHTS),
    ],
)
def test_the_limit_that_binds_is_named(changes: dict, limit: Limit):
    assert plan(**changes).workers[0].limit is limit


@pytest.mark.parametrize(
    ("accelerator", "sequences"), [("h100-sxm", 1024), ("mi300x", 1024), ("a100-80gb", 256), ("l40s", 256)]
)
def test_the_engines_limit_is_what_vllm_takes_on_the_accelerator_unless_given(accelerator: str, sequences: int):
    assert Serving().sequences_of_lane(accelerator_of(accelerator)) == sequences
    assert Serving(max_sequences=8).sequences_of_lane(accelerator_of(accelerator)) == 8


@pytest.mark.parametrize(
    ("accelerator", "tokens"), [("h100-sxm", 8192), ("mi300x", 8192), ("a100-80gb", 2048), ("l40s", 2048)]
)
def test_the_budget_of_a_step_is_what_vllm_takes_on_the_accelerator_unless_given(accelerator: str, tokens: int):
    worker = Worker(shape_of("llama-3.1-8b"), accelerator_of(accelerator))
    assert Serving().tokens_of_step(worker) == worker.step_tokens == tokens
    assert Serving(batched_tokens=512).tokens_of_step(worker) == 512
    assert Serving().tokens_of_step(replace(worker, batched_tokens=512)) == max(
        512, worker.accelerator.sequences_default
    )
    assert Serving(max_sequences=10_000).tokens_of_step(worker) == 10_000, "a token for each sequence"


def test_a_prompt_of_a_small_gpu_is_computed_in_steps_of_its_budget():
    worker = Worker(shape_of("llama-3.1-8b"), accelerator_of("a100-80gb"))
    workload = Workload(input_tokens=8192, output_tokens=64, rate_per_s=1.0)
    in_four_s = prefill_seconds(timer_of(worker), 8192, chunk_tokens=2048)
    assert idle_ttft_s(worker, workload, Serving()) == in_four_s > prefill_seconds(timer_of(worker), 8192)


def test_every_option_meets_the_objective_and_the_cheapest_comes_first():
    made = plan()
    assert not made.refusals
    for option in made.options:
        assert evaluate(option.layout, CHAT, OBJECTIVE).attainment >= OBJECTIVE.target
        assert option.rate_max_per_s >= CHAT.rate_per_s
        assert option.gpus == sum(pool.gpus for pool in option.layout.pools)
        assert option.usd_per_million_output_tokens == usd_per_million_output_tokens(option.layout, CHAT)
    prices = [option.price_usd_per_hour for option in made.options]
    assert prices == sorted(prices)
    assert prices[0] == 9.0


def test_one_worker_less_would_not_do():
    for option in plan().options:
        for smaller in _one_less(option.layout):
            assert evaluate(smaller, CHAT, OBJECTIVE).attainment < OBJECTIVE.target


def _one_less(layout):
    if isinstance(layout, MixedLayout):
        return (
            [MixedLayout(PoolSize(layout.mixed.worker, layout.mixed.replicas - 1))] if layout.mixed.replicas > 1 else []
        )
    prefill, decode = layout.prefill, layout.decode
    fewer = []
    if prefill.replicas > 1:
        fewer.append(SplitLayout(PoolSize(prefill.worker, prefill.replicas - 1), decode))
    if decode.replicas > 1:
        fewer.append(SplitLayout(prefill, PoolSize(decode.worker, decode.replicas - 1)))
    return fewer


@pytest.mark.parametrize(
    ("name", "workload", "low", "high"),
    [
        ("code", Workload(input_tokens=2048, output_tokens=28, rate_per_s=200), 8, 16),
        ("chat", Workload(input_tokens=1155, output_tokens=211, rate_per_s=300), 1.1, 1.8),
        ("long", Workload(input_tokens=12_035, output_tokens=343, rate_per_s=40), 1.4, 2.4),
        ("long, reused", Workload(input_tokens=12_035, output_tokens=343, rate_per_s=40, cached_share=0.374), 0.9, 1.6),
    ],
)
def test_prefill_to_decode_ratio_of_the_public_traces(name: str, workload: Workload, low: float, high: float):
    """Published by arithmetic of means: 14, 1.6, 1.9 and 1.2 prefill workers a decode worker."""
    worker = Worker(shape_of("llama-3.1-8b"), H100)
    options = find_options([worker], workload, Objective(2.0, 0.025, 0.99))
    split = next(option.layout for option in options if isinstance(option.layout, SplitLayout))
    assert low <= split.prefill.replicas / split.decode.replicas <= high, name


def test_70b_prefers_the_smallest_tensor_parallelism_that_holds_a_prompt_for_prefill():
    workload = Workload(input_tokens=2048, output_tokens=256, rate_per_s=10)
    made = plan("llama-3.1-70b", objective=Objective(1.0, 0.05, 0.99), workload=workload, tensor=())
    layout = made.options[0].layout
    assert isinstance(layout, SplitLayout)
    assert layout.prefill.worker.parallelism.tensor == 2
    assert layout.decode.worker.parallelism.tensor == 4


def test_a_model_too_large_for_a_node_is_cut_into_pipeline_stages():
    made = plan("llama-3.1-405b", tensor=(), objective=Objective(5.0, 0.1, 0.9), workload=Workload(
        input_tokens=1024, output_tokens=128, rate_per_s=1))  # fmt: skip
    assert made.workers[-1].worker.parallelism == Parallelism(tensor=8, pipeline=2)
    assert made.options
    assert all(isinstance(option.layout, MixedLayout) for option in made.options)


def test_only_workers_of_one_accelerator_and_without_stages_hand_over_caches():
    shape = shape_of("llama-3.1-8b")
    here, there = Worker(shape, H100), Worker(shape, accelerator_of("h200"))
    assert can_pair(here, Worker(shape, H100, Parallelism(tensor=2)))
    assert not can_pair(here, there)
    assert not can_pair(here, Worker(shape, H100, Parallelism(pipeline=2)))
    assert not can_pair(here, Worker(shape, H100, kv="fp8"))


def test_the_roofline_never_needs_more_gpus():
    real, ideal = plan(tensor=(1,)), plan(tensor=(1,), serving=Serving(calibration=ROOFLINE))
    assert ideal.options[0].gpus <= real.options[0].gpus
    assert ideal.workers[0].decode_step_s < real.workers[0].decode_step_s


def test_the_highest_rate_is_where_the_objective_is_lost():
    layout = MixedLayout(PoolSize(Worker(shape_of("llama-3.1-8b"), H100), 2))
    rate = highest_rate(layout, CHAT, OBJECTIVE, Serving())
    for factor, meets in ((0.98, True), (1.02, False)):
        workload = Workload(input_tokens=2048, output_tokens=256, rate_per_s=rate * factor)
        assert (evaluate(layout, workload, OBJECTIVE).attainment >= 0.99) is meets


def refusal(**changes):
    made = plan(**changes)
    assert not made.options
    return made.refusals


def test_an_impossible_ttft_names_the_prompt_that_would_do():
    long = Workload(input_tokens=20_000, output_tokens=256, rate_per_s=1)
    (reason,) = refusal(workload=long, tensor=(1,))
    assert reason.cause is Cause.TTFT
    assert reason.message.startswith("TTFT 0.5 s is impossible above 14.5k uncached tokens on one h100-sxm")


def test_following_the_refusal_of_a_ttft_gives_a_plan():
    long = Workload(input_tokens=20_000, output_tokens=256, rate_per_s=1)
    (reason,) = refusal(workload=long, tensor=(1,))
    assert "allow --ttft 910ms" in reason.message
    assert plan(workload=long, tensor=(1,), objective=Objective(0.91, 0.025, 0.99)).options


def test_an_impossible_tpot_names_the_time_of_one_sequence():
    (reason,) = refusal(objective=Objective(0.5, 0.005, 0.99), tensor=(1,))
    assert reason.cause is Cause.TPOT
    assert "one sequence alone takes 7.7 ms per token on one h100-sxm" in reason.message


def test_a_model_that_fits_nowhere_says_so():
    (reason,) = refusal(model="llama-3.1-405b", accelerators=(accelerator_of("l40s"),), tensor=(1,), pipeline=1)
    assert reason.cause is Cause.MEMORY
    assert "does not fit" in reason.message


def test_a_budget_too_small_names_the_gpus_needed():
    (reason,) = refusal(gpus_max=1, tensor=(1,))
    assert reason.cause is Cause.BUDGET
    assert "need 3 GPUs or more" in reason.message
    assert plan(gpus_max=3, tensor=(1,)).options


def test_a_rate_beyond_any_fleet_is_refused_at_once():
    (reason,) = refusal(workload=Workload(input_tokens=2048, output_tokens=256, rate_per_s=1e9), tensor=(1,))
    assert reason.cause is Cause.BUDGET


def test_bounds_without_any_room_are_refused():
    (reason,) = refusal(objective=Objective(0.05812, 0.00766, 0.999999), tensor=(1,))
    assert reason.cause is Cause.TARGET


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"accelerators": ()}, "accelerator"),
        ({"gpus_max": 0}, "gpus"),
        ({"tensor": (3,)}, "tensor"),
        ({"tensor": (-1,)}, "tensor"),
        ({"pipeline": 0}, "pipeline"),
        ({"data": 0}, "data"),
        ({"weights": "fp3"}, "weights"),
        ({"workload": Workload(input_tokens=131_000, output_tokens=256, rate_per_s=1)}, "input_tokens"),
    ],
)
def test_a_demand_that_makes_no_sense_is_refused_with_its_field(changes: dict, field: str):
    with pytest.raises(ImpossibleError) as caught:
        plan(**changes)
    assert caught.value.field == field
    assert caught.value.fix


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"input_tokens": 0}, "input_tokens"),
        ({"output_tokens": -1}, "output_tokens"),
        ({"input_tokens": 1.5}, "input_tokens"),
        ({"rate_per_s": 0}, "rate_per_s"),
        ({"rate_per_s": math.inf}, "rate_per_s"),
        ({"rate_per_s": -2.0}, "rate_per_s"),
        ({"cached_share": 1.01}, "cached_share"),
        ({"cached_share": math.nan}, "cached_share"),
    ],
)
def test_a_workload_of_nothing_is_refused_with_its_field(changes: dict, field: str):
    with pytest.raises(ImpossibleError) as caught:
        Workload(**{"input_tokens": 10, "output_tokens": 10, "rate_per_s": 1.0, **changes})
    assert caught.value.field == field


def test_a_fully_cached_prompt_still_computes_one_token():
    workload = Workload(input_tokens=100, output_tokens=1, rate_per_s=1, cached_share=1.0)
    assert (workload.cached_tokens, workload.uncached_tokens) == (99, 1)


def test_an_unknown_accelerator_names_close_ones():
    with pytest.raises(UnknownAcceleratorError, match="did you mean h100-sxm"):
        accelerator_of("h100-sxn")


@pytest.mark.parametrize("name", ["H100", "nvidia-h100-80gb", "h100_sxm", "NVIDIA-H100-SXM5"])
def test_an_accelerator_is_known_by_its_usual_names(name: str):
    assert accelerator_of(name) is H100
