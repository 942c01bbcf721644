"""What the router shows to workers: its key, and TLS. What clients bring for the router itself is withheld from them."""

import ssl
from dataclasses import dataclass
from typing import Any

from forebay_router.headers import NOT_FORWARDED, WITHOUT_CREDENTIALS
from forebay_router.peer import Peer


@dataclass(slots=True)
class WorkerAccess:
    """The same for all workers. Changes count for the next request, or the next connection."""

    authorization: bytes = b""
    """Header line with the key that workers ask for."""
    withheld: frozenset[bytes] = NOT_FORWARDED
    """Request headers that workers do not get."""
    tls: ssl.SSLContext | None = None
    """None is without TLS."""
    tls_name: str | None = None
    """What workers' certificates are made out to; None is each one's address."""

    def withhold_credentials(self) -> None:
        """Clients' keys are the router's affair."""
        self.withheld = WITHOUT_CREDENTIALS

    @property
    def own_key(self) -> bool:
        """A worker that refuses a key refuses the router's, not a client's."""
        return self.withheld is WITHOUT_CREDENTIALS

    def connecting(self, peer: Peer) -> dict[str, Any]:
        """What a connection to a worker is opened with."""
        if self.tls is None:
            return {"host": peer.host, "port": peer.port}
        return {"host": peer.host, "port": peer.port, "ssl": self.tls, "server_hostname": self.tls_name or peer.host}
