"""What can go wrong, as one tree.

- OperatorError: the root
  - ApiError: a call to the API server failed; names operation, kind, namespace and object
    - ApiUnavailableError: no answer, 5xx, 429 or 401; the same call may work later
    - ApiConflictError: somebody else changed or owns the object (409)
    - ApiTerminatingError: the namespace is being deleted, so nothing can be made in it (a kind of 403)
    - ApiForbiddenError: the service account may not do this (403)
    - ApiNotFoundError: the object, its namespace or its kind does not exist (404)
    - ApiInvalidError: the API server refused the content (400, 422 and the rest of 4xx)
  - SettingError: a setting that cannot be parsed; names it and what is expected
  - LeaseLostError: this process no longer leads and must stop acting at once

`cluster` translates the client library's exceptions into these once, `from e`; nothing above it sees the library's.
"""

from dataclasses import dataclass


class OperatorError(Exception):
    """Root of the operator's expected failures."""


@dataclass(frozen=True, slots=True)
class ApiCall:
    """Which call failed."""

    operation: str
    """Verb, such as get or apply."""
    kind: str
    namespace: str | None
    name: str | None

    def __str__(self) -> str:
        """Such as `apply Deployment team-a/llama-mixed`."""
        target = "/".join(part for part in (self.namespace, self.name) if part)
        return f"{self.operation} {self.kind} {target}".rstrip()


class ApiError(OperatorError):
    """A call to the API server failed."""

    def __init__(self, call: ApiCall, message: str, status: int | None = None) -> None:
        code = f" ({status})" if status is not None else ""
        super().__init__(f"cannot {call}{code}: {message}")
        self.call = call
        self.message = message
        self.status = status


class ApiUnavailableError(ApiError):
    """No answer, 5xx, 429, or 401 while a token is being replaced."""


class ApiConflictError(ApiError):
    """The object was changed or is owned by somebody else."""


class ApiForbiddenError(ApiError):
    """The service account lacks the right."""


class ApiTerminatingError(ApiError):
    """The namespace is being deleted."""


class ApiNotFoundError(ApiError):
    """The object, its namespace or its kind does not exist."""


class ApiInvalidError(ApiError):
    """The API server refused the content."""


class SettingError(OperatorError):
    """A setting that cannot be parsed."""

    def __init__(self, setting: str, value: str, expected: str) -> None:
        super().__init__(f"{setting}={value!r} is not valid: write {expected}")
        self.setting = setting
        self.value = value


class LeaseLostError(OperatorError):
    """This process no longer holds the lease."""
