"""Header rules of the proxy: what is passed on, what is not, and the request id.

Hop-by-hop headers (RFC 9110 §7.6.1 and those that `Connection` names) end here, in both directions. Headers that steer
routing are the router's own: a client's are removed, so that nobody outside can pin a request to a worker or a rank.
A request id is echoed only after everything that could break a log line or a header has been replaced.
"""

import os
import re
from collections.abc import Mapping
from itertools import count

Headers = list[tuple[bytes, bytes]]
"""Names in lower case, in the order of arrival."""

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
SERVICE_HEADER = b"x-forebay-model-service"
"""Names one model service as namespace/name where two namespaces offer the same model name."""
ROUTING_PREFIX = b"x-forebay-"
NOT_FORWARDED = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",
    b"x-request-id",
    b"x-data-parallel-rank",
    b"x-gateway-destination-endpoint",
    b"x-prefiller-host-port",
}
WITHOUT_CREDENTIALS = NOT_FORWARDED | {b"authorization", b"x-api-key"}
"""Withheld where the client's key is the router's own affair."""
_NOT_RETURNED = HOP_BY_HOP | {b"content-length", b"x-request-id"}
_UNSAFE_ID = re.compile(rb"[^A-Za-z0-9._:/@+=~-]")
REQUEST_ID_MAX_BYTES = 128

_PROCESS_PREFIX = os.urandom(8).hex().encode() + b"-"
_sequence = count(1)


def index(headers: Headers) -> dict[bytes, bytes]:
    """Headers by name; of a repeated one the last, but all that Connection headers name."""
    fields = dict(headers)
    if len(fields) != len(headers) and b"connection" in fields:
        fields[b"connection"] = b", ".join(value for name, value in headers if name == b"connection")
    return fields


def request_id(fields: Mapping[bytes, bytes]) -> bytes:
    """The client's request id made safe, or a new one."""
    given = fields.get(b"x-request-id")
    if given:
        return _UNSAFE_ID.sub(b"_", given[:REQUEST_ID_MAX_BYTES])
    return b"%b%08x" % (_PROCESS_PREFIX, next(_sequence))


def _named_by_connection(fields: Mapping[bytes, bytes]) -> frozenset[bytes]:
    """Headers that a Connection header declares to be hop-by-hop."""
    value = fields.get(b"connection")
    if value is None:
        return frozenset()
    return frozenset(name.strip().lower() for name in value.split(b","))


def forwarded_lines(
    headers: Headers, fields: Mapping[bytes, bytes], withheld: frozenset[bytes] = NOT_FORWARDED
) -> bytes:
    """The request headers that go to a worker, as wire lines."""
    dropped = withheld | _named_by_connection(fields) if b"connection" in fields else withheld
    return b"".join(
        [
            b"%b: %b\r\n" % header
            for header in headers
            if header[0] not in dropped and not header[0].startswith(ROUTING_PREFIX)
        ]
    )


def returned_lines(headers: Headers, fields: Mapping[bytes, bytes], own_lines: bytes) -> bytes:
    """The response headers that go back to the client, as wire lines, with the router's own; framing comes later.

    The router decides on CORS, a worker does not: vLLM allows every origin.
    """
    dropped = _NOT_RETURNED | _named_by_connection(fields) if b"connection" in fields else _NOT_RETURNED
    if b"access-control-allow-origin" in fields:
        dropped = dropped | {name for name in fields if name.startswith(b"access-control-")}
    return b"".join([b"%b: %b\r\n" % header for header in headers if header[0] not in dropped]) + own_lines
