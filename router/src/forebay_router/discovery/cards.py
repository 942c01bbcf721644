"""What workers say of the models they serve: the entries of their /v1/models, asked for once each time they become ready."""

from collections.abc import Mapping
from typing import Any

import orjson

from forebay_router.errors import FailureReason, WorkerFailure
from forebay_router.peer import Peer
from forebay_router.upstream import Upstreams

Cards = tuple[Mapping[str, Any], ...]


async def read_cards(upstreams: Upstreams, peer: Peer, *, timeout_s: float) -> Cards:
    """The entries of one worker; raises WorkerFailure."""
    answer = await upstreams.get(peer, "/v1/models", timeout_s=timeout_s)
    try:
        told = orjson.loads(answer.take_buffered())
    except orjson.JSONDecodeError as error:
        raise WorkerFailure(FailureReason.BAD_ANSWER, f"{peer.name} lists its models in no JSON") from error
    listed = told.get("data") if isinstance(told, dict) else None
    if not isinstance(listed, list):
        listed = []
    cards = tuple(card for card in listed if isinstance(card, dict) and isinstance(card.get("id"), str))
    if answer.status != 200 or not cards:
        raise WorkerFailure(FailureReason.BAD_ANSWER, f"{peer.name} lists no model (status {answer.status})")
    return cards
