"""Text to token ids: cut texts give the tokens of whole ones."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from forebay_router.tokens import encoder as module
from forebay_router.tokens.encoder import CHECKS, Encoder, Memory, is_cuttable, pieces_of
from tests.router.tokens.vocabulary import WORDS, definition, text_of

KINDS = ("gpt-2", "llama-3")
PARTS = st.sampled_from(
    (
        *WORDS, *(f" {word}" for word in WORDS),
        " ", "  ", "\n", "\n\n", " \n", ".\n", ".\n\nThe", "\t", "'s", "'ll", "é", "e\u0301", "ß",
        "日本", "🙂", "12345", "<|im_start|>", "<|im_end|>\n", "<think>", "<think", "a", "Z", "_", "-", "\r\n", "\u00a0",
    )
)  # fmt: skip


def encoder(kind: str, bytes_max: int = 1 << 20) -> Encoder:
    return Encoder(definition(kind), Memory(bytes_max))


def whole(kind: str, text: str, *, framed: bool = False) -> list[int]:
    return Tokenizer.from_str(definition(kind)).encode(text, add_special_tokens=framed).ids


@pytest.fixture
def short_pieces(monkeypatch):
    monkeypatch.setattr(module, "PIECE_CHARS", 4)


@pytest.mark.parametrize("kind", KINDS)
@given(parts=st.lists(PARTS, max_size=40))
def test_cutting_does_not_change_the_tokens(kind, parts):
    """Law, with pieces of a few characters, so that every place where a text may be cut is cut."""
    text = "".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE_CHARS", 1)
        patch.setattr(module, "CHECKS", 0)
        made = encoder(kind)
        assert made.cuts
        assert "".join(pieces_of(text)) == text
        assert made.encode(text, framed=False).tolist() == whole(kind, text)


def test_a_prompt_that_goes_on_costs_what_is_new(short_pieces):
    made, rng = encoder("gpt-2"), Random(2)
    first = text_of(300, rng)
    made.encode(first, framed=False)
    before = made.new_chars
    assert before == len(first)
    longer = first + " and " + text_of(20, rng)
    assert made.encode(longer, framed=False).tolist() == whole("gpt-2", longer)
    assert made.new_chars - before < len(longer) - len(first) + 40
    assert made.known_chars > len(first) - 40


def test_a_prompt_of_many_pieces_has_pieces_of_about_their_size():
    pieces = pieces_of(text_of(5000, Random(3)))
    assert len(pieces) > 5
    assert all(module.PIECE_CHARS <= len(one) < module.PIECE_CHARS + 40 for one in pieces[:-1])


def test_start_tokens_are_put_before_the_text():
    assert encoder("llama-3").encode("the cache", framed=True).tolist() == whole("llama-3", "the cache", framed=True)
    assert encoder("llama-3").encode("the cache", framed=False).tolist() == whole("llama-3", "the cache")


def test_memory_is_bounded_and_forgets_the_longest_unused(short_pieces):
    made = encoder("gpt-2", 4000)
    kept = "the router "
    for at in range(300):
        made.encode(kept + str(at), framed=False)
        made.encode("the router sends each", framed=False)
    assert 0 < made.memory.size_bytes <= 4000
    before = made.new_chars
    made.encode("the router sends each", framed=False)
    assert made.new_chars == before


def test_tokenizers_that_look_across_a_cut_are_not_cut():
    assert not encoder("prefix space").cuts
    assert not is_cuttable({"model": {"type": "BPE"}, "pre_tokenizer": {"type": "Metaspace"}})
    assert not is_cuttable(
        {"model": {"type": "Unigram"}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}}
    )
    plain = {"model": {"type": "BPE"}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}}
    assert is_cuttable(plain)
    assert not is_cuttable({**plain, "added_tokens": [{"content": "<x>", "lstrip": True}]})
    assert not is_cuttable({**plain, "added_tokens": [{"content": "end of turn"}]})
    assert not is_cuttable({**plain, "normalizer": {"type": "Prepend", "prepend": "_"}})


def test_one_wrong_token_ends_the_cutting(short_pieces):
    """A byte-level tokenizer that merges across words looks as if it could be cut; the comparison with whole texts shows it."""
    made, rng = encoder("unbounded words"), Random(4)
    assert made.cuts
    for _ in range(CHECKS):
        text = text_of(50, rng)
        assert made.encode(text, framed=False).tolist() == whole("unbounded words", text)
    assert not made.cuts


def test_what_is_no_tokenizer_is_refused():
    with pytest.raises(ValueError, match=r"not a tokenizer\.json"):
        Encoder("{}", Memory(1))
