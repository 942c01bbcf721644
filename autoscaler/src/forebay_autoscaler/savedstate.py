"""A state as text that outlives the process, and what of it may be believed when it is read again. Pure.

One JSON object a model service: the format's version, the uid of the resource, when it was saved, a digest, and the state, with
the rates of the past rounded. A full one is 13 kB.

What is read may be of another version, cut off, or edited. So it is checked before it is used, and what does not hold is no
state at all: `UnusableStateError` says why. What holds is used as far as its age allows:

    always                 what a worker can do, how long one takes to start, the past of demand and its forecasts
    another rate window    not the past of demand: its bins have another length
    a gap without looks    orders that may have been fulfilled meanwhile teach nothing
    a longer gap           the windows of needs begin anew, so the pool's present number counts as needed, as after any outage
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final

from pydantic import ValidationError

from forebay_autoscaler.codec import decode, encode
from forebay_autoscaler.errors import UnusableStateError
from forebay_autoscaler.forecast import Forecast
from forebay_autoscaler.learn import SPEED_BOUNDS
from forebay_autoscaler.orders import STARTUP_MAX_S, Orders
from forebay_autoscaler.past import COARSER, LENGTH_MAX
from forebay_autoscaler.policy import ServicePolicy
from forebay_autoscaler.state import PoolState, ServiceState
from forebay_autoscaler.window import Window

VERSION: Final = 1
"""Raised whenever what a field means changes. Fields that come with a default, or go, need no new one."""
DIGITS: Final = 6
"""Significant digits of the rates of the past, which are most of it."""
SERIES_MIN: Final = 8
"""Numbers in a row from which they are a series of rates."""
SKEW_MAX_S: Final = 60.0
"""How far another node's clock may be ahead."""
UNSEEN_SHARE: Final = 1 / 3
"""Of the rate window: a gap that orders may have been fulfilled in without being seen."""
CONTINUOUS_SHARE: Final = 1 / 4
"""Of the shrink window: the longest gap after which it counts as seen without one."""


class Unusable(StrEnum):
    """Why a saved state is none."""

    VERSION = "version"
    CORRUPT = "corrupt"
    FUTURE = "future"


@dataclass(frozen=True, slots=True)
class Saved:
    """A state as it was saved."""

    uid: str
    at_s: float
    rate_window_s: float
    state: ServiceState


def dump(saved: Saved) -> str:
    """As text."""
    head = {"version": VERSION, "uid": saved.uid, "at_s": saved.at_s, "rate_window_s": saved.rate_window_s}
    state = _short(json.loads(encode(ServiceState, saved.state)))
    return _text(head | {"digest": digest_of(state), "state": state})


