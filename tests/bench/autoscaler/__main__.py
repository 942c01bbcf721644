"""`make bench-autoscaler`: every scaling policy on every situation, over five seeds.

Writes build/bench/autoscaler.json, .txt and .html.

What is run is laid over what the JSON already holds, policy by policy, so one policy can be run anew beside the others' figures:

    python -m tests.bench.autoscaler --situation ramp --policy forebay

`--routing forebay` puts the router's own choice, queue and order of service before them, where a situation's is a simple one.

`--quick` is a smoke test: two minutes of each situation, three policies, one seed, in a folder of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from forebay_api.objective import Objective
from forebay_cli.replay_html import Section, write_page
from forebay_simulator.fleet.comparing import BOUND, Result, Task, lines_of, run_all
from forebay_simulator.fleet.courses import Course
from forebay_simulator.fleet.policies import ROUTING
from forebay_simulator.fleet.report import Line, Scores, document, table

from .situations import POLICIES, SITUATIONS

ROOT = Path(__file__).parents[3]
QUICK_S = 120.0
QUICK_POLICIES = ("static", "forebay", BOUND)
ABOUT = (
    "Scaling policies side by side in the fleet simulator: the same requests, start-up times, router and Prometheus for each. "
    "Forebay's is the autoscaler's own code."
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, and write."""
    parser = argparse.ArgumentParser(prog="bench-autoscaler", description="Scaling policies side by side.")
    parser.add_argument("--situation", action="append", choices=list(SITUATIONS), help="repeat; all by default")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="repeat; all by default")
    parser.add_argument(
        "--routing", choices=tuple(ROUTING), help="another router than the situation's, for all policies"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--quick", action="store_true", help="a smoke test of a minute")
    parser.add_argument("--out", type=Path, default=None, help="folder; build/bench by default")
    given = parser.parse_args(arguments)
    out = given.out or ROOT / "build" / "bench" / ("quick" if given.quick else "")
    seeds = (1,) if given.quick else tuple(range(1, given.seeds + 1))
    policies = tuple(given.policy or (QUICK_POLICIES if given.quick else POLICIES))
    tasks = tasks_of_all(
        tuple(given.situation or SITUATIONS), policies, seeds, quick=given.quick, routing=given.routing
    )
    if not tasks:
        parser.error(
            "these situations have none of these policies; those with standing orders have static and forebay only"
        )
    done = run(tasks, given.processes)
    file = out / "autoscaler.json"
    before = json.loads(file.read_text()) if file.exists() else {}
    found = merged(before, documents(done))
    out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sections = [section(one) for name in SITUATIONS if (one := found.get(name)) is not None]
    write_page(out / "autoscaler.html", "Forebay's autoscaler beside others", ABOUT, sections)
    text = "\n\n".join(text_of(one) for one in sections)
    (out / "autoscaler.txt").write_text(text + "\n", encoding="utf-8")
    print(text)
    print(f"\nwritten: {out}/autoscaler.json, .txt and .html", file=sys.stderr)


def tasks_of_all(
    names: Sequence[str], policies: tuple[str, ...], seeds: tuple[int, ...], *, quick: bool, routing: str | None = None
) -> list[Task]:
    """Every run, of one situation after the other."""
    chosen = [SITUATIONS[name].shortened(QUICK_S) if quick else SITUATIONS[name] for name in names]
    if routing is not None:
        chosen = [replace(one, routing=routing) for one in chosen]
    return [task for one in chosen for task in one.tasks(policies, seeds)]


def run(tasks: Sequence[Task], processes: int) -> list[tuple[Task, Sequence[Result]]]:
    """Run with a bar on a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        # One process tells of each seed, several of each task.
        running = bar.add_task("runs", total=len(tasks) if processes > 1 else sum(len(task.seeds) for task in tasks))

        def told(_policy: object, _seed: int, share: float) -> None:
            if share == 1.0:
                bar.advance(running)

        return run_all(tasks, told, processes=processes)


def documents(done: Sequence[tuple[Task, Sequence[Result]]]) -> dict[str, Any]:
    """Each situation's document."""
    names = dict.fromkeys(task.scenario.name for task, _ in done)
    made = {}
    for name in names:
        own = [(task, results) for task, results in done if task.scenario.name == name]
        scenario, objective = own[0][0].scenario, own[0][0].scenario.fleet.objective
        limits = {"ttft_s": objective.ttft_s, "tpot_s": objective.tpot_s, "target": objective.target}
        made[name] = document(lines_of(own), {"scenario": name, "about": scenario.about, "objective": limits})
    return made


def merged(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """New policies' figures in place of old ones, and distances from the bound anew.

    Old figures of another objective or fleet, or that lack a score of today's, are dropped.
    """
    found = dict(before)
    for name, one in now.items():
        new = {policy["policy"]: policy for policy in one["policies"]}
        about = {field: value for field, value in one.items() if field != "policies"}
        kept = before.get(name, {})
        same = {field: value for field, value in kept.items() if field != "policies"} == about
        old = {policy["policy"]: policy for policy in kept["policies"] if _readable(policy)} if same else {}
        both = old | new
        order = sorted(both, key=_place)
        found[name] = document([line_of(both[policy]) for policy in order], about)
    return found


def _readable(policy: dict[str, Any]) -> bool:
    """It has the scores that there are today; figures from before there were prices have no cost."""
    return all({"cost", *one} == Scores.__dataclass_fields__.keys() for one in policy["seeds"])


def _place(policy: str) -> int:
    scaling = policy.partition(" + ")[2] or "static"
    return POLICIES.index(scaling)


def line_of(policy: dict[str, Any]) -> Line:
    """A policy's line from its document."""
    runs = tuple(Scores(**one) for one in policy["seeds"])
    kept = policy["course"]
    if kept is None:
        return Line(policy["policy"], runs, policy["policy"].endswith(BOUND))
    wanted = {name: tuple(numbers) for name, numbers in kept["wanted"].items()}
    lists = {name: tuple(kept[name]) for name in ("arrivals_per_s", "attainment", "gpus")}
    found = Course(part_s=kept["part_s"], wanted=wanted, **lists)
    return Line(policy["policy"], runs, policy["policy"].endswith(BOUND), found)


def section(one: dict[str, Any]) -> Section:
    """A situation's part of the page."""
    lines = [line_of(policy) for policy in one["policies"]]
    return Section(one["scenario"], one["about"], Objective(**one["objective"]), lines)


def text_of(one: Section) -> str:
    """A situation as a table."""
    rows = table(one.lines)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    objective = f"TTFT {one.objective.ttft_s:g} s, TPOT {one.objective.tpot_s * 1000:g} ms, {one.objective.target:.0%}"
    lines = [f"{one.name}: {one.about} ({objective}; {len(one.lines[0].runs)} seeds)"]
    for row in rows:
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([first.strip().ljust(widths[0]), *rest]).rstrip())
    return "\n".join(lines)


if __name__ == "__main__":
    main()
