"""Which workers routers leave alone, and why: the condition WorkersHealthy and its Events. Pure.

A worker that fails or hangs can call itself ready for ever; only the routers know that it gets no requests. Their metrics count
such workers, and their control ports name them. It is told by the autoscaler, which asks routers anyway and may write statuses
and Events: the router, which clients talk to, needs no right to write anything (decision 0006).

It is a look at each cycle, not a log: a worker that is left alone for less than a cycle shows in the routers' counters alone.
Routers disagree, and each may miss a look. So what was told stays as it was told (`carried`): a worker keeps the words of its
first telling while its cause is the same, and one that only a silent router may still leave alone is named for `KEPT_LOOKS_MAX`
looks. A process that begins to lead reads from the stored condition what the one before it told.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from forebay_api.conditions import Condition, ConditionStatus, find_condition
from forebay_api.names import WORKERS_HEALTHY
from forebay_autoscaler.events import Notice
from forebay_autoscaler.observation import ServiceKey

NAMED_MAX: Final = 5
"""Workers that a message names, and Events of one kind that a look tells of one model service."""
KEPT_LOOKS_MAX: Final = 6
"""Looks for which a worker that no router names any more counts as left alone while a router is silent."""
DETAIL_LENGTH_MAX: Final = 160
SOUND: Final = "sound"
EJECTED: Final = "WorkersEjected"
NONE_EJECTED: Final = "NoneEjected"
SOME_SILENT: Final = "SomeRoutersSilent"
NO_ANSWER: Final = "NoRouterAnswers"
OWN_REASONS: Final = frozenset({EJECTED, NONE_EJECTED, SOME_SILENT, NO_ANSWER})
_NAMED: Final = re.compile(r"(?:routers: |; )([^\s;(]+) \(([\w-]+): (.*?); by (\d+) of (\d+) routers\)")
_MORE: Final = re.compile(r"; and \d+ more\. See ")


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
    of: int = 1
    """Routers that answered."""
    unseen: int = 0
    """Looks since a router last said so."""


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

    @property
    def silent(self) -> bool:
        """Whether a router may leave workers alone that nobody names."""
        return self.answered < max(1, self.asked)


@dataclass(frozen=True, slots=True)
class Answers:
    """What the routers say."""

    asked: int
    answers: Sequence[Mapping[ServiceKey, Sequence[_Worker]]]
    """Of those that answered, by model service."""

    def of(self, key: ServiceKey) -> Ejections:
        """About one model service. Where routers differ in their words, the choice does not depend on their order."""
        said: dict[str, list[_Worker]] = {}
        sound: set[str] = set()
        for one in (one for answer in self.answers for one in answer.get(key, ())):
            if one.condition == SOUND:
                sound.add(one.worker)
            else:
                said.setdefault(one.worker, []).append(one)
        of, ejected = len(self.answers), {}
        for name, words in sorted(said.items()):
            first = min(words, key=lambda one: (one.cause, one.detail, one.pool))
            ejected[name] = Ejected(name, first.pool, first.cause, _one_line(first.detail), len(words), of)
        return Ejections(self.asked, of, ejected, frozenset(sound - ejected.keys()))


SILENCE: Final = Answers(asked=0, answers=())
"""Routers could not be asked."""


def read_answer(content: bytes) -> dict[ServiceKey, list[_Worker]]:
    """A router's answer, by model service; ValueError when it is none."""
    by_service: dict[ServiceKey, list[_Worker]] = {}
    for one in _answers.decode(content).workers:
        by_service.setdefault((one.namespace, one.model_service), []).append(one)
    return by_service


def told_before(stored: Mapping[str, Any], ejections: Ejections) -> dict[str, Ejected]:
    """Workers of which another process told that they are left alone: those that the stored condition names.

    Where it names only the first of many, whoever is left alone now counts as told.
    """
    condition = _stored_condition(stored)
    if condition.get("reason") != EJECTED:
        return {}
    message = str(condition.get("message", ""))
    named = {
        name: Ejected(name, "", cause, detail, int(routers), int(of))
        for name, cause, detail, routers, of in _NAMED.findall(message)
    }
    return {**ejections.ejected, **named} if _MORE.search(message) else named


