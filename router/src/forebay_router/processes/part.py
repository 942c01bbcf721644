"""Which of several processes a router is: told by the parent in one environment variable, files in one directory."""

from dataclasses import dataclass
from typing import Final

PART_VARIABLE: Final = "FOREBAY_ROUTER_PART_OF"
"""NUMBER:DIRECTORY; set by a parent for its children, by nobody else."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of several processes."""

    number: int
    directory: str
    """Of the parent's and the children's sockets; only their user may enter it."""

    @classmethod
    def read(cls, text: str) -> "Part":
        """From the environment variable; raises ValueError."""
        number, _, directory = text.partition(":")
        return cls(int(number), directory)

    def __str__(self) -> str:
        return f"{self.number}:{self.directory}"

    @property
    def control_path(self) -> str:
        """Socket file of its control port."""
        return f"{self.directory}/control-{self.number}"

    @property
    def hub(self) -> tuple[str, str]:
        """ZeroMQ addresses: where the parent takes messages in, and where it gives them out."""
        return hub_addresses(self.directory)


def hub_addresses(directory: str) -> tuple[str, str]:
    """Of the parent's hub."""
    return f"ipc://{directory}/mesh-in", f"ipc://{directory}/mesh-out"
