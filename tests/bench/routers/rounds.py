"""Rounds: every router in turn, every workload on it, and medians of what came of them."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tests.bench.routers.engines import EngineSettings
from tests.bench.routers.peers import Place, Router
from tests.bench.routers.processes import end, free_ports, others_busy_s, start
from tests.bench.routers.workloads import Workload

ENGINES = 8
READY_S = 60.0
LOAD_LIMIT_S = 120.0
Row = dict[str, Any]


def cores() -> tuple[set[int], set[int]]:
    """Of the router, and of engines and load; the same where there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    return {usable[0]}, {usable[1] if len(usable) > 1 else usable[0]}


def post(url: str, body: bytes) -> int:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return int(answer.status)


def answers(url: str, body: bytes, times: int) -> bool:
    """It answers so many requests in a row with 200."""
    try:
        return all(post(url, body) == 200 for _ in range(times))
    except (OSError, urllib.error.HTTPError):
        return False


def until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + READY_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {READY_S:g} s: {what}")
        time.sleep(0.1)


@dataclass
class Bench:
    """Mock engines that run, and a folder for logs."""

    urls: tuple[str, ...]
    engines: subprocess.Popen[bytes]
    folder: Path

    def settle(self, settings: EngineSettings) -> None:
        """Set and empty the engines."""
        for url in self.urls:
            post(f"{url}/settings", settings.encode())

    def ask(self, workload: Workload, targets: Sequence[str], pid: int) -> Row:
        """Run a workload."""
        command = [sys.executable, "-m", "tests.bench.routers.load", "--workload", workload.encode()]
        command += ["--targets", ",".join(targets), "--pid", str(pid)]
        own = [self.engines.pid, *([pid] if pid else [])]
        before_s, own_before_s, started_s = others_busy_s(own), os.times(), time.monotonic()
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            timeout=LOAD_LIMIT_S,
            check=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores()[1]),
        )
        own_after_s = os.times()
        load_s = own_after_s.children_user + own_after_s.children_system
        load_s -= own_before_s.children_user + own_before_s.children_system
        row: Row = orjson.loads(done.stdout)
        row["others_cores"] = round((others_busy_s(own) - before_s - load_s) / (time.monotonic() - started_s), 2)
        return row

    @contextmanager
    def running(self, router: Router) -> Iterator[tuple[str, int]]:
        """A fresh router: its address and process id."""
        place = Place(*free_ports(2), self.urls, self.folder)
        process = start(
            router.command(place),
            cores=cores()[0],
            log=self.folder / f"{router.name}.log",
            environment=router.environment,
        )
        hello = orjson.dumps({"model": "mock", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1})
        address = f"127.0.0.1:{place.port}"
        try:
            until(lambda: answers(f"http://{address}/v1/chat/completions", hello, ENGINES), f"{router.name} serves")
            yield address, process.pid
        finally:
            end(process)


@contextmanager
def engines() -> Iterator[Bench]:
    """Start the mock engines."""
    folder = Path(tempfile.mkdtemp(prefix="bench-router-"))
    ports = [str(port) for port in free_ports(ENGINES)]
    command = [sys.executable, "-m", "tests.bench.routers.engines", "--ports", *ports]
    process = start(command, cores=cores()[1], log=folder / "engines.log")
    bench = Bench(tuple(f"http://127.0.0.1:{port}" for port in ports), process, folder)
    try:
        until(lambda: answers(f"{bench.urls[-1]}/settings", EngineSettings().encode(), 1), "the engines serve")
        yield bench
    finally:
        end(process)


def one_round(bench: Bench, number: int, routers: Iterable[Router], workloads: Sequence[Workload]) -> Iterator[Row]:
    """Every workload directly on the engines, then on every router that can do it."""
    direct = [url.removeprefix("http://") for url in bench.urls]
    for workload in workloads:
        if not workload.split:
            bench.settle(workload.engine)
            yield {"round": number, "router": "direct", "workload": workload.name, **bench.ask(workload, direct, 0)}
    for router in routers:
        fitting = [one for one in workloads if one.split == router.split]
        if not fitting:
            continue
        bench.settle(EngineSettings())
        with bench.running(router) as (address, pid):
            for workload in fitting:
                bench.settle(workload.engine)
                row = bench.ask(workload, [address], pid)
                yield {"round": number, "router": router.name, "workload": workload.name, **row}


