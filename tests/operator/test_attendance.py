"""An autoscaler that is gone: when that is known, what is said of it, and who has the word afterwards."""

from typing import Any

import pytest

from forebay_api.conditions import find_condition, rfc3339
from forebay_api.names import ACCEPTED, AUTOSCALER_CONDITIONS, AUTOSCALER_MANAGER, SCALING_ACTIVE
from forebay_operator.attendance import Absence, Attendance, Follower
from forebay_operator.election import ClusterLease
from forebay_operator.errors import ApiCall, ApiError
from forebay_operator.events import Recorder
from forebay_operator.metrics import Metrics
from forebay_operator.reconcile.standing_in import StandIn
from forebay_operator.resources import EVENT, LEASE, MODEL_SERVICE
from forebay_operator.status.autoscaler import build_absent_part
from tests.operator.examples import NOW, model_service
from tests.operator.fake_cluster import FakeCluster

PLACE = "forebay/forebay-autoscaler"
RENEWED = "2026-01-01T11:58:00.000000Z"


def lease(renewed: str = RENEWED, holder: str = "pod-1") -> dict[str, Any]:
    metadata = {"name": "forebay-autoscaler", "namespace": "forebay"}
    return {"metadata": metadata, "spec": {"holderIdentity": holder, "renewTime": renewed}}


def living_status() -> dict[str, Any]:
    """What an autoscaler has written."""
    conditions = [
        {"type": name, "status": "True", "reason": "Fresh", "message": "m", "lastTransitionTime": rfc3339(NOW)}
        for name in AUTOSCALER_CONDITIONS
    ]
    pools = [{"name": "mixed", "desired": 3, "reason": "because"}]
    return {"conditions": conditions, "attainment": "99.0%", "goodputPerSecond": "12.0", "pools": pools}


def test_it_is_gone_when_its_lease_was_not_renewed_for_so_long_as_seen_from_here():
    attendance = Attendance(PLACE, 60.0)
    attendance.see(lease(), 1000.0)  # however old the Lease says it is
    attendance.see(lease(), 1059.0)
    assert attendance.absence is None
    attendance.see(lease(), 1060.0)
    assert attendance.absence == Absence(PLACE, f"{RENEWED} by pod-1", RENEWED)
    assert attendance.absence.deployed
    attendance.see(lease("2026-01-01T12:00:00.000000Z", "pod-2"), 1065.0)
    assert attendance.absence is None


def test_labels_that_helm_writes_anew_are_no_sign_of_life():
    """Of the Lease's versions those count that its holder wrote."""
    attendance = Attendance(PLACE, 60.0)

    def see(version: str, now_s: float) -> Absence | None:
        found = lease()
        found["metadata"]["resourceVersion"] = version
        attendance.see(found, now_s)
        return attendance.absence

    assert see("1", 0.0) is None
    assert see("2", 59.0) is None
    absence = see("2", 60.0)
    assert absence is not None
    assert see("3", 65.0) == absence
    attendance.doubt()
    assert see("4", 70.0) is None
    assert see("4", 600.0) is None, "a living one that does not renew it has the word"


def test_a_change_of_its_leader_is_no_absence():
    attendance = Attendance(PLACE, 60.0)
    for number in range(20):  # given back, taken, renewed: each change counts
        attendance.see(lease(str(number), "" if number % 2 else f"pod-{number}"), number * 30.0)
        assert attendance.absence is None


def test_a_short_setting_does_not_take_a_change_of_leader_for_an_absence():
    attendance = Attendance(PLACE, 1.0)
    held = lease()
    held["spec"]["leaseDurationSeconds"] = 10
    for now_s in (0.0, 12.0, 19.0):
        attendance.see(held, now_s)
        assert attendance.absence is None
    attendance.see(held, 20.0)
    assert attendance.absence is not None


def test_an_api_server_that_was_away_makes_nobody_absent():
    attendance = Attendance(PLACE, 60.0)
    attendance.see(lease(), 0.0)
    attendance.miss()
    attendance.see(lease(), 300.0)
    assert attendance.absence is None
    attendance.see(lease(), 360.0)
    assert attendance.absence is not None
    attendance.miss()
    attendance.see(lease(), 365.0)
    assert attendance.absence is not None, "nor is one that is absent back by that"


