"""Prefill and decode as two engines, with every way the hand-over can fail."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import msgspec
import pytest
import zmq

from tests.support.bounds import NEVER_S, in_order, quickest_of_three_runs

from .process import CLIENT, EngineProcess, free_port, running

HANDSHAKE_S = 4.5
"""A handshake with nobody takes longer."""
PROMPT = "cache system model message queue " * 40
PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}


def _flags(role: str, policy: str = "fail", lease_s: float = 30, block_size: int = 16) -> tuple[str, ...]:
    config = {
        "kv_connector": "NixlConnector",
        "kv_role": role,
        "kv_load_failure_policy": policy,
        "kv_connector_extra_config": {"kv_lease_duration": lease_s},
    }
    return (
        "--enable-prompt-tokens-details", "--max-model-len", "4096", "--block-size", str(block_size),
        "--kv-transfer-config", json.dumps(config),
    )  # fmt: skip


def _engine(*flags: str, **more: str):
    port = str(free_port())
    return running(*flags, VLLM_NIXL_SIDE_CHANNEL_HOST="127.0.0.1", VLLM_NIXL_SIDE_CHANNEL_PORT=port, **more)


def _prefill(engine: EngineProcess, text: str = PROMPT) -> dict:
    answer = engine.chat(text, max_tokens=1, kv_transfer_params=PREFILL)
    assert answer.status_code == 200
    return answer.json()["kv_transfer_params"]


def _decode(engine: EngineProcess, params: dict, text: str = PROMPT, **fields: object) -> httpx.Response:
    return engine.chat(text, max_tokens=12, kv_transfer_params=params, **fields)


def _timed(engine: EngineProcess, params: dict, status: int, text: str = PROMPT) -> float:
    """Seconds that an answer with this status takes."""
    begun = time.monotonic()
    assert _decode(engine, params, text).status_code == status
    return time.monotonic() - begun


def _at_once(timed: Callable[[str], float]) -> int:
    """Tries that show that an answer waits for no handshake: two where the machine may have stood still during the first.

    Each has a text that no cache holds.
    """
    took_s = [timed("first " * 50)]
    if took_s[0] >= HANDSHAKE_S:
        took_s.append(timed("second " * 50))
    assert min(took_s) < HANDSHAKE_S
    return len(took_s)


def test_two_legs_answer_as_one_engine_does_and_every_counter_shows_it():
    with _engine(*_flags("kv_producer")) as prefill, _engine(*_flags("kv_consumer")) as decode:
        alone = prefill.chat(PROMPT, max_tokens=12).json()
        params = _prefill(prefill)
        tokens = alone["usage"]["prompt_tokens"]
        assert params["remote_num_tokens"] == tokens
        assert params["remote_prefill_cached_tokens"] == (tokens - 1) // 16 * 16
        blocks = -(-tokens // 16)
        assert len(params["remote_block_ids"][0]) == blocks
        assert prefill.metric("vllm:kv_cache_usage_perc") > 0
        answer = _decode(decode, params).json()
        assert answer["choices"][0]["message"]["content"] == alone["choices"][0]["message"]["content"]
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == params["remote_prefill_cached_tokens"]
        assert answer["usage"]["prompt_tokens_details"]["created_cache_tokens"] == 0
        assert answer["kv_transfer_params"] is None
        prefill.eventually("vllm:kv_cache_usage_perc", 0)
        assert prefill.metric("vllm:nixl_num_notifications_after_expiry_total") == 0
        assert decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == tokens
        assert decode.metric("vllm:prompt_tokens_by_source_total", source="local_compute") == 0
        assert decode.metric("vllm:prompt_tokens_cached_by_source_total", source="p2p") == tokens
        assert decode.metric("vllm:external_prefix_cache_hits_total") == tokens
        assert decode.metric("vllm:nixl_xfer_time_seconds_count") == 1
        assert decode.metric("vllm:nixl_bytes_transferred_sum") == tokens * 128 * 1024
        assert prefill.metric("vllm:request_success_total", finished_reason="length") == 2


@quickest_of_three_runs
def test_a_streamed_prefill_says_nothing_and_holds_its_blocks_for_nothing():
    with _engine(*_flags("kv_producer", lease_s=0.5)) as prefill:
        answer = prefill.chat(PROMPT, max_tokens=1, stream=True, kv_transfer_params=PREFILL)
        assert "kv_transfer_params" not in answer.text
        in_order(prefill.metric("vllm:kv_cache_usage_perc") > 0, "the blocks were seen to be held")
        prefill.eventually("vllm:nixl_num_kv_expired_reqs_total", 1)
        assert prefill.metric("vllm:kv_cache_usage_perc") == 0


def test_a_prefill_of_several_tokens_hands_over_what_it_computed():
    with _engine(*_flags("kv_producer")) as prefill:
        answer = prefill.chat("hi", max_tokens=3, kv_transfer_params=PREFILL).json()
        params = answer["kv_transfer_params"]
        assert params["remote_num_tokens"] == answer["usage"]["prompt_tokens"] + 2
        assert "remote_prefill_cached_tokens" not in params


@quickest_of_three_runs
def test_a_decode_leg_that_waits_in_the_queue_keeps_its_lease_alive():
    with (
        _engine(*_flags("kv_producer", lease_s=1.5)) as prefill,
        _engine(*_flags("kv_consumer", lease_s=1.5), "--max-num-seqs", "1") as decode,
        ThreadPoolExecutor() as pool,
    ):
        params = _prefill(prefill)
        busy = pool.submit(decode.chat, "hold the only slot", max_tokens=400)
        decode.eventually("vllm:num_requests_running", 1)
        begun_s = time.monotonic()
        answer = _decode(decode, params)
        assert time.monotonic() - begun_s > 1.5, "it waits for longer than a lease"
        in_order(prefill.metric("vllm:nixl_num_kv_expired_reqs_total") == 0, "the next word of the decode engine")
        assert answer.status_code == 200
        assert busy.result(NEVER_S).json()["usage"]["completion_tokens"] == 400
        assert decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") > 0


def test_stale_params_are_answered_from_wrong_content_which_stays_in_the_cache():
    small = ("--num-gpu-blocks-override", "260")
    with (
        _engine(*_flags("kv_producer", lease_s=0.3), *small) as prefill,
        _engine(*_flags("kv_consumer")) as decode,
    ):
        right = prefill.chat(PROMPT, max_tokens=12).json()["choices"][0]["message"]["content"]
        params = _prefill(prefill)
        prefill.eventually("vllm:nixl_num_kv_expired_reqs_total", 1)
        for number in range(5):
            prefill.chat(f"other {number} " * 600, max_tokens=1)
        answer = _decode(decode, params)
        assert answer.status_code == 200
        wrong = answer.json()["choices"][0]["message"]["content"]
        assert wrong != right
        again = decode.chat(PROMPT, max_tokens=12).json()
        assert again["choices"][0]["message"]["content"] == wrong
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        prefill.eventually("vllm:nixl_num_notifications_after_expiry_total", 1)


def test_a_stale_fetch_leaves_what_was_cached_before_right():
    small = ("--num-gpu-blocks-override", "260")
    with (
        _engine(*_flags("kv_producer", lease_s=0.3), *small) as prefill,
        _engine(*_flags("kv_consumer")) as decode,
    ):
        right = decode.chat(PROMPT, max_tokens=12).json()["choices"][0]["message"]["content"]
        longer = PROMPT + "and so on " * 60
        params = _prefill(prefill, longer)
        prefill.eventually("vllm:nixl_num_kv_expired_reqs_total", 1)
        for number in range(5):
            prefill.chat(f"other {number} " * 600, max_tokens=1)
        wrong = _decode(decode, params, longer).json()
        computed = prefill.chat(longer, max_tokens=12).json()
        assert wrong["choices"][0]["message"]["content"] != computed["choices"][0]["message"]["content"]
        again = decode.chat(PROMPT, max_tokens=12).json()
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert again["choices"][0]["message"]["content"] == right


def test_a_side_channel_of_another_kind_fails_the_request_and_not_the_engine():
    with (
        _engine(*_flags("kv_consumer")) as decode,
        zmq.Context() as context,
        context.socket(zmq.ROUTER) as stranger,
        ThreadPoolExecutor() as pool,
    ):
        port = stranger.bind_to_random_port("tcp://127.0.0.1")
        params = {
            "do_remote_prefill": True, "remote_block_ids": [[1]], "remote_engine_id": "e", "remote_request_id": "r",
            "remote_host": "127.0.0.1", "remote_port": port,
        }  # fmt: skip
        answer = pool.submit(_decode, decode, params)
        assert stranger.poll(round(NEVER_S * 1000))
        identity = stranger.recv_multipart()[0]
        stranger.send_multipart([identity, b"", msgspec.msgpack.encode({"agent_metadata": b"another format"})])
        assert answer.result(NEVER_S).status_code == 500
        assert decode.metric("vllm:nixl_num_failed_transfers_total") == 1
        assert decode.metric("vllm:kv_cache_usage_perc") == 0


def test_params_used_twice_are_right_while_the_blocks_keep_their_content():
    with _engine(*_flags("kv_producer")) as prefill, _engine(*_flags("kv_consumer")) as decode:
        params = _prefill(prefill)
        first, second = (_decode(decode, params).json()["choices"][0]["message"]["content"] for _ in range(2))
        assert first == second


@pytest.mark.parametrize(("policy", "status"), [("fail", 500), ("recompute", 200)])
def test_failures_end_as_the_policy_says(policy, status):
    """Nobody listens, wrong engine id, prefill killed after a handshake: 500, or computed anew without a word."""
    with _engine(*_flags("kv_producer")) as prefill, _engine(*_flags("kv_consumer", policy)) as decode:
        params = _prefill(prefill)
        assert _timed(decode, {**params, "remote_port": free_port()}, status) > HANDSHAKE_S
        strange = {**params, "remote_engine_id": "0000"}
        failed = 1 + _at_once(lambda text: _timed(decode, strange, status, text))
        _at_once(lambda text: _timed(decode, _prefill(prefill, "known " + text), 200, "known " + text))
        prefill.process.send_signal(signal.SIGKILL)
        prefill.process.wait()
        failed += _at_once(lambda text: _timed(decode, params, status, "killed " + text))
        assert decode.metric("vllm:nixl_num_failed_transfers_total") == failed
        assert decode.metric("vllm:request_success_total", finished_reason="error") == (failed if status == 500 else 0)
        assert decode.get("/health").status_code == 200
        assert decode.chat(max_tokens=1).status_code == 200
        assert decode.metric("vllm:kv_cache_usage_perc") == 0


@pytest.mark.parametrize(
    ("prefill_flags", "decode_flags", "status"),
    [
        (_flags("kv_producer"), _flags("kv_consumer", block_size=32), 200),
        (_flags("kv_producer", block_size=32), _flags("kv_consumer"), 500),
        ((*_flags("kv_producer"), "--kv-cache-dtype", "fp8"), _flags("kv_consumer"), 500),
        (_flags("kv_producer"), (*_flags("kv_consumer"), "-tp", "2"), 200),
    ],
    ids=["decode blocks larger", "decode blocks smaller", "other cache format", "other tensor size"],
)
def test_unlike_engines(prefill_flags, decode_flags, status):
    with _engine(*prefill_flags) as prefill, _engine(*decode_flags) as decode:
        assert _decode(decode, _prefill(prefill)).status_code == status


def test_larger_decode_blocks_give_wrong_text_without_an_error():
    with _engine(*_flags("kv_producer")) as prefill, _engine(*_flags("kv_consumer", block_size=32)) as decode:
        right = prefill.chat(PROMPT, max_tokens=12).json()["choices"][0]["message"]["content"]
        assert _decode(decode, _prefill(prefill)).json()["choices"][0]["message"]["content"] != right


def test_another_model_path_is_another_model():
    flags = _flags("kv_producer"), _flags("kv_consumer")
    other = {"model": "meta-llama/Llama-3.1-8B-Instruct"}
    with _engine(*flags[0]) as prefill, _engine(*flags[1], "--served-model-name", "llama-3.1-8b", **other) as decode:
        assert _decode(decode, _prefill(prefill)).status_code == 500


def test_a_waiting_fetch_shows_as_deferred_and_ends_when_its_client_leaves():
    with _engine(*_flags("kv_producer")) as prefill, _engine(*_flags("kv_consumer")) as decode:
        params = {**_prefill(prefill), "remote_port": free_port()}
        with pytest.raises(httpx.ReadTimeout):
            CLIENT.post(
                decode.url + "/v1/completions",
                json={"prompt": PROMPT, "kv_transfer_params": params},
                timeout=httpx.Timeout(0.5),
            )
        decode.eventually("vllm:num_requests_waiting", 0)
        assert decode.metric("vllm:nixl_num_failed_transfers_total") == 0, "it has not waited for the handshake's end"
        assert decode.metric("vllm:kv_cache_usage_perc") == 0
        assert decode.get("/health").status_code == 200


def test_params_without_a_connector_are_ignored():
    with running("--max-model-len", "4096") as engine:
        answer = engine.chat(max_tokens=1, kv_transfer_params=PREFILL)
        assert answer.status_code == 200
        assert answer.json()["kv_transfer_params"] is None
