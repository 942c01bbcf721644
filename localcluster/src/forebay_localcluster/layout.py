"""Where a cluster keeps its files. One folder, readable by its owner only, holds everything."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forebay_localcluster.errors import LocalClusterError

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")


def clusters_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of all named clusters: `${XDG_STATE_HOME:-~/.local/state}/forebay/clusters`."""
    state = environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "forebay" / "clusters"


def checked_name(name: str) -> str:
    """Return the name of a cluster if it can be one, else raise."""
    if not _NAME.fullmatch(name):
        raise LocalClusterError(f"cluster name {name!r}: use at most 40 lower-case letters, digits and dashes")
    return name


@dataclass(frozen=True, slots=True)
class Layout:
    """The files of one cluster."""

    data: Path

    @property
    def plan(self) -> Path:
        """What the supervisor runs."""
        return self.data / "plan.json"

    @property
    def lock(self) -> Path:
        """Locked while the cluster is up, by its supervisor."""
        return self.data / "lock"

    @property
    def socket(self) -> Path:
        """Where the supervisor takes requests."""
        return self.data / "control.sock"

    @property
    def logs(self) -> Path:
        """A file for each program."""
        return self.data / "logs"

    @property
    def etcd(self) -> Path:
        """The API server's storage."""
        return self.data / "etcd"

    @property
    def prometheus(self) -> Path:
        """The measurements."""
        return self.data / "prometheus"

    @property
    def pki(self) -> Path:
        """Authorities, certificates and keys."""
        return self.data / "pki"

    @property
    def kubeconfigs(self) -> Path:
        """One for each user."""
        return self.data / "kubeconfigs"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.kubeconfigs / "admin.yaml"

    @property
    def bin(self) -> Path:
        """Links to the programs, fit for PATH."""
        return self.data / "bin"

    @property
    def nodes(self) -> Path:
        """A folder for each simulated node; its pods log to `<node>/pods/<namespace>_<pod>/<container>.log`."""
        return self.data / "nodes"

    @property
    def bootstrap(self) -> Path:
        """The objects the cluster itself needs."""
        return self.data / "bootstrap.yaml"

    @property
    def scraping(self) -> Path:
        """Prometheus' configuration."""
        return self.data / "prometheus.yml"

    def log(self, program: str) -> Path:
        """Where a program's output goes."""
        return self.logs / f"{program}.log"

    def pem(self, name: str) -> Path:
        """A certificate or key."""
        return self.pki / f"{name}.pem"

    def make_folders(self) -> None:
        """Make every folder."""
        self.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.logs, self.etcd, self.prometheus, self.pki, self.kubeconfigs, self.bin, self.nodes):
            folder.mkdir(exist_ok=True, mode=0o700)
