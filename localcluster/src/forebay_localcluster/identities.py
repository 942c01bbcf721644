"""Write the cluster's certificates, keys and kubeconfigs; the pure part is in `certificates` and `kubeconfig`.

Authorities and the token key are made once for a data folder, because tokens and kubeconfigs handed out must stay good
when the cluster is started again. Everything they sign is made anew at each start.
"""

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from forebay_localcluster.certificates import (
    Credential,
    Purpose,
    Request,
    build_authority,
    build_token_key,
    sign,
)
from forebay_localcluster.control_plane import API_HOSTS, PROMETHEUS_USER
from forebay_localcluster.kubeconfig import render_kubeconfig
from forebay_localcluster.layout import Layout

ADMIN = Request(user="forebay-admin", groups=("system:masters",), purpose=Purpose.CLIENT)
USERS = {
    "controller-manager": Request(user="system:kube-controller-manager", purpose=Purpose.CLIENT),
    "scheduler": Request(user="system:kube-scheduler", purpose=Purpose.CLIENT),
    "prometheus": Request(user=PROMETHEUS_USER, purpose=Purpose.CLIENT),
}


def write_identities(layout: Layout, *, cluster: str, server: str) -> None:
    """Write whatever the programs need to know themselves and one another by."""
    now = datetime.now(UTC)
    cluster_authority = _authority(layout, "authority", now)
    etcd_authority = _authority(layout, "etcd-authority", now)
    proxy_authority = _authority(layout, "proxy-authority", now)
    if not layout.pem("tokens").exists():
        private, public = build_token_key()
        write_private(layout.pem("tokens"), private)
        write_private(layout.pem("tokens-public"), public)
    etcd_server = Request(user="etcd", hosts=("127.0.0.1", "localhost"), purpose=Purpose.PEER)
    for name, authority, request in (
        ("server", cluster_authority, Request(user="kube-apiserver", hosts=API_HOSTS, purpose=Purpose.SERVER)),
        ("admin", cluster_authority, ADMIN),
        ("etcd-server", etcd_authority, etcd_server),
        ("etcd-client", etcd_authority, Request(user="kube-apiserver", purpose=Purpose.CLIENT)),
        ("proxy-client", proxy_authority, Request(user="front-proxy-client", purpose=Purpose.CLIENT)),
    ):
        _write_credential(layout, name, sign(authority, request, now=now))
    for name, request in {"admin": ADMIN, **USERS}.items():
        write_kubeconfig(layout, name, request, cluster=cluster, server=server)


def write_kubeconfig(layout: Layout, name: str, request: Request, *, cluster: str, server: str) -> Path:
    """Certify a user and write `kubeconfigs/<name>.yaml`; return its path."""
    authority = _read_credential(layout, "authority")
    text = render_kubeconfig(
        cluster=cluster,
        server=server,
        authority=authority.certificate,
        user=request.user,
        credential=sign(authority, request, now=datetime.now(UTC)),
    )
    path = layout.kubeconfigs / f"{name}.yaml"
    write_private(path, text.encode())
    return path


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner reads, whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    partial.replace(path)


def client_request(user: str, groups: Iterable[str]) -> Request:
    """Return what to certify for a user of these groups."""
    return Request(user=user, groups=tuple(groups), purpose=Purpose.CLIENT)


def _authority(layout: Layout, name: str, now: datetime) -> Credential:
    if not layout.pem(f"{name}-key").exists():
        _write_credential(layout, name, build_authority(f"forebay-{name}", now=now))
    return _read_credential(layout, name)


def _write_credential(layout: Layout, name: str, credential: Credential) -> None:
    write_private(layout.pem(name), credential.certificate)
    write_private(layout.pem(f"{name}-key"), credential.key)


def _read_credential(layout: Layout, name: str) -> Credential:
    return Credential(certificate=layout.pem(name).read_bytes(), key=layout.pem(f"{name}-key").read_bytes())
