"""The cheapest layouts that meet an objective, one for each way to spread the model over GPUs.

For given workers the number of replicas is searched: attainment grows with replicas, so doubling and halving finds the
fewest. A split layout has two numbers: the fewest decode workers that meet the objective with prefill out of the way,
then some more, each with the fewest prefill workers, and the cheapest pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from forebay_capacity.errors import ImpossibleError
from forebay_capacity.layouts import (
    Layout,
    MixedLayout,
    PoolSize,
    SplitLayout,
    layout_gpus,
    layout_price_usd_per_hour,
    usd_per_million_output_tokens,
)
from forebay_capacity.performance import Performance, Serving, attainment, evaluate, fewest_replicas

if TYPE_CHECKING:
    from forebay_api.objective import Objective
    from forebay_capacity.worker import Worker
    from forebay_capacity.workload import Workload

REPLICAS_MAX = 256
"""Workers of a pool that the search adds to those without which a queue grows without end; as many again if more."""
START_MAX = 4096
"""Most workers of a pool that any demand is sized for."""
OPTIONS_MAX = 12
"""Layouts that are kept, the cheapest."""
DECODE_EXTRA_MAX = 3
"""Decode workers above the fewest that are tried, in exchange for fewer prefill workers."""
RATE_ROUNDS = 12
"""Halvings when the highest rate of a layout is searched; to 0.1 % of the range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A layout that meets the objective, and how."""

    layout: Layout
    performance: Performance
    gpus: int
    price_usd_per_hour: float
    usd_per_million_output_tokens: float
    rate_max_per_s: float
    """The highest rate at which it still meets the objective."""


def find_options(
    workers: Sequence[Worker],
    workload: Workload,
    objective: Objective,
    *,
    serving: Serving | None = None,
    count_max: int = OPTIONS_MAX,
) -> list[Option]:
    """For each worker a mixed layout, and for each fitting pair a split one; those that meet the objective.

    Cheapest first, at most `count_max`. Pairs are tried in the order of what they cost at least, so that the search
    ends when no further one can be among the cheapest.
    """
    settings = serving or Serving()
    found: list[Layout] = []
    for least_usd, search in sorted(_searches(workers, workload, objective, settings), key=lambda one: one[0]):
        prices = sorted(layout_price_usd_per_hour(layout) for layout in found)
        if len(prices) >= count_max and least_usd > prices[count_max - 1]:
            break
        layout = search()
        if layout is not None:
            found.append(layout)
    cheapest = sorted(found, key=lambda layout: (layout_price_usd_per_hour(layout), layout_gpus(layout)))[:count_max]
    options = [describe(layout, workload, objective, settings) for layout in cheapest]
    return sorted(options, key=lambda option: (option.price_usd_per_hour, option.gpus, -option.rate_max_per_s))


Search = Callable[[], Layout | None]


def _searches(
    workers: Sequence[Worker], workload: Workload, objective: Objective, serving: Serving
) -> Iterator[tuple[float, Search]]:
    """Each search with the least that its layout can cost."""
    prefills: dict[Worker, int] = {}
    decodes: dict[Worker, int] = {}
    for worker in workers:
        both = fewest_replicas(worker, workload, serving, prefill=True, decode=True)
        if both is not None:
            yield _price(worker, both), partial(cheapest_mixed, worker, workload, objective, serving)
        prefill = fewest_replicas(worker, workload, serving, prefill=True, decode=False)
        decode = fewest_replicas(worker, workload, serving, prefill=False, decode=True)
        if prefill is not None and decode is not None:
            prefills[worker], decodes[worker] = prefill, decode
    for prefill_worker, decode_worker in product(prefills, decodes):
        if can_pair(prefill_worker, decode_worker):
            least = _price(prefill_worker, prefills[prefill_worker]) + _price(decode_worker, decodes[decode_worker])
            yield least, partial(cheapest_split, prefill_worker, decode_worker, workload, objective, serving)


def can_pair(prefill: Worker, decode: Worker) -> bool:
    """Whether KV cache can move between two kinds of worker: one accelerator, and layers that are not cut up.

    Different tensor parallelism is fine for the connector; pipeline stages are not.
    """
    same = prefill.accelerator.name == decode.accelerator.name and prefill.kv == decode.kv
    return same and prefill.parallelism.pipeline == decode.parallelism.pipeline == 1


def describe(layout: Layout, workload: Workload, objective: Objective, serving: Serving) -> Option:
    """The layout with its performance, price and headroom."""
    return Option(
        layout=layout,
        performance=evaluate(layout, workload, objective, serving),
        gpus=layout_gpus(layout),
        price_usd_per_hour=layout_price_usd_per_hour(layout),
        usd_per_million_output_tokens=usd_per_million_output_tokens(layout, workload),
        rate_max_per_s=highest_rate(layout, workload, objective, serving),
    )


def cheapest_mixed(worker: Worker, workload: Workload, objective: Objective, serving: Serving) -> MixedLayout | None:
    """The fewest mixed workers that meet the objective; None when no number of them does."""

    def layout(replicas: int) -> MixedLayout:
        return MixedLayout(PoolSize(worker, replicas))

    start = fewest_replicas(worker, workload, serving, prefill=True, decode=True)
    if start is None:
        return None
    replicas = _fewest(lambda n: _meets(layout(n), workload, objective, serving), start)
    return None if replicas is None else layout(replicas)


def cheapest_split(
    prefill: Worker, decode: Worker, workload: Workload, objective: Objective, serving: Serving
) -> SplitLayout | None:
    """The cheapest prefill and decode workers that meet the objective; None when no number of them does."""

    def layout(prefills: int, decodes: int) -> SplitLayout:
        return SplitLayout(PoolSize(prefill, prefills), PoolSize(decode, decodes))

    def meets(prefills: int, decodes: int) -> bool:
        return _meets(layout(prefills, decodes), workload, objective, serving)

    prefill_start = fewest_replicas(prefill, workload, serving, prefill=True, decode=False)
    decode_start = fewest_replicas(decode, workload, serving, prefill=False, decode=True)
    if prefill_start is None or decode_start is None:
        return None
    fewest = _fewest(lambda n: meets(REPLICAS_MAX + 2 * prefill_start, n), decode_start)
    if fewest is None:
        return None
    found = []
    for decodes in range(fewest, fewest + DECODE_EXTRA_MAX + 1):
        prefills = _fewest(partial(meets, decodes=decodes), prefill_start)
        if prefills is not None:
            found.append(layout(prefills, decodes))
    return min(found, key=lambda one: (layout_price_usd_per_hour(one), layout_gpus(one)), default=None)


def highest_rate(layout: Layout, workload: Workload, objective: Objective, serving: Serving) -> float:
    """The highest request rate at which the layout meets the objective; 0 when it does at none."""

    def meets(rate_per_s: float) -> bool:
        return _meets(layout, replace(workload, rate_per_s=rate_per_s), objective, serving)

    low, high = 0.0, workload.rate_per_s
    for _ in range(40):
        if not meets(high):
            break
        low, high = high, high * 2
    for _ in range(RATE_ROUNDS):
        middle = (low + high) / 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def goodput_curve(
    layout: Layout, workload: Workload, objective: Objective, serving: Serving, rates_per_s: Sequence[float]
) -> list[float]:
    """Good requests per second at each rate."""
    return [rate * attainment(layout, replace(workload, rate_per_s=rate), objective, serving) for rate in rates_per_s]


def tensor_sizes(heads: int, gpus_per_node: int) -> list[int]:
    """Sizes of tensor parallelism within a node that divide the attention heads."""
    sizes = [size for size in (1, 2, 4, 8, 16) if size <= gpus_per_node and heads % size == 0]
    if not sizes:
        raise ImpossibleError("tensor", f"no size divides {heads} attention heads", "give the size with --tensor")
    return sizes


def _meets(layout: Layout, workload: Workload, objective: Objective, serving: Serving) -> bool:
    return attainment(layout, workload, objective, serving) >= objective.target


def _price(worker: Worker, replicas: int) -> float:
    return PoolSize(worker, replicas).price_usd_per_hour


def _fewest(meets: Callable[[int], bool], start: int) -> int | None:
    """The fewest replicas from `start` for which a condition holds that, once true, stays true.

    None beyond `REPLICAS_MAX` more than the start or twice the start, or where the start is beyond `START_MAX`.
    """
    if start > START_MAX:
        return None
    if meets(start):
        return start
    low, extra, extra_max = start, 1, max(REPLICAS_MAX, start)
    while not meets(start + extra):
        if extra >= extra_max:
            return None
        low, extra = start + extra, min(extra_max, extra * 2)
    high = start + extra
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high
