"""Whether workers can hold the model at all, asked of the capacity model before any pod starts.

One pool that cannot hold its weights and one request of maximal length makes the whole service not fit: its pods would only
load for minutes, fail and start over. Unknown (a model or hardware that the capacity model does not know) never keeps a
service back.
"""

from collections.abc import Mapping

from forebay_api.acceleratorclass import AcceleratorClassSpec
from forebay_api.conditions import Condition, ConditionStatus
from forebay_api.modelservice import ModelServiceSpec
from forebay_api.names import FITS
from forebay_capacity.fits import Fit, Verdict, fits

STATUSES = {
    Verdict.TOO_SMALL: ConditionStatus.FALSE,
    Verdict.UNKNOWN: ConditionStatus.UNKNOWN,
    Verdict.FITS: ConditionStatus.TRUE,
}
REASONS = {Verdict.TOO_SMALL: "DoesNotFit", Verdict.UNKNOWN: "CapacityUnknown", Verdict.FITS: "Fits"}


def judge_fit(spec: ModelServiceSpec, accelerators: Mapping[str, AcceleratorClassSpec]) -> Condition:
    """The Fits condition over all pools: the worst of them decides, and only what is of that kind is told."""
    judged = {pool.name: fits(spec, pool, accelerators[pool.accelerator]) for pool in spec.pools}
    verdict = next(one for one in STATUSES if any(fit.verdict is one for fit in judged.values()))
    return Condition(FITS, STATUSES[verdict], REASONS[verdict], _message(judged, verdict))


def _message(judged: Mapping[str, Fit], verdict: Verdict) -> str:
    """One sentence a pool; pools with the same sentence share it."""
    pools: dict[str, list[str]] = {}
    for name, fit in judged.items():
        if fit.verdict is verdict:
            pools.setdefault(fit.message, []).append(name)
    return "; ".join(
        f"{'pools' if len(names) > 1 else 'pool'} {', '.join(names)}: {text}" for text, names in pools.items()
    )
