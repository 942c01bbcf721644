"""Times at which a pool has a least number of workers: recurring windows of a day, by the clock of a time zone."""

from enum import StrEnum
from typing import Annotated, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field

from forebay_api.fields import Resource, Rule, text


class Day(StrEnum):
    """A day of the week."""

    MONDAY = "Mon"
    TUESDAY = "Tue"
    WEDNESDAY = "Wed"
    THURSDAY = "Thu"
    FRIDAY = "Fri"
    SATURDAY = "Sat"
    SUNDAY = "Sun"


DAYS: Final = tuple(Day)
"""In order."""
_ZONE_PATTERN: Final = r"^[A-Za-z][A-Za-z0-9_+/-]*$"


def is_time_zone(name: str) -> bool:
    """Whether the time zone database here knows this name."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


Start = Annotated[
    str,
    Field(max_length=5),
    text(r"^([01][0-9]|2[0-3]):[0-5][0-9]$", 'must be the time of day of its start in quotes, from "00:00" to "23:59"'),
]
End = Annotated[
    str,
    Field(max_length=5),
    text(r"^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$", 'must be a time of day in quotes, such as "08:00" or "24:00"'),
]
TimeZone = Annotated[
    str,
    Field(max_length=64),
    text(_ZONE_PATTERN, "must be a name of the time zone database, such as UTC or Europe/Berlin"),
    # The server's library takes it for the zone of its own host, and the database has no such name.
    Rule(
        "self != 'Local'",
        "must not be Local, which is another zone on each host: write its name, such as Europe/Berlin",
        holds=lambda name: name != "Local",
    ),
    Rule(
        f"!self.matches(r'{_ZONE_PATTERN}') || timestamp('2000-01-01T00:00:00Z').getHours(self) >= 0",
        "must be a time zone that exists, such as UTC or Europe/Berlin",
        holds=is_time_zone,
    ),
]


class Schedule(Resource):
    """A recurring window in which a pool has a least number of workers, ordered early enough to be ready at its start."""

    RULES = (
        Rule(
            "self.from != self.to",
            'a schedule\'s from and to must differ: write "00:00" and "24:00" for whole days',
            holds=lambda self: self.from_ != self.to,
        ),
    )
    name: Annotated[
        str,
        Field(max_length=40),
        text(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "must be lower-case letters, digits and dashes, such as office-hours"),
    ]
    """Name, by which status tells of it."""
    days: list[Day] = Field(
        default=list(DAYS), min_length=1, max_length=7, json_schema_extra={"x-kubernetes-list-type": "set"}
    )
    """Days on which the window starts; every day by default."""
    from_: Start = Field(alias="from")
    """Start, such as "08:00"."""
    to: End
    """End, up to "24:00"; one that is not after the start is on the next day."""
    time_zone: TimeZone = "UTC"
    """Name of the time zone that days and times are of, such as Europe/Berlin; summer time is followed."""
    min: int = Field(ge=1, le=1000)
    """Fewest workers of the pool meanwhile, in mode Auto."""
