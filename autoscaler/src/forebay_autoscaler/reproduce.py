"""Make recorded decisions again and compare them, number for number. Pure.

A decision depends on policy, state, observation and time alone, so one that comes out otherwise was made by other code, or by
code that looks at something it should not.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from forebay_autoscaler.codec import Stored, decode, digest, encode
from forebay_autoscaler.decide import decide
from forebay_autoscaler.decision import Decision
from forebay_autoscaler.state import ServiceState


@dataclass(frozen=True, slots=True)
class Difference:
    """One number or word that came out otherwise."""

    field: str
    """Such as pools[0].desired."""
    recorded: Any
    made: Any

    def __str__(self) -> str:
        """For people."""
        return f"{self.field}: recorded {_shown(self.recorded)}, made again {_shown(self.made)}"


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


_ABSENT = _Absent()


def reproduce(stored: Stored) -> list[Difference]:
    """What is different when a decision is made again; nothing when it is the same to the last bit."""
    record = stored.record
    made = decide(record.policy, record.state, record.observation, record.decision.at_s)
    found = list(differences(_plain(record.decision), _plain(replace(made, state=ServiceState()))))
    if digest(made.state) != stored.state_after:
        found.append(Difference("state", stored.state_after, digest(made.state)))
    return found


def _plain(decision: Decision) -> Any:
    """As JSON, read back once, so that equal numbers are written equally."""
    return json.loads(encode(Decision, decode(Decision, encode(Decision, decision))))


def differences(recorded: Any, made: Any, field: str = "") -> Iterator[Difference]:
    """The leaves in which two JSON values differ, in order."""
    if isinstance(recorded, Mapping) and isinstance(made, Mapping):
        for name in {**recorded, **made}:
            inner = f"{field}.{name}" if field else name
            yield from differences(recorded.get(name, _ABSENT), made.get(name, _ABSENT), inner)
    elif isinstance(recorded, list) and isinstance(made, list):
        pairs = zip_longest(recorded, made, fillvalue=_ABSENT)
        for number, (one, other) in enumerate(pairs):
            yield from differences(one, other, f"{field}[{number}]")
    elif recorded != made or type(recorded) is not type(made):
        yield Difference(field, recorded, made)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