def test_a_lease_that_nobody_ever_held_says_nothing_of_an_autoscaler():
    """The chart makes it; one with --leader-election=false or another --lease-name never touches it."""
    attendance = Attendance(PLACE, 60.0)
    made = {"metadata": {"name": "forebay-autoscaler"}}
    for now_s in (0.0, 61.0, 600.0):
        attendance.see(made, now_s)
        assert attendance.absence is None
    attendance.see(lease(), 605.0)
    attendance.see(lease(), 665.0)
    assert attendance.absence is not None, "once it was held, it counts"


def test_where_there_is_no_lease_no_autoscaler_is_installed():
    attendance = Attendance(PLACE, 60.0)
    attendance.see(None, 0.0)
    attendance.see(None, 61.0)
    assert attendance.absence == Absence(PLACE)
    assert not attendance.absence.deployed


def test_the_autoscalers_part_is_unknown_and_its_numbers_are_gone():
    service = {**model_service(autoscaling={"mode": "Auto"}), "status": living_status()}
    service["metadata"]["generation"] = 3
    absence = Absence(PLACE, "7", RENEWED)
    part = build_absent_part(service, absence, now=NOW)
    assert part is not None
    assert set(part["status"]) == {"conditions"}
    for condition in part["status"]["conditions"]:
        assert (condition["status"], condition["reason"]) == ("Unknown", "AutoscalerGone")
        assert RENEWED in condition["message"]
        assert "kubectl -n forebay get pods" in condition["message"]
    assert build_absent_part({**service, "status": part["status"]}, absence, now=NOW) is None, "said once"


@pytest.mark.parametrize(("mode", "version"), [("Off", "7"), ("Auto", ""), ("Advise", "")])
def test_where_nobody_scales_nothing_is_said_and_nothing_old_stays(mode, version):
    service = {**model_service(autoscaling={"mode": mode}), "status": living_status()}
    service["metadata"]["generation"] = 3
    absence = Absence(PLACE, version, RENEWED)
    part = build_absent_part(service, absence, now=NOW)
    assert part is not None
    assert part["status"] == {}
    assert build_absent_part({**service, "status": {}}, absence, now=NOW) is None


