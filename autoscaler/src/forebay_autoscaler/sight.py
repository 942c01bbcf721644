"""What one decision knows of the service as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass

from forebay_autoscaler.learn import Evidence
from forebay_autoscaler.observation import ServiceObservation
from forebay_autoscaler.policy import ServicePolicy
from forebay_autoscaler.state import ServiceState


@dataclass(frozen=True, slots=True)
class Sight:
    """What concerns the service as a whole in one decision."""

    policy: ServicePolicy
    state: ServiceState
    observation: ServiceObservation
    evidence: Evidence
    shares: Mapping[str, float]
    """Of the service's requests, by pool; those of a role sum to 1."""
    woken: frozenset[str]
    """Pools without a worker that held requests ask one of."""
    now_s: float
