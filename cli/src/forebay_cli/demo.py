"""`forebay demo`: the whole system under a load that steps up and down, told as it happens.

Cluster up, `helm install`, `kubectl apply`, a Poisson load of streamed chats in three stages (low, high, low), and the
wait until the pools are as small as at the start. The same numbers that are told go to `build/demo/summary.json`.

The load is a share of what the pools can do, so the demo needs no faster machine than the engines are simulated on.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from forebay_cli.load import LoadGenerator, LoadReport, Stage
from forebay_cli.observation import ServiceReader, reading
from forebay_cli.scenario import Scenario
from forebay_cli.system import ROOT, System, simulated_nodes
from forebay_cli.timeline import Timeline
from forebay_localcluster.cluster import Cluster
from forebay_localcluster.control_plane import Settings

OBSERVE_S: Final = 0.4
TELL_LOAD_S: Final = 5.0
SETTLE_TIMEOUT_S: Final = 90.0
SCRAPING: Final = Settings(scrape_interval_s=1)
"""A step in load is seen a scrape later; a demo has no patience."""
KEPT: Final = "demo"
"""Name of the cluster."""
SUMMARY: Final = ROOT / "build" / "demo" / "summary.json"

STYLES: Final = {"pool": "bold cyan", "worker": "green", "condition": "yellow", "load": "white", "step": "bold"}


class Narrator:
    """Prints one line for each thing that happens, with the time since the start."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun = time.monotonic()

    def elapsed_s(self) -> float:
        """Seconds since the narrator was made."""
        return time.monotonic() - self._begun

    def say(self, subject: str, text: str) -> None:
        """One line."""
        style = STYLES.get(subject, "white")
        self._console.print(
            f"[dim]{self.elapsed_s():6.1f}s[/dim]  [{style}]{subject:<9}[/{style}]  ", end="", highlight=False
        )
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


async def observe(reader: ServiceReader, timeline: Timeline, narrator: Narrator) -> None:
    """Take snapshots until cancelled, and tell what changed."""
    begun = time.monotonic()
    while True:
        snapshot = await reader.snapshot(time.monotonic() - begun)
        if snapshot is not None:
            for sentence in timeline.add(snapshot):
                narrator.say(sentence.subject, sentence.text)
        await asyncio.sleep(OBSERVE_S)


async def tell_load(generator: LoadGenerator, narrator: Narrator) -> None:
    """Tell the load's figures every few seconds until cancelled."""
    told = 0
    while True:
        await asyncio.sleep(TELL_LOAD_S)
        recent = LoadReport(generator.report.records[told:])
        told = len(generator.report.records)
        share = "-" if recent.attainment is None else f"{recent.attainment:.1%}"
        ttft = recent.percentile_ttft_s(0.5)
        narrator.say(
            "load",
            f"{len(recent.records) / TELL_LOAD_S:5.1f} answers/s, {generator.in_flight} in flight, attainment {share}, "
            f"TTFT p50 {'-' if ttft is None else f'{ttft * 1000:.0f} ms'}, failed {recent.failed}",
        )


async def tell_stages(stages: Sequence[Stage], narrator: Narrator) -> None:
    """Tell each stage of the load as it begins."""
    for stage in stages:
        narrator.say("load", f"{stage.rate_rps:g} requests a second for {stage.duration_s:g} s")
        await asyncio.sleep(stage.duration_s)


async def settle(timeline: Timeline) -> bool:
    """Wait until every pool is as small as at the start and nothing drains; False when that takes too long."""
    first = timeline.snapshots[0]
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while time.monotonic() < deadline:
        last = timeline.snapshots[-1]
        sizes = {name: pool.replicas for name, pool in last.pools.items()}
        if sizes == {name: pool.replicas for name, pool in first.pools.items()} and len(last.workers) == sum(
            sizes.values()
        ):
            return True
        await asyncio.sleep(OBSERVE_S)
    return False


async def drive(system: System, scenario: Scenario, narrator: Narrator) -> tuple[LoadReport, Timeline, bool]:
    """Load the service in stages while watching it; the report, the timeline, whether it settled."""
    timeline = Timeline()
    generator = LoadGenerator(system.router_url(), scenario.workload, scenario.objective)
    async with reading(system.cluster.kubeconfig, namespace="default", service=scenario.name) as reader:
        watching = asyncio.create_task(observe(reader, timeline, narrator))
        telling = asyncio.create_task(tell_load(generator, narrator))
        announcing = asyncio.create_task(tell_stages(scenario.stages, narrator))
        try:
            report = await generator.run(scenario.stages)
            telling.cancel()
            narrator.say("load", "ended; the pools may shrink now")
            settled = await settle(timeline)
        finally:
            for task in (watching, telling, announcing):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
    return report, timeline, settled


