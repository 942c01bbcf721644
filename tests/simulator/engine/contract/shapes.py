"""The shapes of answers, and the requests that the captured ones belong to."""

from __future__ import annotations

import re

from .captured import Answer
from .sources import NAME, Ask, words

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
ANSWER_KEYS = {
    CHAT: [
        "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage", "prompt_logprobs",
        "prompt_token_ids", "prompt_text", "kv_transfer_params", "ec_transfer_params", "metrics",
    ],
    COMPLETION: [
        "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage", "kv_transfer_params",
        "ec_transfer_params", "metrics",
    ],
}  # fmt: skip
CHOICE_KEYS = {
    CHAT: ["index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts"],
    COMPLETION: [
        "index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids", "prompt_logprobs", "prompt_token_ids",
        "routed_experts",
    ],
}  # fmt: skip
MESSAGE_KEYS = ["role", "content", "refusal", "annotations", "audio", "function_call", "reasoning"]
FINGERPRINT = re.compile(r"vllm-0\.32\.0-[0-9a-f]{8}")


def chat_ask(number: int, text: str | None = None, **fields: object) -> Ask:
    messages = [
        {"role": "system", "content": "You are a small test engine."},
        {"role": "user", "content": text or words(180)},
    ]
    body = {"model": NAME, "messages": messages, "temperature": 0, **fields}
    return Ask("http/chat_completions.txt", number, CHAT, body)


def completion_ask(number: int, prompt: object = None, **fields: object) -> Ask:
    body = {"model": NAME, "prompt": prompt or words(180), "temperature": 0, **fields}
    return Ask("http/completions.txt", number, COMPLETION, body)


def check_answer(answer: Answer, path: str, tokens: int) -> dict:
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json
    assert list(body) == ANSWER_KEYS[path]
    assert [list(choice) for choice in body["choices"]] == [CHOICE_KEYS[path]]
    assert body["model"] == NAME
    assert FINGERPRINT.fullmatch(body["system_fingerprint"])
    choice, usage = body["choices"][0], body["usage"]
    assert (choice["index"], choice["finish_reason"]) == (0, "length")
    assert list(usage) == [
        "prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details",
    ]  # fmt: skip
    assert usage["completion_tokens"] == tokens
    assert usage["total_tokens"] == usage["prompt_tokens"] + tokens
    assert list(usage["prompt_tokens_details"]) == ["cached_tokens", "created_cache_tokens", "multimodal_tokens"]
    return body
