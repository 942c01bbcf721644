import json
from pathlib import Path

import pytest

from forebay_capacity.dtypes import Dtype
from forebay_capacity.errors import ConfigError, UnknownModelError
from forebay_capacity.shapes import PRESETS, shape_from_config, shape_of

CONFIGS = Path(__file__).resolve().parent.parent / "data" / "capacity" / "configs"
PUBLISHED_BILLIONS = {
    "llama-3.1-8b": 8.03,
    "llama-3.1-70b": 70.55,
    "llama-3.1-405b": 405.85,
    "llama-3.2-1b": 1.236,
    "llama-3.2-3b": 3.213,
    "qwen2.5-0.5b": 0.494,
    "qwen2.5-7b": 7.616,
    "qwen2.5-72b": 72.71,
    "qwen3-0.6b": 0.596,
    "qwen3-8b": 8.191,
    "qwen3-32b": 32.76,
    "qwen3-30b-a3b": 30.53,
    "qwen3-235b-a22b": 235.09,
    "mistral-7b": 7.248,
    "mistral-nemo-12b": 12.25,
    "mistral-small-24b": 23.57,
    "mixtral-8x7b": 46.70,
    "mixtral-8x22b": 140.63,
    "gemma-2-9b": 9.242,
    "gemma-2-27b": 27.23,
    "gemma-3-1b": 1.000,
    "deepseek-v2-lite": 15.71,
    "deepseek-v3": 671.03,
    "gpt-oss-20b": 20.91,
    "gpt-oss-120b": 116.83,
    "phi-4": 14.66,
}
ACTIVE_BILLIONS = {"mixtral-8x7b": 12.9, "qwen3-30b-a3b": 3.3, "qwen3-235b-a22b": 22.0, "deepseek-v3": 37.5}


@pytest.mark.parametrize(("name", "billions"), PUBLISHED_BILLIONS.items())
def test_parameters_add_up_to_the_published_count(name: str, billions: float):
    assert shape_of(name).parameters / 1e9 == pytest.approx(billions, rel=1e-3)


@pytest.mark.parametrize(("name", "billions"), ACTIVE_BILLIONS.items())
def test_active_parameters_add_up_to_the_published_count(name: str, billions: float):
    assert shape_of(name).active_parameters / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_sound(name: str):
    shape = shape_of(name)
    assert shape.name == name
    assert shape.heads % shape.kv_heads == 0
    assert 0 < shape.linear_parameters <= shape.parameters
    assert 0 <= shape.dense_layers <= shape.layers


@pytest.mark.parametrize(
    "text",
    [
        "llama-3.1-8b",
        "meta-llama/Llama-3.1-8B-Instruct",
        "hf://meta-llama/Llama-3.1-8B-Instruct",
        "hf://meta-llama/Llama-3.1-8B-Instruct@main",
        "meta-llama/Meta-Llama-3.1-8B",
        "  LLAMA-3.1-8B ",
    ],
)
def test_a_model_is_known_by_name_repository_and_source(text: str):
    assert shape_of(text).name == "llama-3.1-8b"


def test_latent_attention_keeps_one_vector_for_all_heads_and_every_gpu_keeps_it_whole():
    deepseek = shape_of("deepseek-v3")
    assert deepseek.kv_bytes_per_token("bf16") == 61 * (512 + 64) * 2
    assert deepseek.kv_bytes_per_token("bf16", tensor=8) == deepseek.kv_bytes_per_token("bf16")


def test_a_windowed_layer_keeps_at_most_its_window():
    gemma = shape_of("gemma-3-27b")
    per_layer = gemma.kv_bytes_per_token_layer("bf16")
    assert gemma.window is not None
    assert (gemma.window.tokens, gemma.window.layers) == (1024, 52)
    assert gemma.kv_bytes(512, "bf16") == 62 * 512 * per_layer
    assert gemma.kv_bytes(8192, "bf16") == (10 * 8192 + 52 * 1024) * per_layer


def test_kv_heads_repeat_beyond_their_number():
    llama = shape_of("llama-3.1-8b")
    assert llama.kv_bytes_per_token("bf16", tensor=8) == llama.kv_bytes_per_token("bf16", tensor=16)


def test_published_formats_are_the_default():
    assert shape_of("deepseek-v3").native is Dtype.FP8
    assert shape_of("gpt-oss-120b").native is Dtype.MXFP4
    assert shape_of("gpt-oss-120b").weight_bytes() / 1e9 == pytest.approx(65.2, rel=0.01)


def test_an_unknown_model_names_close_ones():
    with pytest.raises(
        UnknownModelError, match=r"model: 'llama-3.1-9b' is not known; did you mean llama-3.1-8b"
    ) as caught:
        shape_of("llama-3.1-9b")
    assert "llama-3.1-8b" in caught.value.close


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_a_published_config_gives_the_preset(path: Path):
    """Files as the model's own repository has them, extra keys and all."""
    shape = shape_from_config(json.loads(path.read_text()), name=path.stem)
    assert shape == shape_of(path.stem)


def config(**changes) -> dict:
    """A small Llama."""
    fields = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 1000,
    }
    return {key: value for key, value in {**fields, **changes}.items() if value is not ...}


def test_a_small_config_is_counted_by_hand():
    shape = shape_from_config(config())
    layer = 64 * 16 * (4 + 2 + 2 + 4) + 3 * 64 * 128 + 2 * 64
    assert shape.parameters == 2 * 1000 * 64 + 2 * layer + 64


def test_a_text_config_is_read_through():
    shape = shape_from_config({"model_type": "gemma3", "text_config": config(model_type="gemma3_text", head_dim=16)})
    assert shape.tied_embeddings
    assert shape.layers == 2


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ("not a mapping", "config"),
        ([], "config"),
        ({}, "model_type"),
        (config(model_type="mamba"), "model_type"),
        (config(model_type=7), "model_type"),
        (config(hidden_size=...), "hidden_size"),
        (config(hidden_size="64"), "hidden_size"),
        (config(hidden_size=-64), "hidden_size"),
        (config(hidden_size=64.5), "hidden_size"),
        (config(hidden_size=True), "hidden_size"),
        (config(num_hidden_layers=0), "num_hidden_layers"),
        (config(num_hidden_layers=10**12), "num_hidden_layers"),
        (config(hidden_size=66), "head_dim"),
        (config(num_key_value_heads=3), "num_key_value_heads"),
        (config(num_key_value_heads=8), "num_key_value_heads"),
        (config(tie_word_embeddings="yes"), "tie_word_embeddings"),
        (config(quantization_config="fp8"), "quantization_config"),
        (config(quantization_config={"quant_method": "bitsandbytes"}), "quantization_config"),
        (config(model_type="mixtral", num_local_experts=8, num_experts_per_tok=9), "num_experts_per_tok"),
        (config(model_type="mixtral"), "num_local_experts"),
        (config(model_type="deepseek_v3"), "kv_lora_rank"),
        (config(model_type="gpt_oss", num_local_experts=4, num_experts_per_tok=2, sliding_window=8,
                layer_types=["sliding_attention"]), "layer_types"),
        (config(model_type="gemma3", sliding_window=8, layer_types="all"), "layer_types"),
    ],
)  # fmt: skip
def test_a_bad_config_is_refused_with_its_key_and_a_fix(given, field: str):
    with pytest.raises(ConfigError) as caught:
        shape_from_config(given)
    assert caught.value.field == field
    assert caught.value.fix
    assert str(caught.value).startswith(f"{field}: ")