def summarise(report: LoadReport, timeline: Timeline, *, settled: bool, elapsed_s: float) -> dict[str, Any]:
    """The run in numbers."""
    pools = timeline.snapshots[-1].pools
    return {
        **report.summary(),
        "replicas": {name: timeline.wanted_sequence(name) for name in pools},
        "replicas_over_time": timeline.replicas_over_time(),
        "gpu_seconds": round(timeline.gpu_seconds(), 1),
        "back_at_the_start": settled,
        "elapsed_s": round(elapsed_s, 1),
    }


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f} ms"


def summary_table(summary: Mapping[str, Any]) -> Table:
    """The summary for a person."""
    table = Table(title="Demo", show_header=False, title_style="bold")
    share = summary["attainment"]
    rows = {
        "requests": f"{summary['requests']}  ({summary['good']} good, {summary['bad']} bad, {summary['failed']} failed)",
        "attainment": "-" if share is None else f"{share:.2%}",
        "TTFT p50 / p99": f"{_milliseconds(summary['ttft_p50_s'])} / {_milliseconds(summary['ttft_p99_s'])}",
        "TPOT p50 / p99": f"{_milliseconds(summary['tpot_p50_s'])} / {_milliseconds(summary['tpot_p99_s'])}",
        **{f"workers of {n}": " → ".join(map(str, sizes)) for n, sizes in summary["replicas"].items()},
        "GPU-seconds": f"{summary['gpu_seconds']:.0f}",
        "as at the start": "yes" if summary["back_at_the_start"] else "NO",
        "elapsed": f"{summary['elapsed_s']:.0f} s",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def run_on(cluster: Cluster, scenario: Scenario, narrator: Narrator) -> dict[str, Any]:
    """The demo on a running cluster; the summary."""
    system = System(cluster)
    narrator.say("step", "helm install charts/forebay")
    system.install()
    narrator.say("step", f"kubectl apply -f {scenario.file.name}")
    system.apply(scenario.file)
    took_s = system.wait_ready(scenario.name, timeout_s=scenario.ready_timeout_s)
    narrator.say("step", f"{scenario.name} is ready {took_s:.1f} s after apply")
    report, timeline, settled = asyncio.run(drive(system, scenario, narrator))
    return summarise(report, timeline, settled=settled, elapsed_s=narrator.elapsed_s())


def _print_where(console: Console, cluster: Cluster) -> None:
    """What a person types to look around on a cluster that stays up."""
    console.print(
        f'The cluster stays up. Look around:  eval "$(.venv/bin/forebay cluster env -n {cluster.name})"',
        highlight=False,
    )
    console.print("                                    kubectl get msvc,wp,pods -A", highlight=False)
    console.print(
        f"End it:                             .venv/bin/forebay cluster down -n {cluster.name}", highlight=False
    )


def demo(console: Console, scenario: Scenario, *, keep: bool) -> int:
    """Run the demo; exit status 1 when a request failed or the pools did not come back."""
    narrator = Narrator(console)
    with contextlib.ExitStack() as stack:
        nodes = simulated_nodes(scenario.nodes)
        narrator.say(
            "step", "cluster up: etcd, API server, controller manager, scheduler, Prometheus, two nodes of 8 H100"
        )
        if keep:
            cluster = Cluster(KEPT)
            cluster.down()
            cluster.up(SCRAPING, extras=nodes)
        else:
            cluster = stack.enter_context(Cluster.temporary(KEPT, settings=SCRAPING, extras=nodes))
        try:
            summary = run_on(cluster, scenario, narrator)
        except BaseException:
            if keep:  # what went wrong, or what was interrupted, is there to be looked at
                _print_where(console, cluster)
            raise
        narrator.say("step", "the cluster stays up" if keep else "cluster down")
    SUMMARY.parent.mkdir(parents=True, exist_ok=True)
    SUMMARY.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    console.print(summary_table(summary))
    console.print(f"written to {SUMMARY.relative_to(ROOT)}", highlight=False)
    if keep:
        _print_where(console, cluster)
    return 0 if summary["failed"] == 0 and summary["back_at_the_start"] else 1
