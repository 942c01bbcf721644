"""Settings: one table, read once from the environment and the command line into a frozen object.

Every setting is a field with its variable, its help and its default; `forebay-operator --help` and the documentation are made
from the fields. A flag on the command line wins over the environment, the environment over the default. The flag of
`FOREBAY_LEASE_NAME` is `--lease-name`.
"""

import argparse
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from forebay_api.durations import format_duration, parse_duration_s
from forebay_api.election import Terms
from forebay_api.names import CONTROL_PORT
from forebay_operator.errors import SettingError
from forebay_operator.queue import Pace

NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class _Kind:
    """How the text of a setting becomes its value."""

    expected: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str] = str


def _parse_bool(text: str) -> bool:
    return {"true": True, "false": False}[text.strip().lower()]


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host:
        raise ValueError(text)
    return host.strip("[]"), int(port)


def _parse_choice(*choices: str) -> Callable[[str], str]:
    """Any case is taken; the choice as it is listed is returned."""
    known = {choice.lower(): choice for choice in choices}
    return lambda text: known[text.strip().lower()]


_TEXT = _Kind("a text", str)
_BOOL = _Kind("true or false", _parse_bool, lambda value: str(value).lower())
_DURATION = _Kind("a duration such as 500ms, 10s or 5m", parse_duration_s, format_duration)
_NAMES = _Kind("names separated by commas", _parse_names, ",".join)
_NUMBER = _Kind("a whole number", int)
_ADDRESS = _Kind("HOST:PORT", _parse_address, lambda value: f"{value[0]}:{value[1]}")
_LEVEL = _Kind("DEBUG, INFO, WARNING or ERROR", _parse_choice("DEBUG", "INFO", "WARNING", "ERROR"))
_FORMAT = _Kind("json or text", _parse_choice("json", "text"))


