"""Model shapes from a Hugging Face `config.json`.

Each supported `model_type` has a reader that knows its quirks: which biases and norms it has, which layers have
experts or windows. Everything else is read by common keys. A multimodal configuration is read through its
`text_config`; the vision tower is not counted. Values are checked on the way in, so that garbage is refused with the
key's name instead of turning into a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from forebay_capacity.architecture import Experts, LatentAttention, ModelShape, SlidingWindow
from forebay_capacity.dtypes import Dtype
from forebay_capacity.errors import ConfigError

COUNT_MAX = 10**8
"""No size in a model configuration is larger; a larger one is a mistake."""


def shape_from_config(config: Mapping[str, Any], *, name: str | None = None) -> ModelShape:
    """The shape that a parsed `config.json` describes; `ConfigError` names the key that is missing or wrong."""
    if not isinstance(config, Mapping):
        raise ConfigError("config", f"a JSON object is needed, not {type(config).__name__}", "give a config.json")
    text = config.get("text_config")
    stated = {**config, **text} if isinstance(text, Mapping) else dict(config)
    read = _READERS.get(_model_type(config, text))
    if read is None:
        raise ConfigError(
            "model_type",
            f"{_model_type(config, text)!r} is not a supported architecture",
            f"supported are {', '.join(sorted(_READERS))}",
        )
    keys = _Keys({**_LEFT_OUT.get(_model_type(config, text), {}), **stated})
    shape = read(keys, _base(keys, name or _name(config)))
    if shape.kv_heads > shape.heads or shape.heads % shape.kv_heads:
        raise ConfigError(
            "num_key_value_heads",
            f"{shape.kv_heads} KV heads do not divide {shape.heads} attention heads",
            "use a divisor of num_attention_heads",
        )
    return shape


@dataclass(frozen=True, slots=True)
class _Keys:
    """Checked access to a configuration."""

    fields: Mapping[str, Any]

    def count(self, key: str, default: int | None = None, *, low: int = 1) -> int:
        """The whole number at this key; without a default the key must be there."""
        value = self.fields.get(key)
        if value is None:
            if default is not None:
                return default
            raise ConfigError(key, "missing", "add it, or take the config.json of the model's own repository")
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= COUNT_MAX:
            raise ConfigError(key, f"{value!r} is not a count", f"use a whole number from {low} to {COUNT_MAX}")
        return value

    def count_or_none(self, key: str) -> int | None:
        """The whole number at this key, None when absent or null."""
        return None if self.fields.get(key) is None else self.count(key)

    def flag(self, key: str, *, default: bool) -> bool:
        """The boolean at this key."""
        value = self.fields.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigError(key, f"{value!r} is not a boolean", "use true or false")
        return value

    def names(self, key: str) -> Sequence[str] | None:
        """The list of strings at this key, None when absent."""
        value = self.fields.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise ConfigError(key, "not a list of strings", 'use a list such as ["full_attention", ...]')
        return value

    def layers_with(self, key: str) -> set[int]:
        """The list of layer numbers at this key, empty when absent."""
        value = self.fields.get(key) or []
        if not isinstance(value, list) or not all(isinstance(entry, int) for entry in value):
            raise ConfigError(key, "not a list of layer numbers", "use a list such as [0, 1]")
        return set(value)


def _model_type(config: Mapping[str, Any], text: object) -> str:
    inner = text.get("model_type") if isinstance(text, Mapping) else None
    value = inner or config.get("model_type")
    if not isinstance(value, str):
        raise ConfigError("model_type", "missing", f"supported are {', '.join(sorted(_READERS))}")
    return value.removesuffix("_text")


def _name(config: Mapping[str, Any]) -> str:
    value = config.get("_name_or_path")
    return value.rsplit("/", 1)[-1].lower() if isinstance(value, str) and value else "model"


def _base(keys: _Keys, name: str) -> ModelShape:
    hidden, layers = keys.count("hidden_size"), keys.count("num_hidden_layers")
    heads = keys.count("num_attention_heads")
    head_size = keys.count_or_none("head_dim")
    if head_size is None:
        if hidden % heads:
            raise ConfigError(
                "head_dim", f"missing, and {heads} heads do not divide hidden_size {hidden}", "add head_dim"
            )
        head_size = hidden // heads
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=keys.count("num_key_value_heads", heads),
        head_size=head_size,
        intermediate=keys.count("intermediate_size"),
        vocabulary=keys.count("vocab_size"),
        tied_embeddings=keys.flag("tie_word_embeddings", default=False),
        vectors=(2 * layers + 1) * hidden,
        native=_native(keys),
        max_context_tokens=keys.count("max_position_embeddings", 131_072),
    )


def _native(keys: _Keys) -> Dtype:
    quantization = keys.fields.get("quantization_config")
    if quantization is None:
        return Dtype.BF16
    if not isinstance(quantization, Mapping):
        raise ConfigError("quantization_config", "not a JSON object", "remove it, or take the published one")
    method = str(quantization.get("quant_method", "")).lower()
    if method in {"fp8", "fbgemm_fp8"}:
        return Dtype.FP8
    if method == "mxfp4":
        return Dtype.MXFP4
    if method in {"awq", "gptq", "auto-round"} and quantization.get("bits", 4) == 4:
        return Dtype.INT4
    if method == "compressed-tensors":
        return _compressed_tensors(quantization)
    raise ConfigError(
        "quantization_config", f"method {method!r} is not supported", "supported are fp8, mxfp4, awq, gptq (4 bits)"
    )


def _compressed_tensors(quantization: Mapping[str, Any]) -> Dtype:
    groups = quantization.get("config_groups")
    group = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if isinstance(weights, Mapping):
        if weights.get("num_bits") == 8 and weights.get("type") == "float":
            return Dtype.FP8
        if weights.get("num_bits") == 4 and weights.get("type") == "int":
            return Dtype.INT4
    raise ConfigError(
        "quantization_config", "compressed-tensors other than 8-bit float or 4-bit int weights", "use such a checkpoint"
    )


def _llama(keys: _Keys, base: ModelShape) -> ModelShape:
    shape = replace(base, tied_embeddings=keys.flag("tie_word_embeddings", default=False))
    attention = _attention_biases(shape) if keys.flag("attention_bias", default=False) else 0
    mlp = shape.layers * (2 * shape.intermediate + shape.hidden) if keys.flag("mlp_bias", default=False) else 0
    return replace(shape, vectors=shape.vectors + attention + mlp)


def _attention_biases(shape: ModelShape) -> int:
    return shape.layers * ((shape.heads + 2 * shape.kv_heads) * shape.head_size + shape.hidden)


def _mistral(keys: _Keys, base: ModelShape) -> ModelShape:
    return _with_window(keys, base, every_layer=True)


def _mixtral(keys: _Keys, base: ModelShape) -> ModelShape:
    experts = _experts(keys, total="num_local_experts", intermediate="intermediate_size", layers=base.layers)
    return _with_window(keys, replace(base, experts=experts), every_layer=True)


def _qwen2(keys: _Keys, base: ModelShape) -> ModelShape:
    biases = base.layers * (base.heads + 2 * base.kv_heads) * base.head_size
    shape = replace(base, vectors=base.vectors + biases)
    if not keys.flag("use_sliding_window", default=False):
        return shape
    tokens = keys.count_or_none("sliding_window")
    windowed = max(0, base.layers - keys.count("max_window_layers", base.layers, low=0))
    return replace(shape, window=SlidingWindow(tokens, windowed)) if tokens and windowed else shape


def _qwen2_moe(keys: _Keys, base: ModelShape) -> ModelShape:
    shape = _qwen2(keys, base)
    layers = _sparse_layers(keys, base.layers)
    experts = _experts(keys, total="num_experts", intermediate="moe_intermediate_size", layers=layers)
    shared = keys.count("shared_expert_intermediate_size")
    gates = layers * base.hidden
    return replace(shape, experts=replace(experts, shared_intermediate=shared), vectors=shape.vectors + gates)


def _qwen3(keys: _Keys, base: ModelShape) -> ModelShape:
    biases = _attention_biases(base) if keys.flag("attention_bias", default=False) else 0
    return replace(base, vectors=base.vectors + 2 * base.layers * base.head_size + biases)


def _qwen3_moe(keys: _Keys, base: ModelShape) -> ModelShape:
    layers = _sparse_layers(keys, base.layers)
    experts = _experts(keys, total="num_experts", intermediate="moe_intermediate_size", layers=layers)
    return replace(_qwen3(keys, base), experts=experts)


def _sparse_layers(keys: _Keys, layers: int) -> int:
    step = keys.count("decoder_sparse_step", 1)
    dense = keys.layers_with("mlp_only_layers")
    return sum(1 for layer in range(layers) if layer not in dense and (layer + 1) % step == 0)


def _gemma(keys: _Keys, base: ModelShape) -> ModelShape:
    return replace(base, tied_embeddings=keys.flag("tie_word_embeddings", default=True))


def _gemma2(keys: _Keys, base: ModelShape) -> ModelShape:
    shape = replace(_gemma(keys, base), vectors=base.vectors + 2 * base.layers * base.hidden)
    return _with_window(keys, shape, pattern=2)


def _gemma3(keys: _Keys, base: ModelShape) -> ModelShape:
    norms = 2 * base.layers * (base.hidden + base.head_size)
    shape = replace(_gemma(keys, base), vectors=base.vectors + norms)
    return _with_window(keys, shape, pattern=keys.count("sliding_window_pattern", 6))


def _deepseek(keys: _Keys, base: ModelShape) -> ModelShape:
    latent = LatentAttention(
        kv_rank=keys.count("kv_lora_rank"),
        rope_size=keys.count("qk_rope_head_dim"),
        nope_size=keys.count("qk_nope_head_dim"),
        value_size=keys.count("v_head_dim"),
        query_rank=keys.count_or_none("q_lora_rank"),
    )
    norms = base.layers * (latent.kv_rank + (latent.query_rank or 0))
    shape = replace(
        base,
        latent=latent,
        kv_heads=base.heads,
        head_size=latent.nope_size + latent.rope_size,
        vectors=base.vectors + norms,
    )
    if keys.count_or_none("n_routed_experts") is None:
        return shape
    dense = keys.count("first_k_dense_replace", 0, low=0)
    step = keys.count("moe_layer_freq", 1)
    layers = sum(1 for layer in range(base.layers) if layer >= dense and layer % step == 0)
    experts = _experts(keys, total="n_routed_experts", intermediate="moe_intermediate_size", layers=layers)
    shared = experts.intermediate * keys.count("n_shared_experts", 0, low=0)
    corrections = layers * experts.total if keys.fields.get("topk_method") == "noaux_tc" else 0
    return replace(shape, experts=replace(experts, shared_intermediate=shared), vectors=shape.vectors + corrections)


def _gpt_oss(keys: _Keys, base: ModelShape) -> ModelShape:
    experts = _experts(keys, total="num_local_experts", intermediate="intermediate_size", layers=base.layers)
    biases = _attention_biases(base) if keys.flag("attention_bias", default=True) else 0
    per_layer = base.heads + experts.total * (1 + 2 * experts.intermediate + base.hidden)
    shape = replace(base, experts=experts, vectors=base.vectors + biases + base.layers * per_layer)
    return _with_window(keys, shape, pattern=2)


def _experts(keys: _Keys, *, total: str, intermediate: str, layers: int) -> Experts:
    active_key = "num_experts_per_tok"
    experts = Experts(
        total=keys.count(total),
        active=keys.count(active_key),
        intermediate=keys.count(intermediate),
        layers=layers,
    )
    if experts.active > experts.total:
        raise ConfigError(active_key, f"{experts.active} of {experts.total} experts", f"use {experts.total} or fewer")
    if not layers:
        raise ConfigError(total, "no layer has experts", "check decoder_sparse_step and first_k_dense_replace")
    return experts


def _with_window(keys: _Keys, shape: ModelShape, *, pattern: int = 0, every_layer: bool = False) -> ModelShape:
    """Add the sliding window: by `layer_types` if listed, else on all layers or all but each pattern-th."""
    tokens = keys.count_or_none("sliding_window")
    if tokens is None:
        return shape
    types = keys.names("layer_types")
    if types is not None:
        if len(types) != shape.layers:
            raise ConfigError("layer_types", f"{len(types)} entries for {shape.layers} layers", "list each layer once")
        layers = sum(1 for kind in types if kind == "sliding_attention")
    elif every_layer:
        layers = shape.layers
    else:
        layers = shape.layers - shape.layers // pattern
    return replace(shape, window=SlidingWindow(tokens, layers)) if layers else shape


_READERS: dict[str, Callable[[_Keys, ModelShape], ModelShape]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "gpt_oss": _gpt_oss,
    "phi3": _llama,
}

_LEFT_OUT: dict[str, dict[str, int]] = {
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256},
    "gemma3": {"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208},
}
"""Keys that published configurations of these types leave to the library's defaults."""

SUPPORTED = tuple(sorted(_READERS))
"""The `model_type`s that can be read."""
