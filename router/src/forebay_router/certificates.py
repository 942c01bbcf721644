"""TLS: the certificate that clients see, and the authority that vouches for workers.

A changed certificate is for new connections; those that are open keep theirs. A server is bound to one SSLContext for its life,
and loading a new pair into it is not one step: a key that does not fit leaves the context broken. So each pair is loaded into a
context of its own, and the server's context hands every handshake over to the newest, in the callback for server names (OpenSSL
calls it without a name too).

TLS 1.2 at least. HTTP/1.1 is all that is offered: the router does not speak HTTP/2.
"""

import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from forebay_router.followed import BadFileError

HANDSHAKE_S: Final = 10.0
"""A client may take so long to finish its handshake."""
_PROTOCOLS: Final = ["http/1.1"]


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_PROTOCOLS)
    return context


@dataclass(slots=True)
class ServerCertificate:
    """A certificate and its key, and the context for servers that show it."""

    certificate: Path
    """PEM: the certificate, then those that lead to its authority."""
    key: Path
    """PEM, without a passphrase."""
    context: ssl.SSLContext = field(default_factory=_server_context)
    """What a server is started with."""
    _newest: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        """Hand handshakes over."""
        self.context.sni_callback = self._hand_over

    def _hand_over(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:  # noqa: ARG002 - its form is given
        if self._newest is not None:
            connection.context = self._newest

    def paths(self) -> Iterable[Path]:
        """Both files."""
        return (self.certificate, self.key)

    def read(self) -> ssl.SSLContext:
        """A context with what the files hold now; raises BadFileError."""
        context = _server_context()
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_passphrase)
        except ssl.SSLError as error:
            raise BadFileError(
                f"{self.certificate} and {self.key} are no certificate and its key ({error.reason or error}): give two PEM "
                "files that belong together"
            ) from error
        except OSError as error:
            missing = next((path for path in self.paths() if not path.is_file()), self.key)
            raise BadFileError(f"{missing}: cannot be read: {error.strerror}") from error
        return context

    def take(self, context: ssl.SSLContext) -> None:
        """Show this one from now on."""
        self._newest = context


def _no_passphrase() -> str:
    """Without this OpenSSL would ask on the terminal."""
    return ""


@dataclass(frozen=True, slots=True)
class WorkerAuthority:
    """Who vouches for workers' certificates."""

    authority: Path
    """PEM: certificates of the authorities that are trusted."""

    def paths(self) -> Iterable[Path]:
        """The file."""
        return (self.authority,)

    def read(self) -> ssl.SSLContext:
        """A context for connections to workers; raises BadFileError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(_PROTOCOLS)
        try:
            context.load_verify_locations(self.authority)
        except ssl.SSLError as error:
            raise BadFileError(
                f"{self.authority}: holds no certificate in PEM form ({error.reason or error})"
            ) from error
        except OSError as error:
            raise BadFileError(f"{self.authority}: cannot be read: {error.strerror}") from error
        return context
