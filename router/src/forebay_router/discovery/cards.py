"""What workers say of the models they serve: the entries of their /v1/models, asked for once each time they become ready."""

from collections.abc import Mapping
from typing import Any

import httpx

Cards = tuple[Mapping[str, Any], ...]


async def read_cards(client: httpx.AsyncClient, url: str) -> Cards:
    """The entries of one worker; raises httpx.HTTPError or ValueError."""
    answer = (await client.get(url + "/v1/models")).raise_for_status().json()
    listed = answer.get("data") if isinstance(answer, dict) else None
    cards = tuple(card for card in listed or () if isinstance(card, dict) and isinstance(card.get("id"), str))
    if not cards:
        raise ValueError(f"{url} lists no model")
    return cards
