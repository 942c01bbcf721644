"""A choice as people read it: the candidates, what was predicted of each, and why the chosen one.

Sent as a response header when the request asks with `x-forebay-explain: 1`, and by the control port for a request that is not
to be sent. Workers are told by name, never by address.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from forebay_router import errors, rewriting
from forebay_router.choose import Choice, kept_out
from forebay_router.endpoints import Endpoint
from forebay_router.fitting import work_of
from forebay_router.index.audit import Source
from forebay_router.index.prefix_index import LookUp
from forebay_router.learning import Trip
from forebay_router.parsing import parse_request
from forebay_router.placing import Placing
from forebay_router.predicting import Candidate, Demand, Prediction

EXPLAIN_HEADER: Final = b"x-forebay-explain"
CANDIDATES_MAX: Final = 16
"""In one header, the best first."""
HELD: Final = "no worker can take it now: it would wait"


def explain(choice: Choice, look_up: LookUp | None, source: Source | None) -> dict[str, Any]:
    """Why a request went where it went, or would go. `source` is what the chosen worker's cache was judged by."""
    best = sorted(choice.considered, key=lambda one: one.cost)
    told: dict[str, Any] = {
        "worker": choice.name_of(choice.worker.uid),
        "prefill": choice.name_of(choice.prefill.uid) if choice.prefill else None,
        "reason": choice.reason.value,
        "predicted": _told(choice.prediction, choice),
        "considered": len(choice.considered),
        "candidates": [_told(one, choice) for one in best[:CANDIDATES_MAX]],
        "prompt_tokens": choice.demand.prompt_tokens,
        "common_tokens": choice.demand.common_tokens,
    }
    if look_up is not None:  # a prompt of a few words is not looked up
        told["source"] = source.value if source else None
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
    source = trip.dispatch.used if trip.dispatch else None
    return b"%b: %b\r\n" % (EXPLAIN_HEADER, orjson.dumps(explain(choice, trip.look_up, source)))


def explain_request(placing: Placing, endpoint: Endpoint, fields: Mapping[bytes, bytes], body: bytes) -> dict[str, Any]:
    """What would be done with a request that came now; it is not sent. Raises RequestRefused as its client would see it."""
    parsed = parse_request(endpoint, fields, body)
    rewriting.scrub(parsed)
    service = placing.known_service(parsed.model, fields)
    if service is None:
        raise errors.no_service(parsed.model)
    demand, look_up, choice = placing.consider(service, parsed)
    objective = service.spec.objective
    told: dict[str, Any] = {
        "model_service": str(service.spec.key),
        "objective": {"ttft_ms": objective.ttft_s * 1e3, "tpot_ms": objective.tpot_s * 1e3, "target": objective.target},
        "prompt_tokens": demand.prompt_tokens,
        "output_tokens": demand.output_tokens,
        "waiting": service.stats.pending,
        "worker": None,
        "reason": HELD,
        "held": None,
        "considered": 0,
        "candidates": [],
    }
    if choice is None:
        return told
    computes = choice.prefill or choice.worker
    source = placing.index.source_of(computes.uid, look_up) if look_up is not None else None
    told |= explain(choice, look_up, source)
    told["held"] = placing.held_because(service, choice)
    requests = {choice.name_of(one.uid): choice.field[one.uid].load.requests for one in choice.considered}
    for one in told["candidates"]:
        one["requests"] = requests[one["worker"]]
    out = kept_out(demand, service.snapshot)
    told["kept_out_count"] = len(out)
    told["kept_out"] = [_told_out(one, demand) for one in out[:CANDIDATES_MAX]]
    return told


def _told_out(one: Candidate, demand: Demand) -> dict[str, Any]:
    """A decode worker that computes its pair's prompts no further than its tokens leave time for, and why not this one."""
    work = work_of(
        demand.prompt_tokens,
        demand.prompt_tokens - demand.cached.get(one.uid, 0),
        one.speed.pool.terms(demand.objective).bend,
    )
    return {
        "worker": one.name or one.uid,
        "requests": one.load.requests,
        "prompt_ms": round(work * one.token_s * 1e3, 2),
        "tpot_ms": round(demand.objective.tpot_s * 1e3, 3),
    }
