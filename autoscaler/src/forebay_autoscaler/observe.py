"""One look at the world: the API server and Prometheus, both whole, at the same time, into frozen observations.

A signal whose query fails is unknown and takes no other with it. When the API server does not answer there is nothing to
decide on, and ClusterError ends the cycle.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError

from forebay_api.acceleratorclass import AcceleratorClassSpec
from forebay_api.modelservice import AutoscalingMode
from forebay_api.names import worker_pool_name
from forebay_autoscaler.cluster import Cluster
from forebay_autoscaler.errors import ClusterError, PrometheusError
from forebay_autoscaler.objects import counts_of, may_be_autoscaler, rival_of
from forebay_autoscaler.observation import PoolObservation, ServiceKey, ServiceObservation
from forebay_autoscaler.policy import ServicePolicy, Tuning, policy_of
from forebay_autoscaler.prometheus import Prometheus, Sample
from forebay_autoscaler.queries import Signal
from forebay_autoscaler.signals import Signals

_log = logging.getLogger(__name__)

QUERIES_AT_ONCE = 6


@dataclass(frozen=True, slots=True)
class Subject:
    """One model service: what it asks for, what was seen of it, and its stored object."""

    policy: ServicePolicy
    observation: ServiceObservation
    stored: Mapping[str, Any]
    caches: Mapping[str, float] | None = None
    """Workers by how routers know their caches; None when no router tells."""


@dataclass(frozen=True, slots=True)
class Look:
    """All model services at one moment."""

    subjects: tuple[Subject, ...]
    failed_queries: Mapping[Signal, str]
    unreadable: Mapping[ServiceKey, str]
    """Model services whose spec cannot be read, with the reason."""


class Observer:
    """Looks. Policies are kept until their generation changes."""

    def __init__(
        self,
        cluster: Cluster,
        prometheus: Prometheus,
        queries: Mapping[Signal, str],
        *,
        tuning: Tuning,
        stale_after_s: float,
    ) -> None:
        self._cluster = cluster
        self._prometheus = prometheus
        self._queries = queries
        self._tuning = tuning
        self._stale_after_s = stale_after_s
        self._policies: dict[ServiceKey, ServicePolicy] = {}
        self._accelerators_seen: Mapping[str, AcceleratorClassSpec] = {}

    async def look(self) -> Look:
        """Observe every model service; ClusterError when the API server does not answer."""
        try:
            async with asyncio.TaskGroup() as group:
                services = group.create_task(self._cluster.list_model_services())
                pools = group.create_task(self._cluster.list_worker_pools())
                classes = group.create_task(self._accelerators())
                answers = group.create_task(self._ask_all())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        samples, failed = answers.result()
        policies, unreadable = self._read_policies(services.result(), classes.result())
        by_name = {(pool["metadata"]["namespace"], pool["metadata"]["name"]): pool for pool in pools.result()}
        signals = Signals(samples, stale_after_s=self._stale_after_s)
        trouble = next(iter(failed.values()), "")
        subjects = [
            Subject(policy, _observe(policy, by_name, signals, trouble), stored, signals.caches_of(policy.key))
            for stored in services.result()
            if (policy := policies.get(_key(stored))) is not None and not stored["metadata"].get("deletionTimestamp")
        ]
        return Look(tuple(await self._find_rivals(subjects)), failed, unreadable)

    def _read_policies(
        self, services: Sequence[Mapping[str, Any]], accelerators: Mapping[str, AcceleratorClassSpec]
    ) -> tuple[dict[ServiceKey, ServicePolicy], dict[ServiceKey, str]]:
        if accelerators != self._accelerators_seen:
            self._policies, self._accelerators_seen = {}, accelerators
        policies: dict[ServiceKey, ServicePolicy] = {}
        unreadable: dict[ServiceKey, str] = {}
        for stored in services:
            key, metadata = _key(stored), stored["metadata"]
            kept = self._policies.get(key)
            if kept and (kept.uid, kept.generation) == (metadata.get("uid"), metadata.get("generation")):
                policies[key] = kept
                continue
            try:
                policies[key] = policy_of(stored, self._tuning, accelerators)
            except ValueError as error:  # pydantic's ValidationError is one
                unreadable[key] = str(error)
        self._policies = policies
        return policies, unreadable

    async def _accelerators(self) -> dict[str, AcceleratorClassSpec]:
        """Accelerators by name. Without the right to see them, pools are sized by measurement alone."""
        try:
            stored = await self._cluster.list_accelerator_classes()
        except ClusterError as error:
            if error.status == HTTPStatus.FORBIDDEN:
                return {}
            raise
        accelerators = {}
        for one in stored:
            with suppress(ValidationError):
                accelerators[str(one["metadata"]["name"])] = AcceleratorClassSpec.model_validate(one["spec"])
        return accelerators

    async def _ask_all(self) -> tuple[dict[Signal, list[Sample]], dict[Signal, str]]:
        limit = asyncio.Semaphore(QUERIES_AT_ONCE)
        samples: dict[Signal, list[Sample]] = {}
        failed: dict[Signal, str] = {}

        async def ask(signal: Signal, expression: str) -> None:
            async with limit:
                try:
                    samples[signal] = await self._prometheus.query(expression)
                except PrometheusError as error:
                    failed[signal] = str(error)

        async with asyncio.TaskGroup() as group:
            for signal, expression in self._queries.items():
                group.create_task(ask(signal, expression))
        return samples, failed

    async def _find_rivals(self, subjects: Sequence[Subject]) -> list[Subject]:
        """Name the autoscalers that own a number. They are asked for only where a writer's name suggests one."""
        suspect = {
            subject.policy.key[0]
            for subject in subjects
            if subject.policy.mode is AutoscalingMode.AUTO
            and any(pool.counts and may_be_autoscaler(pool.counts.writer) for pool in subject.observation.pools)
        }
        found = {namespace: await self._autoscalers(namespace) for namespace in sorted(suspect)}
        return [
            _with_rivals(subject, found[subject.policy.key[0]]) if subject.policy.key[0] in found else subject
            for subject in subjects
        ]

    async def _autoscalers(self, namespace: str) -> list[dict[str, Any]] | None:
        try:
            return await self._cluster.list_horizontal_pod_autoscalers(namespace)
        except ClusterError as error:
            if error.status == HTTPStatus.FORBIDDEN:
                return None
            raise


