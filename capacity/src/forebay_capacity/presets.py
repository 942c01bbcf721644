"""Shapes of common models, so that a plan needs no network.

Each preset is the relevant part of the published `config.json`, read by the same reader as a user's; the tests
compare the resulting parameter counts with the published ones.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from forebay_capacity.architecture import ModelShape
from forebay_capacity.config import shape_from_config
from forebay_capacity.errors import UnknownModelError

Config = dict[str, Any]


def _config(kind: str, size: tuple[int, int, int], heads: tuple[int, int, int], vocabulary: int, **more: Any) -> Config:
    layers, hidden, intermediate = size
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": heads[2],
        "vocab_size": vocabulary,
        **more,
    }


def _moe(total: int, active: int, intermediate: int) -> Config:
    return {"num_experts": total, "num_experts_per_tok": active, "moe_intermediate_size": intermediate}


def _local(total: int, active: int) -> Config:
    return {"num_local_experts": total, "num_experts_per_tok": active}


_TIED: Config = {"tie_word_embeddings": True}
_K32: Config = {"max_position_embeddings": 32_768}
_K40: Config = {"max_position_embeddings": 40_960}
_K8: Config = {"max_position_embeddings": 8_192}
_FP8: Config = {"quantization_config": {"quant_method": "fp8"}}
_MXFP4: Config = {"quantization_config": {"quant_method": "mxfp4"}}
_LATENT: Config = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
_DEEPSEEK_V3: Config = {
    **_LATENT,
    **_FP8,
    "q_lora_rank": 1536,
    "moe_intermediate_size": 2048,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "topk_method": "noaux_tc",
    "max_position_embeddings": 163_840,
}

PRESETS: dict[str, Config] = {
    "llama-3-8b": _config("llama", (32, 4096, 14_336), (32, 8, 128), 128_256, **_K8),
    "llama-3-70b": _config("llama", (80, 8192, 28_672), (64, 8, 128), 128_256, **_K8),
    "llama-3.1-8b": _config("llama", (32, 4096, 14_336), (32, 8, 128), 128_256),
    "llama-3.1-70b": _config("llama", (80, 8192, 28_672), (64, 8, 128), 128_256),
    "llama-3.1-405b": _config("llama", (126, 16_384, 53_248), (128, 8, 128), 128_256),
    "llama-3.2-1b": _config("llama", (16, 2048, 8192), (32, 8, 64), 128_256, **_TIED),
    "llama-3.2-3b": _config("llama", (28, 3072, 8192), (24, 8, 128), 128_256, **_TIED),
    "llama-3.3-70b": _config("llama", (80, 8192, 28_672), (64, 8, 128), 128_256),
    "qwen2.5-0.5b": _config("qwen2", (24, 896, 4864), (14, 2, 64), 151_936, **_TIED, **_K32),
    "qwen2.5-1.5b": _config("qwen2", (28, 1536, 8960), (12, 2, 128), 151_936, **_TIED, **_K32),
    "qwen2.5-7b": _config("qwen2", (28, 3584, 18_944), (28, 4, 128), 152_064, **_K32),
    "qwen2.5-14b": _config("qwen2", (48, 5120, 13_824), (40, 8, 128), 152_064, **_K32),
    "qwen2.5-32b": _config("qwen2", (64, 5120, 27_648), (40, 8, 128), 152_064, **_K32),
    "qwen2.5-72b": _config("qwen2", (80, 8192, 29_568), (64, 8, 128), 152_064, **_K32),
    "qwen3-0.6b": _config("qwen3", (28, 1024, 3072), (16, 8, 128), 151_936, **_TIED, **_K40),
    "qwen3-1.7b": _config("qwen3", (28, 2048, 6144), (16, 8, 128), 151_936, **_TIED, **_K40),
    "qwen3-4b": _config("qwen3", (36, 2560, 9728), (32, 8, 128), 151_936, **_TIED, **_K40),
    "qwen3-8b": _config("qwen3", (36, 4096, 12_288), (32, 8, 128), 151_936, **_K40),
    "qwen3-14b": _config("qwen3", (40, 5120, 17_408), (40, 8, 128), 151_936, **_K40),
    "qwen3-32b": _config("qwen3", (64, 5120, 25_600), (64, 8, 128), 151_936, **_K40),
    "qwen3-30b-a3b": _config("qwen3_moe", (48, 2048, 6144), (32, 4, 128), 151_936, **_moe(128, 8, 768), **_K40),
    "qwen3-235b-a22b": _config("qwen3_moe", (94, 4096, 12_288), (64, 4, 128), 151_936, **_moe(128, 8, 1536), **_K40),
    "mistral-7b": _config("mistral", (32, 4096, 14_336), (32, 8, 128), 32_768, **_K32),
    "mistral-nemo-12b": _config("mistral", (40, 5120, 14_336), (32, 8, 128), 131_072),
    "mistral-small-24b": _config("mistral", (40, 5120, 32_768), (32, 8, 128), 131_072, **_K32),
    "mixtral-8x7b": _config("mixtral", (32, 4096, 14_336), (32, 8, 128), 32_000, **_local(8, 2), **_K32),
    "mixtral-8x22b": _config(
        "mixtral", (56, 6144, 16_384), (48, 8, 128), 32_768, **_local(8, 2), max_position_embeddings=65_536
    ),
    "gemma-2-9b": _config("gemma2", (42, 3584, 14_336), (16, 8, 256), 256_000, sliding_window=4096, **_K8),
    "gemma-2-27b": _config("gemma2", (46, 4608, 36_864), (32, 16, 128), 256_000, sliding_window=4096, **_K8),
    "gemma-3-1b": _config("gemma3", (26, 1152, 6912), (4, 1, 256), 262_144, sliding_window=512, **_K32),
    "gemma-3-4b": _config("gemma3", (34, 2560, 10_240), (8, 4, 256), 262_208, sliding_window=1024),
    "gemma-3-12b": _config("gemma3", (48, 3840, 15_360), (16, 8, 256), 262_208, sliding_window=1024),
    "gemma-3-27b": _config("gemma3", (62, 5376, 21_504), (32, 16, 128), 262_208, sliding_window=1024),
    "deepseek-v2-lite": _config(
        "deepseek_v2",
        (27, 2048, 10_944),
        (16, 16, 192),
        102_400,
        **_LATENT,
        n_routed_experts=64,
        num_experts_per_tok=6,
        moe_intermediate_size=1408,
        n_shared_experts=2,
        first_k_dense_replace=1,
        max_position_embeddings=163_840,
    ),
    "deepseek-v3": _config(
        "deepseek_v3",
        (61, 7168, 18_432),
        (128, 128, 192),
        129_280,
        **_DEEPSEEK_V3,
        n_routed_experts=256,
        first_k_dense_replace=3,
    ),
    "kimi-k2": _config(
        "kimi_k2",
        (61, 7168, 18_432),
        (64, 64, 192),
        163_840,
        **_DEEPSEEK_V3,
        n_routed_experts=384,
        first_k_dense_replace=1,
    ),
    "gpt-oss-20b": _config(
        "gpt_oss", (24, 2880, 2880), (64, 8, 64), 201_088, **_local(32, 4), **_MXFP4, sliding_window=128
    ),
    "gpt-oss-120b": _config(
        "gpt_oss", (36, 2880, 2880), (64, 8, 64), 201_088, **_local(128, 4), **_MXFP4, sliding_window=128
    ),
    "phi-4": _config("phi3", (40, 5120, 17_920), (40, 10, 128), 100_352, max_position_embeddings=16_384),
}

SOURCES: dict[str, str] = {
    "llama-3-8b": "meta-llama/Meta-Llama-3-8B-Instruct",
    "llama-3-70b": "meta-llama/Meta-Llama-3-70B-Instruct",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B-Instruct",
    "llama-3.1-70b": "meta-llama/Llama-3.1-70B-Instruct",
    "llama-3.1-405b": "meta-llama/Llama-3.1-405B-Instruct",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B-Instruct",
    "llama-3.2-3b": "meta-llama/Llama-3.2-3B-Instruct",
    "llama-3.3-70b": "meta-llama/Llama-3.3-70B-Instruct",
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B-Instruct",
    "qwen2.5-14b": "Qwen/Qwen2.5-14B-Instruct",
    "qwen2.5-32b": "Qwen/Qwen2.5-32B-Instruct",
    "qwen2.5-72b": "Qwen/Qwen2.5-72B-Instruct",
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3-1.7b": "Qwen/Qwen3-1.7B",
    "qwen3-4b": "Qwen/Qwen3-4B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "qwen3-14b": "Qwen/Qwen3-14B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B",
    "mistral-7b": "mistralai/Mistral-7B-Instruct-v0.3",
    "mistral-nemo-12b": "mistralai/Mistral-Nemo-Instruct-2407",
    "mistral-small-24b": "mistralai/Mistral-Small-24B-Instruct-2501",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "mixtral-8x22b": "mistralai/Mixtral-8x22B-Instruct-v0.1",
    "gemma-2-9b": "google/gemma-2-9b-it",
    "gemma-2-27b": "google/gemma-2-27b-it",
    "gemma-3-1b": "google/gemma-3-1b-it",
    "gemma-3-4b": "google/gemma-3-4b-it",
    "gemma-3-12b": "google/gemma-3-12b-it",
    "gemma-3-27b": "google/gemma-3-27b-it",
    "deepseek-v2-lite": "deepseek-ai/DeepSeek-V2-Lite-Chat",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "kimi-k2": "moonshotai/Kimi-K2-Instruct",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "phi-4": "microsoft/phi-4",
}
"""Where each preset's weights are on Hugging Face."""

