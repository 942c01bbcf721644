"""How fast a pool's workers should be, by the capacity model. Pure.

Until their speed is learnt from finished requests, the model's stands in: a line through the work of three prompts, and one
through two batches at a usual context. For a model or an accelerator that it does not know an assumed speed
stands in.
"""

from collections.abc import Mapping

from forebay_api.acceleratorclass import AcceleratorClassSpec
from forebay_api.modelservice import ModelServiceSpec
from forebay_capacity.accelerators import BATCHED_TOKENS
from forebay_capacity.batch import decode_seconds, prefill_seconds
from forebay_capacity.errors import CapacityError
from forebay_capacity.fits import worker_of_pool
from forebay_capacity.memory import kv_tokens_of
from forebay_capacity.steptime import StepTimer, timer_of
from forebay_capacity.worker import Worker
from forebay_router.fitting import BEND_MAX, work_of
from forebay_router.speed import Origin, Seed

SHORT_PROMPT_TOKENS = 256
USUAL_PROMPT_TOKENS = 2048
LONG_PROMPT_TOKENS = 32_768
USUAL_BATCH = 32
"""Sequences that decode together in one lane."""


def seeds_of_pools(
    spec: ModelServiceSpec, accelerators: Mapping[str, AcceleratorClassSpec]
) -> tuple[tuple[str, Seed], ...]:
    """Seeds by pool, for those that the capacity model knows."""
    found = []
    for pool in spec.pools:
        accelerator = accelerators.get(pool.accelerator)
        if accelerator is None:
            continue
        try:
            worker = worker_of_pool(spec, pool, accelerator)
            found.append((pool.name, seed_of(worker)))
        except CapacityError:
            continue
    return tuple(found)


def seed_of(worker: Worker) -> Seed:
    """The lines of one worker; a queue is shared by its lanes, a batch is spread over them."""
    return seed_of_timer(timer_of(worker), worker.lanes, kv_tokens_of(worker), worker.step_tokens)


def seed_of_timer(
    timer: StepTimer, lanes: int = 1, kv_tokens: int | None = None, step_tokens: int = BATCHED_TOKENS
) -> Seed:
    """The lines of a worker whose steps take as long as the timer says, and so many tokens at most."""
    short_s, usual_s, long_s = (
        prefill_seconds(timer, tokens, chunk_tokens=step_tokens)
        for tokens in (SHORT_PROMPT_TOKENS, USUAL_PROMPT_TOKENS, LONG_PROMPT_TOKENS)
    )
    alone_s, full_s = (decode_seconds(timer, batch, USUAL_PROMPT_TOKENS) for batch in (1, USUAL_BATCH))
    token_s, bend = _through(short_s, usual_s, long_s)
    return Seed(
        first_token_s=max(0.0, short_s - work_of(SHORT_PROMPT_TOKENS, SHORT_PROMPT_TOKENS, bend) * token_s),
        prefill_token_s=token_s / lanes,
        step_s=alone_s,
        step_growth_s=(full_s - alone_s) / (USUAL_BATCH - 1) / lanes,
        origin=Origin.PLANNED,
        kv_tokens=kv_tokens,
        bend=bend,
    )


def _through(short_s: float, usual_s: float, long_s: float) -> tuple[float, float]:
    """(seconds a token at the very beginning, bend) of base + token_s x (n + bend x n^2) through the three prompts.

    The bend is 0 where no such curve goes through them, and at most `BEND_MAX`, as a learnt one.
    """
    short, usual, far = SHORT_PROMPT_TOKENS, USUAL_PROMPT_TOKENS, LONG_PROMPT_TOKENS
    near_s, far_s = (usual_s - short_s) / (usual - short), (long_s - usual_s) / (far - usual)
    rise = near_s * (usual + far) - far_s * (short + usual)
    if rise <= 0:
        return near_s, 0.0
    bend = min(max(0.0, (far_s - near_s) / rise), BEND_MAX)
    return near_s / (1 + bend * (short + usual)), bend
