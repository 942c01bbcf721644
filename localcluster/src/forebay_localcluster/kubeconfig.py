"""Kubeconfigs: how a user reaches the cluster, in one file that can be copied anywhere. Pure."""

import base64

import yaml

from forebay_localcluster.certificates import Credential


def render_kubeconfig(*, cluster: str, server: str, authority: bytes, user: str, credential: Credential) -> str:
    """Return a kubeconfig with the authority and the user's certificate inside."""
    context = f"forebay-{cluster}"
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": context,
            "clusters": [
                {"name": context, "cluster": {"server": server, "certificate-authority-data": _encoded(authority)}}
            ],
            "contexts": [{"name": context, "context": {"cluster": context, "user": user}}],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate-data": _encoded(credential.certificate),
                        "client-key-data": _encoded(credential.key),
                    },
                }
            ],
        },
        sort_keys=False,
    )


def _encoded(pem: bytes) -> str:
    return base64.b64encode(pem).decode()
