"""KV events."""

from __future__ import annotations

from typing import Any


class EventPublisher:
    """Publishes what the prefix cache stores and evicts."""

    def source(self) -> dict[str, Any]:
        """Return the entry of /kv_event_sources."""
        return {}
