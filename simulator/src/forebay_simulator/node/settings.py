"""The node agent's command line, parsed once into frozen settings."""

import argparse
import hashlib
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forebay_simulator.node.errors import SettingsError
from forebay_simulator.node.registration import ACCELERATORS
from forebay_simulator.node.turn import Backoff

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)?")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}
_SERVICE_OCTET = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be chosen about a node."""

    name: str
    kubeconfig: Path
    data: Path
    images: Path | None
    address_range: ipaddress.IPv4Network
    service_range: ipaddress.IPv4Network
    service_proxy: bool
    proxy_kubeconfig: Path
    gpus: int
    accelerator: str
    cpu: str
    memory: str
    pods: int
    zone: str
    labels: dict[str, str]
    engine_speed: float
    engine_startup_s: float
    backoff: Backoff
    refresh_s: float
    shutdown_grace_s: float
    verbose: bool


def parse_duration_s(text: str) -> float:
    """Seconds in `300ms`, `2s`, `1m` or a plain number."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration such as 300ms, 2s or 1m")
    return float(match[1]) * _UNITS_S[match[2]]


def default_address_range(name: str) -> ipaddress.IPv4Network:
    """A range that nodes of other names hardly share; a cluster gives each of its nodes one instead."""
    digest = hashlib.sha256(name.encode()).digest()
    return ipaddress.IPv4Network(f"127.{200 + digest[0] % 50}.{digest[1] % _SERVICE_OCTET}.0/24")


def default_service_range(addresses: ipaddress.IPv4Network) -> ipaddress.IPv4Network:
    """The last /24 of the node range's /16, which the nodes of a cluster leave free."""
    first, second, _, _ = str(addresses.network_address).split(".")
    return ipaddress.IPv4Network(f"{first}.{second}.{_SERVICE_OCTET}.0/24")


def _loopback_range(text: str) -> ipaddress.IPv4Network:
    try:
        network = ipaddress.IPv4Network(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
    if not network.is_loopback or network.num_addresses < 8:
        raise argparse.ArgumentTypeError(f"{text!r} must be a part of 127.0.0.0/8 with at least 8 addresses")
    return network


def _label(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} must be KEY=VALUE")
    return key, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="forebay-node",
        description="A simulated GPU node: registers with an API server and runs the pods bound to it as local processes.",
    )
    parser.add_argument("--name", required=True, help="the Node's name; the identity must be system:node:NAME")
    parser.add_argument("--kubeconfig", required=True, type=Path, help="the node's own credentials")
    parser.add_argument("--data", required=True, type=Path, help="folder for logs and volumes, of this node only")
    parser.add_argument("--config", type=Path, help="table of images (YAML); the packaged one by default")
    parser.add_argument(
        "--address-range", type=_loopback_range, help="loopback range for node and pods; by default from the name"
    )
    parser.add_argument(
        "--service-proxy", action="store_true", help="serve the cluster's Services too; one node of a cluster does"
    )
    parser.add_argument("--proxy-kubeconfig", type=Path, help="credentials that may annotate Services")
    parser.add_argument(
        "--service-range", type=_loopback_range, help="loopback range for Services; by default 127.A.255.0/24"
    )
    _add_machine(parser)
    _add_behaviour(parser)
    return parser


def _add_machine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what the node looks like")
    group.add_argument("--gpus", type=int, default=8, help="GPUs (8)")
    group.add_argument(
        "--accelerator", default="h100-sxm", help=f"{', '.join(ACCELERATORS)} or a name of your own (h100-sxm)"
    )
    group.add_argument("--cpu", default="192", help="CPUs (192)")
    group.add_argument("--memory", default="2Ti", help="memory (2Ti)")
    group.add_argument("--pods", type=int, default=110, help="pods at most (110)")
    group.add_argument("--zone", default="local-a", help="topology zone (local-a)")
    group.add_argument("--label", type=_label, action="append", default=[], metavar="KEY=VALUE", help="a further label")


def _add_behaviour(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it behaves")
    group.add_argument("--engine-speed", type=float, default=1.0, help="speed factor handed to simulated engines (1)")
    group.add_argument(
        "--engine-startup", type=parse_duration_s, default=2.0, help="start-up time handed to simulated engines (2s)"
    )
    group.add_argument(
        "--backoff-base", type=parse_duration_s, default=10.0, help="wait before the second restart (10s)"
    )
    group.add_argument(
        "--backoff-cap", type=parse_duration_s, default=300.0, help="longest wait before a restart (300s)"
    )
    group.add_argument(
        "--backoff-reset", type=parse_duration_s, default=600.0, help="a run this long forgives the ones before (600s)"
    )
    group.add_argument(
        "--refresh", type=parse_duration_s, default=60.0, help="how often volumes are brought up to date (60s)"
    )
    group.add_argument(
        "--shutdown-grace",
        type=parse_duration_s,
        default=5.0,
        help="longest wait for pods when the node is told to end (5s)",
    )
    group.add_argument("--verbose", action="store_true", help="log details")


def parse_arguments(arguments: Sequence[str]) -> Settings:
    """Read the command line; exits with a message like any command. Raises SettingsError for what does not fit together."""
    given = _parser().parse_args(arguments)
    addresses = given.address_range or default_address_range(given.name)
    services = given.service_range or default_service_range(addresses)
    if given.service_proxy and services.overlaps(addresses):
        raise SettingsError(f"--service-range {services} overlaps --address-range {addresses}: choose another")
    return Settings(
        name=given.name,
        kubeconfig=given.kubeconfig,
        data=given.data.absolute(),
        images=given.config,
        address_range=addresses,
        service_range=services,
        service_proxy=given.service_proxy,
        proxy_kubeconfig=given.proxy_kubeconfig or given.kubeconfig,
        gpus=given.gpus,
        accelerator=given.accelerator,
        cpu=given.cpu,
        memory=given.memory,
        pods=given.pods,
        zone=given.zone,
        labels=dict(given.label),
        engine_speed=given.engine_speed,
        engine_startup_s=given.engine_startup,
        backoff=Backoff(base_s=given.backoff_base, cap_s=given.backoff_cap, reset_s=given.backoff_reset),
        refresh_s=given.refresh,
        shutdown_grace_s=given.shutdown_grace,
        verbose=given.verbose,
    )
