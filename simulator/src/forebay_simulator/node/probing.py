"""Counting probe answers and deciding which probe is due: pure.

A verdict is reached by `success_threshold` successes or `failure_threshold` failures in a row and stays until the other is.
Liveness and readiness wait for the startup probe. A stopping container is probed for readiness only: it may still serve,
and ending it is under way already.
"""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import replace

from forebay_simulator.node.lifecycle import ContainerState, Phase, ProbeState
from forebay_simulator.node.pods import Probe, ProbeKind


class Verdict(enum.Enum):
    """What an answer led to."""

    OPEN = "open"  # no threshold reached by this answer
    PASSED = "passed"
    FAILED = "failed"


def first_probes(probes: Mapping[ProbeKind, Probe], *, now_s: float) -> dict[ProbeKind, ProbeState]:
    """The state of a container's probes when it has just started."""
    return {kind: ProbeState(next_at_s=now_s + probe.initial_delay_s) for kind, probe in probes.items()}


def count(state: ProbeState, probe: Probe, *, healthy: bool) -> tuple[ProbeState, Verdict]:
    """Take in one answer."""
    if healthy:
        counted = replace(state, in_flight=False, successes=state.successes + 1, failures=0)
        if counted.successes >= probe.success_threshold:
            return replace(counted, passed=True), Verdict.PASSED
        return counted, Verdict.OPEN
    counted = replace(state, in_flight=False, failures=state.failures + 1, successes=0)
    if counted.failures >= probe.failure_threshold:
        return replace(counted, passed=False), Verdict.FAILED
    return counted, Verdict.OPEN


def due(container: ContainerState, *, now_s: float) -> Iterator[ProbeKind]:
    """The probes to run now."""
    startup = container.probes.get(ProbeKind.STARTUP)
    starting = startup is not None and startup.passed is not True
    for kind, state in container.probes.items():
        if state.in_flight or now_s < state.next_at_s:
            continue
        if (kind is ProbeKind.STARTUP) != starting:
            continue
        if container.phase is Phase.STOPPING and kind is not ProbeKind.READINESS:
            continue
        yield kind


def sent(container: ContainerState, kind: ProbeKind, *, period_s: float, now_s: float) -> ContainerState:
    """Note that a probe is on its way and when the next is due."""
    state = replace(container.probes[kind], in_flight=True, next_at_s=now_s + period_s)
    return replace(container, probes={**container.probes, kind: state})
