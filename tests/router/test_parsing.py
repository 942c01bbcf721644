"""What is read of a body, and what is refused."""

import orjson
import pytest

from forebay_router import rewriting
from forebay_router.endpoints import ENDPOINTS
from forebay_router.errors import RequestRefused
from forebay_router.parsing import parse_request
from forebay_router.usage import Usage, read_facts, with_cached_tokens
from tests.router.harness import ask, chat, routed_pairs
from tests.router.scripted import hello, workers

NESTED = b"[" * 300 + b"]" * 300


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (b"/v1/chat/completions", b'{"messages":[{"role":"user","content":"%b"}],"tools":%b}' % (b"x" * 300, NESTED)),
        (b"/v1/chat/completions", b'{"messages":[{"role":"user","content":[%b]}]}' % NESTED),
        (b"/v1/chat/completions", b'{"messages":[{"role":%b,"content":"x"}]}' % (b"[" * 1000 + b"]" * 1000)),
        (b"/v1/completions", b'{"prompt":"%b","cache_salt":%b}' % (b"x" * 300, NESTED)),
        (b"/v1/responses", b'{"input":[{"role":"user","content":%b}]}' % NESTED),
    ],
    ids=["tools", "content", "role", "salt", "input"],
)
def test_body_that_is_nested_too_deeply_is_the_clients_mistake(path, body):
    with pytest.raises(RequestRefused, match="nested") as refused:
        parse_request(ENDPOINTS[path], {}, body)
    assert (refused.value.status, refused.value.reason) == (400, None)


def test_a_session_is_named_only_of_a_prompt_that_caches_may_hold():
    """The name is evidence of what they hold; a short prompt or an embedding has nothing to look for."""
    headers, long = {b"x-session-id": b"one"}, b'{"input":"%b"}' % (b"x" * 4000)
    assert parse_request(ENDPOINTS[b"/v1/responses"], headers, long).session is not None
    assert parse_request(ENDPOINTS[b"/v1/embeddings"], headers, long).session is None
    assert parse_request(ENDPOINTS[b"/v1/responses"], headers, b'{"input":"x"}').session is None


def test_body_that_is_too_deep_to_be_changed_is_the_clients_mistake():
    deep = orjson.loads(NESTED)
    for change in (
        lambda: rewriting.prefill_body({"model": "m", "messages": deep}),
        lambda: rewriting.scrub(parsed({"x": deep, "kv_transfer_params": {}})),
        lambda: rewriting.ask_for_usage(parsed({"x": deep, "stream": True, "stream_options": None})),
    ):
        with pytest.raises(RequestRefused, match="nested") as refused:
            change()
        assert (refused.value.status, refused.value.reason) == (400, None)


def parsed(fields):
    request = parse_request(ENDPOINTS[b"/v1/chat/completions"], {}, b"{}")
    request.kept_fields, request.stream = fields, bool(fields.get("stream"))
    return request


def test_answer_of_a_worker_that_is_too_deep_to_be_changed_passes_as_it_came():
    """It cannot be written anew; what would have been changed in it is not worth an error."""
    params = {"remote_block_ids": orjson.loads(NESTED)}
    assert rewriting.decode_body(b'{"model":"m"}', params) == b'{"model":"m"}'
    body = b'{"usage":{"prompt_tokens_details":{"cached_tokens":1}},"x":%b}' % NESTED
    assert with_cached_tokens(body, 5) == body
    assert with_cached_tokens(b'{"usage":{"prompt_tokens_details":{}}}', 5) == (
        b'{"usage":{"prompt_tokens_details":{"cached_tokens":5}}}'
    )
    assert with_cached_tokens(b'{"text":"\\"usage\\""}', 5) == b'{"text":"\\"usage\\""}'


@pytest.mark.parametrize(
    ("told", "written"),
    [
        (b'{"cached_tokens":12}', b'{"cached_tokens":345}'),
        (b'{"cached_tokens":1,"audio_tokens":0}', b'{"cached_tokens":345,"audio_tokens":0}'),
        (b"null", b"null"),
    ],
)
def test_cached_tokens_are_the_only_bytes_that_change_in_an_answer_of_vllm(told, written):
    """Text that looks like token counts is escaped; a number that no double holds would not survive being written anew."""
    text = orjson.dumps('"usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":9}}')
    answer = (
        b'{"choices":[{"text":%b,"token":123456789012345678901234567890}],'
        b'"usage":{"prompt_tokens":400,"total_tokens":401,"completion_tokens":1,"prompt_tokens_details":%b},"x":{}}'
    )
    assert with_cached_tokens(answer % (text, told), 345) == answer % (text, written)


def test_of_two_usages_in_an_answer_of_vllm_the_last_counts():
    """An answer's own stands at its end; a field that passes through may have one of its own."""
    usage = b'{"prompt_tokens":%d,"total_tokens":9,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":%d}}'
    answer = b'{"metadata":{"usage":%b},"choices":[],"usage":%b}'
    body = answer % (usage % (1, 2), usage % (400, 12))
    assert read_facts(body) == (Usage(400, 1, 12), False)
    assert with_cached_tokens(body, 345) == answer % (usage % (1, 2), usage % (400, 345))


async def test_deep_body_counts_against_nobody_in_split_mode():
    async with workers(hello, hello) as [prefill, decode], routed_pairs([prefill], [decode]) as router:
        body = orjson.dumps(chat())[:-1] + b',"x":%b}' % NESTED
        reply = await ask(router, body)
        assert (reply.status, reply.json["error"]["code"]) == (400, "invalid_body")
        assert router.verdicts()["bad"] == 0
        assert not prefill.asked
