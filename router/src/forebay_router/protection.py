"""What stands between clients, router and workers: keys, limits, certificates, bounds. All of it as the settings ask.

The parts are pure or small (`tenancy`, `certificates`, `bodies`, `keep_alive`); here they are joined to the files they come from.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from forebay_router.accounting import Record
from forebay_router.bodies import BodyMemory
from forebay_router.certificates import HANDSHAKE_S, ServerCertificate, WorkerAuthority
from forebay_router.discovery.static import Layout
from forebay_router.discovery.worker_file import WorkerFile
from forebay_router.endpoints import Dialect
from forebay_router.followed import BadFileError, Followed, Kind, read_secret
from forebay_router.keep_alive import Heard, KeepAlive, Watch
from forebay_router.parsing import ParsedRequest
from forebay_router.reading import Received
from forebay_router.reply import Reply
from forebay_router.table import Service
from forebay_router.tenancy.gate import Gate, model_refused
from forebay_router.tenancy.keys import KeyRing, key_files, read_keys
from forebay_router.tenancy.quotas import Limit, Quotas, Ticket, tokens_to_reserve
from forebay_router.worker_access import WorkerAccess


@dataclass(frozen=True, slots=True)
class ProtectionSettings:
    """What the settings ask for."""

    api_keys: Path | None
    """File or directory of API keys; None asks clients for none."""
    worker_key: Path | None
    """File with the key that workers ask for."""
    certificate: Path | None
    """TLS on the data port."""
    key: Path | None
    tls_control: bool
    """TLS on the control port too."""
    worker_authority: Path | None
    """TLS to workers, vouched for by these certificates."""
    worker_name: str | None
    """Name in workers' certificates, instead of each one's address."""
    body_memory_bytes: int
    keep_alive_s: float | None


def protection_settings(values: Mapping[str, Any]) -> ProtectionSettings:
    """From parsed flags; ValueError names a flag and the fix."""
    if (values["tls_certificate"] is None) != (values["tls_key"] is None):
        raise ValueError("--tls-certificate and --tls-key belong together: give both, or neither")
    if values["tls_control"] == "on" and values["tls_certificate"] is None:
        raise ValueError("--tls-control needs --tls-certificate and --tls-key")
    if values["worker_tls_name"] is not None and values["worker_ca_file"] is None:
        raise ValueError("--worker-tls-name needs --worker-ca-file")
    if values["worker_ca_file"] is not None and values["kubernetes"]:
        raise ValueError(
            "--worker-ca-file does not work with --kubernetes, whose workers are probed without TLS: remove it"
        )
    if values["bodies_limit"] < values["body_limit"]:
        raise ValueError("--bodies-limit must not be below --body-limit: one body of full size has to fit")
    return ProtectionSettings(
        api_keys=values["api_keys"],
        worker_key=values["worker_key_file"],
        certificate=values["tls_certificate"],
        key=values["tls_key"],
        tls_control=values["tls_control"] == "on",
        worker_authority=values["worker_ca_file"],
        worker_name=values["worker_tls_name"],
        body_memory_bytes=values["bodies_limit"],
        keep_alive_s=values["keep_alive"],
    )


@dataclass(frozen=True, slots=True)
class Admission:
    """What a request has taken, to be given back when it is over."""

    ticket: Ticket | None
    watch: Watch | None


@dataclass(slots=True)
class Protection:
    """What protects one router process."""

    bodies: BodyMemory
    quotas: Quotas = field(default_factory=Quotas)
    gate: Gate | None = None
    """None lets everybody in."""
    certificate: ServerCertificate | None = None
    keep_alive: KeepAlive | None = None
    files: list[Followed[Any]] = field(default_factory=list)
    tls_control: bool = False

    @property
    def data_tls(self) -> dict[str, Any]:
        """What the data port's server is started with."""
        if self.certificate is None:
            return {}
        return {"ssl": self.certificate.context, "ssl_handshake_timeout": HANDSHAKE_S}

    @property
    def control_tls(self) -> ssl.SSLContext | None:
        """The control port's."""
        return self.certificate.context if self.certificate is not None and self.tls_control else None

    def follow_workers(self, file: WorkerFile, take: Callable[[Layout], None]) -> None:
        """Follow the list of workers; a first version that cannot be used ends the start with a sentence."""
        followed = Followed(Kind.WORKERS, lambda: (file.path,), file.read, take)
        _start(followed)
        self.files.append(followed)

    async def follow(self) -> None:
        """Take over changes of files, for ever."""
        async with asyncio.TaskGroup() as tasks:
            for file in self.files:
                tasks.create_task(file.run(), name=f"follow {file.kind.value}")

    def admit(
        self, reply: Reply, parsed: ParsedRequest, service: Service, heard: Callable[[], Heard | None]
    ) -> Admission | None:
        """Let a request in, or raise RequestRefused (403, 429); None where there is nothing to give back.

        Its answer will tell what is left of its key's limits, and is kept alive from now on if it is a stream.
        """
        grant, ticket, watch = reply.received.grant, None, None
        if grant is not None:
            if parsed.model is None:
                self.check_model(reply.received, service.spec.models[0])
            ticket = self.quotas.admit(grant, tokens_to_reserve(parsed), time.monotonic())
            reply.own_lines += ticket.lines
        if self.keep_alive is not None and parsed.stream and parsed.endpoint.dialect is not Dialect.OPAQUE:
            watch = self.keep_alive.watch(reply.comment, heard)
        return None if ticket is None and watch is None else Admission(ticket, watch)

    def check_model(self, received: Received, model: str | None) -> None:
        """Refuse a model that the key does not allow, known or not; None is told when its service is found."""
        grant = received.grant
        if grant is not None and model is not None and not grant.allows(model):
            self.quotas.stats_of(grant.tenant).refused[Limit.MODEL] += 1
            raise model_refused(model)

    def sweep(self, now_s: float, *, replicas: int) -> None:
        """Keep silent streams alive; give out this router's part of the limits."""
        self.quotas.share(replicas, now_s)
        if self.keep_alive is not None:
            self.keep_alive.sweep(now_s)

    def settle(self, admission: Admission | None, reply: Reply, record: Record) -> None:
        """The request is over: what it used is known, or nothing was made for it, or its reservation stands."""
        self.bodies.give_back(reply.received)
        if admission is None:
            return
        if admission.watch is not None and self.keep_alive is not None:
            self.keep_alive.forget(admission.watch)
        ticket, usage = admission.ticket, record.usage
        if ticket is None:
            return
        if usage is not None:
            ticket.stats.prompt_tokens += usage.prompt_tokens
            ticket.stats.output_tokens += usage.output_tokens
            self.quotas.settle(ticket, usage.prompt_tokens + usage.output_tokens)
        else:
            self.quotas.settle(ticket, None if reply.content_begun and record.status < 400 else 0)