def _setting(default: Any, kind: _Kind, text: str) -> Any:
    return field(default=default, metadata={"kind": kind, "help": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set, in base units."""

    namespaces: tuple[str, ...] = _setting((), _NAMES, "Namespaces to serve; every namespace when empty.")
    lease_namespace: str = _setting(
        "", _TEXT, "Namespace of the Lease; the pod's own when empty, `default` outside a cluster."
    )
    lease_name: str = _setting("forebay-operator", _TEXT, "Name of the Lease that the leader holds.")
    identity: str = _setting(
        "", _TEXT, "This process in the Lease; the host name (in a pod: the pod's name) when empty."
    )
    autoscaler_lease: str = _setting(
        "",
        _TEXT,
        "Name of the Lease of the autoscaler, in the same namespace; its part of the status is left alone when empty.",
    )
    autoscaler_gone_after_s: float = _setting(
        60.0,
        _DURATION,
        "The autoscaler is gone when its Lease was not renewed for so long; above its Lease's duration.",
    )
    leader_election: bool = _setting(True, _BOOL, "Wait for the Lease before acting; false only for a single process.")
    lease_duration_s: float = _setting(
        10.0, _DURATION, "A standby takes the Lease when it was not renewed for so long."
    )
    lease_renew_deadline_s: float = _setting(
        7.0, _DURATION, "The leader stops writing when it could not renew for so long; below the lease duration."
    )
    lease_retry_period_s: float = _setting(1.5, _DURATION, "Pause between two attempts to take or renew the Lease.")
    control: tuple[str, int] = _setting(
        ("0.0.0.0", CONTROL_PORT),  # noqa: S104 - a pod's probes and Prometheus come from other hosts
        _ADDRESS,
        "Where /metrics, /healthz and /readyz are served.",
    )
    worker_host: str = _setting(
        "0.0.0.0",  # noqa: S104 - workers are reached by their pod IP
        _TEXT,
        "Host that engines bind to; `$(POD_IP)` where pods share one network.",
    )
    probe_period_s: float = _setting(
        5.0, _DURATION, "Period of the engines' startup and readiness probes; whole seconds."
    )
    prestop_delay_s: float = _setting(
        5.0,
        _DURATION,
        "Pause between a worker's deletion and its SIGTERM, in which routers stop sending; whole seconds.",
    )
    drain_grace_s: float = _setting(
        2.0, _DURATION, "A draining worker counts as idle only after this time, since routers may not know yet."
    )
    worker_timeout_s: float = _setting(
        2.0, _DURATION, "Longest wait for a worker's /metrics; no answer counts as busy."
    )
    api_timeout_s: float = _setting(15.0, _DURATION, "Longest wait for one call to the API server.")
    resync_s: float = _setting(300.0, _DURATION, "Every object is reconciled at least this often.")
    reconcilers: int = _setting(4, _NUMBER, "Objects that are reconciled at the same time.")
    log_level: str = _setting("INFO", _LEVEL, "Least severe log lines that are written.")
    log_format: str = _setting("json", _FORMAT, "json for one object a line, text for people.")

    def __post_init__(self) -> None:
        """Refuse what cannot work together."""
        try:
            _ = self.terms
        except ValueError as e:
            shown = format_duration(self.lease_renew_deadline_s)
            expected = "a duration below the lease duration and above 1.2 times the lease retry period"
            raise SettingError(variable("lease_renew_deadline_s"), shown, expected) from e
        if self.reconcilers < 1:
            raise SettingError(variable("reconcilers"), str(self.reconcilers), "1 or more")
        if self.resync_s < 1:
            raise SettingError(variable("resync_s"), format_duration(self.resync_s), "1s or more")
        for name, least_s in (("probe_period_s", 1), ("prestop_delay_s", 0)):
            value_s: float = getattr(self, name)
            if value_s < least_s or value_s != round(value_s):
                raise SettingError(variable(name), format_duration(value_s), f"whole seconds, {least_s} or more")

    @property
    def terms(self) -> Terms:
        """The election's times."""
        return Terms(self.lease_duration_s, self.lease_renew_deadline_s, self.lease_retry_period_s)

    @property
    def pace(self) -> Pace:
        """The queue's times."""
        return Pace(resync_s=self.resync_s)


def variable(name: str) -> str:
    """Environment variable of a field: `lease_duration_s` is FOREBAY_LEASE_DURATION."""
    return f"FOREBAY_{name.removesuffix('_s').upper()}"


def flag(name: str) -> str:
    """Command line flag of a field: `lease_duration_s` is --lease-duration."""
    return f"--{name.removesuffix('_s').replace('_', '-')}"


def load_settings(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from the command line and the environment; `SettingError` names the one that cannot be parsed."""
    environment = os.environ if environment is None else environment
    given = vars(_parser().parse_args(arguments))
    values: dict[str, Any] = {}
    for one in fields(Settings):
        text = given[one.name] if given[one.name] is not None else environment.get(variable(one.name))
        if text is None:
            continue
        kind: _Kind = one.metadata["kind"]
        try:
            values[one.name] = kind.parse(text)
        except (ValueError, KeyError) as e:
            raise SettingError(variable(one.name), text, kind.expected) from e
    settings = Settings(**values)
    return _with_place(settings)


def _with_place(settings: Settings) -> Settings:
    """The settings with the namespace and the identity of this process filled in."""
    values = {one.name: getattr(settings, one.name) for one in fields(Settings)}
    if not settings.lease_namespace:
        in_pod = NAMESPACE_FILE.is_file()
        values["lease_namespace"] = NAMESPACE_FILE.read_text().strip() if in_pod else "default"
    if not settings.identity:
        values["identity"] = socket.gethostname()
    return Settings(**values)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="forebay-operator",
        description="Turns ModelService and WorkerPool resources into running workers.",
        epilog="Access to the API server comes from the pod's service account, else from KUBECONFIG.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for one in fields(Settings):
        kind: _Kind = one.metadata["kind"]
        shown = kind.show(one.default)
        default = f" Default: {shown}." if shown else ""
        expected = "" if kind is _TEXT else f" Write {kind.expected}."
        text = f"{one.metadata['help']}{expected} [{variable(one.name)}]{default}"
        parser.add_argument(
            flag(one.name),
            dest=one.name,
            metavar=variable(one.name).removeprefix("FOREBAY_"),
            help=text.replace("%", "%%"),
        )
    return parser
