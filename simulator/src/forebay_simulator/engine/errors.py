"""Errors a client sees, in vLLM's two shapes, and errors that stop the engine.

- EngineError
  - StartupError       the engine cannot start: wrong flag, model that does not fit, port taken
  - ApiError           a response other than 200
    - bad_request      the engine checks a value: type "BadRequestError"
    - invalid_body     the body is not what it should be: type "Bad Request", with pydantic's wording
    - not_found, busy, internal
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
LOAD_FAILED = "Internal server error"
DRAINING = "cannot schedule new futures after shutdown"


class EngineError(Exception):
    """Root of the engine's expected failures."""


class StartupError(EngineError):
    """The engine refuses to start; the message is for the operator's eyes."""


class ApiError(EngineError):
    """A response with an error body."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """Return the JSON body."""
        return orjson.dumps(
            {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}
        )

    def event(self) -> bytes:
        """Return the same as an event of a stream, with the blanks that Python's json writes."""
        message = orjson.dumps(self.message).decode()
        return (
            f'data: {{"error": {{"message": {message}, "type": "{self.kind}", "param": null, "code": {self.status}}}}}\n\n'
        ).encode()


def bad_request(message: str, param: str | None = None, value: object = None) -> ApiError:
    """Return a 400 of the engine's own checks; `value` is repeated in the message when given."""
    if param is not None:
        shown = "" if value is None else f", value={value}"
        message = f"{message} (parameter={param}{shown})"
    return ApiError(400, message, "BadRequestError", param)


def invalid_body(problems: Sequence[dict[str, Any] | str], param: str | None) -> ApiError:
    """Return a 400 of body validation."""
    count = f"{len(problems)} validation error{'s' if len(problems) > 1 else ''}"
    lines = "".join(f"\n  {problem}" for problem in problems)
    return ApiError(400, f"{count}:{lines}", "Bad Request", param)


def not_found(message: str, param: str | None = None) -> ApiError:
    """Return a 404 for a model or adapter."""
    return ApiError(404, message, "NotFoundError", param)


def busy(message: str) -> ApiError:
    """Return a 503 of a queue limit."""
    return ApiError(503, message, "Service Unavailable")


def internal(message: str) -> ApiError:
    """Return a 500."""
    return ApiError(500, message, "InternalServerError")
