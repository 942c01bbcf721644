"""The shape of a model: the few numbers from which memory and time follow.

Parameters split into what a forward pass does with them:

- *embedding*: a table that is looked up, not multiplied; its bytes take memory but are not streamed;
- *linear*: the layers' matrices; every token multiplies them (of the experts, only the active ones);
- *head*: the output projection; multiplied only for tokens that are sampled from (the embedding itself when tied);
- *vectors*: norms, biases, sinks; a rounding error, counted so that totals match the published ones.

KV per token and layer is 2 * kv_heads * head_size numbers, or one latent vector with multi-head latent attention.
A sliding-window layer keeps at most its window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from forebay_capacity.dtypes import Dtype


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture-of-experts part of a model."""

    total: int
    """Routed experts in a layer."""
    active: int
    """Routed experts a token visits."""
    intermediate: int
    """Inner width of one routed expert."""
    layers: int
    """Layers that have experts; the others have a dense MLP."""
    shared_intermediate: int = 0
    """Inner width of the expert that every token visits, 0 without one."""

    def touched(self, tokens: float) -> float:
        """Distinct experts of a layer that a batch of tokens reads, routed independently and evenly."""
        return self.total * (1 - math.pow(1 - self.active / self.total, tokens))


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek): one compressed vector a token and layer, shared by all heads."""

    kv_rank: int
    rope_size: int
    nope_size: int
    value_size: int
    query_rank: int | None
    """Rank of the query projection, None when it is one full matrix."""


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Layers that attend to the last tokens only."""

    tokens: int
    layers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer. All counts are for the whole model, before any parallelism."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    """Inner width of the dense MLP (of the dense layers, when some have experts)."""
    vocabulary: int
    tied_embeddings: bool = False
    vectors: int = 0
    """Parameters in norms, biases and the like."""
    experts: Experts | None = None
    latent: LatentAttention | None = None
    window: SlidingWindow | None = None
    native: Dtype = Dtype.BF16
    """The format the published checkpoint keeps its matrices in."""
    max_context_tokens: int = 131_072
    """The longest sequence the model is made for."""
    mlp_matrices: int = 3
    """Matrices of an MLP: 3 when gated, else 2."""

    @property
    def dense_layers(self) -> int:
        """Layers with a dense MLP."""
        return self.layers - (self.experts.layers if self.experts else 0)

    @property
    def attention_parameters(self) -> int:
        """Weights of the attention projections, all layers."""
        return self.layers * self._attention_layer_parameters

    @property
    def _attention_layer_parameters(self) -> int:
        if self.latent is None:
            return self.hidden * self.head_size * 2 * (self.heads + self.kv_heads)
        latent = self.latent
        key_size = latent.nope_size + latent.rope_size
        query = (
            self.hidden * self.heads * key_size
            if latent.query_rank is None
            else latent.query_rank * (self.hidden + self.heads * key_size)
        )
        down = self.hidden * (latent.kv_rank + latent.rope_size)
        up = latent.kv_rank * self.heads * (latent.nope_size + latent.value_size)
        return query + down + up + self.heads * latent.value_size * self.hidden

    @property
    def dense_mlp_parameters(self) -> int:
        """Weights every token multiplies in MLPs: dense layers, shared experts, routers."""
        dense = self.dense_layers * self.mlp_matrices * self.hidden * self.intermediate
        if self.experts is None:
            return dense
        per_layer = (
            self.mlp_matrices * self.hidden * self.experts.shared_intermediate + self.hidden * self.experts.total
        )
        return dense + self.experts.layers * per_layer

    @property
    def expert_parameters(self) -> int:
        """Weights of all routed experts."""
        if self.experts is None:
            return 0
        one = self.mlp_matrices * self.hidden * self.experts.intermediate
        return self.experts.layers * self.experts.total * one

    @property
    def active_expert_parameters(self) -> int:
        """Weights of the routed experts that one token visits."""
        if self.experts is None:
            return 0
        return self.expert_parameters * self.experts.active // self.experts.total

    @property
    def embedding_parameters(self) -> int:
        """Weights of the input embedding table."""
        return self.vocabulary * self.hidden

    @property
    def head_parameters(self) -> int:
        """Weights of the output projection that are not the embedding's."""
        return 0 if self.tied_embeddings else self.embedding_parameters

    @property
    def linear_parameters(self) -> int:
        """Weights one token multiplies in a forward pass, without the output head."""
        return self.attention_parameters + self.dense_mlp_parameters + self.active_expert_parameters

    @property
    def parameters(self) -> int:
        """All parameters, as published model sizes count them."""
        return (
            self.embedding_parameters
            + self.head_parameters
            + self.attention_parameters
            + self.dense_mlp_parameters
            + self.expert_parameters
            + self.vectors
        )

    @property
    def active_parameters(self) -> int:
        """Parameters one token uses."""
        return self.parameters - self.expert_parameters + self.active_expert_parameters

    def weight_bytes(self, dtype: Dtype | str | None = None) -> float:
        """Bytes of all weights in memory (None: as published).

        Embedding, head and vectors stay in BF16 in every format, as in the engines; MXFP4 applies to the routed
        experts only.
        """
        return (
            self.layer_bytes_per_weight(dtype) * (self.attention_parameters + self.dense_mlp_parameters)
            + self.expert_bytes_per_weight(dtype) * self.expert_parameters
            + 2 * (self.embedding_parameters + self.head_parameters + self.vectors)
        )

    def layer_bytes_per_weight(self, dtype: Dtype | str | None = None) -> float:
        """Bytes of one weight of the layers' matrices outside the routed experts."""
        chosen = self.native if dtype is None else Dtype(dtype)
        return 2.0 if chosen is Dtype.MXFP4 else chosen.weight_bytes

    def expert_bytes_per_weight(self, dtype: Dtype | str | None = None) -> float:
        """Bytes of one weight of a routed expert."""
        return (self.native if dtype is None else Dtype(dtype)).weight_bytes

    def kv_bytes_per_token_layer(self, dtype: Dtype | str = Dtype.BF16, *, tensor: int = 1) -> float:
        """KV bytes of one token in one layer on one GPU of a tensor-parallel group.

        Heads are split; with more GPUs than KV heads they are repeated. A latent vector belongs to all heads, so
        every GPU keeps it whole.
        """
        size = Dtype(dtype).weight_bytes
        if self.latent is not None:
            return size * (self.latent.kv_rank + self.latent.rope_size)
        return size * 2 * self.head_size * math.ceil(self.kv_heads / tensor)

    def kv_bytes_per_token(self, dtype: Dtype | str = Dtype.BF16, *, tensor: int = 1) -> float:
        """KV bytes of one token in all layers on one GPU, inside every window."""
        return self.layers * self.kv_bytes_per_token_layer(dtype, tensor=tensor)

    def kv_bytes(self, context_tokens: int, dtype: Dtype | str = Dtype.BF16, *, tensor: int = 1) -> float:
        """KV bytes of one sequence of this length on one GPU; windowed layers keep at most their window."""
        per_layer = self.kv_bytes_per_token_layer(dtype, tensor=tensor)
        if self.window is None:
            return self.layers * context_tokens * per_layer
        full = (self.layers - self.window.layers) * context_tokens
        return per_layer * (full + self.window.layers * min(context_tokens, self.window.tokens))

    @property
    def attention_flops_per_pair(self) -> float:
        """FLOPs of attention for one (query, key) pair in one layer, all heads: scores and weighted values."""
        if self.latent is None:
            return 4.0 * self.heads * self.head_size
        return 2.0 * self.heads * (self.latent.nope_size + self.latent.rope_size + self.latent.value_size)
