"""Request bodies: JSON to checked values, with vLLM's messages for what is wrong.

Shape errors (bad JSON, missing field, wrong type) are collected and answered as body validation does; value errors
(temperature below zero) are the engine's and come one at a time, after the model was found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from forebay_simulator.engine.errors import ApiError, bad_request, invalid_body

Body = dict[str, Any]


def read_json(content_type: bytes | None, raw: bytes) -> Body:
    """Parse a body into an object. Raises `ApiError` 400."""
    if not raw:
        raise invalid_body([{"type": "missing", "loc": "body", "msg": "Field required", "input": "None"}], "body")
    media = (content_type or b"").split(b";")[0].strip().lower()
    if media != b"application/json":
        raise invalid_body(["Unsupported Media Type: Only 'application/json' is allowed"], None)
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = _reread(raw)
    if not isinstance(body, dict):
        problem = {
            "type": "model_attributes_type",
            "loc": "body",
            "msg": "Input should be a valid dictionary or object to extract fields from",
            "input": _shown(body),
        }
        raise invalid_body([problem], "body")
    return body


def _reread(raw: bytes) -> object:
    """Let the standard library read what the fast parser refused, for its position and its words."""
    try:
        return json.loads(raw)
    except json.JSONDecodeError as error:
        where, text = f"body.{error.pos}", error.msg
    except UnicodeDecodeError as error:
        where, text = f"body.{error.start}", error.reason
    problem = {
        "type": "json_invalid",
        "loc": where,
        "msg": "JSON decode error",
        "input": "<dict of 0 items>",
        "ctx": {"error": text},
    }
    raise invalid_body([problem], where)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return f"<dict of {len(value)} items>"
    if isinstance(value, list):
        return f"<list of {len(value)} items>"
    return str(value)


class Fields:
    """Reads typed fields of one body and collects what is wrong."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._problems: list[dict[str, Any]] = []

    def check(self) -> None:
        """Raise `ApiError` if anything was wrong."""
        if self._problems:
            raise invalid_body(self._problems, str(self._problems[0]["loc"]))

    def problem(self, kind: str, name: str, message: str, value: object) -> None:
        """Note a wrong field."""
        self._problems.append({"type": kind, "loc": f"body.{name}", "msg": message, "input": _shown(value)})

    def required(self, name: str) -> object:
        """Return a field that has to be there."""
        value = self._body.get(name)
        if value is None:
            self.problem("missing", name, "Field required", self._body)
        return value

    def integer(self, name: str, default: int | None = None) -> int | None:
        """Return an integer field; whole floats and digits in a string count, as in pydantic."""
        value = self._body.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            self.problem("int_type", name, "Input should be a valid integer", value)
            return default
        try:
            number = float(value)
            return int(value) if isinstance(value, str) else self._whole(name, number, value)
        except (ValueError, OverflowError):
            message = "Input should be a valid integer, unable to parse string as an integer"
            self.problem("int_parsing", name, message, value)
            return default

    def _whole(self, name: str, number: float, value: float) -> int:
        if number != int(number):
            message = "Input should be a valid integer, got a number with a fractional part"
            self.problem("int_from_float", name, message, value)
        return int(value)

    def number(self, name: str, default: float) -> float:
        """Return a float field."""
        value = self._body.get(name)
        if value is None:
            return default
        if isinstance(value, (bool, dict, list)):
            self.problem("float_type", name, "Input should be a valid number", value)
            return default
        try:
            return float(value)
        except ValueError:
            message = "Input should be a valid number, unable to parse string as a number"
            self.problem("float_parsing", name, message, value)
        return default

    def switch(self, name: str, *, default: bool = False) -> bool:
        """Return a boolean field."""
        value = self._body.get(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        if value in (0, 1):
            return bool(value)
        message = "Input should be a valid boolean, unable to interpret input"
        self.problem("bool_parsing" if isinstance(value, str) else "bool_type", name, message, value)
        return default

    def text(self, name: str) -> str | None:
        """Return a string field."""
        value = self._body.get(name)
        if value is not None and not isinstance(value, str):
            self.problem("string_type", name, "Input should be a valid string", value)
            return None
        return value

    def mapping(self, name: str) -> dict[str, Any] | None:
        """Return an object field."""
        value = self._body.get(name)
        if value is not None and not isinstance(value, dict):
            self.problem("dict_type", name, "Input should be a valid dictionary", value)
            return None
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        """Return a string or a list of them."""
        value = self._body.get(name)
        if value is None:
            return ()
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        self.problem("string_type", name, "Input should be a valid string", value)
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What both completion endpoints understand."""

    model: str | None
    max_tokens: int | None
    min_tokens: int
    temperature: float
    top_p: float
    choices: int
    stop: tuple[str, ...]
    echoes_stop: bool
    ignores_end: bool
    stream: bool
    stream_options: dict[str, Any] | None
    priority: int
    cache_salt: str | None
    returns_token_ids: bool
    kv_transfer: dict[str, Any] | None
    full_cache_report: bool
    """`vllm_xargs.kv_cache_report_mode` is "full": a cache hit is published too."""
    session: str | None
    """`session_id` of the body or the header X-Session-ID."""
    xargs_transfer: bool
    """`vllm_xargs` holds a `kv_transfer_params` string, which the engine stumbles over."""

    @property
    def includes_usage(self) -> bool:
        """A stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.get("include_usage"))

    @property
    def continuous_usage(self) -> bool:
        """Every chunk of a stream has usage."""
        return bool(self.includes_usage and self.stream_options and self.stream_options.get("continuous_usage_stats"))

    def check(self) -> None:
        """Raise `ApiError` for values out of range."""
        if self.stream_options is not None and not self.stream:
            raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
        if self.cache_salt == "":
            raise bad_request("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
        least = self.max_tokens if self.max_tokens is not None else 1
        for wrong, name, rule, value in (
            (self.choices < 1, "n", "must be at least 1", self.choices),
            (self.temperature < 0, "temperature", "must be non-negative", self.temperature),
            (not 0 < self.top_p <= 1, "top_p", "must be in (0, 1]", self.top_p),
            (least < 1, "max_tokens", "must be at least 1", self.max_tokens),
            (self.min_tokens < 0, "min_tokens", "must be greater than or equal to 0", self.min_tokens),
        ):
            if wrong:
                raise bad_request(f"{name} {rule}, got {value}.", name, value)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            message = f"min_tokens must be less than or equal to max_tokens={self.max_tokens}, got {self.min_tokens}."
            raise bad_request(message, "min_tokens", self.min_tokens)
        if self.temperature == 0 and self.choices > 1:
            raise bad_request(f"n must be 1 when using greedy sampling, got {self.choices}.")
        if any(not stop for stop in self.stop):
            raise bad_request("stop cannot contain an empty string.")


def read_options(fields: Fields, *, default_max_tokens: int | None, session: str | None) -> Options:
    """Read the common fields; problems go to `fields`."""
    limit = fields.integer("max_completion_tokens")
    if limit is None:
        limit = fields.integer("max_tokens", default_max_tokens)
    xargs = fields.mapping("vllm_xargs") or {}
    _check_xargs(xargs, fields)
    return Options(
        model=fields.text("model"),
        max_tokens=limit,
        min_tokens=fields.integer("min_tokens") or 0,
        temperature=fields.number("temperature", 1.0),
        top_p=fields.number("top_p", 1.0),
        choices=_or(fields.integer("n"), 1),
        stop=fields.strings("stop"),
        echoes_stop=fields.switch("include_stop_str_in_output"),
        ignores_end=fields.switch("ignore_eos"),
        stream=fields.switch("stream"),
        stream_options=fields.mapping("stream_options"),
        priority=fields.integer("priority") or 0,
        cache_salt=fields.text("cache_salt"),
        returns_token_ids=fields.switch("return_token_ids"),
        kv_transfer=fields.mapping("kv_transfer_params"),
        full_cache_report=xargs.get("kv_cache_report_mode") == "full",
        session=fields.text("session_id") or session,
        xargs_transfer=isinstance(xargs.get("kv_transfer_params"), str),
    )


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _check_xargs(xargs: Mapping[str, Any], fields: Fields) -> None:
    for name, value in xargs.items():
        if isinstance(value, dict):
            where = f"vllm_xargs.{name}"
            fields.problem("string_type", where, "Input should be a valid string", value)
            fields.problem("int_type", where, "Input should be a valid integer", value)
            fields.problem("float_type", where, "Input should be a valid number", value)
            fields.problem("list_type", where, "Input should be a valid list", value)


def read_messages(fields: Fields, *, required: bool = True) -> list[tuple[str, str]]:
    """Read `messages` into (role, text) pairs."""
    value = fields.required("messages")
    if value is None or not required:
        return []
    if not isinstance(value, list):
        fields.problem("list_type", "messages", "Input should be a valid list", value)
        return []
    messages = []
    for position, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            fields.problem("missing", f"messages.{position}.role", "Field required", message)
            continue
        messages.append((message["role"], _content_text(message.get("content"), position, fields)))
    return messages


def _content_text(content: object, position: int, fields: Fields) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        where = f"messages.{position}.content"
        fields.problem("string_type", where, "Input should be a valid string", content)
        return ""
    texts = []
    for part in content:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif isinstance(part, dict) and "image" in str(part.get("type")):
            raise bad_request("At most 0 image(s) may be provided in one prompt.")
    return "\n".join(texts)


Prompt = str | list[int]


def read_prompts(body: Body, fields: Fields) -> list[Prompt]:
    """Read the `prompt` of /v1/completions: a text, token ids, or a list of either."""
    value = body.get("prompt")
    fields.check()
    if value is None or value in ("", []):
        raise bad_request("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if isinstance(value, str) or _token_ids(value):
        return [value]
    if isinstance(value, list) and all(isinstance(item, str) or _token_ids(item) for item in value):
        return value
    fields.problem("string_type", "prompt", "Input should be a valid string", value)
    fields.check()
    raise AssertionError("a noted problem is raised")


def _token_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value) and bool(value)


def too_long(tokens: int, limit: int) -> ApiError:
    """Return the 400 for a prompt that leaves no room for output."""
    counted = min(tokens, limit + 1)
    return bad_request(
        f"This model's maximum context length is {limit} tokens. However, your prompt contains at least {counted} input "
        "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.",
        "input_tokens",
        counted,
    )
