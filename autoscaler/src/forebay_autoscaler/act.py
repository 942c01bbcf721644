"""Carrying a decision out: at most one write to /scale a pool, then what happened, as Events, a log line and status.

Order matters: the number first, since it is what the decision is for; then its Event, only if the write succeeded; then the
status, which also reports a write that failed. Each write fails alone; the next cycle decides afresh on what it sees.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from forebay_api.modelservice import AutoscalingMode
from forebay_api.names import worker_pool_name
from forebay_autoscaler.cluster import Cluster
from forebay_autoscaler.decision import Decision, PoolDecision
from forebay_autoscaler.ejections import Ejected, Ejections, carried, notices_of_ejections, told_before
from forebay_autoscaler.errors import ClusterError, ReplicasChangedError
from forebay_autoscaler.events import Notice, build_event, notices_of, scaled
from forebay_autoscaler.metrics import Metrics
from forebay_autoscaler.observation import ServiceKey
from forebay_autoscaler.status import (
    NOTHING_SAID,
    RoutersWord,
    build_status,
    differs,
    differs_beside_numbers,
    own_part,
)

_log = logging.getLogger(__name__)


class Actor:
    """The hands of the autoscaler. It remembers only when it last wrote each status, and which ejections it told."""

    def __init__(
        self,
        cluster: Cluster,
        metrics: Metrics,
        *,
        identity: str,
        numbers_interval_s: float,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._identity = identity
        self._numbers_interval_s = numbers_interval_s
        self._wall = wall
        self._status_written_s: dict[ServiceKey, float] = {}
        self._ejected: dict[ServiceKey, Mapping[str, Ejected]] = {}
        """Workers whose ejection was told, by name."""

    async def act(self, decision: Decision, stored: Mapping[str, Any], *, routers: RoutersWord = NOTHING_SAID) -> None:
        """Carry out one decision on the ModelService as it is stored. Failures are logged, counted and reported."""
        failures: list[str] = []
        for pool in decision.pools:
            for notice in notices_of(decision, pool):
                await self._tell(notice, decision, pool, stored)
            if decision.mode is AutoscalingMode.AUTO and pool.desired != pool.current:
                failure = await self._scale(decision, pool, stored)
                if failure:
                    failures.append(failure)
        if routers.ejections is not None:
            routers = replace(routers, ejections=await self._follow(decision.key, stored, routers.ejections))
        wanted = build_status(decision, stored, failures=failures, routers=routers, now=self._wall())
        await self._write_status(decision, stored, wanted)

    async def grow(self, decision: Decision, pool: PoolDecision, stored: Mapping[str, Any]) -> bool:
        """Carry out the growth of one pool alone; whether nothing is left to do. Failures are logged and counted."""
        return await self._scale(decision, pool, stored) is None

    def forget(self, keys: set[ServiceKey]) -> None:
        """Keep memory of these model services only."""
        self._status_written_s = {key: at_s for key, at_s in self._status_written_s.items() if key in keys}
        self._ejected = {key: told for key, told in self._ejected.items() if key in keys}

    async def _scale(self, decision: Decision, pool: PoolDecision, stored: Mapping[str, Any]) -> str | None:
        namespace, name = decision.key
        try:
            await self._cluster.scale(
                namespace, worker_pool_name(name, pool.name), current=pool.current, desired=pool.desired
            )
        except ReplicasChangedError as error:
            _log.info("not scaled, the next decision sees the new number: %s", error)
            return None
        except ClusterError as error:
            self._metrics.write_failures.labels("scale").inc()
            _log.error("could not scale pool %s of %s/%s: %s", pool.name, namespace, name, error)
            return f"pool {pool.name} could not be scaled to {pool.desired}: {error}"
        await self._tell(scaled(pool), decision, pool, stored)
        return None

    async def _tell(self, notice: Notice, decision: Decision, pool: PoolDecision, stored: Mapping[str, Any]) -> None:
        namespace, name = decision.key
        _log.log(
            logging.WARNING if notice.warning else logging.INFO,
            notice.message,
            extra={
                "event": notice.reason,
                "namespace": namespace,
                "model_service": name,
                "pool": pool.name,
                "action": pool.action.value,
                "current": pool.current,
                "desired": pool.desired,
                "rate_per_s": pool.demand.rate_per_s if pool.demand else None,
                "backlog": pool.demand.backlog if pool.demand else None,
                "good_rate_per_s": pool.good_rate_per_s,
                "unknown": list(pool.unknown),
                "rejected": [f"{one.replicas}: {one.why}" for one in pool.rejected],
            },
        )
        await self._send(notice, decision.key, stored)

    async def _follow(self, key: ServiceKey, stored: Mapping[str, Any], said: Ejections) -> Ejections:
        """Events for workers that routers have begun to leave alone, or send requests to again; whom they leave alone."""
        told = self._ejected.get(key)
        if told is None:
            told = told_before(stored, said)
        ejections = carried(told, said)
        for notice in notices_of_ejections(told, ejections):
            level = logging.WARNING if notice.warning else logging.INFO
            _log.log(
                level, notice.message, extra={"event": notice.reason, "namespace": key[0], "model_service": key[1]}
            )
            await self._send(notice, key, stored)
        self._ejected[key] = ejections.ejected
        return ejections

    async def _send(self, notice: Notice, key: ServiceKey, stored: Mapping[str, Any]) -> None:
        try:
            event = build_event(notice, stored, identity=self._identity, now=self._wall())
            await self._cluster.create_event(key[0], event)
        except ClusterError as error:
            self._metrics.write_failures.labels("event").inc()
            _log.warning("Event not written: %s", error)

    async def _write_status(self, decision: Decision, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        have = own_part(stored)
        last_s = self._status_written_s.get(decision.key)
        numbers_due = last_s is None or decision.at_s - last_s >= self._numbers_interval_s
        if not (differs(wanted, have) if numbers_due else differs_beside_numbers(wanted, have)):
            return
        try:
            await self._cluster.apply_status(decision.key, wanted)
            self._status_written_s[decision.key] = decision.at_s
        except ClusterError as error:
            self._metrics.write_failures.labels("status").inc()
            _log.warning("status of %s/%s not written: %s", *decision.key, error)