class Scene:
    """An operator that follows a Lease, and a service that an autoscaler has written into."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.now_s = 0.0
        self.changes = 0
        self.cluster.add(LEASE, lease())
        self.cluster.add(MODEL_SERVICE, model_service(autoscaling={"mode": "Auto"}))
        reader = ClusterLease(self.cluster, "forebay", "forebay-autoscaler")
        self.follower = Follower(Attendance(PLACE, 60.0), reader, self._changed, clock=lambda: self.now_s)
        recorder = Recorder(self.cluster, identity="test", now=lambda: NOW)
        self.metrics = Metrics()
        self.stand_in = StandIn(self.cluster, recorder, self.follower, self.metrics, lambda: NOW)

    def _changed(self) -> None:
        self.changes += 1

    async def autoscaler_writes(self) -> None:
        metadata = {"name": "chat", "namespace": "team"}
        part = {"metadata": metadata, "status": living_status()}
        await self.cluster.apply_status(MODEL_SERVICE, part, manager=AUTOSCALER_MANAGER)

    async def operator_writes(self) -> None:
        condition = {"type": ACCEPTED, "status": "True", "reason": "Valid", "message": "m"}
        pools = [{"name": "mixed", "ready": 2}]
        status = {"conditions": [condition], "pools": pools}
        await self.cluster.apply_status(
            MODEL_SERVICE, {"metadata": {"name": "chat", "namespace": "team"}, "status": status}
        )

    async def look(self, *, after_s: float) -> None:
        self.now_s += after_s
        await self.follower.look()

    async def speak(self) -> bool:
        return await self.stand_in.speak(self.cluster.see(MODEL_SERVICE, "chat"))


async def test_the_operator_speaks_for_it_once_and_leaves_its_own_part_alone():
    scene = Scene()
    await scene.operator_writes()
    await scene.autoscaler_writes()
    await scene.look(after_s=0)
    assert not await scene.speak()
    await scene.look(after_s=61)
    assert scene.changes == 1
    assert await scene.speak()
    status = scene.cluster.see(MODEL_SERVICE, "chat")["status"]
    assert "attainment" not in status
    assert "goodputPerSecond" not in status
    assert status["pools"] == [{"name": "mixed", "ready": 2}]
    assert find_condition(status["conditions"], ACCEPTED)["status"] == "True"
    assert find_condition(status["conditions"], SCALING_ACTIVE)["reason"] == "AutoscalerGone"
    assert scene.cluster.names(EVENT)
    assert not await scene.speak()
    await scene.autoscaler_writes()  # its next cycle takes the word back whole
    back = scene.cluster.see(MODEL_SERVICE, "chat")["status"]
    assert find_condition(back["conditions"], SCALING_ACTIVE)["status"] == "True"
    assert back["attainment"] == "99.0%"


async def test_one_that_came_back_since_the_last_look_is_not_spoken_for():
    scene = Scene()
    await scene.autoscaler_writes()
    await scene.look(after_s=0)
    await scene.look(after_s=61)
    scene.cluster.edit(LEASE, "forebay", "forebay-autoscaler", {"spec": {"renewTime": "later"}})
    assert not await scene.speak()
    assert scene.follower.attendance.absence is None
    assert scene.changes == 2


async def test_a_lease_that_cannot_be_read_says_nothing():
    scene = Scene()
    await scene.look(after_s=0)

    def forbid(call: ApiCall) -> ApiError | None:
        return ApiError(call, "forbidden", 403) if call.kind == "Lease" else None

    scene.cluster.fail = forbid
    await scene.look(after_s=100)
    assert scene.follower.attendance.absence is None
    assert not await scene.speak()


async def test_a_lease_that_cannot_be_read_any_more_confirms_no_absence():
    scene = Scene()
    await scene.autoscaler_writes()
    await scene.look(after_s=0)
    await scene.look(after_s=61)

    def forbid(call: ApiCall) -> ApiError | None:
        return ApiError(call, "forbidden", 403) if call.kind == "Lease" else None

    scene.cluster.fail = forbid
    assert not await scene.speak(), "the autoscaler may be back"
    conditions = scene.cluster.see(MODEL_SERVICE, "chat")["status"]["conditions"]
    assert find_condition(conditions, SCALING_ACTIVE)["status"] == "True"


async def test_a_living_autoscaler_that_left_its_lease_gets_the_last_word(caplog):
    """--leader-election=false given to one that held it: it overwrites what is said in its stead, and is left the word."""
    scene = Scene()
    await scene.autoscaler_writes()
    await scene.look(after_s=0)
    await scene.look(after_s=61)
    assert await scene.speak()
    await scene.autoscaler_writes()
    for _ in range(5):
        assert not await scene.speak()
        await scene.look(after_s=61)
    assert scene.follower.attendance.absence is None
    assert "an autoscaler is at work that does not renew" in caplog.text
    assert "its Lease forebay/forebay-autoscaler has changed" not in caplog.text
    conditions = scene.cluster.see(MODEL_SERVICE, "chat")["status"]["conditions"]
    assert find_condition(conditions, SCALING_ACTIVE)["status"] == "True"
    scene.cluster.edit(LEASE, "forebay", "forebay-autoscaler", {"spec": {"renewTime": "later"}})
    await scene.look(after_s=1)
    await scene.look(after_s=61)
    assert scene.follower.attendance.absence is not None, "held again, it is followed again"
    assert await scene.speak()


async def test_an_absence_that_cannot_be_told_is_counted_and_told_next_time():
    scene = Scene()
    await scene.autoscaler_writes()
    await scene.look(after_s=0)
    await scene.look(after_s=61)
    scene.cluster.fail = lambda call: ApiError(call, "refused", 422) if call.kind == "ModelService" else None
    assert not await scene.speak()
    assert scene.metrics.registry.get_sample_value("forebay_operator_api_errors_total", {"code": "422"}) == 1
    scene.cluster.fail = lambda _call: None
    assert await scene.speak()