def digest_of(state: Any) -> str:
    """Tells a state, as JSON, from one in which something was changed."""
    return sha256(_text(state).encode()).hexdigest()[:16]


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def load(text: str) -> Saved:
    """The state again; UnusableStateError when it is of another version or cannot be."""
    try:
        found = json.loads(text)
        version = found["version"]
        if version != VERSION:
            raise UnusableStateError(Unusable.VERSION, f"it is of version {version}, this program reads {VERSION}")
        if found["digest"] != digest_of(found["state"]):
            raise UnusableStateError(Unusable.CORRUPT, "it is not what was written: its digest is another")
        state = decode(ServiceState, json.dumps(found["state"]))
        saved = Saved(str(found["uid"]), float(found["at_s"]), float(found["rate_window_s"]), state)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:])
        raise UnusableStateError(Unusable.CORRUPT, f"{field}: {first['msg']}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnusableStateError(Unusable.CORRUPT, f"{type(error).__name__}: {error}") from error
    wrong = next(_impossible(saved), None)
    if wrong is not None:
        raise UnusableStateError(Unusable.CORRUPT, f"{wrong} is impossible")
    return saved


def saved_at_s(text: str) -> float:
    """When it was saved; before everything else what cannot be used."""
    try:
        return load(text).at_s
    except UnusableStateError:
        return -math.inf


def resume(saved: Saved, policy: ServicePolicy, now_s: float) -> ServiceState:
    """The state to decide with now; UnusableStateError when it was saved later than now."""
    gap_s, tuning = now_s - saved.at_s, policy.tuning
    if gap_s < -SKEW_MAX_S:
        raise UnusableStateError(Unusable.FUTURE, f"it was saved {-gap_s:.0f} s from now")
    state = saved.state
    if saved.rate_window_s != tuning.rate_window_s:
        state = replace(state, forecast=Forecast())
    pools = state.pools
    if gap_s > UNSEEN_SHARE * tuning.rate_window_s:
        pools = {name: _without_orders(pool) for name, pool in pools.items()}
    if gap_s > CONTINUOUS_SHARE * policy.scale_down_window_s:
        pools = {name: _without_windows(pool) for name, pool in pools.items()}
    return replace(state, pools=pools)


def _without_orders(pool: PoolState) -> PoolState:
    orders = Orders(startup_s=pool.learnt.orders.startup_s)
    return replace(pool, learnt=replace(pool.learnt, orders=orders, queued_since_s=None), crowded_since_s=None)


def _without_windows(pool: PoolState) -> PoolState:
    return replace(pool, needs=Window(), shortfalls=Window(), unknown_since_s=None)


def _short(value: Any) -> Any:
    """With long series rounded. A period is not: counted from 1970 its last digits are the phase."""
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items()}
    if isinstance(value, list) and len(value) >= SERIES_MIN and all(isinstance(one, float) for one in value):
        return [float(f"{one:.{DIGITS}g}") for one in value]
    return [_short(one) for one in value] if isinstance(value, list) else value


def _impossible(saved: Saved) -> Iterator[str]:
    """Names of what no state that was saved by a working program can hold."""
    if not math.isfinite(saved.at_s):
        yield "at_s"
    low, high = SPEED_BOUNDS
    for name, pool in saved.state.pools.items():
        learnt, where = pool.learnt, f"pools.{name}.learnt"
        if learnt.limit is not None and not 0 < learnt.limit < math.inf:
            yield f"{where}.limit"
        if not 0 < learnt.share <= 1:
            yield f"{where}.share"
        if learnt.speed is not None and not low <= learnt.speed <= high:
            yield f"{where}.speed"
        if learnt.work_s is not None and not 0 <= learnt.work_s < math.inf:
            yield f"{where}.work_s"
        if not 0 <= learnt.orders.startup_s <= STARTUP_MAX_S:
            yield f"{where}.orders.startup_s"
    mix = saved.state.mix
    if mix is not None and not (0 <= mix.cached <= mix.prompt and mix.prompt > 0 and mix.output > 0):
        yield "mix"
    credit = saved.state.credit
    numbers = (credit.saved_s, credit.ended_per_s, credit.over_s, credit.patience_s)
    if not all(math.isfinite(number) for number in numbers) or credit.patience_s <= 0:
        yield "credit"
    yield from _impossible_forecast(saved.state.forecast)


def _impossible_forecast(forecast: Forecast) -> Iterator[str]:
    levels = forecast.past.levels
    if len(levels) != len(COARSER) or any(len(level.values) > LENGTH_MAX for level in levels):
        yield "forecast.past.levels"
    rates = [value for level in levels for value in level.values]
    if not all(0 <= value < math.inf for value in rates):
        yield "forecast.past.levels.values"
    numbers = (
        forecast.past.open_sum,
        forecast.past.open_s,
        forecast.offset,
        forecast.shortfall,
        forecast.burst,
        forecast.dispersion,
        *forecast.losses,
        *forecast.errors,
        *(forecast.season.coefficients if forecast.season else ()),
    )
    if not all(math.isfinite(number) for number in numbers):
        yield "forecast"
    if forecast.season is not None and not forecast.season.period > 1:
        yield "forecast.season.period"
