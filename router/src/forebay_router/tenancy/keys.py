"""API keys: the file that lists them, and the ring in which a request's key is looked up. Pure but for reading files.

Only SHA-256 digests are kept. A password needs a slow hash since people choose it and it can be guessed; a key of ours is 256
random bits, which nobody guesses at any speed. A slow hash would only make each request, and each wrong key, cost a tenth of a
second of CPU. The digest is looked up in a dictionary: what the time of a look-up could tell is about a digest, which leads back
to no key. One look-up costs 0.4 us, so no key is remembered in plain.

The file is YAML or JSON. Each key belongs to a tenant; both may have limits, and all that are set hold:

    tenants:                      # optional: tenants with limits or a weight of their own
    - name: team-a
      weight: 2                   # share of a queue, against tenants with 1
      tokensPerMinute: 2000000
    keys:
    - name: team-a-ci             # shown in logs
      tenant: team-a
      sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
      models: [llama-3.1-8b]      # absent: every model
      requestsPerMinute: 600
      maxInFlight: 32
      priority: normal            # ceiling: high, normal or low; absent: none
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from forebay_api.fields import text
from forebay_router.documents import Entry, read_data, read_document
from forebay_router.followed import BadFileError

FILE_SUFFIXES: Final = (".yaml", ".yml", ".json")
"""What counts as a key file in a directory."""
_PRIORITIES: Final = {"high": 1, "normal": 0, "low": -1}
Name = Annotated[
    str,
    text(
        r"^[A-Za-z0-9][-._A-Za-z0-9]{0,62}$",
        "must be 1 to 63 letters, digits, '-', '_' and '.', beginning with a letter or digit",
    ),
]
Digest = Annotated[
    str,
    text(
        r"^[0-9a-f]{64}$",
        "must be the SHA-256 of a key as 64 digits 0-9 and a-f; `forebay keys new` makes a key and prints it",
    ),
]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a key or of a tenant; None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    in_flight_max: int | None = None


UNBOUNDED: Final = Bounds()


@dataclass(frozen=True, slots=True)
class Grant:
    """What a key allows."""

    key: str
    """The key's name, not the key."""
    tenant: str
    models: frozenset[str] | None = None
    """Allowed models; None is every one."""
    priority_max: int | None = None
    """Highest priority a request may have: 1 high, 0 normal, -1 low; None is no ceiling."""
    weight: int = 1
    """Share of its tenant where requests queue, against tenants with 1."""
    bounds: Bounds = UNBOUNDED
    tenant_bounds: Bounds = UNBOUNDED

    def allows(self, model: str) -> bool:
        """The key may use this model."""
        return self.models is None or model in self.models


@dataclass(frozen=True, slots=True)
class KeyRing:
    """All keys, by digest."""

    grants: Mapping[bytes, Grant] = field(default_factory=dict)

    def find(self, key: bytes) -> Grant | None:
        """What a key allows; None for an unknown one."""
        return self.grants.get(sha256(key).digest())


class _Limited(Entry):
    """The limits that keys and tenants share."""

    requests_per_minute: int | None = Field(default=None, ge=1, le=10**9)
    tokens_per_minute: int | None = Field(default=None, ge=1, le=10**12)
    max_in_flight: int | None = Field(default=None, ge=1, le=10**6)

    def bounds(self) -> Bounds:
        """As the core has them."""
        return Bounds(self.requests_per_minute, self.tokens_per_minute, self.max_in_flight)


class _Tenant(_Limited):
    name: Name
    weight: int = Field(default=1, ge=1, le=1000)


class _Key(_Limited):
    name: Name
    tenant: Name
    sha256: Digest
    models: list[str] | None = Field(default=None, min_length=1, max_length=1000)
    priority: Literal["high", "normal", "low"] | None = None


class _KeyFile(Entry):
    tenants: list[_Tenant] = Field(default=[])
    keys: list[_Key] = Field(default=[])


def key_files(path: Path) -> tuple[Path, ...]:
    """The files that a path stands for: itself, or the key files of a directory, such as a mounted Secret."""
    if not path.is_dir():
        return (path,)
    return tuple(sorted(one for one in path.iterdir() if one.suffix in FILE_SUFFIXES and not one.name.startswith(".")))


def read_keys(path: Path) -> KeyRing:
    """The keys of a file, or of all files of a directory together; raises BadFileError."""
    try:
        files = key_files(path)
    except OSError as error:
        raise BadFileError(f"{path}: cannot be read: {error.strerror}") from error
    ring = ring_of({one: read_document(one, _KeyFile) for one in files})
    if not ring.grants:  # a file that was cut short must not lock everybody out
        raise BadFileError(f"{path}: keys: holds no key: add one that `forebay keys new` has made")
    return ring


def check_entry(entry: Mapping[str, Any]) -> None:
    """Raise BadFileError when a key file could not hold such a key."""
    read_data(entry, _Key, "key")


def ring_of(files: Mapping[Path, _KeyFile]) -> KeyRing:
    """All files' keys as one ring; raises BadFileError for a name or a digest that stands there twice."""
    tenants: dict[str, _Tenant] = {}
    for path, file in files.items():
        for tenant in file.tenants:
            if tenants.setdefault(tenant.name, tenant) is not tenant:
                raise BadFileError(f"{path}: tenants: {tenant.name!r} stands there twice: remove one")
    grants: dict[bytes, Grant] = {}
    names: set[str] = set()
    for path, key in _keys_of(files):
        digest = bytes.fromhex(key.sha256)
        if key.name in names:
            raise BadFileError(f"{path}: keys: the name {key.name!r} stands there twice: rename one")
        if digest in grants:
            raise BadFileError(f"{path}: keys: {key.name!r} and {grants[digest].key!r} are the same key: remove one")
        names.add(key.name)
        grants[digest] = _grant(key, tenants.get(key.tenant))
    return KeyRing(grants)


def _keys_of(files: Mapping[Path, _KeyFile]) -> Iterable[tuple[Path, _Key]]:
    return ((path, key) for path, file in files.items() for key in file.keys)


def _grant(key: _Key, tenant: _Tenant | None) -> Grant:
    return Grant(
        key=key.name,
        tenant=key.tenant,
        models=frozenset(key.models) if key.models is not None else None,
        priority_max=_PRIORITIES[key.priority] if key.priority is not None else None,
        weight=tenant.weight if tenant else 1,
        bounds=key.bounds(),
        tenant_bounds=tenant.bounds() if tenant else UNBOUNDED,
    )
