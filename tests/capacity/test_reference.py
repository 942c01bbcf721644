"""The published reference pair: Llama 3.1 8B and 70B on H100 SXM 80 GB."""

import pytest

from forebay_capacity.accelerators import GIB, accelerator_of
from forebay_capacity.batch import (
    chunk_budget,
    decode_seconds,
    largest_batch,
    longest_prompt,
    prefill_seconds,
    ridge_tokens,
)
from forebay_capacity.memory import kv_tokens, sequences_at
from forebay_capacity.shapes import shape_of
from forebay_capacity.steptime import ROOFLINE, step_timer
from forebay_capacity.transfer import transfer_seconds
from forebay_capacity.worker import Parallelism, Worker

H100 = accelerator_of("h100-sxm")
LLAMA_8B = shape_of("llama-3.1-8b")
LLAMA_70B = shape_of("llama-3.1-70b")
IDLE = {"decode_sequences": 0, "decode_context_tokens": 0}


def test_8b_weighs_16_06_gigabytes():
    assert LLAMA_8B.weight_bytes("bf16") == pytest.approx(16.06e9, rel=1e-3)
    assert LLAMA_8B.weight_bytes("bf16") / GIB == pytest.approx(14.96, abs=0.01)


def test_70b_weighs_141_1_gigabytes():
    assert LLAMA_70B.weight_bytes("bf16") == pytest.approx(141.1e9, rel=1e-3)


def test_a_token_of_kv_takes_128_kib_in_8b_and_320_kib_in_70b():
    assert LLAMA_8B.kv_bytes_per_token("bf16") == 128 * 1024
    assert LLAMA_70B.kv_bytes_per_token("bf16") == 320 * 1024
    assert LLAMA_8B.kv_bytes_per_token("fp8") == 64 * 1024


def test_linear_weights_multiply_13_96_gigaflop_a_token():
    assert 2 * LLAMA_8B.linear_parameters == pytest.approx(13.96e9, rel=1e-3)
    assert 2 * LLAMA_70B.linear_parameters == pytest.approx(136.9e9, rel=1e-3)


@pytest.mark.parametrize(("tensor", "floor_ms"), [(2, 21.1), (4, 10.5), (8, 5.3)])
def test_70b_decode_floor(tensor: int, floor_ms: float):
    timer = step_timer(LLAMA_70B, H100, tensor=tensor, calibration=ROOFLINE)
    assert decode_seconds(timer, 1, 0) * 1e3 == pytest.approx(floor_ms, rel=0.01)


def test_8b_decode_floor_is_4_79_ms():
    timer = step_timer(LLAMA_8B, H100, calibration=ROOFLINE)
    assert decode_seconds(timer, 1, 0) == pytest.approx(4.79e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("batch", "context", "floor_ms"),
    [(1, 1024, 4.8), (8, 1024, 5.1), (32, 4096, 9.9), (128, 4096, 25.3), (256, 1024, 15.0), (64, 8192, 25.3)],
)
def test_8b_decode_floor_at_batch_and_context(batch: int, context: int, floor_ms: float):
    timer = step_timer(LLAMA_8B, H100, calibration=ROOFLINE)
    assert decode_seconds(timer, batch, context) * 1e3 == pytest.approx(floor_ms, abs=0.06)


@pytest.mark.parametrize(("tokens", "ideal_ms"), [(512, 7.3), (2048, 30.0), (8192, 133), (32_768, 747)])
def test_8b_ideal_prefill(tokens: int, ideal_ms: float):
    timer = step_timer(LLAMA_8B, H100, calibration=ROOFLINE)
    assert prefill_seconds(timer, tokens, chunk_tokens=None) * 1e3 == pytest.approx(ideal_ms, rel=0.01)


def test_ridge_is_at_295_tokens_in_bf16_and_in_fp8():
    assert ridge_tokens(H100) == pytest.approx(295, abs=0.5)
    assert ridge_tokens(H100, "fp8") == pytest.approx(295, abs=0.5)


