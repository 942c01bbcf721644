"""The prefill/decode contract by NixlConnector's fields: captured, between two simulated engines, between two real ones."""

from __future__ import annotations

import json
import re

import pytest

from tests.simulator.engine.process import free_port

from .captured import DATA, Answer, captured, events_of
from .sources import BLOCK_SIZE, NAME, words

FILE = "pd/nixl_requests.txt"
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
PREFILL = {
    "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
    "remote_host": None, "remote_port": None,
}  # fmt: skip
PARAM_KEYS = [
    "do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host",
    "remote_port", "tp_size", "dcp_size", "pp_size", "remote_num_tokens", "remote_blocks_expiry_time", "transfer_mode",
]  # fmt: skip


class CapturedPair:
    """Answers from the file, by number."""

    kind = "captured"

    def prefill(self, number: int, *_args: object, **_fields: object) -> Answer:
        return captured(FILE)[number].answer

    decode = prefill


class LivePair:
    """A prefill and a decode engine."""

    kind = "live"

    def __init__(self, prefill, decode) -> None:
        self.prefill_engine = prefill
        self.decode_engine = decode

    def prefill(self, _number: int, path: str, body: dict, **headers: str) -> Answer:
        return self._post(self.prefill_engine, path, body, headers)

    def decode(self, _number: int, path: str, body: dict, **headers: str) -> Answer:
        return self._post(self.decode_engine, path, body, headers)

    @staticmethod
    def _post(engine, path: str, body: dict, headers: dict[str, str]) -> Answer:
        response = engine.post(path, body, **headers)
        return Answer(response.status_code, dict(response.headers), response.text)


@pytest.fixture(scope="module")
def pair(any_start):
    if any_start is None:
        yield CapturedPair()
        return

    def engine(role: str):
        config = json.dumps({"kv_connector": "NixlConnector", "kv_role": role})
        ports = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port())}
        return any_start("--kv-transfer-config", config, **ports)

    with engine("kv_producer") as prefill, engine("kv_consumer") as decode:
        yield LivePair(prefill, decode)


def _chat(text: str, **fields: object) -> dict:
    return {"model": NAME, "messages": [{"role": "user", "content": text}], "temperature": 0, **fields}


def test_two_legs_give_the_text_of_one_engine(pair):
    text = words(170)
    alone = pair.decode(0, CHAT, _chat(text, max_tokens=12)).json
    # The reference left the prompt in the decode engine's cache; the capture cleared it in between.
    if pair.kind == "live":
        assert pair.decode_engine.post("/reset_prefix_cache").json() == {"success": True}
    leg = pair.prefill(1, CHAT, _chat(text, max_tokens=1, kv_transfer_params=PREFILL), x_request_id="r-1").json
    params = leg["kv_transfer_params"]
    both = pair.decode(2, CHAT, _chat(text, max_tokens=12, kv_transfer_params=params), x_request_id="r-1").json
    content = [body["choices"][0]["message"]["content"] for body in (alone, leg, both)]
    assert content[0] == content[2]
    assert content[0].startswith(content[1])
    prompt = leg["usage"]["prompt_tokens"]
    assert list(params) == [*PARAM_KEYS, "remote_prefill_cached_tokens"]
    assert (params["do_remote_prefill"], params["do_remote_decode"]) == (True, False)
    assert len(params["remote_block_ids"]) == 1
    assert len(params["remote_block_ids"][0]) == -(-prompt // BLOCK_SIZE)
    assert params["remote_num_tokens"] == prompt
    assert (params["tp_size"], params["dcp_size"], params["pp_size"]) == (1, 1, 1)
    assert params["remote_blocks_expiry_time"] is None
    assert params["transfer_mode"] == "pull"
    assert params["remote_prefill_cached_tokens"] == 0
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", params["remote_engine_id"])
    assert re.fullmatch(re.escape(leg["id"]) + r"-[0-9a-f]{8}", params["remote_request_id"])
    assert leg["choices"][0]["finish_reason"] == "length"
    assert both["kv_transfer_params"] is None
    assert both["usage"]["prompt_tokens_details"] == {
        "cached_tokens": 0,
        "created_cache_tokens": 0,
        "multimodal_tokens": None,
    }


def test_a_streamed_decode_leg(pair):
    text = words(120)
    params = None
    if pair.kind == "live":
        params = pair.prefill(0, CHAT, _chat(text, max_tokens=1, kv_transfer_params=PREFILL)).json["kv_transfer_params"]
    body = _chat(text, max_tokens=4, stream=True, stream_options={"include_usage": True}, kv_transfer_params=params)
    first, *_, last, usage = pair.decode(3, CHAT, body).chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert last["choices"][0]["finish_reason"] == "length"
    assert usage["usage"]["completion_tokens"] == 4
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 0, "created_cache_tokens": 0}


