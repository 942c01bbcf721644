"""Write the autoscaler's part of a status while the autoscaler is gone, and tell it with an Event."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from forebay_api.names import AUTOSCALER_MANAGER
from forebay_operator.attendance import Follower
from forebay_operator.cluster import Cluster
from forebay_operator.events import Kind, Recorder
from forebay_operator.resources import MODEL_SERVICE, Manifest
from forebay_operator.status.autoscaler import GONE, build_absent_part, explain


@dataclass(frozen=True, slots=True)
class StandIn:
    """Speaks for an autoscaler that does not."""

    cluster: Cluster
    recorder: Recorder
    follower: Follower | None
    """None where it is not known whether there is an autoscaler."""
    now: Callable[[], datetime]

    async def speak(self, service: Manifest) -> bool:
        """Say that the autoscaler is gone, if it is; whether anything was written."""
        if self.follower is None:
            return False
        absence = self.follower.attendance.absence
        if absence is None or build_absent_part(service, absence, now=self.now()) is None:
            return False
        absence = await self.follower.look()  # it may have come back since the last look: then it has the word
        wanted = None if absence is None else build_absent_part(service, absence, now=self.now())
        if absence is None or wanted is None:
            return False
        await self.cluster.apply_status(MODEL_SERVICE, wanted, manager=AUTOSCALER_MANAGER)
        if wanted["status"]:
            await self.recorder.record(MODEL_SERVICE, service, kind=Kind.WARNING, reason=GONE, message=explain(absence))
        return True
