"""Model shapes by name or from a `config.json`."""

from __future__ import annotations

from forebay_capacity.architecture import Experts, LatentAttention, ModelShape, SlidingWindow
from forebay_capacity.config import shape_from_config
from forebay_capacity.presets import PRESETS, shape_of

__all__ = [
    "PRESETS",
    "Experts",
    "LatentAttention",
    "ModelShape",
    "SlidingWindow",
    "shape_from_config",
    "shape_of",
]
