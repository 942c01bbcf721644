"""A real API server that serves the CRDs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay_localcluster.cluster import Cluster
from tests.support import api_server

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def server(kubernetes_cluster: Cluster) -> Iterator[api_server.ApiServer]:
    """The API server with the CRDs as the chart has them."""
    with api_server.connect(kubernetes_cluster) as made:
        api_server.install_crds(made, ROOT / "charts/forebay/crds")
        yield made
