"""Durations as people write them in a spec: "500ms", "2.5s", "5m", "1h", and sums such as "1m30s".

The grammar is the part of Go's that the API server's CEL `duration()` shares with us, so that a value which passed admission
parses here and the other way round.
"""

import re
from typing import Final

UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
DURATION_PATTERN: Final = r"^([0-9]{1,6}(\.[0-9]{1,3})?(ms|s|m|h))+$"
DURATION_MAX_LENGTH: Final = 20
"""With at most six digits a number, too short for a sum that overflows the server's 64-bit nanoseconds."""
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")


def parse_duration_s(text: str) -> float:
    """Seconds of a duration; ValueError names the text and what is expected."""
    if len(text) > DURATION_MAX_LENGTH or not re.fullmatch(DURATION_PATTERN, text):
        raise ValueError(f"{text!r} is not a duration: write a number with ms, s, m or h, such as 500ms or 1m30s")
    return sum(float(number) * UNIT_SECONDS[unit] for number, unit in _PART.findall(text))


def format_duration(duration_s: float) -> str:
    """The shortest of ms, s, m, h that shows a duration without loss of more than a millisecond."""
    milliseconds = round(duration_s * 1000)
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    if milliseconds > 1000:
        return f"{milliseconds / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{milliseconds}ms"
