"""Sockets that listen. The error of a port that is taken names the port."""

import socket
from typing import Final

from forebay_router.options import HostPort

LISTEN_BACKLOG: Final = 2048


def bind(address: HostPort, *, shared: bool = False) -> socket.socket:
    """A listening socket; a shared one is open to other processes of the same user."""
    try:
        return socket.create_server(
            (address.host, address.port), family=_family(address), backlog=LISTEN_BACKLOG, reuse_port=shared
        )
    except OSError as error:
        raise _taken(address, error) from error


def reserve(address: HostPort) -> socket.socket:
    """A port that child processes will share, taken without listening: nobody else has it, and it stays ours."""
    bind(address).close()
    held = socket.socket(_family(address), socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((address.host, address.port))
    except OSError as error:
        held.close()
        raise _taken(address, error) from error
    return held


def address_of(bound: socket.socket) -> HostPort:
    """Where a socket is bound."""
    name = bound.getsockname()
    return HostPort(name[0], name[1])


def _family(address: HostPort) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address.host else socket.AF_INET


def _taken(address: HostPort, error: OSError) -> SystemExit:
    return SystemExit(f"forebay-router: cannot listen on {address}: {error.strerror}; choose another port")
