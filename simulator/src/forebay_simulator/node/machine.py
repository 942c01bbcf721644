"""The life of a pod as a pure function: `observing.observe` takes in what happened, `advance` decides what to do.

`advance` is level-triggered: it looks at the whole state and brings every container one move forward. The stages:

1. prepare: address, devices, volumes;
2. init containers one after another (a sidecar counts as done when it has started), then all main containers at once;
3. running: an ended container is started again if its policy says so. The first restart is immediate, the next waits
   `base_s`, then twice as long each time up to `cap_s`; a run of `reset_s` or more starts the row anew;
4. ending, when the pod is deleted or failed, or all main containers are done for good: main containers stop together,
   then sidecars in reverse order, all within one deadline.

Stopping a container: preStop hook, SIGTERM, and SIGKILL at the deadline. A hook that uses up the grace period still leaves
the program `MINIMUM_GRACE_S` to answer SIGTERM, as a kubelet does.
"""

from dataclasses import replace

from forebay_simulator.node.lifecycle import (
    ALIVE_PHASES,
    ContainerState,
    Failure,
    HookKind,
    HookPhase,
    Phase,
    PodState,
    Prepare,
    RunHook,
    RunProbe,
    SendSignal,
    StartContainer,
    Step,
    Stop,
)
from forebay_simulator.node.pods import Container, ContainerKind, Pod, RestartPolicy
from forebay_simulator.node.probing import due, sent
from forebay_simulator.node.turn import Backoff, Turn

MINIMUM_GRACE_S = 2.0


def new_state(pod: Pod) -> PodState:
    """A pod that this node has never seen."""
    has_init = any(item.kind is not ContainerKind.MAIN for item in pod.containers)
    containers = {
        item.name: ContainerState(
            item.name, reason="PodInitializing" if has_init and item.kind is ContainerKind.MAIN else "ContainerCreating"
        )
        for item in pod.containers
    }
    return PodState(containers=containers)


def advance(pod: Pod, state: PodState, *, now_s: float, backoff: Backoff) -> Step:
    """Decide what to do now. A second call at the same time with the new state does nothing."""
    turn = _Deciding(pod, state, now_s, backoff)
    turn.advance()
    return turn.step()