# -- medians ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """One figure of a table."""

    title: str
    of: Callable[[Row], float | None]
    digits: int
    relative_to: str | None = None
    """A router whose figure of the same round is divided by, or for `added` subtracted."""
    added: bool = False


def at(group: str, name: str) -> Callable[[Row], float | None]:
    return lambda row: row[group].get(name)


def value(name: str) -> Callable[[Row], float | None]:
    return lambda row: row[name]


_CPU = Column("CPU ms/request", value("cpu_ms_per_request"), 3)
_CPU_RATIO = Column("x nginx", value("cpu_ms_per_request"), 1, "nginx")
_OTHERS = Column("others' cores", value("others_cores"), 2)
COLUMNS: dict[str, tuple[Column, ...]] = {
    "tiny": (_CPU, _CPU_RATIO, Column("requests/s", value("requests_per_s"), 0), Column("p50 ms", at("end_ms", "p50"), 2)),
    "arrivals": (
        Column("added p50 ms", at("end_ms", "p50"), 2, "direct", added=True),
        Column("added p99 ms", at("end_ms", "p99"), 2, "direct", added=True),
        _CPU,
    ),
    "streams": (
        Column("tokens/CPU s", value("tokens_per_cpu_s"), 0),
        Column("of nginx", value("tokens_per_cpu_s"), 2, "nginx"),
        Column("TTFT p50 ms", at("first_ms", "p50"), 2),
        Column("MiB", value("resident_mib"), 0),
    ),
    "chats": (
        Column("cached share", value("cached_share"), 3),
        Column("TTFT p50 ms", at("first_ms", "p50"), 1),
        Column("p90", at("first_ms", "p90"), 0),
        Column("p99", at("first_ms", "p99"), 0),
        Column("busiest/mean", value("busiest_to_mean"), 2),
        _CPU,
    ),
    "long": (_CPU, _CPU_RATIO, Column("p50 ms", at("end_ms", "p50"), 2), Column("MiB", value("resident_mib"), 0)),
    "pairs": (_CPU, Column("requests/s", value("requests_per_s"), 0), Column("p50 ms", at("end_ms", "p50"), 2)),
}  # fmt: skip


def median(rows: Sequence[Row], router: str, workload: str, column: Column) -> float | None:
    """The median over rounds, relative figures taken inside each round."""
    found = []
    for row in rows:
        if row["router"] != router or row["workload"] != workload:
            continue
        figure = column.of(row)
        if figure is not None and column.relative_to is not None:
            base = next(
                (
                    column.of(one)
                    for one in rows
                    if (one["round"], one["router"], one["workload"]) == (row["round"], column.relative_to, workload)
                ),
                None,
            )
            figure = _relative(figure, base, added=column.added)
        if figure is not None:
            found.append(figure)
    return statistics.median(found) if found else None


def _relative(figure: float, base: float | None, *, added: bool) -> float | None:
    if not base:
        return None
    return figure - base if added else figure / base


def table(rows: Sequence[Row], workload: Workload) -> str:
    """One workload's table, as text that is Markdown too."""
    columns = (*COLUMNS[workload.name], _OTHERS)
    names = list(dict.fromkeys(row["router"] for row in rows if row["workload"] == workload.name))
    lines = [
        f"**{workload.name}**: {workload.what}",
        "",
        "| router | " + " | ".join(one.title for one in columns) + " |",
    ]
    lines.append("|---|" + "---|" * len(columns))
    for name in names:
        figures = [median(rows, name, workload.name, column) for column in columns]
        shown = [
            "-" if one is None else f"{one:,.{column.digits}f}" for one, column in zip(figures, columns, strict=True)
        ]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    failed = sum(row["failed"] for row in rows if row["workload"] == workload.name)
    if failed:
        lines.append(f"\n{failed} requests failed.")
    return "\n".join(lines)
