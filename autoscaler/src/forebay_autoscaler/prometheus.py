"""A client of Prometheus' instant queries.

Each answer carries the time at which Prometheus evaluated it, so that ages are differences of Prometheus' own clock and a
skewed clock here cannot make data look fresh. An empty answer is a success to Prometheus and an unknown to its reader: it
comes back as no samples, never as zeros. A string that is no number ("abc") becomes NaN and is refused further on.
"""

import math
from collections.abc import Mapping

import httpx
import msgspec

from forebay_autoscaler.errors import PrometheusError


class Sample(msgspec.Struct, frozen=True, gc=False, rename={"labels": "metric", "point": "value"}):
    """One element of an instant vector, as it is in an answer: a cycle over a thousand pools reads seventy thousand."""

    labels: Mapping[str, str]
    point: tuple[float, float | str]
    """When Prometheus evaluated the query, its seconds since 1970, and the value."""

    @property
    def value(self) -> float:
        """NaN when it is no number."""
        try:
            return float(self.point[1])
        except ValueError:
            return math.nan

    @property
    def evaluated_s(self) -> float:
        """When Prometheus evaluated the query, its seconds since 1970."""
        return self.point[0]


class _Vector(msgspec.Struct):
    result: list[Sample]


class _Success(msgspec.Struct, tag_field="status", tag="success"):
    data: _Vector


class _Refusal(msgspec.Struct, tag_field="status", tag="error"):
    error: str = "no reason given"


_answers = msgspec.json.Decoder(_Success | _Refusal)


class Prometheus:
    """Prometheus, Thanos, Mimir: anything with /api/v1/query. `http` brings time limits, TLS and credentials."""

    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self._url = url.rstrip("/")
        self._http = http

    @property
    def url(self) -> str:
        """Base URL, without a slash at its end."""
        return self._url

    async def query(self, expression: str) -> list[Sample]:
        """The instant vector of a PromQL expression, now; PrometheusError when there is no usable answer."""
        try:
            response = await self._http.post(f"{self._url}/api/v1/query", data={"query": expression})
        except (httpx.HTTPError, OSError) as error:  # OSError: a token file that cannot be read
            raise PrometheusError(self._url, f"{type(error).__name__}: {error}") from error
        try:
            answer = _answers.decode(response.content)
        except ValueError as error:  # what msgspec raises is one
            why = f"status {response.status_code}, and the answer is not Prometheus': {response.text[:200]!r}"
            raise PrometheusError(self._url, why) from error
        if isinstance(answer, _Refusal) or response.status_code != httpx.codes.OK:
            why = answer.error if isinstance(answer, _Refusal) else "no reason given"
            raise PrometheusError(self._url, f"status {response.status_code}: {why}")
        return answer.data.result


def sample_of(labels: Mapping[str, str], value: float, evaluated_s: float) -> Sample:
    """A sample that no answer brought."""
    return Sample(labels, (evaluated_s, value))
