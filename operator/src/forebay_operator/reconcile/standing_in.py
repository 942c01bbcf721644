"""Write the autoscaler's part of a status while the autoscaler is gone, and tell it with an Event.

It is a courtesy beside the work of a reconciliation: what fails here is logged and counted, and tried again at the next one.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from forebay_api.names import AUTOSCALER_MANAGER
from forebay_operator.attendance import Absence, Follower
from forebay_operator.cluster import Cluster
from forebay_operator.errors import ApiError
from forebay_operator.events import Kind, Recorder
from forebay_operator.logs import about
from forebay_operator.metrics import Metrics
from forebay_operator.resources import MODEL_SERVICE, Manifest, name_of, namespace_of
from forebay_operator.status.autoscaler import GONE, build_absent_part, explain, is_living_word

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StandIn:
    """Speaks for an autoscaler that does not."""

    cluster: Cluster
    recorder: Recorder
    follower: Follower | None
    """None where it is not known whether there is an autoscaler."""
    metrics: Metrics
    now: Callable[[], datetime]
    _spoken: dict[str, Absence] = field(default_factory=dict)
    """The absence that was last told of each service, by uid; empty while nobody is gone."""

    async def speak(self, service: Manifest) -> bool:
        """Say that the autoscaler is gone, if it is; whether anything was written. A failed write is logged and counted."""
        try:
            return await self._speak(service)
        except ApiError as error:
            self.metrics.api_errors.labels(str(error.status) if error.status else "none").inc()
            place = about(MODEL_SERVICE.kind, namespace_of(service), name_of(service))
            _log.warning("the autoscaler's absence was not told: %s", error, extra=place)
            return False

    async def _speak(self, service: Manifest) -> bool:
        if self.follower is None:
            return False
        if self.follower.attendance.absence is None:
            self._spoken.clear()
            return False
        if build_absent_part(service, self.follower.attendance.absence, now=self.now()) is None:
            return False
        if not await self.follower.look():  # it may have come back since the last look: then it has the word
            return False
        absence = self.follower.attendance.absence
        wanted = None if absence is None else build_absent_part(service, absence, now=self.now())
        if absence is None or wanted is None:
            return False
        uid = service["metadata"]["uid"]
        if self._spoken.get(uid) == absence and is_living_word(service):
            self.follower.doubt()
            return False
        await self.cluster.apply_status(MODEL_SERVICE, wanted, manager=AUTOSCALER_MANAGER)
        self._spoken[uid] = absence
        if wanted["status"]:
            await self.recorder.record(MODEL_SERVICE, service, kind=Kind.WARNING, reason=GONE, message=explain(absence))
        return True
