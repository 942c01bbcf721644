"""Kopf's access to the API server, taken from the same configuration as our own client's."""

from typing import Any

import kopf
from kubernetes.aio import client as kubernetes_client


def register_login(registry: kopf.OperatorRegistry, configuration: kubernetes_client.Configuration) -> None:
    """Let Kopf log in with this configuration; it asks again when the API server answers 401."""

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        header = await configuration.get_api_key_with_prefix("BearerToken")
        scheme, _separator, token = (header or "").partition(" ")
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            scheme=scheme or None,
            token=token or None,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
        )