@pytest.mark.parametrize(
    ("shape", "tensor", "tokens"),
    [
        (LLAMA_8B, 1, 445_000),
        (LLAMA_8B, 2, 1_010_000),
        (LLAMA_8B, 4, 2_150_000),
        (LLAMA_8B, 8, 4_420_000),
        (LLAMA_70B, 2, 23_000),
        (LLAMA_70B, 4, 477_000),
        (LLAMA_70B, 8, 1_390_000),
    ],
)
def test_kv_tokens_within_three_percent(shape, tensor: int, tokens: int):
    assert kv_tokens(shape, H100, tensor=tensor) == pytest.approx(tokens, rel=0.03)


def test_70b_does_not_fit_on_one_h100():
    assert kv_tokens(LLAMA_70B, H100) == 0
    assert Worker(LLAMA_70B, H100).kv_room_bytes < 0


@pytest.mark.parametrize(
    ("context", "sequences"), [(1024, 434), (2048, 217), (4096, 108), (8192, 54), (32_768, 13), (131_072, 3)]
)
def test_sequences_that_8b_holds(context: int, sequences: int):
    assert sequences_at(Worker(LLAMA_8B, H100), context) == sequences


@pytest.mark.parametrize(("context", "sequences"), [(2048, 233), (8192, 58), (131_072, 3)])
def test_sequences_that_70b_holds_at_tp4(context: int, sequences: int):
    assert sequences_at(Worker(LLAMA_70B, H100, Parallelism(tensor=4)), context) == sequences


@pytest.mark.parametrize(
    ("tokens", "idle_ms"),
    [(512, 16), (2048, 58), (4096, 118), (8192, 253), (16_384, 579), (32_768, 1463), (131_072, 13_200)],
)
def test_idle_prefill_of_a_running_engine(tokens: int, idle_ms: float):
    timer = step_timer(LLAMA_8B, H100)
    assert prefill_seconds(timer, tokens, chunk_tokens=None) * 1e3 == pytest.approx(idle_ms, rel=0.015)


@pytest.mark.parametrize(("seconds", "tokens"), [(0.25, 8_000), (0.5, 14_500), (1.0, 25_000), (2.0, 41_000)])
def test_longest_cold_prompt_within_a_ttft(seconds: float, tokens: int):
    assert longest_prompt(step_timer(LLAMA_8B, H100), seconds) == pytest.approx(tokens, rel=0.02)


@pytest.mark.parametrize(("tpot_ms", "tokens"), [(25, 540), (15, 170)])
def test_chunk_budget_beside_64_sequences(tpot_ms: float, tokens: int):
    timer = step_timer(LLAMA_8B, H100)
    assert chunk_budget(timer, 64, 2048, tpot_ms / 1e3) == pytest.approx(tokens, rel=0.02)


def test_a_full_cache_decodes_in_29_ms_so_memory_binds_before_a_tpot_of_50_ms():
    timer = step_timer(LLAMA_8B, H100)
    full = kv_tokens(LLAMA_8B, H100)
    assert decode_seconds(timer, full / 2048, 2048) * 1e3 == pytest.approx(29, rel=0.03)
    assert largest_batch(timer, 2048, 0.050) > full / 2048


@pytest.mark.parametrize(("context", "occupancy"), [(1024, 0.68), (2048, 0.82), (8192, 0.90)])
def test_occupancy_at_which_8b_leaves_a_tpot_of_25_ms(context: int, occupancy: float):
    batch = largest_batch(step_timer(LLAMA_8B, H100), context, 0.025)
    assert batch * context / kv_tokens(LLAMA_8B, H100) == pytest.approx(occupancy, abs=0.05)


@pytest.mark.parametrize(
    ("tokens", "gigabytes_per_s", "expected_ms"),
    [(2048, 450, 0.6), (2048, 50, 5.4), (2048, 12.5, 21.5), (2048, 3.125, 86), (8192, 50, 21.5), (8192, 3.125, 344)],
)
def test_moving_kv_of_8b(tokens: int, gigabytes_per_s: float, expected_ms: float):
    seconds = transfer_seconds(LLAMA_8B, tokens, bandwidth_bytes_per_s=gigabytes_per_s * 1e9)
    assert seconds * 1e3 == pytest.approx(expected_ms, rel=0.01)


def test_moving_kv_of_70b_over_eight_nics():
    seconds = transfer_seconds(LLAMA_70B, 8192, bandwidth_bytes_per_s=50e9, tensor=8)
    assert seconds * 1e3 == pytest.approx(6.7, rel=0.01)
