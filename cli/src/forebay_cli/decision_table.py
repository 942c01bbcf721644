"""A recorded decision as a table that a person reads at 3 a.m.: a column a pool, from what was asked to what was done. Pure.

Works on the JSON of a record, so that it shows a decision of an autoscaler that is newer or older than itself; inputs that it has
no words for are shown under their own names.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

Json = Mapping[str, Any]

WORDS: Mapping[str, Mapping[str, str]] = {
    "demand": {
        "rate_per_s": "requests per second",
        "planned_per_s": "planned for",
        "keep_per_s": "to suffice for after shrinking",
        "lead_s": "a new worker takes, s",
        "dispersion": "burstiness (1: Poisson)",
        "backlog": "requests that wait",
        "running": "requests in work",
    },
    "capacity": {
        "work_s": "one request's work, s",
        "limit": "one worker's limit",
        "measured": "measured",
        "amplification": "burstiness of its own",
    },
    "need": {
        "offered": "load, in units of the limit",
        "margin": "margin above it",
        "target": "to answer so many in time",
        "workers": "workers for that",
        "with_backlog": "with the backlog",
        "to_keep": "at least to be kept",
    },
}
"""Words for known fields of each part of a pool's decision, in the order shown."""
TITLES = {"demand": "asked", "capacity": "one worker", "need": "needed"}
COLOURS = {"grow": "green", "shrink": "cyan", "hold": "yellow", "wait": "yellow", "stand_back": "magenta"}


def explanation(record: Json) -> RenderableType:
    """One decision."""
    pools: Sequence[Json] = record["decision"]["pools"]
    table = Table(box=None, pad_edge=False, show_header=True, header_style="bold")
    table.add_column("", style="dim")
    table.add_column("")
    for pool in pools:
        table.add_column(pool["name"], justify="right")
    for title, label, cells in _rows(record, pools):
        table.add_row(title, label, *cells)
    return Group(Text.from_markup(headline(record)), "", table, "", *reasons(pools), "")


def headline(record: Json) -> str:
    """Whose decision, when, on what objective and with what success."""
    decision, policy = record["decision"], record["policy"]
    objective = policy["objective"]
    budget = policy.get("budget_gpus")
    parts = [
        f"[bold]{escape('/'.join(decision['key']))}[/] ({decision['mode']}) at {record['at'][:19].replace('T', ' ')} UTC"
        + ("" if record["leading"] else " [yellow](by a replica that does not lead: it was not acted on)[/]"),
        f"objective: first token within {_number(objective['ttft_s'])} s, {_number(objective['tpot_s'] * 1000)} ms a token, "
        f"for {objective['target']:.1%} of requests"
        + (f"; budget {budget} GPUs" if budget is not None else "; no GPU budget"),
        f"now: attainment {_share(decision['attainment'])}, {_number(decision['goodput_per_s'])} good requests per second",
    ]
    if decision.get("trouble"):
        parts.append(f"[red]{escape(decision['trouble'])}[/]")
    return "\n".join(parts)


def reasons(pools: Sequence[Json]) -> Iterator[RenderableType]:
    """Each pool's reason, and what was rejected on the way to it."""
    for pool in pools:
        yield Text.from_markup(f"[bold]{escape(pool['name'])}[/]  {escape(pool['reason'])}")
        for one in pool["rejected"]:
            yield Text.from_markup(
                f"  [dim]rejected[/] {one['replicas']} workers: {escape(one['why'])} [dim]({one['constraint']})[/]"
            )
        if pool.get("rival"):
            yield Text.from_markup(f"  [magenta]{escape(pool['rival'])} owns the number[/]")


def _rows(record: Json, pools: Sequence[Json]) -> Iterator[tuple[str, str, list[str]]]:
    for part, words in WORDS.items():
        values = [pool.get(part) or {} for pool in pools]
        more = dict.fromkeys(name for one in values for name in one if name not in words)
        title = TITLES[part]
        for name in (*words, *more):
            if not any(name in one for one in values):
                continue
            cells = [_number(one.get(name)) for one in values]
            yield title, words.get(name, name.replace("_", " ")), cells
            title = ""
        if part == "capacity":
            yield "", "good requests per second", [_good_rate(pool) for pool in pools]
    yield from _bounds(record, pools)
    yield "decided", "", [_decided(pool) for pool in pools]


def _bounds(record: Json, pools: Sequence[Json]) -> Iterator[tuple[str, str, list[str]]]:
    limits = {one["name"]: one for one in record["policy"]["pools"]}
    counts = {one["name"]: one["counts"] or {} for one in record["observation"]["pools"]}
    names = [pool["name"] for pool in pools]
    yield "bounds", "workers", [f"{limits[name]['replicas_min']} to {limits[name]['replicas_max']}" for name in names]
    yield "there", "ready", [_number(counts[name].get("ready")) for name in names]
    yield "", "ordered, not ready", [_not_ready(counts[name]) for name in names]
    yield "", "draining", [_number(counts[name].get("draining")) for name in names]
    if any(pool["unknown"] for pool in pools):
        yield "unknown", "", [f"[yellow]{escape(', '.join(pool['unknown'])) or '-'}[/]" for pool in pools]


def _not_ready(counts: Json) -> str:
    missing = max(0, counts.get("wanted", 0) - counts.get("ready", 0))
    return f"{missing} [yellow](no node)[/]" if missing and counts.get("unschedulable") else str(missing)


def _decided(pool: Json) -> str:
    colour = COLOURS.get(pool["action"], "default")
    number = str(pool["desired"]) if pool["current"] == pool["desired"] else f"{pool['current']} → {pool['desired']}"
    return f"[bold {colour}]{number}[/] [{colour}]{pool['action'].replace('_', ' ')}[/]"


def _good_rate(pool: Json) -> str:
    if pool.get("good_rate_per_s"):
        return _number(pool["good_rate_per_s"])
    capacity = pool.get("capacity") or {}  # a record of a version that did not tell it
    work_s, limit = capacity.get("work_s"), capacity.get("limit")
    return _number(limit / work_s) if work_s and limit else "-"


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


def _number(value: Any) -> str:
    """Three significant digits; words for what is no number."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return escape(str(value))
    return f"{value:,}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.3g}"