def test_a_streamed_prefill_answer_does_not_say_where_its_blocks_are(pair):
    body = _chat(words(90), max_tokens=1, stream=True, kv_transfer_params=PREFILL)
    assert "kv_transfer_params" not in pair.prefill(4, CHAT, body).text


def test_completions_hand_over_too(pair):
    prompt = words(110)
    body = {"model": NAME, "prompt": prompt, "temperature": 0}
    leg = pair.prefill(5, COMPLETION, {**body, "max_tokens": 1, "kv_transfer_params": PREFILL}).json
    params = leg["kv_transfer_params"]
    assert re.fullmatch(re.escape(leg["id"]) + r"-0-[0-9a-f]{8}", params["remote_request_id"])
    both = {**body, "max_tokens": 4, "kv_transfer_params": params}
    first = pair.decode(6, COMPLETION, both).json["choices"][0]["text"]
    assert first.startswith(leg["choices"][0]["text"])
    # The blocks are released, but nothing else has taken them: the same params once more give the same text.
    assert pair.decode(7, COMPLETION, both).json["choices"][0]["text"] == first


def test_a_prompt_shorter_than_a_block(pair):
    leg = pair.prefill(8, CHAT, _chat("hi", max_tokens=1, kv_transfer_params=PREFILL)).json
    assert len(leg["kv_transfer_params"]["remote_block_ids"][0]) == 1
    params = leg["kv_transfer_params"]
    both = pair.decode(9, CHAT, _chat("hi", max_tokens=4, kv_transfer_params=params)).json
    assert both["choices"][0]["message"]["content"].startswith(leg["choices"][0]["message"]["content"])


def test_a_prefill_of_three_tokens_hands_over_two_of_them(pair):
    leg = pair.prefill(10, CHAT, _chat(words(80), max_tokens=3, kv_transfer_params=PREFILL)).json
    params = leg["kv_transfer_params"]
    assert params["remote_num_tokens"] == leg["usage"]["prompt_tokens"] + 2
    assert list(params) == PARAM_KEYS


COUNTED = (
    ("vllm:prompt_tokens_by_source_total", {"source": "external_kv_transfer"}),
    ("vllm:prompt_tokens_cached_by_source_total", {"source": "p2p"}),
    ("vllm:external_prefix_cache_hits_total", {}),
    ("vllm:nixl_xfer_time_seconds_count", {}),
    ("vllm:nixl_num_failed_transfers_total", {}),
    ("vllm:nixl_num_kv_expired_reqs_total", {}),
)


def test_counters_of_both_sides_of_a_handover(pair):
    if pair.kind == "captured":
        text = (DATA / FILE).read_text(encoding="utf-8")
        assert (
            'prompt_tokens_by_source_total{engine="0",model_name="tiny-llama",source="external_kv_transfer"} 211.0'
            in text
        )
        return

    def counted(engine) -> list[float]:
        return [engine.metric(name, **labels) for name, labels in COUNTED]

    decode, prefill = pair.decode_engine, pair.prefill_engine
    before = counted(decode), counted(prefill)
    leg = pair.prefill(0, CHAT, _chat(words(100), max_tokens=1, kv_transfer_params=PREFILL)).json
    pair.decode(0, CHAT, _chat(words(100), max_tokens=4, kv_transfer_params=leg["kv_transfer_params"]))
    pair.prefill_engine.post("/v1/completions", {"prompt": "hi", "max_tokens": 1})  # counters move with a step
    after = counted(decode), counted(prefill)
    fetched, *more = (new - old for new, old in zip(after[0], before[0], strict=True))
    assert fetched > 0
    assert more == [fetched, fetched, 1, 0, 0]
    assert [new - old for new, old in zip(after[1], before[1], strict=True)] == [0] * len(COUNTED)


@pytest.mark.parametrize("file", ["pd/nixl_events_prefill.jsonl", "pd/nixl_events_decode.jsonl"])
def test_captured_events_of_both_sides_are_of_the_usual_shape(file):
    kinds = {event["type"] for row in events_of(file) for event in row["payload"][1]}
    assert "BlockStored" in kinds