_SUFFIXES = (
    "-instruct",
    "-it",
    "-chat",
    "-base",
    "-hf",
    "-pt",
)
_ALIASES = {
    **{source.rsplit("/", 1)[-1].lower(): name for name, source in SOURCES.items()},
    "meta-llama-3.1-8b": "llama-3.1-8b",
    "meta-llama-3.1-70b": "llama-3.1-70b",
    "meta-llama-3.1-405b": "llama-3.1-405b",
    "meta-llama-3-8b": "llama-3-8b",
    "meta-llama-3-70b": "llama-3-70b",
    "deepseek-r1": "deepseek-v3",
    "deepseek-r1-0528": "deepseek-v3",
    "deepseek-v3-0324": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3",
    "mistral-7b-v0.3": "mistral-7b",
    "mixtral-8x7b-v0.1": "mixtral-8x7b",
    "mixtral-8x22b-v0.1": "mixtral-8x22b",
}


@lru_cache(maxsize=256)
def shape_of(name_or_source: str) -> ModelShape:
    """The shape of a preset, by short name, repository (`owner/name`) or source (`hf://owner/name`).

    `UnknownModelError` names close presets.
    """
    short = name_or_source.strip().removeprefix("hf://").split("@")[0].rstrip("/").rsplit("/", 1)[-1].lower()
    key = _preset_key(short)
    if key is None:
        raise UnknownModelError("model", name_or_source, PRESETS, "Or give its config.json")
    return shape_from_config(PRESETS[key], name=key)


def _preset_key(short: str) -> str | None:
    for candidate in (short, *(short.removesuffix(suffix) for suffix in _SUFFIXES)):
        key = _ALIASES.get(candidate, candidate)
        if key in PRESETS:
            return key
    return None
