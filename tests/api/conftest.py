"""A real API server that serves the CRDs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import api_server

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def server(kubernetes_cluster: Any) -> Iterator[api_server.ApiServer]:
    """The API server with the CRDs as the chart has them."""
    with api_server.connect(kubectl=kubernetes_cluster.kubectl, kubeconfig=kubernetes_cluster.kubeconfig) as made:
        api_server.install_crds(made, ROOT / "charts/forebay/crds")
        yield made