def build_protection(settings: ProtectionSettings, access: WorkerAccess) -> Protection:
    """Everything read once; a file that cannot be used ends the start with a sentence."""
    made = Protection(BodyMemory(settings.body_memory_bytes))
    if settings.keep_alive_s is not None:
        made.keep_alive = KeepAlive(settings.keep_alive_s)
    _add_keys(made, settings, access)
    _add_certificates(made, settings, access)
    for file in made.files:
        _start(file)
    return made


def _start(file: Followed[Any]) -> None:
    try:
        file.start()
    except BadFileError as error:
        raise SystemExit(f"forebay-router: {error}") from None


def _add_keys(made: Protection, settings: ProtectionSettings, access: WorkerAccess) -> None:
    if settings.api_keys is not None:
        path = settings.api_keys
        gate = made.gate = Gate(KeyRing())

        def take_ring(ring: KeyRing) -> None:
            made.quotas.know(ring, time.monotonic())
            gate.ring = ring

        made.files.append(Followed(Kind.API_KEYS, partial(key_files, path), partial(read_keys, path), take_ring))
    if settings.worker_key is not None:
        path = settings.worker_key

        def take_key(key: str) -> None:
            access.authorization = b"authorization: Bearer %b\r\n" % key.encode()

        made.files.append(Followed(Kind.WORKER_KEY, lambda: (path,), partial(read_secret, path), take_key))
    if settings.api_keys is not None or settings.worker_key is not None:
        access.withhold_credentials()


def _add_certificates(made: Protection, settings: ProtectionSettings, access: WorkerAccess) -> None:
    if settings.certificate is not None and settings.key is not None:
        made.tls_control = settings.tls_control
        shown = made.certificate = ServerCertificate(settings.certificate, settings.key)
        made.files.append(Followed(Kind.CERTIFICATE, shown.paths, shown.read, shown.take))
    if settings.worker_authority is not None:
        authority = WorkerAuthority(settings.worker_authority)
        access.tls_name = settings.worker_name

        def take_context(context: ssl.SSLContext) -> None:
            access.tls = context

        made.files.append(Followed(Kind.WORKER_AUTHORITY, authority.paths, authority.read, take_context))
