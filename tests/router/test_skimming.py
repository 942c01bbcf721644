"""Long texts that are cut out of bodies instead of being read."""

import json
import time

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay_router.bodies import LONG_BYTES
from forebay_router.endpoints import ENDPOINTS
from forebay_router.errors import RequestRefused
from forebay_router.index.content import content_of
from forebay_router.parsing import parse_request
from forebay_router.rewriting import prefill_body
from forebay_router.skimming import TEXT_MIN_BYTES, Skimmed, is_marker, skim
from tests.router.harness import ask, chat, routed
from tests.router.scripted import hello, workers

LONG = "x" * TEXT_MIN_BYTES
PROMPT = "the basin in front of a power station " * (LONG_BYTES // 38 + 1)
CHAT = ENDPOINTS[b"/v1/chat/completions"]

texts = st.text(max_size=20) | st.builds(
    str.__mul__, st.sampled_from(["a", "{", "é", "日本 ", "\\", '"', "\n"]), st.integers(0, 9000)
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def whole(skimmed: Skimmed):
    """The value with its texts back in their places, each in one place."""
    left = dict(skimmed.texts)

    def put_back(value):
        if isinstance(value, dict):
            return {key: put_back(one) for key, one in value.items()}
        if isinstance(value, list):
            return [put_back(one) for one in value]
        if isinstance(value, str) and is_marker(value):
            data, start, stop = left.pop(value)
            return data[start:stop].decode()
        return value

    return put_back(skimmed.outline)


@settings(deadline=None, max_examples=60)
@given(
    value=values,
    as_ascii=st.booleans(),
    indent=st.none() | st.sampled_from([0, 1, 70, "\t"]),
    colon=st.sampled_from([":", " : ", "\n:\t"]),
    before=st.sampled_from([b"", b" ", b'POST "/" HTTP/1.1\r\n\r\n']),
)
def test_outline_and_texts_are_what_the_parser_reads(value, as_ascii, indent, colon, before):
    """Law: of any JSON value, however it is written and whatever the body is a view of."""
    body = json.dumps(value, ensure_ascii=as_ascii, indent=indent, separators=(",", colon)).encode()
    skimmed = skim(memoryview(before + body)[len(before) :])
    if skimmed is not None:
        assert whole(skimmed) == orjson.loads(body)
        assert all(stop - start >= TEXT_MIN_BYTES for _, start, stop in skimmed.texts.values())


@settings(deadline=None, max_examples=150)
@given(
    parts=st.lists(
        st.sampled_from(
            [
                b'"',
                b'"',
                LONG.encode(),
                b"\\",
                b"\\\\",
                b":",
                b",",
                b"{",
                b"}",
                b"[",
                b"]",
                b"1",
                b" ",
                b"a",
                b"\xc3\xa9",
                b"\xff",
                b"\0",
            ]
        ),
        max_size=14,
    )
)
@example([b"[", b'"', LONG.encode(), b"\xff", b'"', b"]"])
@example([b"[", b'"', LONG.encode(), b"\\", b'"', b'"', b"]"])
@example([b"{", b'"', b"a", b'"', b":", b'"', LONG.encode(), b'"', b",", b'"', b"a", b'"', b":", b"1", b"}"])
def test_whatever_is_no_json_is_left_to_the_parser(parts):
    """Law: of any bytes. All that it may take for JSON that is none are control characters in a long text."""
    body = b"".join(parts)
    skimmed = skim(body)
    if skimmed is None:
        return
    cut = b"".join(data[start:stop] for data, start, stop in skimmed.texts.values())
    assert not set(cut) & set(b'"\\')
    if min(cut) >= 0x20:
        read = orjson.loads(body)
        assert skimmed.outline == read or whole(skimmed) == read


@pytest.mark.parametrize(
    ("body", "cut"),
    [
        (b'{"a":"%b"}', 1),
        (b'{"a" : "%b"\n}', 1),
        (b'["%b","%b"]', 2),
        (b'["%b\\\\"]', 0),
        (b'["%b\\"","%b"]', 1),
        (b'["\\\\","%b"]', 1),
        (b'["' + b"\\" * 500 + b'","%b"]', 0),
        (b'{"%b":1}', 0),
        (b'{"%b"  :1}', 0),
        (b'{"a":"%b"' + b" " * 100 + b"}", 0),
        (b'["%b\xc3\xa9"]', 1),
        (b'["%b\xed\xa0\x80"]', 0),
        (b'["%b]', 0),
        (b'["%b"', 0),
        (b'["%b"]]', 0),
        (b'\xef\xbb\xbf["%b"]', 0),
        (b'["short"]', 0),
        (b"[" + b'"short",' * 200 + b'"%b"]', 0),
        (b'["%b",' + b'"short",' * 20 + b'"%b"]', 2),
        (b'["' + b'\\"' * 500 + b'","%b"]', 0),
    ],
)  # fmt: skip
def test_what_is_cut_out(body, cut):
    count = body.count(b"%b")
    skimmed = skim(body % ((LONG.encode(),) * count))
    assert (0 if skimmed is None else len(skimmed.texts)) == cut


def test_a_marker_of_another_process_is_a_text_like_any_other():
    skimmed = skim(orjson.dumps([LONG]))
    (marker,) = skimmed.texts
    assert skimmed.outline == [marker]
    assert not is_marker("cut " + "A" * (len(marker) - 4))
    assert not is_marker(marker + "0")


PART = {"type": "text", "text": PROMPT}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBO" * LONG_BYTES}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "UklG" * LONG_BYTES, "format": "wav"}}
CALL = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": PROMPT}}]}
SAID = {"role": "user", "content": PROMPT}


@pytest.mark.parametrize(
    ("path", "fields", "cut"),
    [
        (b"/v1/chat/completions", {"messages": [SAID]}, True),
        (b"/v1/chat/completions", {"messages": [{"role": "system", "content": PROMPT}, SAID], "user": "u"}, True),
        (b"/v1/chat/completions", {"messages": [{"role": "user", "content": [PART, IMAGE, AUDIO, PART]}]}, True),
        (b"/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT + "é日本"}]}, True),
        (b"/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT + "\n"}]}, False),
        (b"/v1/chat/completions", {"messages": [SAID, {"role": "user", "content": PROMPT + "\n"}]}, True),
        (b"/v1/chat/completions", {"messages": [SAID, CALL]}, False),
        (b"/v1/chat/completions", {"messages": [SAID], "tools": [{"type": "function", "description": PROMPT}]}, False),
        (b"/v1/chat/completions", {"messages": [SAID], "user": PROMPT}, False),
        (b"/v1/chat/completions", {"messages": [SAID], "chat_template": PROMPT}, False),
        (b"/v1/chat/completions", {"messages": [SAID], "cache_salt": PROMPT}, False),
        (b"/v1/chat/completions", {"messages": [SAID, PROMPT]}, False),
        (b"/v1/chat/completions", {"messages": [{"role": PROMPT, "content": PROMPT}]}, True),
        (b"/v1/chat/completions", {"messages": [{"role": [PROMPT], "content": PROMPT}]}, False),
        (b"/v1/chat/completions", {"messages": [{"role": "user", "content": {"text": PROMPT}}]}, False),
        (b"/v1/completions", {"prompt": PROMPT, "max_tokens": 7, "n": 2, "stream": True}, True),
        (b"/v1/completions", {"prompt": [PROMPT]}, True),
        (b"/v1/completions", {"prompt": [PROMPT, PROMPT]}, False),
        (b"/v1/responses", {"input": PROMPT, "instructions": PROMPT}, True),
        (b"/v1/messages", {"system": [PART], "messages": [SAID], "metadata": {"user_id": PROMPT}}, False),
        (b"/v1/messages", {"system": [PART], "messages": [SAID], "max_tokens": 9}, True),
        (b"/v1/embeddings", {"input": PROMPT}, False),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_a_request_is_the_same_whether_its_texts_are_read_or_not(path, fields, cut):
    """What is no content is read: nobody is to take a marker for what it stands for."""
    fields = {"model": "m", **fields}
    body = json.dumps(fields, ensure_ascii=False).encode()
    request = parse_request(ENDPOINTS[path], {}, body)
    assert request.cut is cut
    assert request.content == (content_of(fields) if ENDPOINTS[path].prompted else None)
    assert request.model == "m"
    assert request.stream is bool(fields.get("stream"))
    assert request.output_tokens == min(256, fields.get("max_tokens", 256))
    assert request.choices == fields.get("n", 1) * (2 if fields.get("prompt") == [PROMPT, PROMPT] else 1)
    assert request.outline.keys() == fields.keys()
    assert orjson.loads(prefill_body(*request.parts)) == orjson.loads(prefill_body(fields))
    assert request.cut is cut
    assert request.fields == fields
    assert not request.cut
    assert request.outline == fields


@pytest.mark.parametrize("more", [0, LONG_BYTES])
def test_what_was_read_is_put_away_where_it_is_long_itself(more):
    """A few long texts may stand among a hundred thousand numbers; an answer that comes as a whole takes minutes."""
    fields = {"model": "m", "messages": [SAID], "x": "y" * 99, "bad_words_ids": [1] * more}
    request = parse_request(CHAT, {}, orjson.dumps(fields))
    assert request.cut
    request.put_away()
    assert (request.kept_fields is None) is (more > 0)
    assert request.outline == (fields if more else {**fields, "messages": request.kept_fields["messages"]})
    assert request.cut is (not more)
    assert request.parts == (fields, {})
    request.forget()
    assert (request.fields, request.outline) == (None, None)


def test_what_was_cut_out_is_forgotten_with_the_rest():
    request = parse_request(CHAT, {}, orjson.dumps({"messages": [SAID]}))
    request.forget()
    assert (request.fields, request.outline, request.texts) == (None, None, None)


def test_of_two_equal_keys_the_last_counts():
    body = b'{"model":"m","prompt":"%b","prompt":"%b"}' % (PROMPT.encode(), PROMPT[1:].encode())
    request = parse_request(ENDPOINTS[b"/v1/completions"], {}, body)
    assert request.content == content_of({"model": "m", "prompt": PROMPT[1:]})
    assert request.fields["prompt"] == PROMPT[1:]


def test_a_model_of_many_letters_is_no_marker():
    request = parse_request(CHAT, {}, orjson.dumps({"model": PROMPT, "messages": [SAID]}))
    assert request.model == PROMPT


@pytest.mark.parametrize(
    "body",
    [
        orjson.dumps({"messages": [SAID]})[:-1],
        orjson.dumps({"messages": [SAID]})[:-1] + b',"x":\x01}',
        b'{"messages":[{"role":"us\ner","content":"%b"}]}' % PROMPT.encode(),
        b'{"messages":[{"role":"user","content":"%b\xc0\x80"}]}' % PROMPT.encode(),
        b'["%b"]' % PROMPT.encode(),
        b'"%b"' % PROMPT.encode(),
    ],
    ids=["cut off", "control", "line break in a short text", "no UTF-8", "no object", "a text"],
)
def test_a_long_body_that_is_no_json_object_is_the_clients_mistake(body):
    with pytest.raises(RequestRefused) as refused:
        parse_request(CHAT, {}, body)
    assert refused.value.status == 400
    with pytest.raises(orjson.JSONDecodeError) if body[:1] == b"{" else pytest.raises(TypeError) as parser:
        orjson.loads(body)["model"]
    if body[:1] == b"{":
        assert str(parser.value) in refused.value.message, "it tells where in the body, not where in its outline"


async def test_control_character_in_a_long_text_is_told_by_the_engine_or_by_who_has_to_read_it():
    body = orjson.dumps(chat(messages=[{"role": "user", "content": PROMPT + "?"}])).replace(b"?", b"\x01")
    request = parse_request(CHAT, {}, body)
    with pytest.raises(RequestRefused, match="not valid JSON"):
        _ = request.fields

    async def strict(asked, wire):
        with pytest.raises(json.JSONDecodeError):
            _ = asked.json
        await wire.json({"error": {"message": "Invalid control character", "code": 400}}, 400)

    async with workers(strict) as [worker], routed(worker) as router:
        reply = await ask(router, body)
        assert (reply.status, reply.json["error"]["message"]) == (400, "Invalid control character")
        assert router.verdicts() == {"good": 0, "bad": 0, "abandoned": 0}


@pytest.mark.parametrize(
    ("more", "changed"),
    [
        ({}, {"stream_options": {"include_usage": True}}),
        ({"stream_options": {"x": 1}}, {"stream_options": {"x": 1, "include_usage": True}}),
        ({"kv_transfer_params": {"do_remote_prefill": True}, "vllm_xargs": {"bootstrap_host": "a", "b": 1}},
         {"kv_transfer_params": None, "vllm_xargs": {"b": 1}, "stream_options": {"include_usage": True}}),
    ],
    ids=["added", "changed", "removed"],
)  # fmt: skip
async def test_a_body_that_is_changed_keeps_its_long_texts(more, changed):
    async with workers(hello) as [worker], routed(worker) as router:
        sent = chat(stream=True, messages=[SAID], **more)
        assert (await ask(router, sent)).status == 200
        (asked,) = worker.asked
        expected = {key: value for key, value in (sent | changed).items() if value is not None}
        assert asked.json == expected


def test_bodies_made_to_be_slow_are_given_up_soon():
    """C149: nothing that a client sends keeps the loop for long. Parsing them is the parser's business."""
    for text in (b'\\"', b"\\\\", b'","', b"\\", b"a" * TEXT_MIN_BYTES + b'","'):
        body = b'["%b"]' % (text * (4_000_000 // len(text)))
        assert _cpu_s(lambda body=body: skim(body)) < 0.05


def _cpu_s(work) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start
