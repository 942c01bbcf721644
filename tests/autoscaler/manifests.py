"""API objects as users and the operator write them."""

from typing import Any

MODEL = {"name": "llama-3.1-8b", "source": "hf://meta-llama/Llama-3.1-8B-Instruct"}
ENGINE = {"args": ["--max-num-seqs", "8"]}


def pool_spec(name: str = "mixed", **changes: Any) -> dict[str, Any]:
    """A pool of 1 to 6 workers."""
    return {"name": name, "accelerator": "h100-sxm", "replicas": {"min": 1, "max": 6}, **changes}


def model_service(name: str = "llama-8b", pools: list[dict[str, Any]] | None = None, **spec: Any) -> dict[str, Any]:
    """A ModelService, scaled down after 15 s."""
    return {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "ModelService",
        "metadata": {"name": name},
        "spec": {
            "model": MODEL,
            "engine": ENGINE,
            "objective": {"ttft": "2s", "tpot": "25ms", "target": "0.95"},
            "pools": pools or [pool_spec()],
            "autoscaling": {"mode": "Auto", "scaleDownStabilization": "15s"},
            **spec,
        },
    }


def worker_pool(service: str = "llama-8b", pool: dict[str, Any] | None = None, *, replicas: int = 1) -> dict[str, Any]:
    """The WorkerPool that the operator makes of a pool."""
    pool = pool or pool_spec()
    return {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "WorkerPool",
        "metadata": {"name": f"{service}-{pool['name']}"},
        "spec": {"replicas": replicas, "modelService": service, "model": MODEL, "engine": ENGINE, "pool": pool},
    }
