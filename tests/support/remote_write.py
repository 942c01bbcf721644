"""Series with any times into a Prometheus, by its remote write receiver: protobuf in snappy's frame of plain literals."""

import struct
from collections.abc import Mapping, Sequence

import httpx

Labels = tuple[tuple[str, str], ...]
Samples = Sequence[tuple[float, float]]
"""(seconds since 1970, value), oldest first."""
LITERAL_MAX = 60_000


def write(url: str, series: Mapping[Labels, Samples]) -> None:
    """Write all samples; raises when Prometheus refuses them."""
    message = b"".join(_field(1, _series(labels, samples)) for labels, samples in series.items())
    headers = {
        "Content-Encoding": "snappy",
        "Content-Type": "application/x-protobuf",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    }
    answer = httpx.post(f"{url}/api/v1/write", content=_snappy(message), headers=headers, timeout=30)
    assert answer.status_code in (200, 204), answer.text


def _series(labels: Labels, samples: Samples) -> bytes:
    named = b"".join(_field(1, _field(1, k.encode()) + _field(2, v.encode())) for k, v in sorted(labels))
    return named + b"".join(
        _field(2, b"\x09" + struct.pack("<d", value) + b"\x10" + _varint(round(at_s * 1000))) for at_s, value in samples
    )


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def _snappy(content: bytes) -> bytes:
    parts = [content[at : at + LITERAL_MAX] for at in range(0, len(content), LITERAL_MAX)]
    return _varint(len(content)) + b"".join(
        b"\xf4" + struct.pack("<H", len(part) - 1) + part
        for part in parts  # a literal with two bytes of length
    )
