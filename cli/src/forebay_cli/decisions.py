"""Fetches recorded decisions from the autoscaler's control port.

The port is given as a URL, or found: every autoscaler pod is asked through the API server's proxy, and at its own address where
the API server may not connect to it (it refuses loopback addresses, which a local cluster's pods have).
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
from kubernetes import aio as kubernetes

from forebay_api.names import APPLICATION, COMPONENT_LABEL, CONTROL_PORT, NAME_LABEL
from forebay_cli.errors import CliError

TIMEOUT_S = 5.0
AUTOSCALER = "autoscaler"
REFUSALS = frozenset({401, 403})
Decisions = list[dict[str, Any]]


def fetch(url: str | None, kubeconfig: Path | None, query: Mapping[str, str]) -> Decisions:
    """Records of decisions, newest first; of the leading replica where several answer. CliError when nobody does."""
    if url is not None:
        return asyncio.run(_from_url(url, query))
    return asyncio.run(_from_cluster(kubeconfig, query))


async def _from_url(url: str, query: Mapping[str, str]) -> Decisions:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as http:
        try:
            return await _get(http, url, query)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise CliError(f"no decisions from {url}: {type(error).__name__}: {error}") from error


async def _get(http: aiohttp.ClientSession, url: str, query: Mapping[str, str]) -> Decisions:
    async with http.get(f"{url.rstrip('/')}/decisions", params=query) as answer:
        answer.raise_for_status()
        found: Decisions = await answer.json()
        return found


async def _from_cluster(kubeconfig: Path | None, query: Mapping[str, str]) -> Decisions:
    configuration = kubernetes.client.Configuration()
    file = None if kubeconfig is None else str(kubeconfig)
    try:
        await kubernetes.config.load_kube_config(config_file=file, client_configuration=configuration)
        async with kubernetes.client.ApiClient(configuration) as api:
            return await _ask_pods(api, query)
    except kubernetes.config.ConfigException as error:
        raise CliError(f"no cluster to ask: {error}; give --autoscaler URL or --kubeconfig FILE") from error
    except kubernetes.client.ApiException as error:
        if error.status in REFUSALS:
            raise CliError(
                f"the API server refuses ({error.status}): listing pods in all namespaces, and `get` on `pods/proxy`, is needed; "
                "else forward the autoscaler's port and give --autoscaler URL"
            ) from error
        raise CliError(f"the API server answers {error.status} {error.reason}") from error
    except (aiohttp.ClientError, TimeoutError) as error:
        raise CliError(f"the API server does not answer: {type(error).__name__}: {error}") from error


async def _ask_pods(api: kubernetes.client.ApiClient, query: Mapping[str, str]) -> Decisions:
    listed = await kubernetes.client.CoreV1Api(api).list_pod_for_all_namespaces(
        label_selector=f"{NAME_LABEL}={APPLICATION},{COMPONENT_LABEL}={AUTOSCALER}", _request_timeout=TIMEOUT_S
    )
    if not listed.items:
        raise CliError("no autoscaler pod in this cluster; is the chart installed? Else give --autoscaler URL")
    answers = await asyncio.gather(*(_ask_pod(api, pod, query) for pod in listed.items))
    heard = [answer for answer in answers if answer is not None]
    if not heard:
        raise CliError(f"none of {len(listed.items)} autoscaler pods answers on port {CONTROL_PORT}; see their logs")
    return leading(heard)


def leading(answers: Sequence[Decisions]) -> Decisions:
    """The answer of the replica that acts; the first one with any record when none says that it does."""
    having = [answer for answer in answers if answer]
    return next((answer for answer in having if answer[0].get("leading")), having[0] if having else [])


async def _ask_pod(api: kubernetes.client.ApiClient, pod: Any, query: Mapping[str, str]) -> Decisions | None:
    place = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}:{CONTROL_PORT}/proxy/decisions"
    with suppress(kubernetes.client.ApiException, aiohttp.ClientError, TimeoutError, ValueError):
        request = await api.param_serialize(
            method="GET", resource_path=quote(place), query_params=list(query.items()), auth_settings=["BearerToken"]
        )
        response = await api.call_api(*request, _request_timeout=TIMEOUT_S)
        found: Decisions = json.loads(await response.read())
        if response.status == 200:
            return found
    with suppress(CliError):
        return await _from_url(f"http://{pod.status.pod_ip}:{CONTROL_PORT}", query)
    return None
