"""A real control plane for tests that need the API server and nothing that runs pods.

etcd, API server, controller manager and scheduler; no Prometheus, no nodes. One for the whole session: a test makes its own
namespace, or cleans up after itself. It ends with the session, and with the test process however that ends.
"""

from collections.abc import Iterator

import pytest

from forebay_localcluster.cluster import Cluster
from forebay_localcluster.control_plane import Settings


@pytest.fixture(scope="session")
def kubernetes_cluster() -> Iterator[Cluster]:
    """A running control plane: `kubeconfig`, `server`, `kubectl(...)`, `helm(...)`, `issue(user, groups)`, `kill(program)`."""
    with Cluster.temporary("tests", settings=Settings(prometheus=False)) as cluster:
        yield cluster
