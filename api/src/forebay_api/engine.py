"""The parts of a spec that say what runs: the model and the engine."""

import re
from typing import Annotated, Literal

from pydantic import Field

from forebay_api.fields import Resource, Rule, list_map, matches, text
from forebay_api.scalars import ModelName, ObjectName, PositiveDuration, Source

DEFAULT_ENGINE_IMAGE = "vllm/vllm-openai:v0.32.0"
OWNED_FLAGS = (
    "--host", "--port", "--served-model-name", "--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp",
    "--data-parallel-size", "-dp", "--kv-transfer-config", "--max-model-len", "--shutdown-timeout", "--quantization",
    "--kv-cache-dtype", "--kv-events-config",
)  # fmt: skip
"""Engine flags that follow from other fields of the spec."""
OWNED_VARIABLES = ("POD_IP", "VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT")
"""Environment variables of the engine that Forebay sets."""


class LocalReference(Resource):
    """A reference to an object in the same namespace."""

    name: ObjectName
    """Name of the object."""


class ModelCache(Resource):
    """Where workers keep downloaded weights, so that a new worker starts without a download."""

    claim_name: ObjectName
    """PersistentVolumeClaim, readable by many nodes, that holds the weights."""
    mount_path: Annotated[
        str,
        Field(max_length=255),
        text(r"^/[^ :]+$", "must be an absolute path without spaces and colons, such as /var/cache/models"),
    ] = "/var/cache/models"
    """Where the engine sees it."""


class Model(Resource):
    """The model and where its weights come from."""

    name: ModelName
    """Name that clients send in the `model` field of a request, such as llama-3.1-8b."""
    source: Source
    """Weights: hf://organisation/name, s3://bucket/path, gs://bucket/path, pvc://claim/path, oci://image, or an
    absolute path in the engine's image."""
    secret_ref: LocalReference | None = None
    """Secret whose keys become environment variables of the engine, such as HF_TOKEN."""
    cache: ModelCache | None = None
    """A shared volume for the weights."""


class KeyReference(Resource):
    """One key of a Secret or ConfigMap."""

    name: ObjectName
    """Name of the Secret or ConfigMap."""
    key: Annotated[str, Field(max_length=253), text(r"^[-._A-Za-z0-9]+$", "must be letters, digits, '-', '_' and '.'")]
    """Key within it."""
    optional: bool = False
    """Start the worker even when the key does not exist."""


class EnvironmentSource(Resource):
    """Where the value of an environment variable comes from: exactly one of the two."""

    RULES = (
        Rule(
            "has(self.secretKeyRef) != has(self.configMapKeyRef)",
            "valueFrom must have exactly one of secretKeyRef and configMapKeyRef: set one, remove the other",
            holds=lambda self: (self.secret_key_ref is None) != (self.config_map_key_ref is None),
        ),
    )
    secret_key_ref: KeyReference | None = None
    """A key of a Secret."""
    config_map_key_ref: KeyReference | None = None
    """A key of a ConfigMap."""


class EnvironmentVariable(Resource):
    """One environment variable of the engine."""

    RULES = (
        Rule(
            "!(has(self.value) && has(self.valueFrom))",
            "an engine.env item must not have both value and valueFrom: remove one of them",
            holds=lambda self: self.value is None or self.value_from is None,
        ),
    )
    name: Annotated[
        str,
        Field(max_length=253),
        text(
            r"^[A-Za-z_][A-Za-z0-9_]*$",
            "must be letters, digits and '_', not starting with a digit, such as VLLM_LOGGING_LEVEL",
        ),
        Rule(
            f"!(self in {list(OWNED_VARIABLES)})",
            "must not be a variable that Forebay sets itself: remove it from engine.env",
            holds=lambda name: name not in OWNED_VARIABLES,
        ),
    ]
    """Name of the variable."""
    value: str | None = Field(default=None, max_length=32768)
    """A literal value."""
    value_from: EnvironmentSource | None = None
    """A value from a Secret or ConfigMap."""


class Speculative(Resource):
    """Speculative decoding. Measure before use: it costs throughput on many loads."""

    method: str = Field(min_length=1, max_length=63)
    """Method as the engine names it, such as eagle3, mtp or ngram."""
    model: str | None = Field(default=None, max_length=512)
    """Draft model, where the method needs one."""
    tokens: int = Field(default=3, ge=1, le=32)
    """Tokens drafted in a step."""


class LoraAdapter(Resource):
    """A LoRA adapter that clients reach by its own model name."""

    name: ModelName
    """Name that clients send in the `model` field."""
    source: Source
    """Where the adapter's weights are, as in model.source."""


def _is_owned(argument: str) -> bool:
    """Whether an argument is, or sets a part of, an owned flag; the engine takes underscores for dashes."""
    return re.split("[=.]", argument, maxsplit=1)[0].replace("_", "-") in OWNED_FLAGS


_OWNED_PATTERN = "^(" + "|".join(OWNED_FLAGS).replace("-", "[-_]").replace("[-_][-_]", "--") + r")($|[=.])"
EngineArgument = Annotated[
    str,
    Field(max_length=4096),
    Rule(
        f"!{matches('self', _OWNED_PATTERN)}",
        "must not be a flag that Forebay sets from another field of the spec, such as engine.maxModelLen, "
        "engine.quantization or a pool's parallelism: set that field and remove the flag",
        holds=lambda argument: not _is_owned(argument),
    ),
]


class Engine(Resource):
    """The inference engine of every worker of the service."""

    kind: Literal["vllm"] = "vllm"
    """Which engine; vllm."""
    image: str = Field(default=DEFAULT_ENGINE_IMAGE, min_length=1, max_length=512)
    """Container image of the engine. Workers of one service never mix engine versions within a request."""
    args: list[EngineArgument] = Field(default=[], max_length=64)
    """Further engine flags, such as --max-num-seqs. Flags that follow from other fields of the spec are refused."""
    env: list[EnvironmentVariable] = Field(default=[], max_length=64, json_schema_extra=list_map("name"))
    """Further environment variables."""
    max_model_len: int | None = Field(default=None, ge=16, le=10_000_000)
    """Longest prompt plus answer, in tokens; the model's own limit when absent."""
    quantization: str | None = Field(default=None, min_length=1, max_length=63)
    """Quantisation of the weights as the engine names it, such as fp8 or awq; as stored when absent."""
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"] | None = None
    """Type of the KV cache; fp8 doubles the tokens it holds."""
    speculative: Speculative | None = None
    """Speculative decoding; off when absent."""
    lora_adapters: list[LoraAdapter] = Field(default=[], max_length=32, json_schema_extra=list_map("name"))
    """LoRA adapters served beside the base model."""
    startup_timeout: PositiveDuration = Field(default="30m")
    """How long a worker may take from container start to its first healthy answer before it is restarted; a large
    model may need more."""
