"""Expected failures.

- AutoscalerError
  - PrometheusError: a query got no usable answer
  - ClusterError: the API server refused or did not answer
    - ReplicasChangedError: the number of workers is not the one that the decision was made on
  - HistoryError: a history of decisions cannot be read
  - UnusableStateError: a saved state is of another version, or cannot be
"""


class AutoscalerError(Exception):
    """Base of what may go wrong outside this process."""


class PrometheusError(AutoscalerError):
    """A query that got no usable answer."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"Prometheus at {url}: {why}")
        self.url = url
        self.why = why


class ClusterError(AutoscalerError):
    """A call that the API server refused or did not answer. `status` is 0 when there was no answer."""

    def __init__(self, what: str, *, status: int, why: str, explained: bool = False) -> None:
        super().__init__(f"{what}: {why}")
        self.what = what
        self.status = status
        self.why = why
        self.explained = explained
        """Whether the API server named the fields at fault."""


class ReplicasChangedError(ClusterError):
    """Somebody else changed the number of workers between observation and write; the next decision sees it."""


class HistoryError(AutoscalerError):
    """A history of decisions that cannot be read; the text names file, record and field."""


class UnusableStateError(AutoscalerError):
    """A saved state that is not used. `cause` is one of savedstate.Unusable, `why` is for people."""

    def __init__(self, cause: str, why: str) -> None:
        super().__init__(why)
        self.cause = cause
        self.why = why
