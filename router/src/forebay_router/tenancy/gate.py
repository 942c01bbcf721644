"""Who asks: the key in a request's head is looked up before any of its body is kept.

A key comes as `Authorization: Bearer KEY` (OpenAI's clients) or `x-api-key: KEY` (Anthropic's). Health checks and CORS preflights
have none and need none. What a refused client is told does not depend on what it asked for.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from forebay_router.endpoints import HEALTH_PATHS
from forebay_router.errors import RequestRefused
from forebay_router.reading import Received
from forebay_router.tenancy.keys import KeyRing

_SCHEME: Final = b"bearer "


class Stranger(StrEnum):
    """Why a request was not let in. Values are metric labels."""

    NO_KEY = "no_key"
    UNKNOWN_KEY = "unknown_key"


@dataclass(slots=True)
class Gate:
    """Lets in who has a key."""

    ring: KeyRing
    strangers: dict[Stranger, int] = field(default_factory=lambda: dict.fromkeys(Stranger, 0))

    def check(self, request: Received) -> RequestRefused | None:
        """Note whose request this is, or say why it is refused."""
        if request.path in HEALTH_PATHS or request.method == b"OPTIONS":
            return None
        key = key_of(request.fields)
        if not key:
            return self._refuse(
                Stranger.NO_KEY, "No API key was sent: send one as `Authorization: Bearer KEY` or `x-api-key: KEY`."
            )
        grant = self.ring.find(key)
        if grant is None:
            return self._refuse(Stranger.UNKNOWN_KEY, "The API key is not valid here: check it, or ask for a new one.")
        request.grant = grant
        return None

    def _refuse(self, why: Stranger, message: str) -> RequestRefused:
        self.strangers[why] += 1
        return RequestRefused(401, message, code="invalid_api_key", lines=b"www-authenticate: Bearer\r\n")


def key_of(fields: dict[bytes, bytes]) -> bytes:
    """The key that a request brings; empty for none."""
    given = fields.get(b"authorization", b"")
    if given[:7].lower() == _SCHEME:
        return given[7:].strip()
    return fields.get(b"x-api-key", b"").strip()


def model_refused(model: str) -> RequestRefused:
    """The key does not allow this model; whether it exists is not told."""
    return RequestRefused(
        403,
        f"This API key may not use the model `{model[:200]}`; GET /v1/models lists those it may use.",
        type="permission_error",
        param="model",
        code="model_not_allowed",
    )
