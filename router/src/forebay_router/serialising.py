"""JSON written anew. orjson reads `1024` levels of nesting and writes `254`, so what was read may be too deep to be written."""

from typing import Any

import orjson


class TooDeepError(ValueError):
    """A value that is nested too deeply to be written."""


def serialise(value: Any, *, option: int = 0) -> bytes:
    """A value that came as JSON, as JSON; raises TooDeepError."""
    try:
        return orjson.dumps(value, option=option)
    except orjson.JSONEncodeError as error:
        raise TooDeepError("nested too deeply") from error
