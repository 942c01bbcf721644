"""Queue limits, keys, comments that keep a stream alive, adapters, pausing: options beside the plain path."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise

import pytest

from tests.simulator.engine.process import CLIENT, EngineProcess
from tests.support.bounds import NEVER_S, STALL_S

from .captured import by_comment, captured
from .sources import NAME, Ask, CapturedSource, LiveSource, Source, words

CHAT = "/v1/chat/completions"
HI = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "temperature": 0}
FILE = "http/limits_and_options.txt"
KEY = {"authorization": "Bearer k1"}


@pytest.fixture(scope="module")
def limited(any_start):
    """An engine with the options of the capture, two slots and a key."""
    if any_start is None:
        yield CapturedSource()
        return
    flags = (
        "--api-key", "k1", "--max-num-seqs", "2", "--max-num-queued-reqs", "4", "--max-num-queued-tokens", "600",
        "--enable-per-request-metrics", "--sse-keep-alive-interval", "1",
    )  # fmt: skip
    with any_start(*flags, FOREBAY_SIM_SPEED="1") as engine:
        yield LiveSource("live", engine)


def _need_a_live_engine(source: Source) -> None:
    if source.kind == "captured":
        pytest.skip("not in the captures")


def test_a_key_guards_v1(limited):
    for ask in (Ask(FILE, 0, CHAT, HI), Ask(FILE, 1, "/v1/models", method="GET")):
        answer = limited.ask(ask)
        assert (answer.status, answer.text) == (401, '{"error":"Unauthorized"}')


def test_a_key_does_not_guard_the_rest(limited):
    _need_a_live_engine(limited)
    for path in ("/health", "/metrics", "/version"):
        assert limited.engine.get(path).status_code == 200


def test_an_answer_can_tell_its_own_times(limited):
    metrics = limited.ask(Ask(FILE, 2, CHAT, HI, headers=KEY)).json["metrics"]
    assert list(metrics) == [
        "time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second",
        "speculative_decoding",
    ]  # fmt: skip
    assert metrics["time_to_first_token_ms"] >= metrics["queue_time_ms"] >= 0
    assert metrics["generation_time_ms"] == pytest.approx(2 * metrics["mean_itl_ms"])


def test_an_idle_engine_takes_a_prompt_larger_than_the_backlog_limit(limited):
    body = {**HI, "messages": [{"role": "user", "content": words(900)}]}
    assert limited.ask(Ask(FILE, 4, CHAT, body, headers=KEY)).status == 200


def _long(engine: EngineProcess, tokens: int) -> threading.Thread:
    body = {**HI, "max_tokens": tokens, "stream": True, "ignore_eos": True}
    thread = threading.Thread(target=engine.post, args=(CHAT, body), kwargs=KEY)
    thread.start()
    return thread


def test_beyond_the_queue_limit_requests_are_refused_with_503(limited):
    if limited.kind == "captured":
        answer = limited.ask(Ask(FILE, 3, CHAT))
    else:
        threads = [_long(limited.engine, 300) for _ in range(4)]  # long enough for a busy machine to ask beside them
        limited.engine.eventually("vllm:num_requests_waiting", 2)
        answer = limited.ask(Ask(FILE, 3, CHAT, {**HI, "stream": True}, headers=KEY))
        for thread in threads:
            thread.join()
        assert limited.engine.metric("vllm:admission_rejections_total", reason="max_num_queued_reqs") == 1
    assert answer.status == 503
    message = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
    assert answer.json == {"error": {"message": message, "type": "Service Unavailable", "param": None, "code": 503}}
    assert "retry-after" not in answer.headers


def test_beyond_the_backlog_limit_prompts_are_refused_with_503(limited):
    if limited.kind == "captured":
        answers = [limited.ask(Ask(FILE, 5, CHAT))]
    else:
        bodies = [{**HI, "messages": [{"role": "user", "content": words(400)}]} for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            asks = [Ask(FILE, 5, CHAT, body, headers=KEY) for body in bodies]
            answers = [answer for answer in pool.map(limited.ask, asks) if answer.status != 200]
    message = (
        "The engine has reached its prefill token backlog limit. Please try again later or on a different instance."
    )
    assert answers
    for answer in answers:
        assert answer.status == 503
        assert answer.json == {"error": {"message": message, "type": "Service Unavailable", "param": None, "code": 503}}


def test_a_waiting_stream_is_kept_alive_by_comments(limited):
    """Status and headers come at once, comments while the request waits, then the answer."""
    _need_a_live_engine(limited)
    url = limited.engine.url + CHAT
    occupying = {**HI, "max_tokens": 1800, "stream": True, "ignore_eos": True}
    with ExitStack() as slots:
        for _ in range(2):
            slots.enter_context(CLIENT.stream("POST", url, json=occupying, headers=KEY))
        limited.engine.eventually("vllm:num_requests_running", 2)
        with CLIENT.stream("POST", url, json={**HI, "stream": True}, headers=KEY) as answer:
            limited.engine.eventually("vllm:num_requests_waiting", 1)
            lines = answer.iter_lines()
            first = next(lines)
            slots.close()  # both clients leave, and the waiting request runs
            rest = [line for line in lines if line]
    assert first == ": keep-alive"
    assert set(rest) - {": keep-alive"} == {line for line in rest if line.startswith("data: ")}
    assert rest[-1] == "data: [DONE]"


# ---- adapters

LORA = "http/lora.txt"


@pytest.fixture(scope="module")
def adapting(any_start, tmp_path_factory):
    """An engine with one adapter from the start and permission to load more (simulated only: it needs no weights)."""
    if any_start is None:
        yield CapturedSource()
        return
    path = tmp_path_factory.mktemp("adapter")
    if "simulated" not in any_start.__name__:
        pytest.skip("a real adapter belongs to the tiny model; the captures stand for it")
    flags = ("--enable-lora", "--max-loras", "2", "--lora-modules", f"tiny-lora={path}")
    with any_start(*flags, VLLM_ALLOW_RUNTIME_LORA_UPDATING="True") as engine:
        source = LiveSource("live", engine)
        source.path = str(path)
        yield source


def test_adapters_are_models_with_a_parent(adapting):
    base, adapter = adapting.ask(Ask(LORA, 0, "/v1/models", method="GET")).json["data"]
    assert (base["id"], base["parent"], base["max_model_len"]) == (NAME, None, 2048)
    assert (adapter["id"], adapter["parent"], adapter["max_model_len"]) == ("tiny-lora", NAME, None)


def test_an_adapter_answers_under_its_name(adapting):
    body = adapting.ask(Ask(LORA, 1, CHAT, {**HI, "model": "tiny-lora"})).json
    assert body["model"] == "tiny-lora"
    assert body["usage"]["completion_tokens"] == 3


def test_adapters_come_and_go(adapting):
    path = getattr(adapting, "path", "")
    load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    steps = [
        (2, load, {"lora_name": "dyn", "lora_path": path}, 200, "Success: LoRA adapter 'dyn' added successfully."),
        (3, load, {"lora_name": "dyn", "lora_path": path}, 400, "InvalidUserInput"),
        (
            4,
            load,
            {"lora_name": "dyn2", "lora_path": "/no/such"},
            404,
            "Loading lora dyn2 failed: No adapter found for /no/such",
        ),
        (5, load, {"lora_name": "dyn"}, 400, "body.lora_path"),
        (6, unload, {"lora_name": "dyn"}, 200, "Success: LoRA adapter 'dyn' removed successfully."),
        (7, unload, {"lora_name": "dyn"}, 404, "The lora adapter 'dyn' cannot be found."),
        (8, CHAT, {**HI, "model": "dyn"}, 404, "The model `dyn` does not exist. Valid aliases: tiny-llama."),
    ]
    for number, path_, body, status, text in steps:
        answer = adapting.ask(Ask(LORA, number, path_, body))
        assert answer.status == status
        assert text in answer.text


def test_the_adapters_in_use_are_told_by_the_newest_sample(adapting):
    _need_a_live_engine(adapting)
    with ThreadPoolExecutor() as pool:
        body = {**HI, "model": "tiny-lora", "max_tokens": 500, "ignore_eos": True}
        answer = pool.submit(adapting.engine.post, CHAT, body)
        adapting.engine.eventually("vllm:num_requests_running", 1)
        text = adapting.engine.get("/metrics").text
        answer.result(NEVER_S)
    samples = [line for line in text.splitlines() if line.startswith("vllm:lora_requests_info{")]
    newest = max(samples, key=lambda line: float(line.rsplit(" ", 1)[1]))
    assert newest.startswith(
        'vllm:lora_requests_info{max_lora="2",running_lora_adapters="tiny-lora",waiting_lora_adapters=""}'
    )
    assert any('running_lora_adapters=""' in sample for sample in samples)


# ---- pausing

LIFE = "http/lifecycle.txt"


@pytest.fixture
def engine(start):
    with start(FOREBAY_SIM_SPEED="1") as running:
        yield running


def _stream(
    engine: EngineProcess, tokens: int = 150
) -> tuple[threading.Event, list[tuple[float, str]], threading.Thread]:
    begun, lines = threading.Event(), []
    body = {**HI, "max_tokens": tokens, "stream": True, "ignore_eos": True}

    def read() -> None:
        with CLIENT.stream("POST", engine.url + CHAT, json=body) as answer:
            for line in answer.iter_lines():
                if line:
                    lines.append((time.monotonic(), line))
                    begun.set()

    thread = threading.Thread(target=read)
    thread.start()
    return begun, lines, thread


def test_a_pause_that_aborts_and_a_request_that_waits_for_the_end_of_it(engine):
    assert by_comment(LIFE, "/pause (mode=abort)").json == {"status": "paused"}
    begun, lines, thread = _stream(engine)
    assert begun.wait(NEVER_S)
    assert engine.post("/pause").json() == {"status": "paused"}
    thread.join(NEVER_S)
    assert '"finish_reason":"abort"' in lines[-2][1]
    assert engine.get("/is_paused").json() == {"is_paused": True}
    assert engine.get("/is_sleeping").json() == {"is_sleeping": True}
    assert engine.get("/health").status_code == 200
    assert engine.metric("vllm:request_success_total", finished_reason="abort") == 1
    begun, lines, thread = _stream(engine, 5)
    assert not begun.wait(0.5)
    assert engine.get("/load").json() == {"server_load": 1}
    assert engine.metric("vllm:num_requests_waiting") == 0
    assert engine.post("/resume").json() == {"status": "resumed"}
    thread.join(NEVER_S)
    assert lines[-1][1] == "data: [DONE]"


def test_a_pause_that_keeps_freezes_streams_until_the_engine_resumes(engine):
    begun, lines, thread = _stream(engine)
    assert begun.wait(NEVER_S)
    assert engine.post("/pause?mode=keep").json() == {"status": "paused"}
    time.sleep(0.2)
    count = len(lines)
    time.sleep(0.6)
    assert len(lines) == count
    assert engine.metric("vllm:num_requests_running") == 1
    engine.post("/resume")
    thread.join(NEVER_S)
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(lines)]
    assert 0.6 < max(gaps) < STALL_S
    assert '"finish_reason":"length"' in lines[-2][1]


def test_a_pause_that_waits_answers_when_what_runs_has_ended(engine):
    begun, lines, thread = _stream(engine)
    assert begun.wait(NEVER_S)
    assert engine.post("/pause?mode=wait").json() == {"status": "paused"}
    thread.join(NEVER_S)
    assert '"finish_reason":"length"' in lines[-2][1]


def test_a_cache_reset_is_refused_while_requests_run_unless_they_may_be_preempted(engine):
    assert captured(LIFE)[6].answer.json == {"success": False}
    begun, lines, thread = _stream(engine)
    assert begun.wait(NEVER_S)
    assert engine.post("/reset_prefix_cache").json() == {"success": False}
    assert engine.post("/reset_prefix_cache?reset_running_requests=true").json() == {"success": True}
    thread.join(NEVER_S)
    assert '"finish_reason":"length"' in lines[-2][1]
    assert engine.metric("vllm:num_preemptions_total") == 1


def test_aborted_requests_end_with_abort_in_no_counter(engine):
    assert captured(LIFE)[0].answer.json == {"status": "aborted", "aborted": 1}
    begun, lines, thread = _stream(engine)
    assert begun.wait(NEVER_S)
    assert engine.post("/abort_requests", {}).json() == {"status": "aborted", "aborted": 1}
    thread.join(NEVER_S)
    assert '"finish_reason":"abort"' in lines[-2][1]
    assert engine.metric("vllm:request_success_total", finished_reason="abort") == 0


def test_a_request_aborted_in_the_queue_ends_with_200_and_in_a_stream_without_a_reason(start):
    with start("--max-num-seqs", "1", FOREBAY_SIM_SPEED="1") as engine, ThreadPoolExecutor() as pool:
        begun, _, thread = _stream(engine, 1500)
        assert begun.wait(NEVER_S)
        waiting = {**HI, "messages": [{"role": "user", "content": words(200)}]}
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        asked = [pool.submit(engine.post, CHAT, {**waiting, **more}) for more in ({}, {"stream": True}, usage)]
        engine.eventually("vllm:num_requests_waiting", 3)
        assert engine.post("/abort_requests", {}).json() == {"status": "aborted", "aborted": 4}
        plain, stream, with_usage = (answer.result(NEVER_S) for answer in asked)
        thread.join(NEVER_S)
    assert [answer.status_code for answer in (plain, stream, with_usage)] == [200, 200, 200]
    body = plain.json()
    assert (body["choices"][0]["finish_reason"], body["choices"][0]["message"]["content"]) == ("abort", "")
    assert body["usage"]["completion_tokens"] == 0
    assert body["usage"]["prompt_tokens_details"]["created_cache_tokens"] == 0
    for answer in (stream, with_usage):
        assert "finish_reason" in answer.text
        assert '"finish_reason":"' not in answer.text
        assert answer.text.endswith("data: [DONE]\n\n")
    assert '"completion_tokens":0' in with_usage.text


def test_a_header_sets_the_priority_of_a_request_that_waits(start):
    flags = ("--max-num-seqs", "1", "--scheduling-policy", "priority")
    with start(*flags, FOREBAY_SIM_SPEED="1") as engine, ThreadPoolExecutor() as pool:
        begun, _, thread = _stream(engine, 300)
        assert begun.wait(NEVER_S)
        ended: list[str] = []

        def ask(name: str, **headers: str) -> None:
            engine.post(CHAT, {**HI, "max_tokens": 30, "ignore_eos": True}, **headers)
            ended.append(name)

        asked = [pool.submit(ask, "patient")]
        engine.eventually("vllm:num_requests_waiting", 1)
        asked.append(pool.submit(ask, "urgent", x_vllm_priority="-5"))
        engine.eventually("vllm:num_requests_waiting", 2)
        for answer in asked:
            answer.result(NEVER_S)
        thread.join(NEVER_S)
    assert ended == ["urgent", "patient"]
