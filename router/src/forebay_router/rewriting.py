"""Bodies as they go to workers.

A body that needs no change is sent as it came. Where a key has to be added, it is spliced in behind the opening brace, which
is cheap for a long prompt and keeps every other byte; where one has to be changed or removed, the object is serialised anew.

Prefill and decode on different workers (vLLM's NixlConnector), two legs:

    prefill leg   the same prompt, one token, not streamed, kv_transfer_params = {do_remote_decode: true, ...}; the answer
                  holds the kv_transfer_params that say where the KV blocks are
    decode leg    the client's own request plus that object, unchanged

A client's own kv_transfer_params are removed: `{"do_remote_prefill": true}` from outside kills a decode engine. So are those in
vllm_xargs, which the engine takes for the same thing: a string there makes every worker answer 500.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from forebay_router import errors
from forebay_router.bodies import Body
from forebay_router.parsing import ParsedRequest
from forebay_router.serialising import TooDeepError, serialise
from forebay_router.skimming import Piece, restored
from forebay_router.usage import read_usage

TRANSFER_KEY: Final = "kv_transfer_params"
PREFILL_PARAMS: Final = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_DECODE_ONLY: Final = ("stream_options", "min_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "best_of")
"""Fields that ask for more than the one token that the prefill leg makes, or for a stream."""
_EXTRA_KEY: Final = "vllm_xargs"
_REMOVED: Final = frozenset({TRANSFER_KEY, "ec_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room"})
"""Fields by which a client could steer the transfer of KV blocks."""
_HARMLESS: Final = frozenset({*_REMOVED, _EXTRA_KEY}).isdisjoint

_NO_TEXTS: Final[Mapping[str, Piece]] = {}
_EMPTY_REST = re.compile(rb"\s*}")
_OPENING = re.compile(rb"\s*{")


def splice(body: Body, key: str, value: bytes) -> bytes:
    """Add a key that the object does not have; `value` is JSON."""
    opening = _OPENING.match(body)
    assert opening is not None, "a body that was read as an object"
    start = opening.end()
    comma = b"" if _EMPTY_REST.match(body, start) else b","
    return b"".join((body[:start], b'"', key.encode(), b'":', value, comma, memoryview(body)[start:]))


def scrub(request: ParsedRequest) -> None:
    """Remove what a client may not say."""
    if request.outline is None or _HARMLESS(request.outline) or not _holders(request.outline):
        return
    fields = request.fields
    assert fields is not None
    for holder in _holders(fields):
        for name in _REMOVED:
            holder.pop(name, None)
    request.body = _written(fields)


def _holders(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """Objects that hold what is removed."""
    return [one for one in (fields, fields.get(_EXTRA_KEY)) if isinstance(one, dict) and not _REMOVED.isdisjoint(one)]


def wants_usage(request: ParsedRequest) -> bool:
    """The client asked for token counts in its stream."""
    options = request.outline.get("stream_options") if request.outline else None
    return isinstance(options, dict) and bool(options.get("include_usage"))


def ask_for_usage(request: ParsedRequest) -> bool:
    """Make a stream tell its token counts; True when the client had not asked, so its chunk must be taken out again."""
    outline = request.outline
    if outline is None or not request.stream or not request.endpoint.usage_on_request or wants_usage(request):
        return False
    if "stream_options" not in outline:
        request.body = splice(request.body, "stream_options", b'{"include_usage":true}')
        return True
    options = outline["stream_options"]
    if options is not None and not isinstance(options, dict):
        return False
    fields = request.fields
    assert fields is not None
    fields["stream_options"] = {**(options or {}), "include_usage": True}
    request.body = _written(fields)
    return True


def prefill_body(fields: dict[str, Any], texts: Mapping[str, Piece] = _NO_TEXTS) -> bytes:
    """The body of the prefill leg; `texts` go to the places of their markers."""
    leg = {key: value for key, value in fields.items() if key not in _DECODE_ONLY}
    if "max_completion_tokens" in fields:
        leg["max_completion_tokens"] = 1
    leg["max_tokens"] = 1
    leg["stream"] = False
    if leg.get("n") is not None:
        leg["n"] = 1
    leg[TRANSFER_KEY] = PREFILL_PARAMS
    return restored(_written(leg), texts) if texts else _written(leg)


def _written(fields: dict[str, Any]) -> bytes:
    """A body of the client's, changed; raises RequestRefused when it is too deep."""
    try:
        return serialise(fields)
    except TooDeepError as error:
        raise errors.too_deep() from error


def read_prefill_answer(body: bytes) -> tuple[dict[str, Any] | None, int | None]:
    """Where the KV blocks are (None: nowhere), and how many prompt tokens the prefill worker had cached (None: unknown)."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None, None
    if not isinstance(said, dict):
        return None, None
    params = said.get(TRANSFER_KEY)
    usage = read_usage(said.get("usage"))
    return (params if isinstance(params, dict) else None), (usage.cached_tokens if usage else None)


def decode_body(body: Body, params: dict[str, Any] | None) -> Body:
    """The body of the decode leg; without params, or with some that cannot be written, it computes the prompt itself."""
    try:
        return body if params is None else splice(body, TRANSFER_KEY, serialise(params))
    except TooDeepError:
        return body


def needs_one_worker(fields: dict[str, Any]) -> bool:
    """A request that cannot be split: prompt log-probabilities exist on the worker that computed the prompt only."""
    return fields.get("prompt_logprobs") is not None or bool(fields.get("echo"))
