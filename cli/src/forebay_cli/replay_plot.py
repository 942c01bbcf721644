"""Runs of policies drawn: what each of them costs and attains, and the course of one over time. As SVG text for a page.

The left figure is the trade that an autoscaler makes: to the left is cheaper, up is better; the target and the bound's cost are
drawn in, so the corner between them is where it should be. The right one shows when workers came and went against what was asked.
Uses matplotlib without its global state, so that it needs no display.
"""

from collections.abc import Sequence
from io import StringIO

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from forebay_simulator.fleet.courses import Course
from forebay_simulator.fleet.report import Interval, Line

INK = "#26323a"
FAINT = "#8a979f"
GRID = "#e8ecee"
OURS = "#0f6b8f"
OTHERS = "#9fb0b9"
BOUND = "#2e8b57"
ALARM = "#c0392b"
POOLS = ("#0f6b8f", "#d98324", "#7d5ba6")
FLOOR = 0.5
"""Lower attainments are drawn at this edge."""


def frontier(lines: Sequence[Line], target: float) -> str:
    """GPU-hours against attainment, a point a policy."""
    figure, axes = _figure(5.6, 3.9)
    axes.axhline(target, color=ALARM, linewidth=1, linestyle=(0, (5, 3)))
    shown = [(line, *both) for line in lines if (both := _both(line)) is not None]
    low = max(FLOOR, min([target, *(attained.mean for _, _, attained in shown)]) - 0.06)
    for line, hours, attained in shown:
        _point(axes, line, hours, attained, low)
        if line.bound:
            axes.axvline(hours.mean, color=BOUND, linewidth=1, linestyle=(0, (1, 2)))
    axes.set_ylim(low - 0.02, 1.04)  # a name may stand above a point at the top
    taken = [hours.mean for _, hours, _ in shown]
    room = 0.12 * max(taken)
    axes.set_xlim(min(taken) - room, max(taken) + 2.2 * room)  # names stand to the right of their points
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("GPU-hours")
    axes.set_title("Requests within the objective, against what it took", loc="left")
    axes.text(
        0.99,
        target,
        f"target {target:.0%}",
        color=ALARM,
        fontsize=8,
        ha="right",
        va="bottom",
        transform=axes.get_yaxis_transform(),
    )
    return _svg(figure, "frontier" + "".join(line.policy for line in lines))


def _both(line: Line) -> tuple[Interval, Interval] | None:
    hours, attained = line.over_seeds("gpu_hours"), line.over_seeds("attainment")
    return None if hours is None or attained is None else (hours, attained)


def _point(axes: Axes, line: Line, hours: Interval, attained: Interval, low: float) -> None:
    ours = is_ours(line)
    colour = BOUND if line.bound else OURS if ours else OTHERS
    height = max(low, attained.mean)
    axes.errorbar(
        hours.mean,
        height,
        xerr=hours.half_width,
        yerr=attained.half_width if height == attained.mean else 0,
        fmt="D" if line.bound else "o" if height == attained.mean else "v",
        color=colour,
        markersize=9 if ours else 6,
        linewidth=1,
        zorder=3 if ours else 2,
    )
    label = short_name(line) + ("" if height == attained.mean else f" ({attained.mean:.0%})")
    axes.annotate(
        label,
        (hours.mean, height),
        xytext=(-5, 9) if line.bound else (8, -3),
        ha="right" if line.bound else "left",
        textcoords="offset points",
        fontsize=9 if ours else 8,
        fontweight="bold" if ours else "normal",
        color=INK if ours else colour if line.bound else FAINT,
    )


def is_ours(line: Line) -> bool:
    """Forebay's own autoscaler."""
    return line.policy.endswith("+ forebay") or line.policy == "forebay"


def short_name(line: Line) -> str:
    """The scaling policy's name, where that is what is compared."""
    routing, plus, scaling = line.policy.partition(" + ")
    if plus:
        return "bound" if line.bound else scaling
    return f"static, {routing}"


def course(line: Line, bound: Line | None, target: float) -> str:
    """What was asked, what was ordered, what was good, over the time of one run."""
    found = line.course
    assert found is not None, "a line without its course cannot be drawn"
    figure = Figure(figsize=(7.6, 3.9), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.15))
    for axes in (upper, lower):
        _style(axes)
    minutes = [(part + 0.5) * found.part_s / 60 for part in range(len(found.gpus))]
    _workers(upper, found, bound.course if bound is not None else None, minutes)
    _attained(lower, found, minutes, target)
    return _svg(figure, "course" + line.policy)


def _workers(axes: Axes, found: Course, least: Course | None, minutes: Sequence[float]) -> None:
    asked = axes.twinx()
    asked.fill_between(minutes, found.arrivals_per_s, color="#dfe7eb", step="mid", linewidth=0)
    asked.set_ylim(0, 1.4 * max([*found.arrivals_per_s, 1e-9]))
    asked.set_ylabel("requests per second (grey)", color=FAINT, fontsize=8)
    asked.tick_params(colors=FAINT, labelsize=8, length=0)
    for side in asked.spines.values():
        side.set_visible(False)
    axes.set_zorder(asked.get_zorder() + 1)
    axes.patch.set_visible(False)
    for (name, numbers), colour in zip(found.wanted.items(), POOLS, strict=False):
        axes.step(minutes, numbers, where="mid", color=colour, linewidth=1.8, label=f"{name} workers")
    axes.step(minutes, found.gpus, where="mid", color=INK, linewidth=1.1, label="GPUs taken")
    if least is not None:
        axes.step(
            minutes, least.gpus, where="mid", color=BOUND, linewidth=1.1, linestyle=(0, (4, 2)), label="bound's GPUs"
        )
    axes.set_ylim(0, 1.25 * max([1.0, *found.gpus, *(least.gpus if least is not None else ())]))  # room for the legend
    axes.set_title("Its course, first seed", loc="left")
    axes.legend(loc="upper left", ncols=4, fontsize=8, frameon=False, labelcolor=INK)


def _attained(axes: Axes, found: Course, minutes: Sequence[float], target: float) -> None:
    known = [(at, share) for at, share in zip(minutes, found.attainment, strict=True) if share is not None]
    axes.axhline(target, color=ALARM, linewidth=1, linestyle=(0, (5, 3)))
    axes.fill_between(
        [at for at, _ in known], [share for _, share in known], color=OURS, alpha=0.25, step="mid", linewidth=0
    )
    axes.step([at for at, _ in known], [share for _, share in known], where="mid", color=OURS, linewidth=1.3)
    axes.set_ylim(0, 1.04)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_ylabel("good", fontsize=8)
    axes.set_xlabel("minutes")
    axes.set_xlim(minutes[0], minutes[-1])


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    _style(axes)
    return figure, axes


def _style(axes: Axes) -> None:
    axes.grid(visible=True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#b9c4ca")
    axes.tick_params(colors=INK, labelsize=8.5, color="#b9c4ca")
    axes.xaxis.label.set_color(INK)
    axes.xaxis.label.set_fontsize(9)
    axes.title.set_color(INK)
    axes.title.set_fontsize(10)


def _svg(figure: Figure, salt: str) -> str:
    """The picture's element. The same runs give the same text: no date, and ids that follow from the salt."""
    text = StringIO()
    with rc_context({"svg.hashsalt": salt, "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(
            text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")), transparent=True
        )
    whole = text.getvalue()
    return whole[whole.index("<svg") :]
