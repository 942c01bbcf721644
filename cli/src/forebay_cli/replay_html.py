"""Compared runs as one page that needs nothing else: tables and drawings, a section a scenario."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from forebay_api.objective import Objective
from forebay_cli.replay_plot import course, frontier, is_ours, short_name
from forebay_simulator.fleet.report import Line, cell, columns_of, over_bound


@dataclass(frozen=True, slots=True)
class Section:
    """One scenario with its runs."""

    name: str
    about: str
    objective: Objective
    lines: Sequence[Line]


STYLE = """
:root { --ink: #26323a; --faint: #6d7c85; --line: #e3e9ec; --ours: #0f6b8f; --good: #2e8b57; --bad: #c0392b; }
* { box-sizing: border-box; }
body { margin: 0; background: #f6f8f9; color: var(--ink); font: 15px/1.5 Inter, "Segoe UI", Arial, sans-serif; }
header, section, footer { max-width: 1240px; margin: 0 auto; padding: 0 28px; }
header { padding-top: 44px; } h1 { font-size: 30px; margin: 0 0 6px; letter-spacing: -0.02em; }
header p, footer p { color: var(--faint); max-width: 84ch; margin: 4px 0; }
section { background: #fff; border: 1px solid var(--line); border-radius: 14px; padding: 24px 28px 18px; margin: 26px auto; }
h2 { font-size: 20px; margin: 0; letter-spacing: -0.01em; } .about { color: var(--faint); margin: 2px 0 14px; }
.drawings { display: flex; flex-wrap: wrap; gap: 12px; } .drawings > * { flex: 1 1 440px; min-width: 0; }
.drawings svg { width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 13.5px; margin-top: 10px; }
th { text-align: right; font-weight: 600; color: var(--faint); padding: 6px 8px; border-bottom: 1px solid var(--line); }
td { text-align: right; padding: 6px 8px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } tr:last-child td { border-bottom: 0; }
tr.ours td { background: #eef6fa; font-weight: 600; } tr.bound td { color: var(--good); font-style: italic; }
td.met { color: var(--good); } td.missed { color: var(--bad); } small { color: var(--faint); font-weight: 400; }
footer { padding-bottom: 48px; font-size: 13px; }
"""

NOTES = (
    "Good: finished, with the time to first token and the mean time per output token both within the objective; rejected, failed "
    "and cut-off requests are bad. GPU-hours are those taken, starting and draining included. ± is the half-width of Student's "
    "95 % interval of the mean over seeds. The bound knows every request before it comes."
)


def write_page(path: Path, title: str, about: str, sections: Sequence[Section]) -> None:
    """Write the page."""
    body = "\n".join(_section(one) for one in sections)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><header><h1>{escape(title)}</h1><p>{escape(about)}</p></header>\n{body}\n"
        f"<footer><p>{escape(NOTES)}</p></footer></body></html>\n",
        encoding="utf-8",
    )


def _section(one: Section) -> str:
    target = one.objective.target
    bound = next((line for line in one.lines if line.bound), None)
    shown = next((line for line in one.lines if is_ours(line)), one.lines[0])
    drawings = f"<div>{frontier(one.lines, target)}</div>"
    if shown.course is not None:
        drawings += f"<div>{course(shown, bound, target)}</div>"
    seeds = len(one.lines[0].runs)
    limits = f"First token within {one.objective.ttft_s:g} s, {one.objective.tpot_s * 1000:g} ms a token"
    facts = (
        f"{one.about}. {limits}, for {target:.0%}; "
        f"{one.lines[0].runs[0].requests:,} requests, {seeds} seed{'s' if seeds != 1 else ''}."
    )
    return (
        f'<section id="{escape(one.name)}"><h2>{escape(one.name)}</h2><p class="about">{escape(facts)}</p>'
        f'<div class="drawings">{drawings}</div>{_table(one)}</section>'
    )


def _table(one: Section) -> str:
    bounded = any(line.bound for line in one.lines)
    headings = ["policy", *(heading for _, heading, _ in columns_of(one.lines)), *(["over bound"] if bounded else [])]
    rows = "".join(_row(line, one, bounded=bounded) for line in one.lines)
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _row(line: Line, one: Section, *, bounded: bool) -> str:
    cells = [f"<td>{escape(short_name(line))}</td>"]
    for field, _, write in columns_of(one.lines):
        number, _, width = cell(line, field, write).partition(" ")
        judged = ""
        summary = line.over_seeds(field)
        if field == "attainment" and summary is not None:
            judged = ' class="met"' if summary.mean >= one.objective.target else ' class="missed"'
        cells.append(f"<td{judged}>{escape(number)}{f' <small>{escape(width)}</small>' if width else ''}</td>")
    if bounded:
        more = over_bound(line, one.lines)
        cells.append(f"<td>{'-' if more is None else f'{more:+.0%}'}</td>")
    kind = "bound" if line.bound else "ours" if is_ours(line) else ""
    return f'<tr class="{kind}">{"".join(cells)}</tr>'
