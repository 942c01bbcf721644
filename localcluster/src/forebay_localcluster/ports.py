"""Free ports, and a number of its own for each running cluster.

A port is only "free" until someone takes it: between the choice and the program's bind, and while a killed program is
down for a test, the kernel may hand the port to any outgoing connection, and a second cluster may choose it too. Hence:

- Ports come from below the kernel's ephemeral range, which it never hands out by itself.
- A chosen TCP port is claimed by binding the *UDP* port of the same number on loopback. The claim is atomic between all
  users of the machine, the program can still bind the TCP port, and it ends with the last process that holds it, however
  that process dies. The supervisor inherits the claims and holds them for its life; no lock file is left to go stale.
- The search starts at a place derived from the cluster's name, so that a cluster comes up on the same ports again.

The number (1 to 199 on one machine) lets two clusters side by side give their pods different loopback addresses.
"""

import errno
import socket
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from forebay_localcluster.errors import NoFreePortError

LOOPBACK = "127.0.0.1"
NUMBERS = range(1, 200)
NUMBER_BASE = 20_000
"""The UDP port that claims number n is NUMBER_BASE + n."""
PORTS = range(20_200, 30_000)
"""Above the numbers' claims; below Kubernetes' node ports and Linux's default ephemeral range."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A port or number that is ours while `holder` is open."""

    value: int
    holder: socket.socket


def claim_ports(count: int, *, name: str) -> list[Claim]:
    """Claim TCP ports of 127.0.0.1 on which nothing listens; raise `NoFreePortError` when there are not enough."""
    claims: list[Claim] = []
    for port in search_order(name, PORTS):
        if len(claims) == count:
            break
        holder = _hold(port)
        if holder and _nothing_listens(port):
            claims.append(Claim(port, holder))
        elif holder:
            holder.close()
    if len(claims) < count:
        for claim in claims:
            claim.holder.close()
        raise NoFreePortError(f"fewer than {count} free ports between {PORTS.start} and {PORTS.stop - 1} on {LOOPBACK}")
    return claims


def claim_number() -> Claim:
    """Claim the lowest number that no other running cluster of this machine has."""
    for number in NUMBERS:
        if holder := _hold(NUMBER_BASE + number):
            return Claim(number, holder)
    raise NoFreePortError(f"{len(NUMBERS)} clusters run on this machine already")


def search_order(name: str, ports: range) -> Iterator[int]:
    """Yield every port once, starting at a place that depends on the name only."""
    start = zlib.crc32(name.encode()) % len(ports)
    yield from ports[start:]
    yield from ports[:start]


def _hold(port: int) -> socket.socket | None:
    holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        holder.bind((LOOPBACK, port))
    except OSError as error:
        holder.close()
        if error.errno in {errno.EADDRINUSE, errno.EACCES}:
            return None
        raise
    return holder


def _nothing_listens(port: int) -> bool:
    """Say whether a server could listen; SO_REUSEADDR as Go sets it, so that old connections in TIME_WAIT do not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((LOOPBACK, port))
            trial.listen(1)
        except OSError:
            return False
    return True
