"""Whether the API server's CRDs have every field of this version's resources.

An API server drops in silence what its CRD does not describe, and Helm by itself never touches a CRD that exists. So after an
upgrade that left the CRDs behind, a new field of a spec would be lost without a word. Each replica compares at its start what
the server describes (its OpenAPI document, which every service account may read) with the models; while a field is absent it
says so and is not ready, so a rollout of a new version stops there and the old one goes on. It works all the same: what the
CRDs do have is handled, and a comparison that goes wrong must not stop a fleet's operator.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol

from forebay_api.crds import DEFINITIONS, structural_schema
from forebay_operator.control import Health
from forebay_operator.errors import ApiError, ApiForbiddenError

_log = logging.getLogger(__name__)

PERIOD_S: Final = 5.0
"""Pause between two looks, until all fields are there; the server describes a changed CRD some seconds late."""
SHOWN_MAX: Final = 3
"""Absent fields of a kind that are named."""


class SchemaSource(Protocol):
    """Where the served schemas are read."""

    async def served_schemas(self) -> Mapping[str, Mapping[str, Any]]:
        """The schema of each kind of our group that the API server describes, by kind; raises `ApiError`."""


def absent_fields(wanted: Mapping[str, Any], served: Mapping[str, Any], path: str = "") -> list[str]:
    """Paths of the properties that a structural schema has and a served one has not; below an absent one nothing is told."""
    found = []
    for name, child in wanted.get("properties", {}).items():
        place = f"{path}.{name}".removeprefix(".")
        there = served.get("properties", {}).get(name)
        if there is None:
            found.append(place)
            continue
        found += absent_fields(child, there, place)
        if "items" in child:
            found += absent_fields(child["items"], there.get("items", {}), f"{place}[]")
    return found


def describe_outdated(served: Mapping[str, Mapping[str, Any]]) -> str | None:
    """What is absent from the kinds that are served and how to mend it; None when nothing is."""
    told = []
    for definition in DEFINITIONS:
        if definition.kind not in served:
            continue
        absent = absent_fields(structural_schema(definition.model), served[definition.kind])
        if absent:
            more = f" and {len(absent) - SHOWN_MAX} more" if len(absent) > SHOWN_MAX else ""
            told.append(f"the {definition.kind} CRD lacks {', '.join(absent[:SHOWN_MAX])}{more}")
    if not told:
        return None
    return f"{'; '.join(told)}: it is older than this operator, and such fields are lost; apply the chart's CRDs"


async def watch_schemas(source: SchemaSource, health: Health, *, period_s: float = PERIOD_S) -> None:
    """Keep `health.outdated_crds` true until every kind is served with all its fields, then end."""
    while True:
        try:
            served = await source.served_schemas()
        except ApiForbiddenError as e:
            _log.warning("whether the CRDs are up to date is not known: %s", e)
            return
        except ApiError as e:
            _log.debug("the CRDs could not be compared: %s", e)
        except Exception:  # noqa: BLE001 - the loop's boundary: what is served oddly must not end an operator that works
            _log.exception("the CRDs could not be compared")
        else:
            outdated = describe_outdated(served)
            if outdated and outdated != health.outdated_crds:
                _log.error(outdated)
            health.outdated_crds = outdated
            if not outdated and {definition.kind for definition in DEFINITIONS} <= served.keys():
                return
        await asyncio.sleep(period_s)
