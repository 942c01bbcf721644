"""Where an engine finds weights, and the volumes for it.

- `hf://organisation/name`: the engine gets the model id and downloads into the cache directory.
- `pvc://claim/path`: the claim is mounted read-only; the engine gets the path below the mount.
- `oci://image`: the image is mounted as a volume (Kubernetes 1.33 or later); the engine gets the mount.
- `s3://...`, `gs://...`: passed on; the engine streams the weights.
- `/path`: in the engine's image; passed on.

Every worker has the cache directory: the shared claim of `model.cache`, else an empty directory that lives as long as the
pod.
"""

from dataclasses import dataclass
from typing import Any, Final

from forebay_api.engine import LoraAdapter, Model

CACHE_PATH: Final = "/var/cache/models"
SHARED_MEMORY_PATH: Final = "/dev/shm"  # noqa: S108 - where NCCL and the engine's processes expect it
CACHE_VOLUME: Final = "cache"
SHARED_MEMORY_VOLUME: Final = "shared-memory"


@dataclass(frozen=True, slots=True)
class Source:
    """Weights as the engine is told about them."""

    argument: str
    """What stands on the engine's command line."""
    volume: dict[str, Any] | None = None
    mount: dict[str, Any] | None = None


def locate(source: str, *, volume: str) -> Source:
    """The source of a model or an adapter; `volume` names the volume that it may need."""
    scheme, separator, rest = source.partition("://")
    mount_path = f"/models/{volume}"
    mount = {"name": volume, "mountPath": mount_path, "readOnly": True}
    if not separator:
        return Source(source)
    if scheme == "hf":
        return Source(rest)
    if scheme == "pvc":
        claim, _, path = rest.partition("/")
        claim_volume = {"name": volume, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        return Source(f"{mount_path}/{path}".rstrip("/"), claim_volume, mount)
    if scheme == "oci":
        image_volume = {"name": volume, "image": {"reference": rest, "pullPolicy": "IfNotPresent"}}
        return Source(mount_path, image_volume, mount)
    return Source(source)


def adapter_source(index: int, adapter: LoraAdapter) -> Source:
    """The source of one adapter."""
    return locate(adapter.source, volume=f"adapter-{index}")


def cache_path(model: Model) -> str:
    """Directory that the engine downloads into."""
    return model.cache.mount_path if model.cache else CACHE_PATH


def build_volumes(model: Model, sources: list[Source]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes of the pod and mounts of the engine's container."""
    claim = {"persistentVolumeClaim": {"claimName": model.cache.claim_name}} if model.cache else {"emptyDir": {}}
    volumes: list[dict[str, Any]] = [
        {"name": SHARED_MEMORY_VOLUME, "emptyDir": {"medium": "Memory"}},
        {"name": CACHE_VOLUME, **claim},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": SHARED_MEMORY_VOLUME, "mountPath": SHARED_MEMORY_PATH},
        {"name": CACHE_VOLUME, "mountPath": cache_path(model)},
    ]
    volumes += [source.volume for source in sources if source.volume]
    mounts += [source.mount for source in sources if source.mount]
    return volumes, mounts
