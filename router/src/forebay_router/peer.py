"""An address that requests are sent to, and the connections kept to it."""

from math import inf
from typing import Any


class Peer:
    """One HTTP/1.1 server: a worker, or an address that is being probed."""

    __slots__ = ("accepted_s", "gone", "host", "host_line", "idle", "name", "port")

    def __init__(self, name: str, host: str, port: int) -> None:
        self.name = name
        self.host = host
        self.port = port
        shown = f"[{host}]" if ":" in host else host
        self.host_line = f"host: {shown}:{port}\r\n".encode()
        self.idle: list[Any] = []
        """Idle connections, newest last; owned by the upstream module."""
        self.accepted_s = -inf
        """Monotonic time at which it accepted a connection last; minus infinity before it has."""
        self.gone = False
        """Not to be used any more: its connections are closed when their requests end."""
