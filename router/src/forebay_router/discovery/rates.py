"""How fast a pool's workers should be, by the capacity model. Pure.

Until rates are learnt from finished requests, the model's stand in, at a usual prompt and batch. A model or an accelerator that
it does not know gives no rates, and the choice counts requests instead.
"""

from collections.abc import Mapping

from forebay_api.acceleratorclass import AcceleratorClassSpec
from forebay_api.modelservice import ModelServiceSpec
from forebay_capacity.batch import decode_seconds, prefill_seconds
from forebay_capacity.errors import CapacityError
from forebay_capacity.fits import worker_of_pool
from forebay_capacity.steptime import timer_of
from forebay_router.choose import Rates

USUAL_PROMPT_TOKENS = 2048
USUAL_BATCH = 32
"""Sequences that decode together in one lane."""


def rates_of_pools(
    spec: ModelServiceSpec, accelerators: Mapping[str, AcceleratorClassSpec]
) -> tuple[tuple[str, Rates], ...]:
    """Rates by pool, for those that the capacity model knows."""
    found = []
    for pool in spec.pools:
        accelerator = accelerators.get(pool.accelerator)
        if accelerator is None:
            continue
        try:
            worker = worker_of_pool(spec, pool, accelerator)
            timer = timer_of(worker)
            prefill_s = prefill_seconds(timer, USUAL_PROMPT_TOKENS)
            step_s = decode_seconds(timer, USUAL_BATCH, USUAL_PROMPT_TOKENS)
        except CapacityError:
            continue
        rates = Rates(
            prefill_tokens_per_s=worker.lanes * USUAL_PROMPT_TOKENS / prefill_s,
            output_token_s=step_s / (USUAL_BATCH * worker.lanes),
        )
        found.append((pool.name, rates))
    return tuple(found)