def _key(stored: Mapping[str, Any]) -> ServiceKey:
    return str(stored["metadata"]["namespace"]), str(stored["metadata"]["name"])


def _observe(
    policy: ServicePolicy,
    worker_pools: Mapping[tuple[str, str], Mapping[str, Any]],
    signals: Signals,
    trouble: str,
) -> ServiceObservation:
    namespace, name = policy.key
    pools = []
    for pool in policy.pools:
        stored = worker_pools.get((namespace, worker_pool_name(name, pool.name)))
        counts = counts_of(stored) if stored and not stored["metadata"].get("deletionTimestamp") else None
        pools.append(PoolObservation(pool.name, counts, signals.of_pool(policy.key, pool.name)))
    return ServiceObservation(policy.key, signals.of_service(policy.key, policy.objective), tuple(pools), trouble)


def _with_rivals(subject: Subject, autoscalers: Sequence[Mapping[str, Any]] | None) -> Subject:
    """The subject with the owner of each pool's number; when they may not be listed, the writer's name must do."""
    pools = []
    for pool in subject.observation.pools:
        counts = pool.counts
        if counts is not None and counts.writer is not None and may_be_autoscaler(counts.writer):
            object_name = worker_pool_name(subject.policy.key[1], pool.name)
            rival = counts.writer.manager if autoscalers is None else rival_of(object_name, autoscalers)
            pools.append(replace(pool, counts=replace(counts, rival=rival)))
        else:
            pools.append(pool)
    return replace(subject, observation=replace(subject.observation, pools=tuple(pools)))
