"""Number formats of weights and of the KV cache.

A format decides two things: how many bytes one number takes in memory, and which of the accelerator's FLOP/s a matrix
product runs at. INT4 and MXFP4 weights are unpacked to BF16 before they are multiplied (W4A16), so they save memory and
bandwidth but run at BF16 speed. Group scales count: INT4 is 4 bits plus one 16-bit scale and one 4-bit zero per group
of 128 (AWQ, GPTQ); MXFP4 is 4 bits plus one 8-bit scale per group of 32.
"""

from __future__ import annotations

from enum import StrEnum

from forebay_capacity.errors import ImpossibleError


class Dtype(StrEnum):
    """A number format, named as vLLM's options name it."""

    BF16 = "bf16"
    FP8 = "fp8"
    INT4 = "int4"
    MXFP4 = "mxfp4"

    @property
    def weight_bytes(self) -> float:
        """Bytes one weight takes in memory, group scales included."""
        return _WEIGHT_BYTES[self]

    @property
    def compute(self) -> Dtype:
        """The format matrix products run in."""
        return Dtype.FP8 if self is Dtype.FP8 else Dtype.BF16


_WEIGHT_BYTES = {
    Dtype.BF16: 2.0,
    Dtype.FP8: 1.0,
    Dtype.INT4: (4 + 16 / 128 + 4 / 128) / 8,
    Dtype.MXFP4: (4 + 8 / 32) / 8,
}

_ALIASES = {
    "bfloat16": Dtype.BF16,
    "float16": Dtype.BF16,
    "fp16": Dtype.BF16,
    "half": Dtype.BF16,
    "float8": Dtype.FP8,
    "fp8_e4m3": Dtype.FP8,
    "fp8_e5m2": Dtype.FP8,
    "awq": Dtype.INT4,
    "awq_marlin": Dtype.INT4,
    "gptq": Dtype.INT4,
    "gptq_marlin": Dtype.INT4,
    "w4a16": Dtype.INT4,
}

KV_DTYPES = (Dtype.BF16, Dtype.FP8)
"""The formats a KV cache can be kept in."""


def weights_dtype(value: str) -> Dtype:
    """The weight format of this name (vLLM's quantization names are understood); `ImpossibleError` otherwise."""
    return _dtype(value, "weights", tuple(Dtype))


def kv_dtype(value: str) -> Dtype:
    """The KV-cache format of this name; `ImpossibleError` otherwise."""
    return _dtype(value, "kv", KV_DTYPES)


def _dtype(value: str, field: str, allowed: tuple[Dtype, ...]) -> Dtype:
    text = str(value).strip().lower()
    found = _ALIASES.get(text)
    if found is None and text in allowed:
        found = Dtype(text)
    if found not in allowed:
        raise ImpossibleError(field, f"{value!r} is not a known format", f"use one of {', '.join(allowed)}")
    return found
