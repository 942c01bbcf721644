"""The engine's pure parts: tokens, words, numbers, the command line."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_simulator.engine.arguments import human_integer, parse_arguments
from forebay_simulator.engine.families import When
from forebay_simulator.engine.metrics import Metrics, go_float
from forebay_simulator.engine.text import Answer, Vocabulary, natural_length, prompt_seed
from forebay_simulator.engine.tokens import UNKNOWN, Tokenizer
from forebay_simulator.engine.waiting import Policy

VOCABULARY = 128_256


@given(st.text())
def test_every_text_is_cut_without_loss(text):
    tokenizer = Tokenizer(VOCABULARY)
    tokens = tokenizer.encode(text)
    assert all(0 <= token < VOCABULARY for token in tokens)
    if len(set(tokens)) == len({*tokenizer.pieces(tokens)}) and UNKNOWN not in text:
        # Pieces whose ids collide are the documented exception, and a few pieces never collide.
        assert tokenizer.decode(tokens) == text or len(tokens) > 2


@given(st.text(string.ascii_letters + " .\n"), st.text(string.ascii_letters + " .\n"))
def test_a_continued_text_keeps_all_tokens_but_the_last(text, more):
    tokenizer = Tokenizer(VOCABULARY)
    tokens = tokenizer.encode(text)
    assert tokenizer.encode(text + more)[: max(0, len(tokens) - 1)] == tokens[:-1]


def test_tokens_are_the_same_in_every_process():
    assert Tokenizer(VOCABULARY).encode("Hello, wide world!") == Tokenizer(VOCABULARY).encode("Hello, wide world!")
    assert Tokenizer(VOCABULARY).encode("Hello") == [35554]


def test_an_unknown_token_reads_as_such():
    assert Tokenizer(VOCABULARY).decode([77]) == UNKNOWN


def test_answers_are_cut_back_into_the_tokens_they_are_made_of():
    tokenizer = Tokenizer(VOCABULARY)
    vocabulary = Vocabulary(tokenizer)
    answer = Answer(prompt_seed([1, 2, 3], seed=0))
    chosen = [answer.next() for _ in range(500)]
    text = "".join(vocabulary.words[word] for word in chosen)
    assert tokenizer.encode(text) == [vocabulary.ids[word] for word in chosen]


def test_answers_depend_on_prompt_seed_and_adapter():
    seeds = [
        prompt_seed([1, 2], seed=0), prompt_seed([1, 3], seed=0), prompt_seed([1, 2], seed=1),
        prompt_seed([1, 2], seed=0, adapter="a"),
    ]  # fmt: skip
    assert len(set(seeds)) == 4


def test_natural_lengths_have_the_median_that_was_asked_for():
    lengths = sorted(natural_length(prompt_seed([n], seed=0), median=200) for n in range(2000))
    assert 180 < lengths[1000] < 220
    assert lengths[0] >= 1
    assert lengths[-1] > 1000


@pytest.mark.parametrize(
    ("text", "value"), [("5", 5), ("16k", 16_000), ("16K", 16_384), ("25.6k", 25_600), ("1M", 1 << 20)]
)
def test_numbers_with_suffixes(text, value):
    assert human_integer(text) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.0"), (1, "1.0"), (2097152, "2.097152e+06"), (1795980784.97, "1.79598078497e+09"), (0.25, "0.25")],
)
def test_numbers_as_prometheus_writes_them(value, text):
    assert go_float(value) == text


def test_the_command_line_of_the_operator_is_understood():
    arguments = [
        "hf://meta-llama/Llama-3.1-8B-Instruct", "--served-model-name", "llama-3.1-8b", "--host", "127.0.0.9", "--port", "8000",
        "--max-model-len", "16384", "--tensor-parallel-size", "2", "--shutdown-timeout", "20", "--enable-prompt-tokens-details",
        "--kv-transfer-config",
        '{"kv_connector":"NixlConnector","kv_role":"kv_consumer","kv_load_failure_policy":"recompute"}',
    ]  # fmt: skip
    environment = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.9", "VLLM_NIXL_SIDE_CHANNEL_PORT": "5600"}
    settings, unknown = parse_arguments(arguments, environment)
    assert unknown == ()
    assert settings.name == "llama-3.1-8b"
    assert (settings.tensor, settings.max_model_len, settings.shutdown_timeout_s) == (2, 16384, 20)
    transfer = settings.transfer
    assert transfer is not None
    assert (transfer.produces, transfer.consumes, transfer.recomputes_on_failure) == (False, True, True)
    assert (transfer.host, transfer.port, transfer.lease_s) == ("127.0.0.9", 5600, 30)


def test_underscores_and_dotted_keys_are_vllms():
    arguments = [
        "m", "--max_num_seqs", "7", "--kv-transfer-config.kv_connector", "NixlConnector", "--kv-transfer-config.kv_role=kv_both",
        "--kv-transfer-config.kv_connector_extra_config.kv_lease_duration", "6", "--scheduling-policy=priority",
        "--no-enable-prefix-caching",
    ]  # fmt: skip
    settings, unknown = parse_arguments(arguments, {})
    assert unknown == ()
    assert (settings.max_num_seqs, settings.policy, settings.prefix_caching) == (7, Policy.PRIORITY, False)
    assert settings.transfer is not None
    assert settings.transfer.lease_s == 6


def test_flags_without_effect_are_taken_and_unknown_ones_are_named():
    settings, unknown = parse_arguments(
        ["m", "--dtype", "bfloat16", "--enforce-eager", "--brand-new", "7", "--other=x"], {}
    )
    assert settings.model == "m"
    assert unknown == ("--brand-new", "--other=x")


def test_the_environment_sets_the_simulation_and_flags_win():
    environment = {"FOREBAY_SIM_SPEED": "4", "FOREBAY_SIM_SEED": "9", "FOREBAY_SIM_STARTUP_S": "45"}
    settings, _ = parse_arguments(["m", "--sim-seed", "3"], environment)
    assert (settings.simulation.speed, settings.simulation.seed, settings.simulation.startup_s) == (4, 3, 45)


def test_a_wrong_environment_is_refused_too(capsys):
    with pytest.raises(SystemExit):
        parse_arguments(["m"], {"FOREBAY_SIM_SPEED": "fast"})
    assert "--sim-speed" in capsys.readouterr().err


def test_a_metric_nobody_declared_is_a_bug():
    metrics = Metrics(model="m", created_s=0.0, extras=frozenset({When.NIXL}), info={})
    with pytest.raises(AssertionError, match="no gauge"):
        metrics.set("vllm:made_up", 1)
    with pytest.raises(KeyError):
        metrics.add("vllm:made_up_total")
