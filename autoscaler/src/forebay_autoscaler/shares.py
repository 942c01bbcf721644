"""How the demand of a model service divides among its pools of one role. Pure.

The router sends requests where they are answered soonest, so what each pool finished lately is the best guess of what it
will be asked for next. Before anything finished, or when some pool is not heard, the numbers of workers stand in.
"""

from collections.abc import Sequence


def share_of_role(finished_per_s: Sequence[float | None], wanted: Sequence[int]) -> list[float]:
    """Shares that sum to 1, in order. The first pool takes all when every pool is empty."""
    if len(wanted) == 1:
        return [1.0]
    known = [rate for rate in finished_per_s if rate is not None]
    weights = (
        [float(rate) for rate in known] if len(known) == len(wanted) and sum(known) > 0 else [float(n) for n in wanted]
    )
    total = sum(weights)
    if total == 0:
        return [1.0] + [0.0] * (len(wanted) - 1)
    return [weight / total for weight in weights]
