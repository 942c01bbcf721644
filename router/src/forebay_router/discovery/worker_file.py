"""A file that lists services, pools and workers, for use without Kubernetes.

YAML or JSON, followed as it changes:

    services:
    - name: llama-3.1-8b                    # its name in metrics and /state
      models: [llama-3.1-8b]                # optional: names known before a worker has told them, so requests wait for it
      objective: {ttft: 500ms, tpot: 25ms, target: "0.99"}
      routing: {queueTimeout: 30s}          # as in a ModelService
      pools:
      - name: prefill
        role: Prefill                       # Prefill, Decode, or Mixed, which is the default
        kvEventsPort: 5557                  # optional; replays come from the next port
        workers: [http://10.0.0.1:8000]
      - name: decode
        role: Decode
        workers: [http://10.0.0.2:8000, http://10.0.0.3:8000]

A worker that is taken out gets no further request; those that it has come to their end. What is not said of a service comes from
the flags. Which models a worker serves it tells itself, in its /v1/models.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from forebay_api.durations import parse_duration_s
from forebay_api.modelservice import ObjectiveSpec, Role, Routing
from forebay_router.discovery.static import Address, Layout, ServiceDefaults, StaticService
from forebay_router.documents import Entry, read_document
from forebay_router.followed import BadFileError
from forebay_router.options import check_scheme, worker_url
from forebay_router.table import Timeouts
from forebay_router.tenancy.keys import Name

Url = Annotated[str, AfterValidator(worker_url)]


class _Objective(ObjectiveSpec):
    model_config = ConfigDict(extra="forbid")


class _Routing(Routing):
    model_config = ConfigDict(extra="forbid")


class _Pool(Entry):
    name: Name
    role: Role = Role.MIXED
    kv_events_port: int | None = Field(default=None, ge=1, le=65534)
    workers: list[Url] = Field(default=[])


class _Service(Entry):
    name: Name
    models: list[str] = Field(default=[])
    objective: _Objective | None = None
    routing: _Routing | None = None
    pools: list[_Pool] = Field(min_length=1)


class _WorkerFile(Entry):
    services: list[_Service]


def _timeouts(routing: Routing) -> Timeouts:
    return Timeouts(
        hold_s=parse_duration_s(routing.queue_timeout),
        first_byte_s=parse_duration_s(routing.first_token_timeout),
        idle_s=parse_duration_s(routing.idle_timeout),
        total_s=parse_duration_s(routing.request_timeout),
    )


@dataclass(frozen=True, slots=True)
class WorkerFile:
    """Such a file, with what stands in for what it does not say."""

    path: Path
    defaults: ServiceDefaults
    tls: bool
    """Workers are spoken to over TLS."""

    def read(self) -> Layout:
        """What it says now; raises BadFileError."""
        file = read_document(self.path, _WorkerFile)
        try:
            return self._layout(file)
        except ValueError as error:
            raise BadFileError(f"{self.path}: {error}") from error

    def _layout(self, file: _WorkerFile) -> Layout:
        services: dict[str, StaticService] = {}
        addresses: dict[str, Address] = {}
        for service in file.services:
            if service.name in services:
                raise ValueError(f"services: {service.name!r} stands there twice: rename one")
            services[service.name] = self._service(service)
            for address in _addresses(service):
                check_scheme(address.url, tls=self.tls)
                if address.url in addresses:
                    raise ValueError(f"workers: {address.url} stands there twice: remove one")
                addresses[address.url] = address
        return Layout(tuple(addresses.values()), services)

    def _service(self, service: _Service) -> StaticService:
        pools: Mapping[str, Role] = {pool.name: pool.role for pool in service.pools}
        if len(pools) != len(service.pools):
            raise ValueError(f"services: {service.name!r} has two pools of one name: rename one")
        roles = set(pools.values())
        if (Role.PREFILL in roles) != (Role.DECODE in roles) or (Role.MIXED in roles and len(roles) > 1):
            raise ValueError(
                f"services: {service.name!r}: pools must be all Mixed, or Prefill and Decode: change the role of the odd ones"
            )
        objective, routing = service.objective, service.routing
        return StaticService(
            models=tuple(service.models),
            pools=tuple(pools.items()),
            defaults=ServiceDefaults(
                objective=self.defaults.objective if objective is None else objective.to_objective(),
                timeouts=self.defaults.timeouts if routing is None else _timeouts(routing),
            ),
        )


def _addresses(service: _Service) -> list[Address]:
    return [
        Address(url, pool.role, service=service.name, pool=pool.name, kv_events_port=pool.kv_events_port)
        for pool in service.pools
        for url in pool.workers
    ]
