"""The event scanner on its own."""

import itertools
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_router.endpoints import Dialect
from forebay_router.sse import HELD_MAX_BYTES, EventScanner, event_data, split_events
from tests.router.scripted import chat_chunk, usage_chunk

ERROR = b'data: {"error":{}}\n\n'


def encoded(*events, end: str = "\n") -> bytes:
    texts = [event if isinstance(event, str) else "data: " + json.dumps(event) for event in events]
    return "".join(text + end * 2 for text in texts).encode()


def run(data: bytes, cuts: list[int], **options) -> tuple[EventScanner, bytes]:
    """Feed data cut at places; the n-th read comes at second n."""
    scanner = EventScanner(Dialect.CHAT, error_event=ERROR, **options)
    places = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    out = b""
    for second, (start, stop) in enumerate(itertools.pairwise(places)):
        out += scanner.feed(data[start:stop], float(second))
    return scanner, out + scanner.finish()


_EVENTS = st.sampled_from(
    [
        chat_chunk("hello"), chat_chunk("", role=True), chat_chunk('say "usage" and [DONE]'), chat_chunk("é\u2028x"),
        {"choices": [], "usage": None}, ": comment", "event: x\nid: 3\ndata: {}", "retry: 5", "data: not json", "data: [1,2]",
        chat_chunk("x", finish="stop"), "data", "data:", "id: 1", {"type": {}, "choices": [{"delta": ["x"]}]},
    ]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    events=st.lists(_EVENTS, max_size=6),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    cuts=st.lists(st.integers(0, 3000), max_size=10),
    tail=st.sampled_from(["", "data: {", ": x", "\n"]),
)
def test_bytes_pass_unchanged_however_they_are_cut(events, end, cuts, tail):
    """Law: without an edit, what goes out is what came in; and what is understood does not depend on the cuts."""
    events = [event.replace("\n", end) if isinstance(event, str) else event for event in events]
    data = encoded(*events, usage_chunk(3), "data: [DONE]", end=end) + tail.encode()
    scanner, out = run(data, cuts)
    assert out == data
    whole, _ = run(data, [])
    assert scanner.complete
    assert (scanner.usage(), scanner.aborted, scanner.error) == (whole.usage(), whole.aborted, whole.error)
    assert (scanner.first_content_s is None) == (whole.first_content_s is None)


@settings(max_examples=200, deadline=None)
@given(events=st.lists(_EVENTS, max_size=6), cuts=st.lists(st.integers(0, 3000), max_size=10))
def test_only_the_usage_chunk_is_taken_out(events, cuts):
    """Law: stripping removes exactly the chunk that was asked for."""
    before, after = encoded(*events), encoded("data: [DONE]")
    scanner, out = run(before + encoded(usage_chunk(3)) + after, cuts, strip_usage=True)
    assert out == before + after
    assert scanner.usage().output_tokens == 3


def test_usage_within_a_chunk_of_text_is_left_alone():
    data = encoded({**chat_chunk("x"), "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
    assert run(data, [], strip_usage=True)[1] == data


def test_cached_tokens_are_the_prefill_workers():
    """C094: a decode worker calls all it was handed cached; the client and the metrics see prefill's number."""
    scanner, out = run(encoded(chat_chunk("x"), usage_chunk(1, cached_tokens=7), "data: [DONE]"), [], cached_tokens=0)
    assert b'"cached_tokens":0' in out
    assert scanner.usage().cached_tokens == 0
    scanner, out = run(encoded(usage_chunk(1, cached_tokens=7)), [], cached_tokens=0, strip_usage=True)
    assert out == b""
    assert scanner.usage().cached_tokens == 0


def test_error_event_goes_before_the_end_of_an_aborted_answer():
    data = encoded(chat_chunk("a"), chat_chunk("b", finish="abort"))
    _, out = run(data + encoded("data: [DONE]"), [])
    assert out == data + ERROR + encoded("data: [DONE]")


@pytest.mark.parametrize(
    ("dialect", "events", "first", "usage", "complete"),
    [
        (
            Dialect.COMPLETION,
            ['data: {"choices":[{"text":""}]}', 'data: {"choices":[{"text":"x"}]}', "data: [DONE]"],
            1, None, True,
        ),
        (
            Dialect.RESPONSES,
            [
                'event: response.created\ndata: {"type":"response.created","response":{"usage":null,"error":null}}',
                'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"x"}',
                ('event: response.completed\ndata: {"type":"response.completed","response":{"usage":'
                '{"input_tokens":5,"output_tokens":2,"input_tokens_details":{"cached_tokens":4}}}}'),
            ],
            1, (5, 2, 4), True,
        ),
        (
            Dialect.MESSAGES,
            [
                'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":0}}}',
                'event: ping\ndata: {"type":"ping"}',
                'event: content_block_start\ndata: {"type":"content_block_start","content_block":{"type":"text","text":""}}',
                'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"x"}}',
                'event: message_delta\ndata: {"type":"message_delta","delta":{},"usage":{"output_tokens":6}}',
                'event: message_stop\ndata: {"type":"message_stop"}',
            ],
            3, (9, 6, None), True,
        ),
        (
            Dialect.MESSAGES,
            ['event: content_block_start\ndata: {"type":"content_block_start","content_block":{"type":"tool_use","id":"1"}}'],
            0, None, False,
        ),
        (Dialect.CHAT, ["data: " + json.dumps(chat_chunk("", reasoning="hm"))], 0, None, False),
        (Dialect.OPAQUE, ["data: x"], None, None, True),
    ],
)  # fmt: skip
def test_dialects(dialect, events, first, usage, complete):
    """First content, counts and end marker of each kind of stream."""
    scanner = EventScanner(dialect)
    for second, event in enumerate(events):
        data = encoded(event)
        assert scanner.feed(data, float(second)) == data
    assert scanner.first_content_s == first
    found = scanner.usage()
    assert (None if found is None else (found.prompt_tokens, found.output_tokens, found.cached_tokens)) == usage
    assert scanner.complete is complete


def test_last_content_is_not_moved_by_comments_or_the_end():
    scanner = EventScanner(Dialect.CHAT)
    for second, event in enumerate([chat_chunk("a"), chat_chunk("b"), ": keep-alive", usage_chunk(2), "data: [DONE]"]):
        scanner.feed(encoded(event), float(second))
    assert (scanner.first_content_s, scanner.last_content_s) == (0.0, 1.0)


def test_large_event_is_held_in_linear_time_and_let_through_above_the_bound():
    scanner = EventScanner(Dialect.CHAT)
    piece = b"data: " + b"x" * 65_530
    started_s = time.process_time()
    out = b""
    count = HELD_MAX_BYTES // len(piece) + 2
    for _ in range(count):
        out += scanner.feed(piece, 0.0)
        assert len(scanner._held) <= HELD_MAX_BYTES
    assert time.process_time() - started_s < 0.5
    assert out + scanner._held == piece * count


def test_event_fields():
    assert event_data(b": x\n\n") is None
    assert event_data(b"data: a\ndata:b\r\n\r\n") == b"a\nb"
    assert event_data(b"data\n\n") == b""
    assert event_data(b"database: x\n\n") is None
    assert split_events(b"a\r\n\r\nb\n\nc\r\rd") == ([b"a\r\n\r\n", b"b\n\n", b"c\r\r"], b"d")
