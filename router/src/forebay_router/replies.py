"""The router's own answers: errors, the model list, health, CORS."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from forebay_router.client import ClientConnection
from forebay_router.endpoints import shape_of
from forebay_router.errors import RequestRefused, refusal_body
from forebay_router.reading import Received
from forebay_router.table import Service, WorkerTable
from forebay_router.tenancy.keys import Grant

_JSON_LINES = b"content-type: application/json\r\n"


@dataclass(frozen=True, slots=True)
class Cors:
    """Which web pages may call the router."""

    origins: tuple[str, ...] = ()
    """Allowed origins; "*" allows every one; empty switches CORS off."""

    def lines(self, received: Received) -> bytes:
        """Header lines for an answer to this request."""
        if not self.origins:
            return b""
        origin = received.fields.get(b"origin")
        if origin is None:
            return b""
        if "*" in self.origins:
            return b"access-control-allow-origin: *\r\naccess-control-expose-headers: x-request-id\r\n"
        if origin.decode(errors="replace") in self.origins:
            return (
                b"access-control-allow-origin: %b\r\nvary: Origin\r\naccess-control-expose-headers: x-request-id\r\n"
                % origin
            )
        return b""

    def preflight_lines(self, received: Received) -> bytes:
        """Header lines for an answer to a preflight request; empty when its origin may not call."""
        allowed = self.lines(received)
        if not allowed:
            return b""
        asked = received.fields.get(b"access-control-request-headers", b"authorization, content-type")
        return (
            b"%baccess-control-allow-methods: GET, HEAD, POST, OPTIONS\r\naccess-control-allow-headers: %b\r\n"
            b"access-control-max-age: 600\r\n" % (allowed, asked)
        )


def write_json(client: ClientConnection, received: Received, body: bytes, lines: bytes) -> None:
    """A 200 answer."""
    client.whole(received, 200, _JSON_LINES + lines, body)


def write_refusal(client: ClientConnection, received: Received, refused: RequestRefused, lines: bytes) -> None:
    """An error answer in the shape of the path."""
    lines = _JSON_LINES + lines
    if refused.retry_after_s is not None:
        lines += b"retry-after: %d\r\n" % refused.retry_after_s
    if refused.allow is not None:
        lines += b"allow: %b\r\n" % refused.allow.encode()
    lines += refused.lines
    client.whole(received, refused.status, lines, refusal_body(shape_of(received.path), refused))


def _cards(service: Service) -> Iterable[tuple[str, dict[str, Any]]]:
    """Model entries of one service by id: as its workers describe them, else made from what the router knows."""
    told: dict[str, dict[str, Any]] = {}
    for worker in service.workers.values():
        for card in worker.cards or ():
            known = told.setdefault(str(card["id"]), dict(card))
            if isinstance(card.get("created"), int) and isinstance(known.get("created"), int):
                known["created"] = min(known["created"], card["created"])
    for model in service.spec.models:
        yield (
            model,
            told.get(model)
            or {
                "id": model,
                "object": "model",
                "created": service.spec.created_s,
                "owned_by": "forebay",
                "root": model,
                "parent": None,
            },
        )


@dataclass(slots=True)
class ModelList:
    """Answers GET /v1/models from what is known; no worker is asked.

    One entry for each served name, with the fields that the workers give (max_model_len, root, parent, ...). `created` is the
    first value told for a name and stays: clients compare it.
    """

    table: WorkerTable
    created: dict[str, int]

    def entries(self) -> list[dict[str, Any]]:
        """All entries."""
        made: dict[str, dict[str, Any]] = {}
        for service in self.table.services.values():
            for model, card in _cards(service):
                if self.table.by_model.get(model) is service:
                    given = card.get("created")
                    first = given if isinstance(given, int) and given > 0 else int(time.time())
                    made[model] = {**card, "created": self.created.setdefault(model, first)}
        for model in self.created.keys() - made.keys():
            del self.created[model]
        return list(made.values())

    def body(self, grant: Grant | None = None) -> bytes:
        """The list, of what a key allows."""
        entries = [entry for entry in self.entries() if grant is None or grant.allows(entry["id"])]
        return orjson.dumps({"object": "list", "data": entries})

    def one(self, model: str, grant: Grant | None = None) -> bytes | None:
        """One entry, or None for an unknown model or one that a key does not allow."""
        for entry in self.entries():
            if entry["id"] == model and (grant is None or grant.allows(model)):
                return orjson.dumps(entry)
        return None
