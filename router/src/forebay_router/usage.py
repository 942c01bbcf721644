"""Token counts as engines tell them."""

import re
from typing import Any, NamedTuple

import orjson

from forebay_router.serialising import TooDeepError, serialise

WHOLE_PARSE_MAX_BYTES = 64 * 1024
"""Up to this size an answer is parsed whole; above it only its usage object, which stands near the end."""


class Usage(NamedTuple):
    """Token counts of one answer."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    """Prompt tokens found in the prefix cache; None when the engine does not tell."""


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _cached_count(details: Any) -> int | None:
    return _count(details.get("cached_tokens")) if isinstance(details, dict) else None


def read_usage(usage: Any) -> Usage | None:
    """Counts from a usage object of OpenAI's completions, its responses, or Anthropic's messages; None if it is none."""
    if not isinstance(usage, dict):
        return None
    prompt = _count(usage.get("prompt_tokens"))
    if prompt is not None:
        return Usage(
            prompt, _count(usage.get("completion_tokens")) or 0, _cached_count(usage.get("prompt_tokens_details"))
        )
    prompt = _count(usage.get("input_tokens"))
    output = _count(usage.get("output_tokens"))
    if prompt is None and output is None:
        return None
    if "input_tokens_details" in usage:
        cached = _cached_count(usage["input_tokens_details"])
    else:
        cached = _count(usage.get("cache_read_input_tokens"))
    return Usage(prompt or 0, output or 0, cached)


def _balanced_object(body: bytes, start: int) -> bytes | None:
    """The JSON object that begins at `start`, braces inside strings respected; None if it does not end."""
    depth = 0
    in_string = escaped = False
    for position in range(start, min(len(body), start + 8192)):
        byte = body[position]
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_string = False
        elif byte == 0x22:
            in_string = True
        elif byte == 0x7B:
            depth += 1
        elif byte == 0x7D:
            depth -= 1
            if depth == 0:
                return body[start : position + 1]
    return None


_VLLM_USAGE = re.compile(
    rb'"usage":\{"prompt_tokens":(\d{1,12}),"total_tokens":\d{1,12},"completion_tokens":(\d{1,12}),'
    rb'"prompt_tokens_details":(?:null|\{"cached_tokens":(\d{1,12})[,}])'
).match
"""How vLLM writes it: read without parsing the answer. A quote within text is escaped, so text cannot look like this."""


def read_facts(body: bytes) -> tuple[Usage | None, bool]:
    """Token counts of a JSON answer that is complete, and whether the engine stopped before the answer was."""
    at = body.rfind(b'"usage"')
    found = _VLLM_USAGE(body, at) if at >= 0 and b'"abort"' not in body else None
    if found is not None:
        prompt, output, cached = found.groups()
        return Usage(int(prompt), int(output), None if cached is None else int(cached)), False
    if len(body) > WHOLE_PARSE_MAX_BYTES:
        return _usage_near_end(body), _aborted_near_end(body)
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None, False
    if not isinstance(answer, dict):
        return None, False
    aborted = False
    if b'"abort"' in body:
        choices = answer.get("choices")
        aborted = isinstance(choices, list) and any(
            isinstance(choice, dict) and choice.get("finish_reason") == "abort" for choice in choices
        )
    return read_usage(answer.get("usage")), aborted


def with_cached_tokens(body: bytes, cached_tokens: int) -> bytes:
    """A JSON answer whose usage tells this count of cached tokens; unchanged where it has no details of prompt tokens, or null.

    Every other byte stays, where it is as vLLM writes it.
    """
    at = body.rfind(b'"usage"')
    found = _VLLM_USAGE(body, at) if at >= 0 else None
    if found is not None:
        start, end = found.span(3)
        return body if start < 0 else b"%b%d%b" % (body[:start], cached_tokens, body[end:])
    try:
        answer = orjson.loads(body)
        details = answer["usage"]["prompt_tokens_details"]
        details["cached_tokens"] = cached_tokens
        return serialise(answer)
    except (orjson.JSONDecodeError, LookupError, TypeError, TooDeepError):
        return body


def _usage_near_end(body: bytes) -> Usage | None:
    key = body.rfind(b'"usage"')
    start = body.find(b"{", key, key + 16) if key >= 0 else -1
    found = _balanced_object(body, start) if start >= 0 else None
    if found is None:
        return None
    try:
        return read_usage(orjson.loads(found))
    except orjson.JSONDecodeError:
        return None


def _aborted_near_end(body: bytes) -> bool:
    key = body.rfind(b'"finish_reason"')
    return key >= 0 and b'"abort"' in body[key : key + 32]
