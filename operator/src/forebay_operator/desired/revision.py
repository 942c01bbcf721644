"""The revision of a worker: a hash of what makes two workers' KV caches interchangeable.

Prefill and decode workers of one service must agree on it before one may load the other's KV blocks: the engine's version
(the image), the model's path, the types of weights and cache, and any flag or variable that could change the layout. What
only one side decides (role, parallelism, replicas) or what cannot change the layout (startup timeout, adapters' order) stays
out, so that both pools of a service have equal revisions when they run the same spec.
"""

from typing import Final

from forebay_api.engine import Engine, Model
from forebay_operator.digests import digest

REVISION_LENGTH: Final = 10
"""Hexadecimal digits: 40 bits, for the handful of revisions that are alive at the same time."""


def revision_of(model: Model, engine: Engine) -> str:
    """The revision label's value."""
    parts = {
        "source": model.source,
        "engine": engine.model_dump(
            mode="json",
            by_alias=True,
            exclude_none=True,
            exclude={"startup_timeout", "lora_adapters", "max_model_len"},
        ),
    }
    return digest(parts, length=REVISION_LENGTH)
