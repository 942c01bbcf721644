"""What can go wrong on a simulated node.

- NodeError
  - SettingsError: a flag or the image table can't be used
  - LauncherUnusableError: this machine refuses the namespaces that pods need
  - LauncherGoneError: the launcher ended, and every pod's process with it
  - PodConfigError: a container can't be configured (a missing key, an unsupported volume)
  - ImageUnknownError: no entry of the image table matches
  - ProgramError: the program could not be executed
  - DevicesExhaustedError, AddressesExhaustedError: the node has no more to give
  - ApiError: the API server answered with an error
    - ApiUnavailableError: or did not answer; trying again is right
    - ApiNotFoundError, ApiConflictError, ApiForbiddenError, ApiGoneError
"""

from dataclasses import dataclass


class NodeError(Exception):
    """Any expected failure of the simulated node."""


class SettingsError(NodeError):
    """A setting can't be used; the text names it and the fix."""


class LauncherUnusableError(NodeError):
    """This machine refuses the namespaces that pods need; the text says what to allow."""


class LauncherGoneError(NodeError):
    """The launcher ended, and every pod's process with it."""


class PodConfigError(NodeError):
    """A container or volume can't be set up as the pod asks for; may pass when the missing object appears."""


@dataclass
class ImageUnknownError(NodeError):
    """No entry of the image table matches."""

    image: str

    def __str__(self) -> str:
        return (
            f'image "{self.image}" matches no entry of the node\'s image table: add one to the file given by --config'
        )


class ProgramError(NodeError):
    """The container's program could not be executed."""


class DevicesExhaustedError(NodeError):
    """More GPUs are asked for than are free: the scheduler's and the node's books differ."""


class AddressesExhaustedError(NodeError):
    """Every loopback address of the range is taken."""


@dataclass
class ApiError(NodeError):
    """The API server refused a request."""

    status: int
    message: str

    def __str__(self) -> str:
        return f"{self.message} (HTTP {self.status})"


class ApiUnavailableError(ApiError):
    """No answer, or a server-side failure: trying again is right."""


class ApiNotFoundError(ApiError):
    """404."""


class ApiConflictError(ApiError):
    """409."""


class ApiForbiddenError(ApiError):
    """401 or 403. Right after a pod is bound the node authorizer may not know yet that its objects may be read."""


class ApiGoneError(ApiError):
    """410: the resource version is too old, list again."""
