"""Which workers routers leave alone, and why: the condition WorkersHealthy and its Events. Pure.

A worker that fails or hangs can call itself ready for ever; only the routers know that it gets no requests. Their metrics count
such workers, and their control ports name them. It is told by the autoscaler, which asks routers anyway and may write statuses
and Events: the router, which clients talk to, needs no right to write anything (decision 0006).

It is a look at each cycle, not a log: a worker that is left alone for less than a cycle shows in the routers' counters alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from forebay_api.conditions import Condition, ConditionStatus, find_condition
from forebay_api.names import WORKERS_HEALTHY
from forebay_autoscaler.events import Notice
from forebay_autoscaler.observation import ServiceKey

NAMED_MAX: Final = 5
"""Workers that a message names."""
DETAIL_LENGTH_MAX: Final = 160
SOUND: Final = "sound"


class _Worker(msgspec.Struct):
    """One that was left alone at least once, as a router tells of it."""

    namespace: str
    model_service: str
    pool: str
    worker: str
    condition: str
    cause: str
    detail: str = ""


class _Answer(msgspec.Struct):
    workers: list[_Worker]


_answers = msgspec.json.Decoder(_Answer)


@dataclass(frozen=True, slots=True)
class Ejected:
    """A worker that gets no requests."""

    worker: str
    """Its pod."""
    pool: str
    cause: str
    detail: str
    routers: int = 1
    """That leave it alone."""


@dataclass(frozen=True, slots=True)
class Ejections:
    """What the routers say of one model service."""

    asked: int
    """Routers that there are."""
    answered: int
    ejected: Mapping[str, Ejected] = field(default_factory=dict)
    """By worker."""
    sound: frozenset[str] = frozenset()
    """Workers that were left alone and get requests again."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What the routers say."""

    asked: int
    answers: Sequence[Any]
    """Of those that answered."""

    def of(self, key: ServiceKey) -> Ejections:
        """About one model service."""
        ejected: dict[str, Ejected] = {}
        sound: set[str] = set()
        for answer in self.answers:
            for one in answer.get(key, ()):
                if one.condition == SOUND:
                    sound.add(one.worker)
                    continue
                before = ejected.get(one.worker)
                routers = 1 if before is None else before.routers + 1
                ejected[one.worker] = Ejected(one.worker, one.pool, one.cause, one.detail, routers)
        return Ejections(self.asked, len(self.answers), ejected, frozenset(sound - ejected.keys()))


def read_answer(content: bytes) -> dict[ServiceKey, list[_Worker]]:
    """A router's answer, by model service; ValueError when it is none."""
    by_service: dict[ServiceKey, list[_Worker]] = {}
    for one in _answers.decode(content).workers:
        by_service.setdefault((one.namespace, one.model_service), []).append(one)
    return by_service


def workers_healthy(ejections: Ejections | None) -> Condition:
    """Whether each ready worker gets requests; None when routers could not be asked."""
    if ejections is None or not ejections.answered:
        message = "no router answers on its control port: see its pods, and the network policies before port metrics"
        return Condition(WORKERS_HEALTHY, ConditionStatus.UNKNOWN, "NoRouterAnswers", message)
    if not ejections.ejected:
        message = "routers send requests to every worker that is ready"
        return Condition(WORKERS_HEALTHY, ConditionStatus.TRUE, "NoneEjected", message)
    chosen = sorted(ejections.ejected.values(), key=lambda one: (-one.routers, one.worker))
    named = "; ".join(_words(one, ejections.answered) for one in chosen[:NAMED_MAX])
    more = f"; and {len(chosen) - NAMED_MAX} more" if len(chosen) > NAMED_MAX else ""
    message = f"ready, but left alone by routers: {named}{more}. See docs/router.md, workers that are left alone"
    return Condition(WORKERS_HEALTHY, ConditionStatus.FALSE, "WorkersEjected", message)


def _words(one: Ejected, answered: int) -> str:
    return f"{one.worker} ({one.cause}: {one.detail[:DETAIL_LENGTH_MAX]}; by {one.routers} of {answered} routers)"


def known_from(stored: Mapping[str, Any], ejections: Ejections) -> frozenset[str]:
    """Workers whose ejection was told before this process looked: those that the stored condition names."""
    condition = find_condition((stored.get("status") or {}).get("conditions") or (), WORKERS_HEALTHY) or {}
    message = str(condition.get("message", "")) if condition.get("reason") == "WorkersEjected" else ""
    return frozenset(name for name in {*ejections.ejected, *ejections.sound} if name in message)


def notices_of_ejections(known: frozenset[str], ejections: Ejections) -> Iterator[Notice]:
    """What is new since the last look."""
    for name, one in ejections.ejected.items():
        if name not in known:
            yield Notice("WorkerEjected", f"pool {one.pool}: {_words(one, ejections.answered)}", warning=True)
    for name in sorted(known & ejections.sound):
        yield Notice("WorkerReturned", f"{name} answers and gets requests again")


def still_known(known: frozenset[str], ejections: Ejections) -> frozenset[str]:
    """Workers that count as told at the next look. While a router is silent, one it may still leave alone stays."""
    if ejections.answered < ejections.asked:
        return (known - ejections.sound) | ejections.ejected.keys()
    return frozenset(ejections.ejected)
