"""Whether routers know what workers' KV caches hold: the condition CacheIndexHealthy. Pure.

It decides nothing: it is told here because the autoscaler is who reads what routers say of themselves and writes it into the
status. The worst that any router has seen throughout the rate window counts: a feed of events that is lost for one router sends
its requests to the wrong workers, however well the others hear.
"""

from collections.abc import Mapping
from typing import Final

from forebay_api.conditions import Condition, ConditionStatus
from forebay_api.names import CACHE_INDEX_HEALTHY

LOST: Final = "lost"
DISTRUSTED: Final = "distrusted"
PRECISE: Final = "precise"


def cache_index_healthy(workers: Mapping[str, float] | None) -> Condition:
    """From the number of workers by how their caches are known; None when no router tells."""
    if workers is None:
        message = "no fresh data on forebay_router_cache_index_workers: is the router scraped?"
        return Condition(CACHE_INDEX_HEALTHY, ConditionStatus.UNKNOWN, "NoData", message)
    if lost := workers.get(LOST, 0):
        message = (
            f"{lost:.0f} workers publish KV events that a router cannot follow: can it reach their port kv-events? "
            "Their caches are judged by what was sent"
        )
        return Condition(CACHE_INDEX_HEALTHY, ConditionStatus.FALSE, "EventsLost", message)
    if distrusted := workers.get(DISTRUSTED, 0):
        message = f"KV events of {distrusted:.0f} workers were wrong: their caches are judged by what was sent"
        return Condition(CACHE_INDEX_HEALTHY, ConditionStatus.FALSE, "EventsWrong", message)
    if workers.get(PRECISE, 0):
        message = "the KV events of workers are followed"
        return Condition(CACHE_INDEX_HEALTHY, ConditionStatus.TRUE, "Precise", message)
    message = "no worker publishes KV events: caches are judged by what was sent"
    return Condition(CACHE_INDEX_HEALTHY, ConditionStatus.TRUE, "Approximate", message)
