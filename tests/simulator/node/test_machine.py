"""The life of a pod in virtual time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_simulator.node import lifecycle
from forebay_simulator.node.lifecycle import Phase, StopAsked
from forebay_simulator.node.machine import advance, new_state, shutdown_failure
from forebay_simulator.node.observing import observe
from forebay_simulator.node.pods import ProbeKind, parse_pod
from forebay_simulator.node.turn import Backoff

from .manifests import container, pod, probe
from .timeline import Timeline


def test_a_pod_is_prepared_before_anything_starts():
    timeline = Timeline(pod())
    kinds = [type(action) for _, action in timeline.actions]
    assert kinds.index(lifecycle.Prepare) < kinds.index(lifecycle.StartContainer)
    assert timeline.container().phase is Phase.RUNNING
    assert timeline.phase == "Running"


@pytest.mark.parametrize(
    ("restarts", "started_at_s"),
    [
        (1, [0, 1]),  # the first restart is immediate
        (2, [0, 1, 12]),  # then 10 s after the exit, and a run of 1 s
        (3, [0, 1, 12, 33]),
        (4, [0, 1, 12, 33, 74]),
        (5, [0, 1, 12, 33, 74, 155]),
        (6, [0, 1, 12, 33, 74, 155, 316]),
        (7, [0, 1, 12, 33, 74, 155, 316, 617]),  # capped at 300 s
    ],
)
def test_restarts_are_spread_by_doubling_from_ten_seconds_to_five_minutes(restarts: int, started_at_s: list[float]):
    timeline = Timeline(pod(), lasts_s={"main": 1}, exit_codes={"main": 3})
    timeline.run(for_s=started_at_s[-1] + 0.5)
    assert timeline.at(lifecycle.StartContainer) == started_at_s
    assert timeline.container().restarts == restarts


def test_a_long_run_forgives_the_crashes_before_it():
    timeline = Timeline(pod(), lasts_s={"main": 1}, exit_codes={"main": 3})
    timeline.run(for_s=33.5)
    timeline.lasts_s["main"] = 600
    timeline.run(for_s=700)
    starts = timeline.at(lifecycle.StartContainer)
    assert starts[4] == starts[3] + 41, "the fourth restart still waits"
    assert starts[5] == starts[4] + 600, "the one after the long run does not"


def test_a_crashing_container_shows_crash_loop_back_off_and_how_it_ended():
    timeline = Timeline(pod(), lasts_s={"main": 1}, exit_codes={"main": 3}).run(for_s=5)
    (shown,) = timeline.status()["containerStatuses"]
    assert shown["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert shown["state"]["waiting"]["message"].startswith("back-off 10s restarting failed container=main")
    assert shown["lastState"]["terminated"]["exitCode"] == 3
    assert timeline.phase == "Running"
    assert timeline.told("BackOff")


@pytest.mark.parametrize(
    ("policy", "exit_code", "phase"),
    [
        ("Never", 0, "Succeeded"),
        ("Never", 1, "Failed"),
        ("OnFailure", 0, "Succeeded"),
        ("OnFailure", 1, "Running"),
        ("Always", 0, "Running"),
    ],
)
def test_the_restart_policy_decides_what_an_exit_means(policy: str, exit_code: int, phase: str):
    timeline = Timeline(pod(restartPolicy=policy), lasts_s={"main": 1}, exit_codes={"main": exit_code})
    timeline.run(for_s=3)
    assert timeline.phase == phase
    assert timeline.state.finished == (phase != "Running")


class TestInitContainers:
    def test_run_one_after_another_before_the_main_containers(self):
        raw = pod(container("a"), container("b"), initContainers=[container("one"), container("two")])
        timeline = Timeline(raw, lasts_s={"one": 2, "two": 3})
        assert timeline.container("a").reason == "PodInitializing"
        assert timeline.phase == "Pending"
        timeline.run(for_s=10)
        assert [timeline.at(lifecycle.StartContainer, name) for name in ("one", "two", "a", "b")] == [
            [0],
            [2],
            [5],
            [5],
        ]

    def test_a_failure_is_retried_and_holds_the_others_back(self):
        raw = pod(initContainers=[container("one"), container("two")])
        timeline = Timeline(raw, lasts_s={"one": 1}, exit_codes={"one": 1}).run(for_s=40)
        assert timeline.at(lifecycle.StartContainer, "one") == [0, 1, 12, 33]
        assert not timeline.at(lifecycle.StartContainer, "two")
        conditions = {item["type"]: item for item in timeline.status()["conditions"]}
        assert conditions["Initialized"]["message"] == "containers with incomplete status: [one two]"

    def test_a_failure_ends_a_pod_that_never_restarts(self):
        raw = pod(restartPolicy="Never", initContainers=[container("one")])
        timeline = Timeline(raw, lasts_s={"one": 1}, exit_codes={"one": 1}).run(for_s=5)
        assert timeline.state.finished
        assert timeline.phase == "Failed"
        assert not timeline.at(lifecycle.StartContainer, "main")

    def test_a_sidecar_stays_and_is_stopped_after_the_main_containers(self):
        raw = pod(
            restartPolicy="Never",
            initContainers=[container("proxy", restartPolicy="Always", startupProbe=probe(periodSeconds=1))],
        )
        timeline = Timeline(raw, lasts_s={"main": 5})
        timeline.run(for_s=20)
        assert timeline.at(lifecycle.SendSignal, "proxy") == [5]
        assert timeline.phase == "Succeeded"

    def test_sidecars_end_in_reverse_order_when_the_pod_is_deleted(self):
        sidecars = [container(name, restartPolicy="Always") for name in ("first", "second")]
        timeline = Timeline(pod(initContainers=sidecars), terminates_in_s=1)
        timeline.happens(StopAsked(grace_s=30))
        timeline.run(for_s=10)
        assert [timeline.at(lifecycle.SendSignal, name) for name in ("main", "second", "first")] == [[0], [1], [2]]
        assert timeline.state.finished


class TestProbes:
    def test_readiness_follows_its_probe(self):
        timeline = Timeline(pod(container(readinessProbe=probe())), unhealthy={ProbeKind.READINESS})
        timeline.run(for_s=35)
        assert not timeline.container().ready
        timeline.unhealthy.clear()
        timeline.run(for_s=10)
        assert timeline.container().ready
        timeline.unhealthy.add(ProbeKind.READINESS)
        timeline.run(for_s=20)
        assert timeline.container().ready, "two failures are below the threshold"
        timeline.run(for_s=10)
        assert not timeline.container().ready
        assert timeline.container().restarts == 0

    def test_the_first_probe_waits_for_the_initial_delay(self):
        timeline = Timeline(pod(container(readinessProbe=probe(initialDelaySeconds=7)))).run(for_s=30)
        assert timeline.at(lifecycle.RunProbe) == [7, 17, 27]

    def test_a_success_threshold_is_counted_in_a_row(self):
        timeline = Timeline(pod(container(readinessProbe=probe(successThreshold=3)))).run(for_s=15)
        assert not timeline.container().ready
        timeline.run(for_s=10)
        assert timeline.container().ready

    def test_liveness_failures_restart_the_container(self):
        timeline = Timeline(pod(container(livenessProbe=probe())), unhealthy={ProbeKind.LIVENESS}).run(for_s=21)
        assert timeline.told("Killing") == ["Container main failed liveness probe, will be restarted"]
        assert timeline.told("Unhealthy")[0] == "Liveness probe failed: refused"
        assert timeline.container().restarts == 1
        last = timeline.container().last
        assert last is not None
        assert (last.exit_code, last.signal, last.reason) == (143, 15, "Error")

    def test_a_startup_probe_holds_the_others_back(self):
        raw = pod(container(startupProbe=probe(periodSeconds=2), livenessProbe=probe(), readinessProbe=probe()))
        timeline = Timeline(raw, unhealthy={ProbeKind.STARTUP}).run(for_s=3)
        kinds = {action.kind for _, action in timeline.actions if isinstance(action, lifecycle.RunProbe)}
        assert kinds == {ProbeKind.STARTUP}
        assert not timeline.container().started
        timeline.unhealthy.clear()
        timeline.run(for_s=1)
        assert timeline.container().started
        assert timeline.container().ready, "readiness is looked at as soon as the container has started"

    def test_startup_failures_kill_with_the_probe_s_own_grace_period(self):
        raw = pod(container(startupProbe=probe(failureThreshold=1, terminationGracePeriodSeconds=4)))
        timeline = Timeline(raw, unhealthy={ProbeKind.STARTUP}, terminates_in_s=None).run(for_s=5)
        kills = [when for when, a in timeline.actions if isinstance(a, lifecycle.SendSignal) and a.kill]
        assert [round(when - 1_000_000) for when in kills] == [4]

    def test_a_stopping_container_is_probed_for_readiness_only(self):
        raw = pod(container(readinessProbe=probe(periodSeconds=1), livenessProbe=probe(periodSeconds=1)))
        timeline = Timeline(raw, terminates_in_s=5)
        timeline.happens(StopAsked(grace_s=30))
        before = len(timeline.actions)
        timeline.run(for_s=3)
        kinds = {a.kind for _, a in timeline.actions[before:] if isinstance(a, lifecycle.RunProbe)}
        assert kinds == {ProbeKind.READINESS}


class TestStopping:
    def test_terminates_then_kills_at_the_deadline(self):
        timeline = Timeline(pod(), terminates_in_s=None)
        timeline.run(for_s=10)
        timeline.happens(StopAsked(grace_s=30))
        timeline.run(for_s=31)
        signals = [(round(w - 1_000_000), a.kill) for w, a in timeline.actions if isinstance(a, lifecycle.SendSignal)]
        assert signals == [(10, False), (40, True)]
        assert timeline.state.finished
        ended = timeline.container().ended
        assert ended is not None
        assert (ended.exit_code, ended.signal) == (137, 9)

    def test_the_hook_comes_first(self):
        raw = pod(container(lifecycle={"preStop": {"sleep": {"seconds": 3}}}))
        timeline = Timeline(raw, hook_takes_s=3)
        timeline.happens(StopAsked(grace_s=30))
        timeline.run(for_s=5)
        assert timeline.at(lifecycle.RunHook) == [0]
        assert timeline.at(lifecycle.SendSignal) == [3]

    def test_a_hook_that_uses_up_the_grace_period_leaves_two_seconds(self):
        raw = pod(container(lifecycle={"preStop": {"exec": {"command": ["sleep", "inf"]}}}))
        timeline = Timeline(raw, hook_takes_s=1000, terminates_in_s=None)
        timeline.happens(StopAsked(grace_s=5))
        timeline.run(for_s=10)
        signals = [(round(w - 1_000_000), a.kill) for w, a in timeline.actions if isinstance(a, lifecycle.SendSignal)]
        assert signals == [(5, False), (7, True)]

    def test_a_grace_period_of_nothing_kills_at_once_and_skips_the_hook(self):
        raw = pod(container(lifecycle={"preStop": {"sleep": {"seconds": 3}}}))
        timeline = Timeline(raw, terminates_in_s=None)
        timeline.happens(StopAsked(grace_s=0))
        assert timeline.state.finished
        assert not timeline.at(lifecycle.RunHook)

    def test_a_second_deletion_can_only_shorten_the_grace_period(self):
        timeline = Timeline(pod(), terminates_in_s=None)
        timeline.happens(StopAsked(grace_s=30))
        timeline.happens(StopAsked(grace_s=60))
        timeline.happens(StopAsked(grace_s=4))
        timeline.run(for_s=5)
        assert timeline.state.finished

    def test_a_crash_looping_pod_ends_without_another_start(self):
        timeline = Timeline(pod(), lasts_s={"main": 1}, exit_codes={"main": 1}).run(for_s=5)
        starts = timeline.at(lifecycle.StartContainer)
        timeline.happens(StopAsked(grace_s=30))
        timeline.run(for_s=60)
        assert timeline.state.finished
        assert timeline.at(lifecycle.StartContainer) == starts

    def test_a_pod_that_was_never_prepared_just_ends(self):
        described = parse_pod(pod())
        asked = observe(described, new_state(described), StopAsked(grace_s=30), now_s=0, backoff=Backoff())
        step = advance(described, asked.state, now_s=0, backoff=Backoff())
        assert step.state.finished
        assert not step.actions

    def test_a_node_that_shuts_down_leaves_failed_pods(self):
        timeline = Timeline(pod())
        timeline.happens(StopAsked(grace_s=5, failure=shutdown_failure()))
        timeline.run(for_s=1)
        status = timeline.status()
        assert (status["phase"], status["reason"]) == ("Failed", "Terminated")


class TestFailedStarts:
    @pytest.mark.parametrize(
        ("problem", "reason"),
        [
            (lifecycle.StartProblem.IMAGE, "ErrImagePull"),
            (lifecycle.StartProblem.CONFIG, "CreateContainerConfigError"),
        ],
    )
    def test_are_shown_as_waiting_and_count_as_no_restart(self, problem: lifecycle.StartProblem, reason: str):
        timeline = Timeline(pod(), starts=False)
        timeline.happens(lifecycle.StartFailed("main", 1, problem, "because"))
        (shown,) = timeline.status()["containerStatuses"]
        assert shown["state"]["waiting"] == {"reason": reason, "message": "because"}
        assert shown["restartCount"] == 0
        assert timeline.phase == "Pending"
        timeline.run(for_s=15)
        assert len(timeline.at(lifecycle.StartContainer)) == 2

    def test_an_image_that_stays_unknown_backs_off(self):
        timeline = Timeline(pod(), starts=False)
        for attempt in range(1, 5):
            timeline.happens(lifecycle.StartFailed("main", attempt, lifecycle.StartProblem.IMAGE, "unknown"))
            timeline.run(for_s=10 * 2 ** (attempt - 1))
        assert timeline.at(lifecycle.StartContainer) == [0, 10, 30, 70, 150]
        timeline.happens(lifecycle.StartFailed("main", 5, lifecycle.StartProblem.IMAGE, "unknown"))
        assert timeline.container().reason == "ImagePullBackOff"

    def test_a_program_that_can_t_be_executed_ends_with_128(self):
        timeline = Timeline(pod(restartPolicy="Never"), starts=False)
        timeline.happens(lifecycle.StartFailed("main", 1, lifecycle.StartProblem.PROGRAM, "no such file"))
        (shown,) = timeline.status()["containerStatuses"]
        assert shown["state"]["terminated"]["exitCode"] == 128
        assert shown["state"]["terminated"]["reason"] == "StartError"
        assert timeline.phase == "Failed"


def test_what_is_late_about_an_earlier_attempt_changes_nothing():
    timeline = Timeline(pod(), lasts_s={"main": 1}).run(for_s=0.5)
    timeline.run(for_s=1)
    state = timeline.state
    timeline.happens(lifecycle.Exited("main", 1, 0, None))
    assert timeline.state == state


def test_a_pod_with_an_obstacle_says_so_and_waits():
    timeline = Timeline(pod())
    fresh = Timeline(pod(), starts=False)
    fresh.happens(lifecycle.Hindered("volume is a hostPath"))
    assert fresh.container().message == "volume is a hostPath"
    assert timeline.container().message == ""


OBSERVATIONS = st.one_of(
    st.builds(lifecycle.Prepared),
    st.builds(
        lifecycle.Exited,
        st.sampled_from(["main", "init", "side"]),
        st.integers(1, 6),
        st.integers(0, 3),
        st.none(),
    ),
    st.builds(
        lifecycle.ProbeAnswered,
        st.sampled_from(["main"]),
        st.integers(1, 6),
        st.sampled_from([ProbeKind.LIVENESS, ProbeKind.READINESS]),
        st.booleans(),
    ),
    st.builds(StopAsked, st.floats(0, 60)),
)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(OBSERVATIONS, st.floats(0, 40)), max_size=25),
    policy=st.sampled_from(["Always", "OnFailure", "Never"]),
    terminates_in_s=st.one_of(st.none(), st.floats(0, 40)),
)
def test_any_history_keeps_the_machine_s_promises(steps, policy, terminates_in_s):
    """A container is started only when nothing of it runs; a decision taken twice does nothing; a stop comes to an end."""
    raw = pod(
        container(livenessProbe=probe(), readinessProbe=probe()),
        initContainers=[container("init"), container("side", restartPolicy="Always")],
        restartPolicy=policy,
    )
    timeline = Timeline(raw, terminates_in_s=terminates_in_s, lasts_s={"init": 1}, backoff=Backoff(1, 8, 60))
    for observation, passes_s in steps:
        timeline.happens(observation)
        again = advance(timeline.pod, timeline.state, now_s=timeline.now_s, backoff=timeline.backoff)
        assert again.state == timeline.state
        assert not again.actions
        timeline.run(for_s=passes_s)
    for name in ("main", "init", "side"):
        attempts = [
            action.attempt
            for _, action in timeline.actions
            if isinstance(action, lifecycle.StartContainer) and action.container == name
        ]
        assert attempts == list(range(1, len(attempts) + 1))
    timeline.happens(StopAsked(grace_s=10))
    timeline.run(for_s=25)
    assert timeline.state.finished
    assert not any(item.active for item in timeline.state.containers.values())
