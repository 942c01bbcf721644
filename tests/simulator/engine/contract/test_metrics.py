"""The metrics contract: all 56 families with type, labels and buckets, and what moves them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.simulator.engine.process import free_port
from tests.support.bounds import NEVER_S

from .captured import DATA
from .exposition import read_exposition
from .sources import ALL, BLOCK_SIZE, EVENTS, NAME, STARTERS, words

FAMILIES = json.loads((DATA / "metrics/names.json").read_text(encoding="utf-8"))["families"]
CONFIG = '{"kv_connector":"NixlConnector","kv_role":"%s"}'
CASES = {
    "plain": (("--kv-events-config", EVENTS), "metrics/idle.txt"),
    "kv_producer": (("--kv-transfer-config", CONFIG % "kv_producer"), "metrics/nixl_prefill.txt"),
    "kv_consumer": (("--kv-transfer-config", CONFIG % "kv_consumer"), "metrics/nixl_decode.txt"),
}


def test_there_are_56_families():
    assert len(FAMILIES) == 56


@pytest.fixture(scope="module", params=ALL)
def kind(request):
    return request.param


@pytest.fixture(scope="module", params=list(CASES))
def scraped(request, kind):
    """The metrics of an engine of each kind and configuration; a live one has answered one chat."""
    case = request.param
    flags, file = CASES[case]
    if kind == "captured":
        return case, read_exposition((DATA / file).read_text(encoding="utf-8"))
    ports = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()), "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1"}
    with STARTERS[kind](*flags, **ports) as engine:
        assert engine.get("/v1/models").status_code == 200
        answer = engine.get("/metrics")
        assert answer.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
        return case, read_exposition(answer.text)


def _expected(case: str) -> dict[str, dict]:
    return {name: family for name, family in FAMILIES.items() if case in family["seen_in"]}


def test_every_family_is_there_with_type_and_help(scraped):
    case, families = scraped
    for name, family in _expected(case).items():
        assert name in families
        assert (families[name].kind, families[name].help) == (family["type"], family["help"])


def test_no_family_is_there_that_vllm_does_not_have(scraped):
    case, families = scraped
    own = {name for name in families if name.startswith(("vllm:", "http_")) and not name.endswith("_created")}
    assert own == set(_expected(case))


def test_labels_and_their_values(scraped):
    case, families = scraped
    for name, family in _expected(case).items():
        if name.startswith("http_"):
            continue  # their values depend on what was asked
        samples = families[name].samples
        assert samples, f"{name} has no sample from the start"
        labels = {label for _, own, _ in samples for label in own} - {"le"}
        assert labels == set(family["labels"]), name
        for label, values in family["labels"].items():
            if values:
                assert families[name].values(label) == values, name


def test_buckets(scraped):
    case, families = scraped
    for name, family in _expected(case).items():
        if family["type"] == "histogram" and families[name].samples:
            assert families[name].values("le") == family["buckets"], name


def test_everything_that_counts_says_since_when(scraped):
    case, families = scraped
    for name, family in _expected(case).items():
        if family["type"] != "gauge":
            base = name.removesuffix("_total") if family["type"] == "counter" else name
            created = families[base + "_created"]
            assert created.kind == "gauge"
            assert all(value > 1.7e9 for _, _, value in created.samples)


def test_the_cache_is_described(scraped):
    _, families = scraped
    ((_, labels, value),) = families["vllm:cache_config_info"].samples
    assert value == 1
    assert (labels["block_size"], labels["num_gpu_blocks"], labels["enable_prefix_caching"]) == ("32", "256", "True")
    assert labels["kv_cache_size_tokens"] == str(256 * BLOCK_SIZE)


@pytest.fixture
def idle(start):
    with start() as engine:
        yield engine


def test_what_a_cold_and_a_cached_request_move(idle):
    text = words(180)
    prompt = idle.chat(text, max_tokens=8, temperature=0, model=NAME).json()["usage"]["prompt_tokens"]
    idle.chat(text, max_tokens=8, temperature=0, model=NAME)
    cached = (prompt - 1) // BLOCK_SIZE * BLOCK_SIZE
    expected = {
        ("vllm:prefix_cache_queries_total", ""): 2 * prompt,
        ("vllm:prefix_cache_hits_total", ""): cached,
        ("vllm:prompt_tokens_total", ""): 2 * prompt,
        ("vllm:prompt_tokens_cached_total", ""): cached,
        ("vllm:generation_tokens_total", ""): 16,
        ("vllm:prompt_tokens_by_source_total", "local_compute"): 2 * prompt - cached,
        ("vllm:prompt_tokens_by_source_total", "local_cache_hit"): cached,
        ("vllm:prompt_tokens_cached_by_source_total", "device"): cached,
        ("vllm:request_success_total", "length"): 2,
        ("vllm:request_success_total", "abort"): 0,
        ("vllm:request_prompt_tokens_sum", ""): 2 * prompt,
        ("vllm:request_generation_tokens_sum", ""): 16,
        ("vllm:request_prefill_kv_computed_tokens_sum", ""): 2 * prompt - cached,
        ("vllm:request_params_max_tokens_sum", ""): 16,
        ("vllm:time_to_first_token_seconds_count", ""): 2,
        ("vllm:inter_token_latency_seconds_count", ""): 14,
        ("vllm:request_time_per_output_token_seconds_count", ""): 2,
        ("vllm:e2e_request_latency_seconds_count", ""): 2,
        ("vllm:num_requests_running", ""): 0,
        ("vllm:kv_cache_usage_perc", ""): 0,
        ("vllm:num_preemptions_total", ""): 0,
    }
    families = read_exposition(idle.get("/metrics").text)
    found = {
        (name, value): sum(
            number
            for family in families.values()
            for sample, labels, number in family.samples
            if sample == name and (not value or value in labels.values())
        )
        for name, value in expected
    }
    assert found == expected


def test_the_queue_has_no_limit_and_gauges_tell_running_from_waiting(idle):
    """Captured: 24 streams on 8 slots show as 8 running and 16 waiting for capacity."""
    timeline = [json.loads(line) for line in (DATA / "metrics/load_timeline.jsonl").read_text().splitlines()]
    assert any((row["running"], row["waiting"], row["cap"]) == (8, 16, 16) for row in timeline)
    body = {"model": NAME, "prompt": "hello", "max_tokens": 1500, "stream": True, "ignore_eos": True}
    with ThreadPoolExecutor(24) as pool:
        streams = [pool.submit(idle.post, "/v1/completions", body) for _ in range(24)]
        idle.eventually("vllm:num_requests_waiting", 16)
        assert idle.metric("vllm:num_requests_running") == 8
        assert idle.metric("vllm:num_requests_waiting_by_reason", reason="capacity") == 16
        assert idle.get("/health").status_code == 200
        assert idle.get("/load").json() == {"server_load": 24}
        assert idle.post("/abort_requests", {}).json() == {"status": "aborted", "aborted": 24}
        texts = [stream.result(NEVER_S).text for stream in streams]
        # Those that ran say so; those that waited end without a chunk, and without a reason.
        assert sum('"finish_reason":"abort"' in text for text in texts) == 8
        assert sum(text == "data: [DONE]\n\n" for text in texts) == 16
    assert idle.metric("vllm:request_success_total", finished_reason="abort") == 0
