"""The chart on clusters of its own: for given namespaces only, and uninstalled without a trace."""

import contextlib

import psutil
import pytest

from forebay_cli.system import RELEASE_NAMESPACE, NodeOptions, System, simulated_nodes
from forebay_localcluster.cluster import Cluster
from tests.e2e.conftest import model_service
from tests.support.eventually import always, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def programs_of(cluster: Cluster) -> set[str]:
    """Forebay's programs that run on a cluster, workers included; every process of a cluster is below its supervisor."""
    names = {f"forebay_{one}" for one in ("operator", "router", "autoscaler")} | {"forebay_simulator.engine"}
    found = set()
    for process in psutil.Process(cluster.supervisor_pid()).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found |= names & set(process.cmdline())
    return found


def test_a_namespaced_install_serves_its_namespace_only_and_uninstalls_cleanly():
    with Cluster.temporary("install", extras=simulated_nodes(NodeOptions(engine_startup_s=0.2))) as cluster:
        system = System(cluster)
        before = set(
            cluster.kubectl("get", "all,configmaps,secrets,serviceaccounts,leases", "-A", "-o", "name").split()
        )
        for namespace in ("team-a", "team-b"):
            cluster.kubectl("create", "namespace", namespace)
        system.install("watchNamespaces={team-a}")
        for namespace in ("team-a", "team-b"):
            system.apply_object(model_service("llama", f"llama-{namespace}"), namespace=namespace)
        system.wait_ready("llama", namespace="team-a")
        assert len(programs_of(cluster)) == 4, "all run, and are seen here"
        always(
            lambda: system.get("pods", namespace="team-b")["items"],
            lambda pods: pods == [],
            for_s=3,
            what="the other namespace is left alone",
        )
        for namespace in ("team-a", "team-b"):
            cluster.kubectl("delete", "msvc", "llama", "-n", namespace)
        eventually(
            lambda: system.get("pods", namespace="team-a")["items"], lambda p: p == [], within_s=60, what="workers gone"
        )
        system.uninstall()
        eventually(
            lambda: system.get("pods", namespace=RELEASE_NAMESPACE)["items"],
            lambda pods: pods == [],
            within_s=60,
            what="Forebay's own pods are gone",
        )
        left = set(cluster.kubectl("get", "all,configmaps,secrets,serviceaccounts,leases", "-A", "-o", "name").split())
        ours = {one for one in left - before if "forebay" in one}
        assert ours == set()
        roles = cluster.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name").split()
        assert [one for one in roles if "forebay" in one and "forebay-localcluster" not in one] == []
        crds = cluster.kubectl("get", "crds", "-o", "name").split()
        assert sorted(one for one in crds if "forebay.dev" in one) == [
            f"customresourcedefinition.apiextensions.k8s.io/{one}.forebay.dev"
            for one in ("acceleratorclasses", "modelservices", "workerpools")
        ]
        assert programs_of(cluster) == set()
