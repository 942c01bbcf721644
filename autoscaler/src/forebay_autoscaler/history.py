"""A bounded history of decisions, each with all that it was made from. Served by the control port.

Kept are decisions that said something new, and the last one of each model service whether new or not. Records are the frozen
objects themselves; they become JSON only when somebody asks.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from forebay_autoscaler.decision import Decision
from forebay_autoscaler.observation import ServiceKey, ServiceObservation
from forebay_autoscaler.policy import ServicePolicy
from forebay_autoscaler.state import ServiceState


@dataclass(frozen=True, slots=True)
class Record:
    """One decision and its inputs: decide(policy, state, observation, decision.at_s) gives it again."""

    at: datetime
    leading: bool
    """Whether this replica acted on it."""
    policy: ServicePolicy
    state: ServiceState
    """The state before the decision."""
    observation: ServiceObservation
    decision: Decision


class Keeper(Protocol):
    """Keeps every decision, for longer."""

    def add(self, records: Sequence[Record]) -> None:
        """Take in the decisions of one cycle."""
        ...


class History:
    """Newest last. `length_max` bounds the records of all model services together."""

    def __init__(self, length_max: int, keeper: Keeper | None = None) -> None:
        self._keeper = keeper
        self._records: deque[Record] = deque(maxlen=length_max)
        self._latest: dict[ServiceKey, Record] = {}

    def add(self, records: Sequence[Record]) -> None:
        """Take in the decisions of one cycle, which are of every model service that exists."""
        if self._keeper is not None:
            self._keeper.add(records)
        self._latest = {}
        for record in records:
            self._latest[record.decision.key] = record
            if any(pool.news or pool.foreign for pool in record.decision.pools):
                self._records.append(record)

    def add_one(self, record: Record) -> None:
        """Take in a decision on one model service between two cycles."""
        if self._keeper is not None:
            self._keeper.add([record])
        self._latest[record.decision.key] = record
        self._records.append(record)

    def select(self, *, namespace: str | None, model_service: str | None, limit: int) -> Iterator[Record]:
        """The newest `limit` records, newest first."""
        chosen = list(self._records)  # copies: the caller is on a thread of its own
        kept = {id(record) for record in chosen}
        chosen += [record for record in list(self._latest.values()) if id(record) not in kept]
        chosen.sort(key=lambda record: record.decision.at_s, reverse=True)
        for record in chosen:
            if limit <= 0:
                return
            if namespace in (None, record.decision.key[0]) and model_service in (None, record.decision.key[1]):
                limit -= 1
                yield record
