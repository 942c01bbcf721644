"""Prometheus' configuration: it finds Forebay's pods through the API server and scrapes them. Pure.

A pod is scraped when it carries `app.kubernetes.io/name=forebay` and declares the port: workers serve their metrics beside
their API on the port `http`, every other component on its control port `metrics`. Pods are found by a pod watch, not by
Endpoints, because Endpoints refuse the loopback addresses that pods have here.

Each series gets the target's `namespace`, `pod`, `component`, `model_service`, `pool` and `role`. The router labels its
own series with the namespace of the *model service*; `honor_labels` keeps that one, where the router's pod would otherwise
take its place and push it aside to `exported_namespace`.
"""

from collections.abc import Mapping
from typing import Any

import yaml

APPLICATION = "app.kubernetes.io/name=forebay"
WORKER = "worker"
TARGET_LABELS: Mapping[str, str] = {
    "namespace": "__meta_kubernetes_namespace",
    "pod": "__meta_kubernetes_pod_name",
    "component": "__meta_kubernetes_pod_label_app_kubernetes_io_component",
    "model_service": "__meta_kubernetes_pod_label_forebay_dev_model_service",
    "pool": "__meta_kubernetes_pod_label_forebay_dev_pool",
    "role": "__meta_kubernetes_pod_label_forebay_dev_role",
}
"""A series' label by the discovery's name for it."""


def render_scraping(*, kubeconfig: str, scrape_interval_s: float) -> str:
    """Return a prometheus.yml that reaches the API server by the kubeconfig at that path."""
    interval = f"{round(scrape_interval_s * 1000)}ms"
    return yaml.safe_dump(
        {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
            "scrape_configs": [
                _job("forebay-workers", kubeconfig, port="http", workers=True),
                _job("forebay", kubeconfig, port="metrics", workers=False),
            ],
        },
        sort_keys=False,
    )


def _job(name: str, kubeconfig: str, *, port: str, workers: bool) -> dict[str, Any]:
    return {
        "job_name": name,
        "honor_labels": not workers,
        "kubernetes_sd_configs": [
            {"role": "pod", "kubeconfig_file": kubeconfig, "selectors": [{"role": "pod", "label": APPLICATION}]}
        ],
        "relabel_configs": [
            _rule(TARGET_LABELS["component"], regex=WORKER, action="keep" if workers else "drop"),
            _rule("__meta_kubernetes_pod_container_port_name", regex=port, action="keep"),
            _rule("__meta_kubernetes_pod_phase", regex="Succeeded|Failed", action="drop"),
            *({"source_labels": [source], "target_label": label} for label, source in TARGET_LABELS.items()),
        ],
    }


def _rule(source: str, *, regex: str, action: str) -> dict[str, Any]:
    return {"source_labels": [source], "regex": regex, "action": action}
