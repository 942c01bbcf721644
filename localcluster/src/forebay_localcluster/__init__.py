"""The real Kubernetes programs as child processes on loopback.

Three parts, each usable alone: the programs (`pins`, `locate`, `golang`, `build`), the plan of a cluster (`control_plane`,
`certificates`, `ports`, `plan`), and the process that keeps one (`supervisor`, `children`, `control`, `launch`). `Cluster` joins
them. Nothing here knows Forebay: what it runs beside the control plane comes as `ExtraProgram`s from the caller.
"""

from forebay_localcluster.build import BuildProgress, ensure_programs
from forebay_localcluster.cluster import Cluster, ProgramStatus, list_clusters
from forebay_localcluster.control_plane import Settings
from forebay_localcluster.errors import (
    BuildError,
    ClusterNotRunningError,
    ClusterStartError,
    CommandError,
    ControlError,
    LocalClusterError,
    ProgramsMissingError,
)
from forebay_localcluster.locate import Located, locate_programs
from forebay_localcluster.pins import Program
from forebay_localcluster.plan import ExtraProgram, FileCheck, HttpCheck, LogCheck
from forebay_localcluster.progress import PlainProgress

__all__ = [
    "BuildError",
    "BuildProgress",
    "Cluster",
    "ClusterNotRunningError",
    "ClusterStartError",
    "CommandError",
    "ControlError",
    "ExtraProgram",
    "FileCheck",
    "HttpCheck",
    "LocalClusterError",
    "Located",
    "LogCheck",
    "PlainProgress",
    "Program",
    "ProgramStatus",
    "ProgramsMissingError",
    "Settings",
    "ensure_programs",
    "list_clusters",
    "locate_programs",
]
