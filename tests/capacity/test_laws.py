"""What must hold for every model, accelerator and load, whatever the numbers."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_api.objective import Objective
from forebay_capacity.accelerators import ACCELERATORS, accelerator_of
from forebay_capacity.architecture import ModelShape
from forebay_capacity.batch import decode_seconds, largest_batch, longest_prompt, prefill_seconds
from forebay_capacity.errors import CapacityError
from forebay_capacity.fits import Verdict, check_worker, longest_request
from forebay_capacity.layouts import MixedLayout, PoolSize, SplitLayout
from forebay_capacity.memory import kv_tokens_of, sequences_at
from forebay_capacity.performance import evaluate
from forebay_capacity.queueing import PromptQueue, concurrency, erlang_c, poisson_at_most
from forebay_capacity.shapes import PRESETS, shape_from_config, shape_of
from forebay_capacity.steptime import CALIBRATED, ROOFLINE, timer_of
from forebay_capacity.worker import Parallelism, Worker
from forebay_capacity.workload import Workload

OBJECTIVE = Objective(ttft_s=0.5, tpot_s=0.025, target=0.99)
H100 = Worker(shape_of("llama-3.1-8b"), accelerator_of("h100-sxm"))


@st.composite
def workers(draw: st.DrawFn) -> Worker:
    shape = shape_of(draw(st.sampled_from(sorted(PRESETS))))
    tensor = draw(st.sampled_from([size for size in (1, 2, 4, 8) if shape.heads % size == 0]))
    data = draw(st.sampled_from([1, 2])) if shape.experts else 1
    weights = draw(st.sampled_from(["bf16", "fp8", "int4"]))
    kv = draw(st.sampled_from(["bf16", "fp8"]))
    accelerator = ACCELERATORS[draw(st.sampled_from(sorted(ACCELERATORS)))]
    return Worker(shape, accelerator, Parallelism(tensor=tensor, data=data), weights, kv)


@given(workers(), st.integers(1, 512), st.integers(1, 100_000), st.integers(0, 8192))
def test_no_engine_is_faster_than_the_roofline(worker: Worker, batch: int, context: int, prompt: int):
    """But for the embedding table, which the customary floor counts as read in each step and no engine reads."""
    load = {
        "decode_sequences": batch,
        "decode_context_tokens": batch * context,
        "prefill_tokens": prompt,
        "prefill_attention": prompt * prompt,
    }
    table_s = 2 * worker.shape.head_parameters / worker.parallelism.tensor / worker.accelerator.bandwidth_bytes_per_s
    roofline_s = timer_of(worker, ROOFLINE).step_seconds(**load)
    assert timer_of(worker, CALIBRATED).step_seconds(**load) >= (roofline_s - table_s) * (1 - 1e-9)


@given(
    workers(),
    st.tuples(st.integers(0, 256), st.integers(0, 50_000), st.integers(0, 8192)),
    st.tuples(st.integers(0, 256), st.integers(0, 50_000), st.integers(0, 8192)),
)
def test_more_load_never_makes_a_step_shorter(worker: Worker, some: tuple[int, int, int], more: tuple[int, int, int]):
    timer = timer_of(worker)

    def step(batch: int, context: int, prompt: int) -> float:
        return timer.step_seconds(
            decode_sequences=batch,
            decode_context_tokens=batch * context,
            prefill_tokens=prompt,
            prefill_attention=prompt * prompt,
        )

    total = (some[0] + more[0], some[1] + more[1], some[2] + more[2])
    assert step(*total) >= step(*some) >= 0


@given(workers())
def test_narrower_numbers_never_cost_memory_or_cache(worker: Worker):
    fp8 = Worker(worker.shape, worker.accelerator, worker.parallelism, "fp8", "fp8")
    bf16 = Worker(worker.shape, worker.accelerator, worker.parallelism, "bf16", "bf16")
    assert fp8.weight_bytes_per_gpu <= bf16.weight_bytes_per_gpu
    assert kv_tokens_of(fp8) >= kv_tokens_of(bf16)


@given(workers())
def test_more_tensor_parallelism_never_holds_fewer_tokens(worker: Worker):
    size = 2 * worker.parallelism.tensor
    if worker.shape.heads % size:
        return
    wider = Worker(
        worker.shape,
        worker.accelerator,
        Parallelism(tensor=size, data=worker.parallelism.data),
        worker.weights,
        worker.kv,
    )
    assert kv_tokens_of(wider) >= kv_tokens_of(worker)


@given(workers(), st.integers(16, 200_000))
def test_a_worker_fits_exactly_when_it_holds_one_request(worker: Worker, tokens: int):
    fit = check_worker(worker, tokens)
    assert (fit.verdict is Verdict.FITS) == (sequences_at(worker, tokens) >= worker.parallelism.data)
    assert (fit.verdict is Verdict.FITS) == (longest_request(worker) >= tokens - tokens % 16)
    assert worker.shape.name in fit.message


@given(workers(), st.integers(1, 32_768), st.floats(0.005, 0.2))
def test_the_largest_batch_is_the_last_within_the_bound(worker: Worker, context: int, tpot_s: float):
    timer = timer_of(worker)
    batch = largest_batch(timer, context, tpot_s)
    assert batch == 0 or decode_seconds(timer, batch, context) <= tpot_s
    assert batch >= 1 << 23 or decode_seconds(timer, batch + 1, context) > tpot_s


@given(workers(), st.floats(0.05, 5))
def test_the_longest_prompt_is_the_last_within_the_time(worker: Worker, seconds: float):
    timer = timer_of(worker)
    tokens = longest_prompt(timer, seconds)
    assert tokens == 0 or prefill_seconds(timer, tokens, chunk_tokens=None) <= seconds
    assert prefill_seconds(timer, tokens + 1, chunk_tokens=None) > seconds


@given(workers(), st.integers(2, 60_000), st.floats(0, 1), st.integers(256, 8192))
def test_cached_tokens_and_larger_chunks_never_slow_a_prompt(worker: Worker, tokens: int, share: float, chunk: int):
    """But for windows: their attention is bounded from above by sums over a step, more tightly over short steps."""
    timer = timer_of(replace(worker, shape=replace(worker.shape, window=None)))
    cold = prefill_seconds(timer, tokens, chunk_tokens=chunk)
    assert prefill_seconds(timer, tokens, cached_tokens=int(share * tokens), chunk_tokens=chunk) <= cold * (1 + 1e-9)
    assert prefill_seconds(timer, tokens, chunk_tokens=None) <= cold * (1 + 1e-9)


@given(workers(), st.integers(1, 60_000), st.integers(1, 64))
def test_a_window_never_makes_a_step_longer(worker: Worker, tokens: int, batch: int):
    full = timer_of(replace(worker, shape=replace(worker.shape, window=None)))
    windowed = timer_of(worker)
    assert prefill_seconds(windowed, tokens) <= prefill_seconds(full, tokens) * (1 + 1e-9)
    assert decode_seconds(windowed, batch, tokens) <= decode_seconds(full, batch, tokens) * (1 + 1e-9)


@given(st.integers(1, 64), st.floats(0, 1.2))
def test_erlang_c_is_a_chance_that_grows_with_load(servers: int, share: float):
    chance = erlang_c(servers, share * servers)
    assert 0 <= chance <= 1
    assert chance <= erlang_c(servers, min(servers, share * servers + 0.1)) + 1e-12
    assert servers > 1 or chance == pytest.approx(min(1, share))


@given(st.integers(0, 400), st.floats(0.01, 400))
def test_poisson_chances_grow_with_the_count_and_end_at_one(count: int, mean: float):
    chance = poisson_at_most(count, mean)
    assert 0 <= chance <= poisson_at_most(count + 1, mean) + 1e-12
    assert poisson_at_most(int(mean + 10 * math.sqrt(mean) + 20), mean) == pytest.approx(1, abs=1e-6)


@given(st.floats(0.1, 50), st.floats(0.0005, 0.05), st.floats(0, 5))
def test_longer_waits_are_rarer(arrivals: float, service: float, wait: float):
    queue = PromptQueue(2, arrivals, service, service)
    assert 0 <= queue.exceeds(wait + 0.1) <= queue.exceeds(wait) <= 1


@given(st.floats(0.1, 200))
def test_with_a_constant_pace_the_number_of_sequences_is_poisson(load: float):
    """The processor-sharing chain without slowdown is M/G/infinity."""
    served = concurrency(lambda _: load, cap=10_000)
    assert served is not None
    assert served.mean == pytest.approx(load, rel=1e-6)
    assert sum(served.shares) == pytest.approx(1)


@given(st.floats(0.01, 0.99))
def test_with_a_pace_in_proportion_to_the_number_it_is_geometric(rho: float):
    """A server that shares one constant capacity: M/G/1 processor sharing."""
    served = concurrency(lambda n: rho * max(n, 1), cap=100_000)
    assert served is not None
    assert served.mean == pytest.approx(rho / (1 - rho), rel=1e-3)


def test_a_queue_beyond_its_capacity_has_no_equilibrium():
    assert concurrency(lambda _: 11.0, cap=10) is None
    assert concurrency(lambda _: 9.0, cap=10) is not None


@settings(max_examples=25, deadline=None)
@given(
    st.integers(64, 8192),
    st.integers(1, 512),
    st.floats(0, 0.9),
    st.floats(0.5, 30),
    st.integers(1, 4),
    st.sampled_from(["mixed", "split"]),
)
def test_attainment_is_a_chance_that_more_workers_and_a_lower_rate_never_hurt(
    tokens: int, answer: int, cached: float, rate: float, replicas: int, kind: str
):
    def attained(rate_per_s: float, count: int) -> float:
        workload = Workload(input_tokens=tokens, output_tokens=answer, rate_per_s=rate_per_s, cached_share=cached)
        pool = PoolSize(H100, count)
        layout = SplitLayout(pool, pool) if kind == "split" else MixedLayout(pool)
        return evaluate(layout, workload, OBJECTIVE).attainment

    here = attained(rate, replicas)
    assert 0 <= here <= 1 + 1e-9
    assert attained(rate / 2, replicas) >= here - 0.02
    assert attained(rate, replicas * 2) >= here - 0.02


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = (
    "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "vocab_size", "tie_word_embeddings", "sliding_window", "layer_types", "num_experts",
    "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "quantization_config", "text_config",
    "mlp_only_layers", "kv_lora_rank", "max_position_embeddings",
)  # fmt: skip


@given(
    st.sampled_from(["llama", "mixtral", "qwen2", "qwen3_moe", "gemma3", "deepseek_v3", "gpt_oss"]),
    st.dictionaries(st.sampled_from(KEYS), st.integers(1, 64) | json_values),
)
def test_any_json_is_read_or_refused_with_a_field_and_a_fix(kind: str, fields: dict):
    try:
        answer: ModelShape | CapacityError = shape_from_config({"model_type": kind, **fields})
    except CapacityError as error:
        answer = error
    if isinstance(answer, CapacityError):
        assert answer.field
        assert answer.fix
        return
    assert answer.parameters > 0
    assert answer.kv_bytes_per_token() > 0
