"""The hashes of KV blocks, value for value those of vLLM 0.32 (and so comparable with its KV events).

    hash(block i) = H(parent hash, token ids of the block, extra keys or None)      parent of block 0 = H(seed)

H is SHA-256 over a Python pickle (`sha256`, vLLM's default) or over canonical CBOR (`sha256_cbor`, which other languages
can compute). The seed is the text of PYTHONHASHSEED, or "vllm-none-hash". Extra keys: every block of a LoRA request has
("lora", name, path), the first block of a salted one has ("cache_salt", salt) after it. A hash covers all tokens before
its block, so equal hashes mean equal prefixes. Events carry the last 8 bytes as an unsigned integer unless told otherwise.

The pickle form depends on whether equal strings are one object, so vLLM's own pickled hashes of LoRA requests differ
between processes when an adapter's name equals its path; nothing can reproduce those.
"""

from __future__ import annotations

import hashlib
import pickle
import struct
from collections.abc import Callable, Sequence
from enum import Enum
from functools import lru_cache

DEFAULT_SEED = "vllm-none-hash"

ExtraKey = tuple[str, ...]


class HashAlgorithm(Enum):
    """How a block is turned into bytes; the values are vLLM's."""

    SHA256 = "sha256"
    SHA256_CBOR = "sha256_cbor"


def event_id(digest: bytes) -> int:
    """Return what KV events carry by default: the last 8 bytes, unsigned."""
    return int.from_bytes(digest[-8:], "big")


def _cbor_head(major: int, value: int) -> bytes:
    if value < 24:
        return bytes([major << 5 | value])
    for code, layout, top in ((24, ">B", 1 << 8), (25, ">H", 1 << 16), (26, ">I", 1 << 32), (27, ">Q", 1 << 64)):
        if value < top:
            return bytes([major << 5 | code]) + struct.pack(layout, value)
    raise ValueError(f"{value} does not fit CBOR's 64 bits")


@lru_cache(maxsize=1 << 18)
def _cbor_token(token: int) -> bytes:
    return _cbor_head(0, token)


def cbor(value: object) -> bytes:
    """Encode None, int >= 0, bytes, str and sequences of them canonically (RFC 8949, 4.2.1)."""
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return _cbor_token(value)
    if isinstance(value, bytes):
        return _cbor_head(2, len(value)) + value
    if isinstance(value, str):
        encoded = value.encode()
        return _cbor_head(3, len(encoded)) + encoded
    if isinstance(value, (tuple, list)):
        return _cbor_head(4, len(value)) + b"".join([cbor(item) for item in value])
    raise TypeError(f"block hashes are made of None, int, bytes, str and sequences, not {type(value).__name__}")


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, protocol=5)


_ENCODERS: dict[HashAlgorithm, Callable[[object], bytes]] = {
    HashAlgorithm.SHA256: _pickled,
    HashAlgorithm.SHA256_CBOR: cbor,
}


class BlockHasher:
    """Hashes the blocks of one engine."""

    def __init__(self, *, algorithm: HashAlgorithm, block_size: int, seed: str = DEFAULT_SEED) -> None:
        self.block_size = block_size
        self.algorithm = algorithm
        self._encode = _ENCODERS[algorithm]
        self.root = self._digest(seed)
        """The parent of every first block."""

    def _digest(self, value: object) -> bytes:
        return hashlib.sha256(self._encode(value)).digest()

    def digest(self, parent: bytes, tokens: Sequence[int], extra: tuple[ExtraKey, ...]) -> bytes:
        """Return the hash of one block after `parent`."""
        return self._digest((parent, tuple(tokens), extra or None))


class TokenSequence:
    """The token ids of a request, prompt and output, with the hashes of its full blocks computed when asked for."""

    __slots__ = ("_digests", "_hasher", "adapter", "adapter_number", "ids", "prompt", "salt", "session")

    def __init__(
        self, prompt: list[int], hasher: BlockHasher, *, adapter: tuple[str, str] | None = None, salt: str | None = None
    ) -> None:
        self.prompt = prompt
        """Shared by the choices of one request; never changed."""
        self.ids = list(prompt)
        """Prompt and output."""
        self.adapter = adapter
        """LoRA name and path."""
        self.salt = salt
        self.adapter_number: int | None = None
        """The engine's number of the adapter, and"""
        self.session: str | None = None
        """the client's name of the session: not hashed, but told in KV events."""
        self._hasher = hasher
        self._digests: list[bytes] = []

    def extra_keys(self, index: int) -> tuple[ExtraKey, ...]:
        """Return what, apart from the tokens, tells block `index` from others."""
        keys: list[ExtraKey] = [("lora", *self.adapter)] if self.adapter else []
        if self.salt and index == 0:
            keys.append(("cache_salt", self.salt))
        return tuple(keys)

    def block_hash(self, index: int) -> bytes:
        """Return the digest of block `index`, which must be full."""
        digests = self._digests
        size = self._hasher.block_size
        while len(digests) <= index:
            at = len(digests)
            tokens = self.ids[at * size : (at + 1) * size]
            assert len(tokens) == size, f"block {at} is not full"
            parent = digests[-1] if digests else self._hasher.root
            digests.append(self._hasher.digest(parent, tokens, self.extra_keys(at)))
        return digests[index]

    def parent_hash(self, index: int) -> bytes | None:
        """Return the digest of the block before `index`; None for the first."""
        return self.block_hash(index - 1) if index else None
