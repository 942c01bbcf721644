"""Spares, schedules and prices of a replayed fleet, from the flags of `forebay replay`. Pure.

Each flag is `[POOL=]VALUE`, repeatable: without a pool for every pool, with one for that alone, the later over the earlier.
A fleet has the pool `mixed`, or `prefill` and `decode`.

    --spare 1               warm spares
    --schedule 8@08:00-18:00    8 workers at least between these times of day (UTC); a pool may have several
    --price 3.2             USD for a GPU-hour
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from pydantic import ValidationError

from forebay_api.schedules import Schedule
from forebay_cli.errors import CliError
from forebay_simulator.fleet.spec import FleetSpec, PoolSpec

_POOL: Final = re.compile(r"(?:([a-z]+)=)?(.*)", re.DOTALL)
_WINDOW: Final = re.compile(r"(\d+)@([^-]+)-([^-]+)")
_TIME: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
Value = TypeVar("Value")


def with_standing(
    fleet: FleetSpec, *, spares: Sequence[str], schedules: Sequence[str], prices: Sequence[str]
) -> FleetSpec:
    """The fleet with what the flags say. Raises CliError."""
    spare = dict(_by_pool(fleet, "--spare", spares, _spare))
    price = dict(_by_pool(fleet, "--price", prices, _price))
    windows = list(_by_pool(fleet, "--schedule", schedules, _window))

    def told(pool: PoolSpec) -> PoolSpec:
        mine = [window for name, window in windows if name == pool.name]
        return replace(
            pool,
            spare=spare.get(pool.name, pool.spare),
            price_per_hour=price.get(pool.name, pool.price_per_hour),
            schedules=tuple(_schedule(f"schedule-{number}", one) for number, one in enumerate(mine, 1)),
        )

    return replace(fleet, pools=tuple(told(pool) for pool in fleet.pools))


def begins_s(text: str) -> float:
    """Seconds of a day at a time of day. Raises CliError."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise CliError(f'--begins {text!r} is not a time of day: write one from "00:00" to "23:59"')
    return int(found[1]) * 3600.0 + int(found[2]) * 60.0


def _by_pool(
    fleet: FleetSpec, flag: str, given: Sequence[str], parse: Callable[[str], Value]
) -> Iterator[tuple[str, Value]]:
    """Values by the pools that they are for."""
    names = [pool.name for pool in fleet.pools]
    for text in given:
        found = _POOL.fullmatch(text)
        assert found is not None, "it takes any text"
        if found[1] is not None and found[1] not in names:
            raise CliError(f"{flag} {text!r}: {found[1]!r} is no pool of this fleet, which has {' and '.join(names)}")
        try:
            value = parse(found[2])
        except ValueError as error:
            raise CliError(f"{flag} {text!r} {error}") from error
        for name in names if found[1] is None else [found[1]]:
            yield name, value


def _spare(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("is not a number of workers: write --spare 1, or --spare decode=1 for one pool")
    return int(text)


def _price(text: str) -> float:
    problem = "is not a price of a GPU-hour: write --price 3.2, or --price decode=3.2 for one pool"
    try:
        price = float(text)
    except ValueError as error:
        raise ValueError(problem) from error
    if not 0 < price < float("inf"):
        raise ValueError(problem)
    return price


def _window(text: str) -> tuple[int, str, str]:
    """(fewest workers, from, to)."""
    found = _WINDOW.fullmatch(text)
    if found is None:
        raise ValueError("is not WORKERS@FROM-TO: write --schedule 8@08:00-18:00, or decode=8@08:00-18:00 for one pool")
    window = int(found[1]), found[2], found[3]
    _schedule("a", window)
    return window


def _schedule(name: str, window: tuple[int, str, str]) -> Schedule:
    workers, start, end = window
    try:
        return Schedule.model_validate({"name": name, "from": start, "to": end, "min": workers})
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise ValueError(f"is not a schedule: {where}{first['msg'].removeprefix('Value error, ')}") from error
