"""A short, stable hash of a JSON value, for comparing content without keeping it."""

import hashlib
import json
from typing import Any


def digest(value: Any, *, length: int = 16) -> str:
    """The first hexadecimal digits of the SHA-256 of a JSON value in canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]
