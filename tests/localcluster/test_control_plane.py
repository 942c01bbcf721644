"""The control plane as its users meet it: the real programs, one cluster for all tests of this file."""

import json

import pytest

from forebay_localcluster.cluster import Cluster
from forebay_localcluster.errors import CommandError

pytestmark = pytest.mark.cluster


def test_default_namespace_is_ready_for_pods(kubernetes_cluster: Cluster):
    assert "kube-root-ca.crt" in kubernetes_cluster.kubectl("get", "configmap", "-o", "name", "-n", "default")
