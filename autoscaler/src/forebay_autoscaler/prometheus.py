"""A client of Prometheus' instant queries.

Each answer carries the time at which Prometheus evaluated it, so that ages are differences of Prometheus' own clock and a
skewed clock here cannot make data look fresh. An empty answer is a success to Prometheus and an unknown to its reader: it
comes back as no samples, never as zeros. A string that is no number ("abc") becomes NaN and is refused further on.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx

from forebay_autoscaler.errors import PrometheusError


class Sample(NamedTuple):
    """One element of an instant vector; a tuple, since a cycle over a thousand pools makes a hundred thousand."""

    labels: Mapping[str, str]
    value: float
    evaluated_s: float
    """When Prometheus evaluated the query, its seconds since 1970."""


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
            body = response.json()
            if response.status_code != httpx.codes.OK or body["status"] != "success":
                raise PrometheusError(
                    self._url, f"status {response.status_code}: {body.get('error', 'no reason given')}"
                )
            return [_sample(one) for one in body["data"]["result"]]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            why = f"status {response.status_code}, and the answer is not Prometheus': {response.text[:200]!r}"
            raise PrometheusError(self._url, why) from error


def _sample(raw: Mapping[str, Any]) -> Sample:
    evaluated, value = raw["value"]
    return Sample(raw["metric"], _number(value), float(evaluated))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
