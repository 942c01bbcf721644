"""Records of decisions as JSON, exactly: what is read back equals what was written, to the last bit of every number.

A number is written with the fewest digits that name it and no other, infinities by name. The form follows from the dataclasses
themselves, so that a new input of a decision is recorded without a line here. The state that a decision leads to is in the next
record of its model service; a record holds only its digest, which tells whether a decision that is made again leads there too.
"""

import json
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError

from forebay_autoscaler.errors import HistoryError
from forebay_autoscaler.history import Record
from forebay_autoscaler.state import ServiceState

T = TypeVar("T")
_NOTHING = ServiceState()


@dataclass(frozen=True, slots=True)
class Stored:
    """A record as it was read."""

    record: Record
    """Its decision has no state."""
    state_after: str
    """Digest of the state that the decision led to."""


@lru_cache
def _adapter(kind: Hashable) -> TypeAdapter[tuple[Any]]:
    # In a tuple, since a form of numbers cannot be given for a dataclass by itself.
    wrapped: Any = tuple.__class_getitem__(kind)
    return TypeAdapter(wrapped, config=ConfigDict(ser_json_inf_nan="strings"))


def encode(kind: type[T], value: T) -> bytes:
    """One JSON text of one of our frozen dataclasses."""
    return _adapter(cast("Hashable", kind)).dump_json((value,))[1:-1]


def decode(kind: type[T], text: bytes | str) -> T:
    """The value again; pydantic.ValidationError where the text is not of this kind."""
    wrapped = f"[{text}]" if isinstance(text, str) else b"[" + text + b"]"
    return cast("T", _adapter(cast("Hashable", kind)).validate_json(wrapped)[0])


def digest(state: ServiceState) -> str:
    """A name for a state: equal for equal states only."""
    # Read back first: a whole number in place of a float is written without its ".0", and is equal all the same.
    return sha256(encode(ServiceState, decode(ServiceState, encode(ServiceState, state)))).hexdigest()[:16]


def record_text(record: Record) -> bytes:
    """One record in one line, without a newline."""
    return json.dumps(record_object(record), ensure_ascii=False, separators=(",", ":")).encode()


def record_object(record: Record) -> dict[str, Any]:
    """The same as a JSON object."""
    bare = replace(record, decision=replace(record.decision, state=_NOTHING))
    made = cast("dict[str, Any]", json.loads(encode(Record, bare)))
    del made["decision"]["state"]
    return made | {"state_after": digest(record.decision.state)}


def read_record(found: dict[str, Any]) -> Stored:
    """A record from its JSON object; HistoryError naming the field that does not fit."""
    try:
        whole = found | {"decision": found["decision"] | {"state": {}}}
        state_after = str(whole.pop("state_after"))
        return Stored(decode(Record, json.dumps(whole)), state_after)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:])
        raise HistoryError(f"{field}: {first['msg']}; was it written by another version?") from error
    except (KeyError, TypeError) as error:
        raise HistoryError(f"no record of a decision: {error} is missing or of another kind") from error
