"""Every policy by name, for the command line and the reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from forebay_api.modelservice import Role
from forebay_simulator.fleet.affinity import approximate, bounded_hashing, cached_in, precise
from forebay_simulator.fleet.autoscaling import AutoscalerSpec, ForebayAutoscaler
from forebay_simulator.fleet.choosing import Forebay
from forebay_simulator.fleet.clairvoyance import Clairvoyant
from forebay_simulator.fleet.horizontal import HorizontalPodAutoscaler, Past
from forebay_simulator.fleet.members import Member
from forebay_simulator.fleet.routing import Routing, at_random, least_load, round_robin
from forebay_simulator.fleet.scaling import Capped, FixedRatio, Knative, Scaling, Static, TokenVelocity, shares
from forebay_simulator.fleet.sizing import Expectation, expectation, mean_request
from forebay_simulator.fleet.spec import FleetSpec, PoolSpec
from forebay_simulator.fleet.traces.trace import Trace

MakeRouting = Callable[[Random, Mapping[str, Member], FleetSpec], Routing]
"""A policy for one run: its generator, the workers by uid for those that can look inside them, and what the fleet is."""

ROUTING: Mapping[str, MakeRouting] = {
    "random": lambda chance, _members, _fleet: at_random(chance),
    "round-robin": lambda chance, _members, _fleet: round_robin(chance),
    "least-load": lambda chance, _members, _fleet: least_load(chance),
    "chwbl": lambda chance, _members, _fleet: bounded_hashing(chance),
    "approximate-prefix": lambda chance, _members, _fleet: approximate(chance),
    "precise-prefix": lambda chance, members, _fleet: precise(chance, cached_in(members)),
    "forebay": lambda chance, _members, fleet: Forebay(chance, fleet),
}


MakeScaling = Callable[[FleetSpec, Trace, AutoscalerSpec], Scaling]
"""A policy for one run. Only the bound may look at the trace's order; the others at its mean request, as operators would."""

QUEUE_TARGET = 5.0
"""Requests waiting per worker that HPA aims at: the threshold of the vLLM production stack's guide to autoscaling."""
KV_TARGET = 0.7
"""Share of KV cache held that HPA aims at."""
UTILISATION = 0.7
"""Knative's target utilisation."""
VELOCITY_SHARE = 0.85
"""Share of what a worker can take that TokenScale and HeteroScale plan with."""


def _expected(fleet: FleetSpec, trace: Trace) -> dict[str, Expectation]:
    mix = mean_request(trace.arrivals)
    found = {pool.name: expectation(pool, mix, fleet.objective) for pool in fleet.pools}
    return {name: one for name, one in found.items() if one is not None}


def _hpa(fleet: FleetSpec, spec: AutoscalerSpec, series: str, target: float) -> Scaling:
    metrics = {pool.name: (series, target) for pool in fleet.pools}
    return HorizontalPodAutoscaler(metrics, stabilisation_s=spec.scale_down_window_s)


def _knative(fleet: FleetSpec, trace: Trace) -> Scaling:
    expected = _expected(fleet, trace)
    roles = {pool.name: pool.role for pool in fleet.pools}
    # A prefill worker works on one prompt at a time: one that waits beside it is what its TTFT allows.
    targets = {
        name: UTILISATION * (2.0 if roles[name] is Role.PREFILL else one.limit) for name, one in expected.items()
    }
    return Knative(targets)


def _answering(fleet: FleetSpec) -> PoolSpec:
    return next(pool for pool in fleet.pools if pool.role is not Role.PREFILL)


def _prefilling(fleet: FleetSpec) -> PoolSpec | None:
    return next((pool for pool in fleet.pools if pool.role is Role.PREFILL), None)


def _fixed_ratio(fleet: FleetSpec, trace: Trace, spec: AutoscalerSpec) -> Scaling:
    expected, decode, prefill = _expected(fleet, trace), _answering(fleet), _prefilling(fleet)
    answers = expected[decode.name]
    tokens_per_s = VELOCITY_SHARE * answers.good_rate_per_s * answers.mix.output
    ratio = answers.good_rate_per_s / expected[prefill.name].good_rate_per_s if prefill is not None else 0.0
    past = Past(spec.scale_down_window_s)
    return FixedRatio(decode.name, prefill.name if prefill is not None else None, tokens_per_s, ratio, past=past)


def _token_velocity(fleet: FleetSpec, trace: Trace) -> Scaling:
    velocities = {}
    for pool in fleet.pools:
        one = _expected(fleet, trace)[pool.name]
        prefills = pool.role is Role.PREFILL
        tokens = one.mix.prompt if prefills else one.mix.output
        series = "prompt_tokens" if prefills else "output_tokens"
        velocities[pool.name] = (series, VELOCITY_SHARE * tokens * one.good_rate_per_s)
    return TokenVelocity(velocities)


def _capped(make: MakeScaling) -> MakeScaling:
    """A baseline under a budget: each pool may have its share for the mean request, as `maxReplicas` says it to an HPA."""

    def made(fleet: FleetSpec, trace: Trace, spec: AutoscalerSpec) -> Scaling:
        policy, expected = make(fleet, trace, spec), _expected(fleet, trace)
        if fleet.budget_gpus is None or len(expected) < len(fleet.pools):
            return policy
        rates = {name: one.good_rate_per_s for name, one in expected.items()}
        return Capped(policy, shares(fleet, rates, fleet.budget_gpus))

    return made


SCALING: Mapping[str, MakeScaling] = {
    "static": lambda _fleet, _trace, _spec: Static(),
    "hpa-queue": _capped(lambda fleet, _trace, spec: _hpa(fleet, spec, "waiting", QUEUE_TARGET)),
    "hpa-kv": _capped(lambda fleet, _trace, spec: _hpa(fleet, spec, "kv_usage", KV_TARGET)),
    "kpa": _capped(lambda fleet, trace, _spec: _knative(fleet, trace)),
    "fixed-ratio": _capped(_fixed_ratio),
    "token-velocity": _capped(lambda fleet, trace, _spec: _token_velocity(fleet, trace)),
    "clairvoyant": lambda fleet, trace, _spec: Clairvoyant(fleet, trace),
    "forebay": lambda fleet, _trace, spec: ForebayAutoscaler(fleet, spec),
}
"""Scaling policies by name."""