class _Deciding(Turn):
    """A step that decides what to do now."""

    def advance(self) -> None:
        """Bring every container one move forward."""
        if self.state.finished:
            return
        if not self.state.stopping and not self.state.prepared:
            if not self.state.preparing:
                self.state = replace(self.state, preparing=True)
                self.act(Prepare())
            return
        if self.state.stopping or self._done():
            self._wind_down()
        else:
            self._move_forward()
        self._run_probes()
        self._drive_stops()

    def _done(self) -> bool:
        """All main containers have ended for good, or an init container has failed for good."""
        if self._init_failed():
            return True
        return all(
            state.phase is Phase.ENDED and not self._restarts(item, state)
            for item, state in self.pairs(ContainerKind.MAIN)
        )

    def _init_failed(self) -> bool:
        return any(
            item.restart is RestartPolicy.NEVER and state.ended is not None and state.ended.exit_code != 0
            for item, state in self.pairs(ContainerKind.INIT)
        )

    def _restarts(self, item: Container, state: ContainerState) -> bool:
        return state.ended is not None and item.restart.wants_restart(state.ended.exit_code)

    def _move_forward(self) -> None:
        if not self.state.initialized:
            if not self._init_stage():
                return
            self.state = replace(self.state, initialized=True)
        for item, state in self.pairs(ContainerKind.SIDECAR, ContainerKind.MAIN):
            self._keep_running(item, state)

    def _init_stage(self) -> bool:
        """Bring the init containers forward; True when they are through."""
        for item, state in self.pairs(ContainerKind.INIT, ContainerKind.SIDECAR):
            if item.kind is ContainerKind.INIT and state.ended is not None and state.ended.exit_code == 0:
                continue
            self._keep_running(item, state)
            if item.kind is ContainerKind.INIT or not self.state.containers[item.name].started:
                return False
        return True

    def _keep_running(self, item: Container, state: ContainerState) -> None:
        if state.phase is Phase.ENDED and self._restarts(item, state):
            state = self._wait_for_restart(state)
        if state.phase is not Phase.WAITING:
            return
        if self.now_s < state.not_before_s:
            self.wake(state.not_before_s)
            return
        attempt = state.attempt + 1
        self.put(replace(state, phase=Phase.STARTING, attempt=attempt, process_id=0, started_at_s=0.0, probes={}))
        self.act(StartContainer(state.name, attempt))

    def _wait_for_restart(self, state: ContainerState) -> ContainerState:
        ended = state.ended
        if ended is None:
            raise AssertionError("only an ended container is restarted")
        lasted_s = ended.finished_at_s - ended.started_at_s
        delay_s = 0.0 if lasted_s >= self.backoff.reset_s else state.next_delay_s
        waiting = replace(
            state,
            phase=Phase.WAITING,
            reason="ContainerCreating",
            message="",
            restarts=state.restarts + 1,
            not_before_s=ended.finished_at_s + delay_s,
            next_delay_s=self.backoff.following(delay_s),
            last=ended,
            ended=None,
        )
        if delay_s > 0:
            pod = f"{self.pod.name}_{self.pod.namespace}({self.pod.uid})"
            message = f"back-off {_duration(delay_s)} restarting failed container={state.name} pod={pod}"
            waiting = replace(waiting, reason="CrashLoopBackOff", message=message)
            why = f"Back-off restarting failed container {state.name} in pod {pod}"
            self.tell("BackOff", why, state.name, warning=True)
        self.put(waiting)
        return waiting

    # -- ending

    def _wind_down(self) -> None:
        deadline_s = self.state.stop_deadline_s
        grace_s = self.pod.grace_s if deadline_s is None else max(0.0, deadline_s - self.now_s)
        ending = [state for _, state in self.pairs(ContainerKind.INIT, ContainerKind.MAIN) if state.active]
        if not ending:
            sidecars = [state for _, state in self.pairs(ContainerKind.SIDECAR) if state.active]
            ending = sidecars[-1:]
        for state in ending:
            if state.phase is Phase.RUNNING:
                self.begin_stop(state, grace_s=grace_s, why=f"Stopping container {state.name}")
        if not any(state.active for state in self.state.containers.values()):
            self.state = replace(self.state, finished=True)

    def _drive_stops(self) -> None:
        for state in self.state.containers.values():
            if state.phase is Phase.STOPPING and state.stop is not None and not state.stop.killed:
                self.put(replace(state, stop=self._drive_stop(state, state.stop)))

    def _drive_stop(self, state: ContainerState, stop: Stop) -> Stop:
        hook = self.pod.container(state.name).pre_stop
        if stop.hook is HookPhase.DUE and hook is not None:
            timeout_s = max(stop.deadline_s - self.now_s, 0.0)
            self.act(RunHook(state.name, state.attempt, HookKind.PRE_STOP, hook, timeout_s))
            stop = replace(stop, hook=HookPhase.RUNNING)
        if not stop.terminated and (stop.hook is not HookPhase.RUNNING or self.now_s >= stop.deadline_s):
            # A grace period of nothing is for SIGKILL; one that the hook has used up is not.
            minimum_s = 0.0 if stop.hook is HookPhase.ABSENT else MINIMUM_GRACE_S
            stop = replace(stop, terminated=True, deadline_s=max(stop.deadline_s, self.now_s + minimum_s))
            self.act(SendSignal(state.name, state.attempt, kill=False))
        if stop.terminated and self.now_s >= stop.deadline_s:
            self.act(SendSignal(state.name, state.attempt, kill=True))
            return replace(stop, killed=True)
        self.wake(stop.deadline_s)
        return stop

    def _run_probes(self) -> None:
        for state in self.state.containers.values():
            if state.phase not in ALIVE_PHASES:
                continue
            probes = self.pod.container(state.name).probes
            for kind in due(state, now_s=self.now_s):
                self.act(RunProbe(state.name, state.attempt, kind, probes[kind]))
                state = sent(state, kind, period_s=probes[kind].period_s, now_s=self.now_s)  # noqa: PLW2901 - the same container
            self.put(state)
            for kind, probe_state in state.probes.items():
                if not probe_state.in_flight and kind in due(state, now_s=probe_state.next_at_s):
                    self.wake(probe_state.next_at_s)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{seconds:g}s"


def shutdown_failure() -> Failure:
    """What the pods of a node that shuts down end with."""
    return Failure("Terminated", "Pod was terminated in response to imminent node shutdown.")