def carried(told: Mapping[str, Ejected], ejections: Ejections) -> Ejections:
    """What routers say, in the words that were told, with the workers that a silent router may still leave alone."""
    ejected = {name: _as_told(told.get(name), one) for name, one in ejections.ejected.items()}
    if ejections.silent:
        for name, one in told.items():
            if name not in ejected and name not in ejections.sound and one.unseen < KEPT_LOOKS_MAX:
                ejected[name] = replace(one, unseen=one.unseen + 1)
    return replace(ejections, ejected=ejected)


def _as_told(told: Ejected | None, one: Ejected) -> Ejected:
    return replace(one, detail=told.detail) if told is not None and told.cause == one.cause else one


def workers_healthy(ejections: Ejections | None, stored: Mapping[str, Any]) -> Condition:
    """Whether each ready worker gets requests; what is stored stays where nobody was asked (None)."""
    if ejections is None:
        return _kept(_stored_condition(stored))
    if ejections.ejected:
        return Condition(WORKERS_HEALTHY, ConditionStatus.FALSE, EJECTED, _sentence(ejections))
    if not ejections.answered:
        message = "no router answers on its control port: see its pods, and the network policies before port metrics"
        return Condition(WORKERS_HEALTHY, ConditionStatus.UNKNOWN, NO_ANSWER, message)
    if ejections.silent:
        message = f"{ejections.answered} of {ejections.asked} routers answer, and those leave no ready worker alone"
        return Condition(WORKERS_HEALTHY, ConditionStatus.UNKNOWN, SOME_SILENT, message)
    message = "routers send requests to every worker that is ready"
    return Condition(WORKERS_HEALTHY, ConditionStatus.TRUE, NONE_EJECTED, message)


def _kept(condition: Mapping[str, Any]) -> Condition:
    reason = str(condition.get("reason", ""))
    if reason not in OWN_REASONS:  # nothing yet, or said by the operator in our stead
        message = "routers are asked in the next cycle"
        return Condition(WORKERS_HEALTHY, ConditionStatus.UNKNOWN, "NotAskedYet", message)
    status = ConditionStatus(str(condition.get("status")))
    return Condition(WORKERS_HEALTHY, status, reason, str(condition.get("message", "")))


def _sentence(ejections: Ejections) -> str:
    chosen = sorted(ejections.ejected.values(), key=lambda one: (-one.routers, one.worker))
    named = "; ".join(_words(one) for one in chosen[:NAMED_MAX])
    more = f"; and {len(chosen) - NAMED_MAX} more" if len(chosen) > NAMED_MAX else ""
    return f"ready, but left alone by routers: {named}{more}. See docs/router.md, workers that are left alone"


def _words(one: Ejected) -> str:
    return f"{one.worker} ({one.cause}: {one.detail}; by {one.routers} of {one.of} routers)"


def _one_line(detail: str) -> str:
    return " ".join(detail.split())[:DETAIL_LENGTH_MAX]


def _stored_condition(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    return find_condition((stored.get("status") or {}).get("conditions") or (), WORKERS_HEALTHY) or {}


def notices_of_ejections(told: Mapping[str, Ejected], ejections: Ejections) -> Iterator[Notice]:
    """What is new since the last look. Of many the first are named, and the others counted."""
    new = [one for name, one in sorted(ejections.ejected.items()) if name not in told]
    for one in new[:NAMED_MAX]:
        yield Notice("WorkerEjected", f"pool {one.pool}: {_words(one)}", warning=True)
    if len(new) > NAMED_MAX:
        message = f"{len(new) - NAMED_MAX} more workers are left alone: /ejected of the routers names them all"
        yield Notice("WorkerEjected", message, warning=True)
    back = sorted(told.keys() & ejections.sound)
    for name in back[:NAMED_MAX]:
        yield Notice("WorkerReturned", f"{name} answers and gets requests again")
    if len(back) > NAMED_MAX:
        yield Notice("WorkerReturned", f"{len(back) - NAMED_MAX} more workers answer and get requests again")
