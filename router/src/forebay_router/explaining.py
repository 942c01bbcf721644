"""A choice as people read it: the candidates, what was predicted of each, and why the chosen one.

Sent as a response header when the request asks with `x-forebay-explain: 1`. Workers are told by name, never by address.
"""

from typing import Any, Final

import orjson

from forebay_router.choose import Choice
from forebay_router.learning import Trip
from forebay_router.predicting import Prediction

EXPLAIN_HEADER: Final = b"x-forebay-explain"
CANDIDATES_MAX: Final = 16
"""In one header, the best first."""


def explain(choice: Choice, trip: Trip) -> dict[str, Any]:
    """Why a request went where it went."""
    best = sorted(choice.considered, key=lambda one: one.cost)
    told: dict[str, Any] = {
        "worker": choice.name_of(choice.worker.uid),
        "prefill": choice.name_of(choice.prefill.uid) if choice.prefill else None,
        "reason": choice.reason.value,
        "predicted": _told(choice.prediction, choice),
        "considered": len(choice.considered),
        "candidates": [_told(one, choice) for one in best[:CANDIDATES_MAX]],
    }
    look_up = trip.look_up
    if look_up is not None:
        told["prompt_tokens"] = look_up.prompt_tokens
        told["common_tokens"] = look_up.common_tokens
        told["source"] = trip.dispatch.used.value if trip.dispatch else None
    return told


def _told(prediction: Prediction, choice: Choice) -> dict[str, Any]:
    return {
        "worker": choice.name_of(prediction.uid),
        "wait_ms": round(prediction.wait_s * 1e3, 2),
        "uncached_tokens": prediction.uncached_tokens,
        "ttft_ms": round(prediction.ttft_s * 1e3, 2),
        "tpot_ms": round(prediction.tpot_s * 1e3, 3),
        "cost": round(prediction.cost, 4),
        "chance": round(prediction.chance, 4),
        "meets_objective": prediction.comfortable,
    }


def explain_line(choice: Choice, trip: Trip) -> bytes:
    """The header line."""
    return b"%b: %b\r\n" % (EXPLAIN_HEADER, orjson.dumps(explain(choice, trip)))
