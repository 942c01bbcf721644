"""A day in seven minutes on the local cluster, with the real Prometheus, which is killed at the peak for 40 s.

Real etcd, API server, scheduler, Prometheus, operator, router and autoscaler; simulated engines. The load rises from night to
noon and falls again. While Prometheus is away the pool must not shrink and the service must say what is missing; afterwards it
goes on as if nothing had been. No request may fail. Attainment and workers over time are drawn in build/bench/day.png, the
figures are in build/bench/day.json.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from forebay_api.objective import Verdict, attainment
from forebay_cli.load import RequestRecord, Stage, Workload
from forebay_cli.system import ROOT, System
from tests.e2e.conftest import OBJECTIVE, Service, namespace, serve, system  # noqa: F401  (fixtures)
from tests.support.background_load import BackgroundLoad
from tests.support.eventually import eventually

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

DAY_S = 420.0
NIGHT_RPS, NOON_RPS = 1.0, 14.0
OUTAGE_S = (200.0, 240.0)
"""From the peak on."""
SHOWN_S = 10.0
BUILD = ROOT / "build" / "bench"


def rate_rps(at_s: float) -> float:
    """Night at both ends, noon in the middle."""
    return NIGHT_RPS + (NOON_RPS - NIGHT_RPS) * (1 - math.cos(2 * math.pi * at_s / DAY_S)) / 2


class DayLoad(BackgroundLoad):
    """A load whose rate follows the day."""

    async def _send(self) -> None:
        began_s = time.monotonic()
        async with self.generator.sending() as send:
            while not self._stop.is_set():
                await send([Stage(rate_rps=rate_rps(time.monotonic() - began_s), duration_s=0.5)])


@dataclass(slots=True)
class Look:
    """The service at one moment."""

    at_s: float
    wanted: int
    ready: int
    conditions: dict[str, tuple[str, str]]
    """Type: status and reason."""


@dataclass(slots=True)
class Watcher:
    """Looks every three seconds, in a thread of its own."""

    system: System
    service: Service
    began_s: float = field(default_factory=time.monotonic)
    looks: list[Look] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.stop.wait(3.0):
            try:
                pool = self.system.get("wp", f"{self.service.name}-mixed", namespace=self.service.namespace)
                found = self.system.get("msvc", self.service.name, namespace=self.service.namespace)
            except Exception as error:  # noqa: BLE001  # a look that fails is none; the next one comes
                print(f"no look: {error}")
                continue
            conditions = {one["type"]: (one["status"], one["reason"]) for one in found["status"]["conditions"]}
            ready = pool.get("status", {}).get("ready", 0)
            self.looks.append(Look(self.now_s(), pool["spec"]["replicas"], ready, conditions))

    def now_s(self) -> float:
        return time.monotonic() - self.began_s

    def between(self, from_s: float, to_s: float) -> list[Look]:
        return [one for one in self.looks if from_s <= one.at_s <= to_s]


@contextmanager
def watching(system: System, service: Service) -> Iterator[Watcher]:  # noqa: F811  (the fixture's value)
    watcher = Watcher(system, service)
    thread = threading.Thread(target=watcher.run, daemon=True)
    thread.start()
    try:
        yield watcher
    finally:
        watcher.stop.set()
        thread.join(30)


def sleep_until(at_s: float, now_s: Callable[[], float]) -> None:
    time.sleep(max(0.0, at_s - now_s()))


def test_a_day_with_prometheus_killed_at_noon(system, serve):  # noqa: F811  (fixtures)
    service: Service = serve(
        engine={"args": ["--max-num-seqs", "4"]},
        autoscaling={"mode": "Auto", "scaleDownStabilization": "20s"},
        pools=[{"name": "mixed", "accelerator": "h100-sxm", "replicas": {"min": 1, "max": 6}}],
    )
    workload = Workload(model=service.model, output_tokens=96)
    load = DayLoad(system.router_url(), workload, objective=OBJECTIVE, rate_rps=NIGHT_RPS)
    with watching(system, service) as watcher:
        load.start()
        sleep_until(OUTAGE_S[0], watcher.now_s)
        system.cluster.kill("prometheus")
        sleep_until(OUTAGE_S[1], watcher.now_s)
        system.cluster.start_program("prometheus")
        fresh = eventually(
            lambda: watcher.looks[-1],
            lambda look: look.at_s > OUTAGE_S[1] and look.conditions["MetricsFresh"][0] == "True",
            within_s=90,
            what="the metrics are fresh again",
        )
        sleep_until(DAY_S, watcher.now_s)
        report = load.stop()
        eventually(
            lambda: watcher.looks[-1].wanted, lambda wanted: wanted == 1, within_s=90, what="night again: one worker"
        )
    figures = write(watcher, report.records, report.summary() | {"fresh_again_s": fresh.at_s - OUTAGE_S[1]})
    away = watcher.between(OUTAGE_S[0], OUTAGE_S[1])
    assert report.failed == 0, report.errors()
    assert min(look.wanted for look in away) >= away[0].wanted, "the pool shrank while nothing was known"
    assert any(look.conditions["MetricsFresh"][0] == "False" for look in away), "nobody said that metrics are missing"
    assert max(look.wanted for look in watcher.looks) >= 3
    assert figures["attainment"] >= 0.95, figures


def write(watcher: Watcher, records: Sequence[RequestRecord], summary: dict[str, Any]) -> dict[str, Any]:
    """The figures and the drawing."""
    BUILD.mkdir(parents=True, exist_ok=True)
    wanted = [{"at_s": round(look.at_s, 1), "wanted": look.wanted, "ready": look.ready} for look in watcher.looks]
    told = dict.fromkeys(
        f"{kind} is {status} ({reason})" for look in watcher.looks for kind, (status, reason) in look.conditions.items()
    )
    worker_s = sum(a.wanted * (b.at_s - a.at_s) for a, b in zip(watcher.looks, watcher.looks[1:], strict=False))
    figures = summary | {"worker_seconds": worker_s, "conditions_seen": list(told), "workers": wanted}
    (BUILD / "day.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    draw(BUILD / "day.png", watcher, records)
    print({name: value for name, value in figures.items() if name != "workers"})
    return figures


def draw(path: Path, watcher: Watcher, records: Sequence[RequestRecord]) -> None:
    figure = Figure(figsize=(10, 6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1))
    times = [look.at_s for look in watcher.looks]
    asked = upper.twinx()
    seconds = range(int(DAY_S))
    asked.fill_between(list(seconds), [rate_rps(at_s) for at_s in seconds], color="#dfe7eb", linewidth=0)
    asked.set_ylabel("requests per second (grey)", color="#8a979f")
    asked.set_ylim(0, 1.3 * NOON_RPS)
    upper.set_zorder(asked.get_zorder() + 1)
    upper.patch.set_visible(False)
    upper.step(
        times,
        [look.wanted for look in watcher.looks],
        where="post",
        color="#0f6b8f",
        linewidth=2,
        label="workers wanted",
    )
    upper.step(
        times, [look.ready for look in watcher.looks], where="post", color="#d98324", linewidth=1.5, label="ready"
    )
    upper.set_ylim(0, 1 + max(look.wanted for look in watcher.looks))
    upper.set_title("A day in seven minutes on the local cluster; Prometheus is killed at noon", loc="left")
    parts = {int(record.started_s / SHOWN_S) for record in records}
    shares = []
    for part in sorted(parts):
        own = [record.verdict for record in records if int(record.started_s / SHOWN_S) == part]
        share = attainment(own.count(Verdict.GOOD), own.count(Verdict.BAD))
        shares.append(((part + 0.5) * SHOWN_S, 0.0 if share is None else share))
    lower.step([at_s for at_s, _ in shares], [share for _, share in shares], where="mid", color="#0f6b8f")
    lower.axhline(OBJECTIVE.target, color="#c0392b", linestyle="--", linewidth=1, label="target")
    lower.set_ylim(0, 1.05)
    lower.set_ylabel("good, in 10 s")
    lower.set_xlabel("seconds")
    for axes in (upper, lower):
        axes.axvspan(*OUTAGE_S, color="#c0392b", alpha=0.12, label="Prometheus away")
        axes.grid(color="#e8ecee")
        axes.legend(loc="upper right" if axes is upper else "lower right", frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)
