"""KV event batches as engines spell them, turned into three plain events.

A batch is msgpack: `[time, [event, ...], data-parallel rank]`. An event is a map with `type` (vLLM from 0.24.0) or an array whose
first element is the type (before). Later versions add fields, and fields at their defaults may be left out, so every field is
looked up by name (maps) or by position as far as the array goes, and unknown ones are passed over. Block hashes are unsigned
64-bit numbers or 32 raw bytes; both are opaque names here.

An event that cannot be understood is dropped and counted, never the batch.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar

import msgspec

EngineHash = int | bytes
Default = TypeVar("Default", int, str, list[Any])


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks that were filled, in order, each the child of the one before."""

    hashes: tuple[EngineHash, ...]
    parent: EngineHash | None
    """None at the start of a prompt."""
    token_ids: tuple[int, ...]
    """Of all the blocks."""
    block_size: int
    """Tokens a block."""
    lora: str | None = None
    extra_keys: tuple[tuple[Any, ...], ...] = ()
    """What besides the tokens tells each block apart: adapter, salt, images. Empty where the engine does not say."""
    group: int = 0
    """KV cache group; a model with layers of several kinds has several."""
    kind: str = ""
    """What the group's layers are, such as full_attention."""
    medium: str = ""
    """The tier that holds the copy: GPU, CPU."""


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks that were dropped."""

    hashes: tuple[EngineHash, ...]
    group: int = 0
    medium: str = ""


@dataclass(frozen=True, slots=True)
class Cleared:
    """Every block was dropped."""


Event = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Batch:
    """What one engine step did to the cache."""

    events: tuple[Event, ...]
    rank: int
    """Data-parallel rank."""
    malformed: int = 0
    """Events that could not be understood."""


class MalformedBatchError(ValueError):
    """A payload that is no batch at all."""


_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "BlockStored": (
        "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
        "group_idx", "kv_cache_spec_kind",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}  # fmt: skip
"""Positions in the array form, behind the type."""

_decode: Final = msgspec.msgpack.Decoder().decode


def decode_batch(payload: bytes) -> Batch:
    """A batch; raises MalformedBatchError."""
    try:
        said = _decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedBatchError(f"not msgpack: {error}") from error
    if not isinstance(said, Sequence) or len(said) < 2 or not isinstance(said[1], list):
        raise MalformedBatchError("not [time, [events], rank]")
    events = []
    for one in said[1]:
        try:
            event = _event(one)
        except (LookupError, TypeError, ValueError, OverflowError):
            continue
        events.append(event)
    rank = said[2] if len(said) > 2 and isinstance(said[2], int) else 0
    return Batch(tuple(events), rank, malformed=len(said[1]) - len(events))


def _event(said: Any) -> Event:
    """One event; LookupError, TypeError or ValueError when it is none."""
    if isinstance(said, Mapping):
        kind, fields = said["type"], said
    else:
        kind = said[0]
        fields = dict(zip(_FIELDS[kind], said[1:], strict=False))
    if kind == "BlockStored":
        return _stored(fields)
    if kind == "BlockRemoved":
        return Removed(
            _hashes(fields["block_hashes"]), _optional(fields, "group_idx", 0), _optional(fields, "medium", "")
        )
    if kind == "AllBlocksCleared":
        return Cleared()
    raise ValueError(kind)


def _hashes(said: Any) -> tuple[EngineHash, ...]:
    hashes = tuple(said)
    if not all(isinstance(one, int | bytes) for one in hashes):
        raise TypeError("block hashes are numbers or bytes")
    return hashes


def _token_ids(said: Any) -> tuple[int, ...]:
    """TypeError or OverflowError for anything but numbers of 32 bits, as which they are hashed."""
    return tuple(array("I", said)) if isinstance(said, list) else _refuse("token ids")


def _optional(fields: Mapping[str, Any], name: str, default: Default) -> Default:
    """A field of the default's type, which it has where it is left out or null."""
    value = fields.get(name)
    if value is None:
        return default
    return value if isinstance(value, type(default)) else _refuse(name)


def _refuse(name: str) -> NoReturn:
    raise TypeError(f"{name} of another type")


def _stored(fields: Mapping[str, Any]) -> Stored:
    hashes = _hashes(fields["block_hashes"])
    token_ids = _token_ids(fields["token_ids"])
    size, parent = fields["block_size"], fields.get("parent_block_hash")
    if not isinstance(size, int) or size < 1 or len(token_ids) != size * len(hashes):
        raise ValueError("token_ids do not fill the blocks")
    if not isinstance(parent, int | bytes | None):
        _refuse("parent_block_hash")
    extra = _optional(fields, "extra_keys", [])
    return Stored(
        hashes=hashes,
        parent=parent,
        token_ids=token_ids,
        block_size=size,
        lora=_optional(fields, "lora_name", "") or None,
        extra_keys=tuple(tuple(one or ()) for one in extra) if len(extra) == len(hashes) else (),
        group=_optional(fields, "group_idx", 0),
        kind=_optional(fields, "kv_cache_spec_kind", ""),
        medium=_optional(fields, "medium", ""),
    )
