"""Requests to chained hashes."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_router.index.content import ENDS, SIZES, Content, chain, chain_of, content_of
from forebay_router.index.sharing import agreement

LONG = "The quick brown fox jumps over the lazy dog. " * 40


def shared(one: Content | None, other: Content | None) -> int:
    assert one is not None
    assert other is not None
    return agreement(one.hashes, other.hashes)


def chat(*texts: str, **fields) -> Content | None:
    roles = ["system", *["user", "assistant"] * len(texts)]
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return content_of({"model": "m", "messages": messages, **fields})


def test_blocks_grow_with_their_position_and_leave_no_hole():
    assert ENDS[0] == SIZES[0] == 128
    assert all(end - start == size for start, end, size in zip((0, *ENDS), ENDS, SIZES, strict=False))
    assert all(size <= max(128, end / 64) for end, size in zip(ENDS, SIZES, strict=True))
    assert sum(end <= 400_000 for end in ENDS) < 450


@given(st.binary(max_size=3000), st.binary(max_size=3000), st.binary(max_size=3000))
def test_hashes_agree_exactly_as_far_as_the_blocks_do(start, one, other):
    """Equal starts give equal hashes; the first differing block and all after it differ."""
    first, second = start + one, start + other
    same = next(
        (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    expected = sum(end <= same for end in ENDS)
    made, others = chain(first, 1), chain(second, 1)
    assert agreement(made, others) == expected
    assert made[:expected] == others[:expected]
    assert not set(made[expected:]) & set(others[expected:])


@given(st.lists(st.text(max_size=40) | st.builds(str.__mul__, st.sampled_from("aé"), st.integers(0, 9000)), max_size=6))
def test_content_is_hashed_alike_however_it_is_cut_into_texts(texts):
    """Law: neither where texts end nor whether one is long or ASCII only makes a difference."""
    parts = [{"type": "text", "text": text} for text in texts]
    cut = content_of({"model": "m", "messages": [{"role": "user", "content": parts}]})
    whole = content_of({"model": "m", "messages": [{"role": "user", "content": "".join(texts)}]})
    assert cut == whole
    assert cut is not None
    written = b"\0user\0" + "".join(texts).encode()
    assert cut.size_bytes == len(written)
    pieces = [(written, start, min(start + 1000, len(written))) for start in range(0, len(written), 1000)]
    assert chain_of(pieces, 1) == (chain(written, 1), len(written))
    assert len(cut.hashes) == sum(end <= len(written) for end in ENDS)


def test_a_further_turn_keeps_the_whole_of_the_one_before():
    before, after = chat(LONG, "Hi"), chat(LONG, "Hi", "Hello", "And now?")
    assert before is not None
    assert shared(before, after) == len(before.hashes)


def test_list_content_equals_its_text():
    """C047: SDKs send text as parts."""
    parts = content_of({"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]})
    text = content_of({"model": "m", "messages": [{"role": "user", "content": LONG}]})
    assert parts == text


@pytest.mark.parametrize(
    "part",
    [
        lambda name: {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{name}"}},
        lambda name: {"type": "input_audio", "input_audio": {"data": name, "format": "wav"}},
        lambda name: {"type": "image", "source": {"type": "base64", "data": name}},
    ],
)
def test_different_images_share_only_what_precedes_them(part):
    """C047: equal texts with different images are not one prompt."""

    def request(name: str) -> Content | None:
        content = [{"type": "text", "text": LONG}, part(name), {"type": "text", "text": LONG}]
        return content_of({"model": "m", "messages": [{"role": "user", "content": content}]})

    one, other, same = request("A" * 500), request("B" * 500), request("A" * 500)
    assert one is not None
    assert one == same
    assert len(LONG) // 128 - 1 <= shared(one, other) <= len(LONG) // 128 + 1
    assert shared(one, other) < len(one.hashes) - 2


@pytest.mark.parametrize(
    "fields",
    [
        {"cache_salt": "t1"},
        {"model": "adapter"},
        {"chat_template": "{{ x }}"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"reasoning_effort": "high"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_keeps_engines_from_sharing_keeps_hashes_apart(fields):
    """C085, C086: adapters and salts."""
    assert shared(chat(LONG, "Hi"), chat(LONG, "Hi", **fields)) == 0


def test_the_salt_is_not_kept():
    made = chat(LONG, cache_salt="secret-of-tenant")
    assert "secret" not in repr(made)


def test_what_does_not_change_the_prompt_does_not_change_the_hashes():
    assert chat(LONG, "Hi") == chat(LONG, "Hi", temperature=0.3, max_tokens=9, stream=True, user="u")


@pytest.mark.parametrize("content", [{"content": None}, {}], ids=["null", "absent"])
def test_messages_with_other_fields_are_told_apart(content):
    call = {
        "role": "assistant",
        **content,
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": LONG}}],
    }
    other = {**call, "tool_calls": [{"id": "2", "function": {"name": "g", "arguments": LONG}}]}
    user = {"role": "user", "content": LONG}
    one = content_of({"model": "m", "messages": [user, call, {"role": "tool", "content": "ok", "tool_call_id": "1"}]})
    two = content_of({"model": "m", "messages": [user, other]})
    assert one is not None
    assert len(LONG) // 128 <= shared(one, two) < len(one.hashes)


@pytest.mark.parametrize(
    ("prompt", "token_ids"),
    [
        ("x" * 300, None),
        (["x" * 300, "y"], None),
        (list(range(90)), tuple(range(90))),
        ([list(range(90)), [1]], tuple(range(90))),
    ],
    ids=["text", "texts", "ids", "lists of ids"],
)
def test_completion_prompts_of_every_form(prompt, token_ids):
    """C046: text, texts, token ids, lists of token ids."""
    made = content_of({"model": "m", "prompt": prompt})
    assert made is not None
    assert len(made.hashes) == 2
    assert made.token_ids == token_ids


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt": None},
        {"prompt": []},
        {"prompt": [None]},
        {"prompt": [[]]},
        {"prompt": [-1]},
        {"prompt": [1 << 40]},
        {"prompt": ["a", 1]},
        {"prompt": 7},
        {"messages": "hi"},
        {"messages": ["hi"]},
        {"messages": [{"role": 1, "content": 2}]},
        {"messages": []},
        {"input": 5},
        {"input": [1, 2]},
        {"model": 5, "prompt": "x"},
    ],
    ids=str,
)
def test_bodies_that_engines_refuse_do_no_harm(fields):
    made = content_of(fields)
    assert made is None or not made.hashes


def test_dialects_are_understood():
    anthropic = content_of({"model": "m", "system": LONG, "messages": [{"role": "user", "content": "Hi"}]})
    assert anthropic == content_of(
        {"model": "m", "system": [{"type": "text", "text": LONG}], "messages": [{"role": "user", "content": "Hi"}]}
    )
    assert anthropic == content_of({"model": "m", "instructions": LONG, "input": "Hi"})
    assert anthropic == chat(LONG, "Hi")


def test_a_hundred_thousand_tokens_are_hashed_within_a_millisecond():
    text = "".join(chr(97 + at * 7 % 26) for at in range(1000)) * 400
    fields = {"model": "m", "messages": [{"role": "system", "content": text}, {"role": "user", "content": "Hi"}]}
    best = min(_cpu_s(lambda: content_of(fields)) for _ in range(10))
    assert best < 0.001


def _cpu_s(work) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def test_five_megabytes_are_hashed_in_no_time():
    """C149: nothing that a client sends keeps the loop for long."""
    began_s = time.process_time()
    content = content_of({"messages": [{"role": "user", "content": "word " * 1_000_000}]})
    assert content.size_bytes >= 5_000_000
    assert time.process_time() - began_s < 0.5
