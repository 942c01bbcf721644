"""What the rest of the router needs of a source of workers."""

from typing import Protocol


class Discovery(Protocol):
    """Keeps the worker table up to date."""

    @property
    def synced(self) -> bool:
        """The list of workers is complete and fresh."""
        ...

    @property
    def failures(self) -> int:
        """Failed probes, lists and watches so far."""
        ...

    async def run(self) -> None:
        """Watch for ever."""
        ...
