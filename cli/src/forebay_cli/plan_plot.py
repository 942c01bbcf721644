"""A capacity plan drawn: time per output token against batch, and goodput against rate.

Left, where the curve of a worker crosses the objective is its largest batch; a curve that ends before has its memory
full. Right, a layout follows the diagonal while it meets the objective for everybody, and leaves it where queues form;
the planned rate is drawn in. Uses matplotlib without its global state, so that it needs no display.
"""

from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from forebay_api.durations import format_duration
from forebay_capacity.batch import decode_seconds
from forebay_capacity.options import Option, goodput_curve
from forebay_capacity.performance import lane_cap
from forebay_capacity.planning import Plan, WorkerPlan
from forebay_capacity.steptime import ROOFLINE, timer_of
from forebay_cli.plan_table import layout_title

COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#8e5ea2", "#c77c11", "#3b3b3b")
"""Told apart in print and by most colour-blind readers."""
CURVES_MAX = 5
"""More curves than this hide each other."""
POINTS = 60
INK = "#333333"
GRID = "#e4e4e4"
ALARM = "#b3001b"
BOUND = (0, (6, 3))
"""The dashes of the objective and the planned rate."""


def draw(plan: Plan, path: Path) -> None:
    """Write both plots into one picture; the ending decides the format."""
    figure = Figure(figsize=(12.5, 6.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _style(left)
    _style(right)
    _draw_tpot(left, plan)
    _draw_goodput(right, plan)
    demand = plan.demand
    weights = str(demand.weights or demand.shape.native).upper()
    figure.suptitle(
        f"{demand.shape.name} ({weights}): {demand.workload.input_tokens:,} tokens in, "
        f"{demand.workload.output_tokens:,} out"
        + (f", {demand.workload.cached_share:.0%} cached" if demand.workload.cached_share else ""),
        fontsize=13,
        fontweight="bold",
        color=INK,
    )
    # The same plan gives the same file: no date, and ids that follow from the content.
    with rc_context({"svg.hashsalt": "forebay"}):
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def _style(axes: Axes) -> None:
    axes.grid(visible=True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#999999")
    axes.tick_params(colors=INK, labelsize=9)


def _draw_tpot(axes: Axes, plan: Plan) -> None:
    demand, bound_ms = plan.demand, plan.demand.objective.tpot_s * 1e3
    shown = _shown_workers(plan)
    right = max(_batch_shown(one) for one in shown)
    for one, colour in zip(shown, COLOURS, strict=False):
        _draw_worker(axes, plan, one, colour, right)
    objective = f"objective: {format_duration(demand.objective.tpot_s)}"
    axes.axhline(bound_ms, color=ALARM, linewidth=1.4, linestyle=BOUND, label=objective)
    axes.set_xlim(0, right)
    axes.set_ylim(0, bound_ms * 1.6)
    axes.set_xlabel("sequences decoding in one worker", color=INK)
    axes.set_ylabel("time per output token, ms", color=INK)
    axes.set_title("Time per output token against batch", loc="left", fontsize=11, color=INK)
    axes.plot([], [], ":", color=INK, linewidth=1.2, label="bound of the hardware")
    axes.plot([], [], "o", color=INK, markersize=6, label="full: memory or --max-num-seqs")
    _legend(axes)


def _legend(axes: Axes, columns: int = 2) -> None:
    """Below the axes, where it hides no curve."""
    axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.13), fontsize=9, frameon=False, ncols=columns)


def _draw_worker(axes: Axes, plan: Plan, one: WorkerPlan, colour: str, right: int) -> None:
    demand, worker = plan.demand, one.worker
    cap = lane_cap(worker, demand.workload, demand.serving) * worker.lanes
    context = demand.workload.decode_context_tokens
    end = max(1, min(cap, right))
    batches = [1 + (end - 1) * step / POINTS for step in range(POINTS + 1)]
    for calibration, style in ((demand.serving.calibration, "-"), (ROOFLINE, ":")):
        timer = timer_of(worker, calibration)
        times = [1e3 * decode_seconds(timer, max(1.0, batch / worker.lanes), context) for batch in batches]
        label = f"{worker.accelerator.name} {worker.parallelism}" if style == "-" else None
        axes.plot(batches, times, style, color=colour, linewidth=2 if style == "-" else 1.2, label=label)
        if style == "-" and cap <= right:
            axes.plot(batches[-1], times[-1], "o", color=colour, markersize=6, clip_on=True)


def _shown_workers(plan: Plan) -> list[WorkerPlan]:
    """Workers that hold a request: those of the options first, cheapest first."""
    used = [pool.worker for option in plan.options for pool in option.layout.pools]
    order = {worker: place for place, worker in reversed(list(enumerate(used)))}
    able = [one for one in plan.workers if one.sequences_by_memory > 0] or list(plan.workers)
    chosen = sorted(able, key=lambda one: order.get(one.worker, len(used)))[:CURVES_MAX]
    return sorted(chosen, key=lambda one: (one.worker.accelerator.name, one.worker.parallelism.gpus))


def _batch_shown(one: WorkerPlan) -> int:
    """So much of the axis that the crossing, or the end of memory, is seen."""
    return max(8, round(1.05 * min(one.sequences_by_memory, 1.3 * max(one.sequences_by_tpot, 1))))


def _draw_goodput(axes: Axes, plan: Plan) -> None:
    demand = plan.demand
    axes.set_xlabel("requests per second", color=INK)
    axes.set_ylabel("good requests per second", color=INK)
    axes.set_title("Goodput against rate", loc="left", fontsize=11, color=INK)
    if not plan.options:
        axes.text(0.5, 0.5, "no layout meets the objective", ha="center", transform=axes.transAxes, color=ALARM)
        return
    shown = plan.options[:CURVES_MAX]
    right = 1.35 * max(option.rate_max_per_s for option in shown)
    axes.plot([0, right], [0, right], color="#bbbbbb", linewidth=1.2, label="every request good")
    for option, colour in zip(shown, COLOURS, strict=False):
        _draw_option(axes, plan, option, colour, right)
    rate = demand.workload.rate_per_s
    axes.axvline(rate, color=ALARM, linewidth=1.4, linestyle=BOUND, label=f"planned rate: {rate:g}/s")
    axes.set_xlim(0, right)
    axes.set_ylim(0, right)
    _legend(axes, columns=1 if len(demand.accelerators) > 1 else 2)


def _draw_option(axes: Axes, plan: Plan, option: Option, colour: str, right: float) -> None:
    demand = plan.demand
    rates = [right * step / POINTS for step in range(1, POINTS + 1)]
    goodput = goodput_curve(option.layout, demand.workload, demand.objective, demand.serving, rates)
    many = len(demand.accelerators) > 1
    label = f"{layout_title(option.layout, accelerator=many)}, {option.gpus} GPUs"
    axes.plot([0, *rates], [0, *goodput], color=colour, linewidth=2, label=label)
