"""Reads the config maps and secrets that pods draw on, and asks for their service-account tokens."""

import asyncio
import base64
import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

from forebay_simulator.node.api import Api
from forebay_simulator.node.environment import Data, Sources
from forebay_simulator.node.errors import ApiNotFoundError
from forebay_simulator.node.pods import Pod
from forebay_simulator.node.volume_files import TokenRequest

_ROTATE_AT_SHARE = 0.8
"""Of a token's life, after which it is replaced."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token and when to replace it, in seconds since the epoch."""

    text: str
    replace_at_s: float


async def read_sources(api: Api, namespace: str, *, config_maps: Iterable[str], secrets: Iterable[str]) -> Sources:
    """Read objects; one that does not exist is absent from the result. Raises ApiError for any other failure."""
    config_map_names, secret_names = sorted(config_maps), sorted(secrets)
    found = await asyncio.gather(
        *(_read(api, namespace, "configmaps", name) for name in config_map_names),
        *(_read(api, namespace, "secrets", name) for name in secret_names),
    )
    divide = len(config_map_names)
    return Sources(
        config_maps={
            name: data for name, data in zip(config_map_names, found[:divide], strict=True) if data is not None
        },
        secrets={name: data for name, data in zip(secret_names, found[divide:], strict=True) if data is not None},
    )


async def _read(api: Api, namespace: str, kind: str, name: str) -> Data | None:
    try:
        item = await api.get(f"/api/v1/namespaces/{namespace}/{kind}/{name}")
    except ApiNotFoundError:
        return None
    if kind == "secrets":
        return {key: base64.b64decode(value) for key, value in (item.get("data") or {}).items()}
    texts = {key: value.encode() for key, value in (item.get("data") or {}).items()}
    return texts | {key: base64.b64decode(value) for key, value in (item.get("binaryData") or {}).items()}


async def request_token(api: Api, pod: Pod, wanted: TokenRequest, *, now_s: float) -> Token:
    """Ask for a token bound to the pod. Raises ApiError."""
    account = pod.raw["spec"].get("serviceAccountName") or "default"
    spec = {
        "audiences": [wanted.audience] if wanted.audience else [],
        "expirationSeconds": wanted.lifetime_s,
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid},
    }
    answer = await api.create(
        f"/api/v1/namespaces/{pod.namespace}/serviceaccounts/{account}/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
    )
    expires_s = dt.datetime.fromisoformat(answer["status"]["expirationTimestamp"]).timestamp()
    return Token(answer["status"]["token"], now_s + (expires_s - now_s) * _ROTATE_AT_SHARE)
