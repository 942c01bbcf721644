"""The life of a pod as a pure function: `observe` takes in what happened, `advance` decides what to do now.

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

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from forebay_simulator.node.lifecycle import (
    ALIVE_PHASES,
    Action,
    ContainerState,
    Ended,
    Exited,
    Failure,
    HookEnded,
    HookKind,
    HookPhase,
    Observation,
    Phase,
    PodState,
    Prepare,
    Prepared,
    ProbeAnswered,
    RunHook,
    RunProbe,
    SendSignal,
    StartContainer,
    Started,
    StartFailed,
    StartProblem,
    Step,
    Stop,
    StopAsked,
    Tell,
)
from forebay_simulator.node.pods import Container, ContainerKind, Pod, ProbeKind, RestartPolicy
from forebay_simulator.node.probing import Verdict, count, due, first_probes, sent

MINIMUM_GRACE_S = 2.0
_CONFIG_RETRY_S = 5.0
_SIGNAL_EXIT_BASE = 128
_START_ERROR_EXIT_CODE = 128


@dataclass(frozen=True, slots=True)
class Backoff:
    """How restarts are spread."""

    base_s: float = 10.0
    cap_s: float = 300.0
    reset_s: float = 600.0

    def following(self, delay_s: float) -> float:
        """The delay after `delay_s`."""
        return min(self.cap_s, delay_s * 2) if delay_s > 0 else self.base_s


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


def observe(pod: Pod, state: PodState, observation: Observation, *, now_s: float, backoff: Backoff) -> Step:
    """Take in one observation. What is about an attempt that has passed changes nothing."""
    turn = _Turn(pod, state, now_s, backoff)
    match observation:
        case Prepared():
            turn.state = replace(state, prepared=True, preparing=False)
        case StopAsked():
            turn.ask_to_stop(observation)
        case _:
            container = state.containers[observation.container]
            if container.attempt == observation.attempt:
                turn.take_in(container, observation)
    return turn.step()


def advance(pod: Pod, state: PodState, *, now_s: float, backoff: Backoff) -> Step:
    """Decide what to do now. A second call at the same time with the new state does nothing."""
    turn = _Turn(pod, state, now_s, backoff)
    turn.advance()
    return turn.step()


@dataclass(slots=True)
class _Turn:
    """One step in the making."""

    pod: Pod
    state: PodState
    now_s: float
    backoff: Backoff
    actions: list[Action] = field(default_factory=list)
    wake_at_s: float | None = None

    def step(self) -> Step:
        return Step(self.state, tuple(self.actions), self.wake_at_s)

    # -- small tools

    def put(self, container: ContainerState) -> None:
        self.state = self.state.with_container(container)

    def act(self, action: Action) -> None:
        self.actions.append(action)

    def tell(self, reason: str, message: str, container: str = "", *, warning: bool = False) -> None:
        self.actions.append(Tell(reason, message, warning=warning, container=container))

    def wake(self, at_s: float) -> None:
        self.wake_at_s = at_s if self.wake_at_s is None else min(self.wake_at_s, at_s)

    def pairs(self, *kinds: ContainerKind) -> Iterator[tuple[Container, ContainerState]]:
        for container in self.pod.containers:
            if container.kind in kinds:
                yield container, self.state.containers[container.name]

    # -- observations

    def ask_to_stop(self, asked: StopAsked) -> None:
        deadline_s = self.now_s + asked.grace_s
        if self.state.stop_deadline_s is not None:
            deadline_s = min(deadline_s, self.state.stop_deadline_s)
        failure = self.state.failure or asked.failure
        self.state = replace(self.state, stop_deadline_s=deadline_s, failure=failure)
        for container in self.state.containers.values():
            if container.stop is not None and container.stop.deadline_s > deadline_s:
                self.put(replace(container, stop=replace(container.stop, deadline_s=deadline_s)))

    def take_in(
        self, container: ContainerState, observation: Started | StartFailed | Exited | ProbeAnswered | HookEnded
    ) -> None:
        match observation:
            case Started() if container.phase is Phase.STARTING:
                self.started(container, observation)
            case StartFailed() if container.phase is Phase.STARTING:
                self.start_failed(container, observation)
            case Exited() if container.active:
                self.exited(container, observation)
            case ProbeAnswered() if container.phase in ALIVE_PHASES:
                self.probed(container, observation)
            case HookEnded():
                self.hook_ended(container, observation)
            case _:
                pass

    def started(self, container: ContainerState, observation: Started) -> None:
        description = self.pod.container(container.name)
        self.put(
            replace(
                container,
                phase=Phase.RUNNING,
                process_id=observation.process_id,
                started_at_s=self.now_s,
                probes=first_probes(description.probes, now_s=self.now_s),
            )
        )
        self.tell("Started", f"Started container {container.name}", container.name)
        if description.post_start is not None:
            self.act(
                RunHook(
                    container.name, container.attempt, HookKind.POST_START, description.post_start, self.pod.grace_s
                )
            )

    def start_failed(self, container: ContainerState, observation: StartFailed) -> None:
        problem, message = observation.problem, observation.message
        if problem is StartProblem.PROGRAM:
            ended = Ended(_START_ERROR_EXIT_CODE, problem.value, self.now_s, self.now_s, message=message)
            self.put(replace(container, phase=Phase.ENDED, ended=ended))
            self.tell("Failed", f"Error: {message}", container.name, warning=True)
            return
        reason, delay_s = problem.value, _CONFIG_RETRY_S
        pull_delay_s = 0.0
        if problem is StartProblem.IMAGE:
            reason = "ImagePullBackOff" if container.pull_delay_s > 0 else problem.value
            delay_s = pull_delay_s = self.backoff.following(container.pull_delay_s)
        self.put(
            replace(
                container,
                phase=Phase.WAITING,
                reason=reason,
                message=message,
                not_before_s=self.now_s + delay_s,
                pull_delay_s=pull_delay_s,
            )
        )
        self.tell("Failed", f"Error: {reason}: {message}", container.name, warning=True)

    def exited(self, container: ContainerState, observation: Exited) -> None:
        signal = observation.signal
        exit_code = _SIGNAL_EXIT_BASE + signal if signal is not None else observation.code or 0
        ended = Ended(
            exit_code=exit_code,
            signal=signal,
            reason="Completed" if exit_code == 0 else "Error",
            message=observation.message,
            started_at_s=container.started_at_s or self.now_s,
            finished_at_s=self.now_s,
            process_id=container.process_id,
        )
        self.put(replace(container, phase=Phase.ENDED, ended=ended, stop=None, probes={}))

    def probed(self, container: ContainerState, observation: ProbeAnswered) -> None:
        description = self.pod.container(container.name)
        kind = observation.kind
        probe = description.probes[kind]
        counted, verdict = count(container.probes[kind], probe, healthy=observation.healthy)
        probes = {**container.probes, kind: counted}
        if kind is ProbeKind.STARTUP and verdict is Verdict.PASSED:
            # The others have waited for this; readiness is looked at at once.
            probes = probes | {
                other: replace(waiting, next_at_s=self.now_s)
                for other, waiting in probes.items()
                if other is not ProbeKind.STARTUP
            }
        container = replace(container, probes=probes)
        self.put(container)
        if not observation.healthy:
            self.tell("Unhealthy", f"{kind.title} probe failed: {observation.message}", container.name, warning=True)
        if verdict is Verdict.FAILED and kind is not ProbeKind.READINESS and container.phase is Phase.RUNNING:
            grace_s = self.pod.grace_s if probe.grace_s is None else probe.grace_s
            self.begin_stop(
                container,
                grace_s=grace_s,
                why=f"Container {container.name} failed {kind.value} probe, will be restarted",
            )

    def hook_ended(self, container: ContainerState, observation: HookEnded) -> None:
        if observation.problem:
            self.tell(
                f"Failed{observation.kind.value}Hook",
                f"{observation.kind.value}Hook failed: {observation.problem}",
                container.name,
                warning=True,
            )
        if observation.kind is HookKind.PRE_STOP and container.stop is not None:
            self.put(replace(container, stop=replace(container.stop, hook=HookPhase.DONE)))
        elif observation.kind is HookKind.POST_START and observation.problem and container.phase is Phase.RUNNING:
            why = f"Container {container.name} failed its PostStart hook"
            self.begin_stop(container, grace_s=self.pod.grace_s, why=why)

    # -- decisions

    def advance(self) -> None:
        if self.state.finished:
            return
        if not self.state.stopping and not self.state.prepared:
            if not self.state.preparing:
                self.state = replace(self.state, preparing=True)
                self.act(Prepare())
            return
        if self.state.stopping or self.done():
            self.wind_down()
        else:
            self.move_forward()
        self.run_probes()
        self.drive_stops()

    def done(self) -> bool:
        """All main containers have ended for good, or an init container has failed for good."""
        if self.init_failed():
            return True
        return all(
            state.phase is Phase.ENDED and not self.restarts(item, state)
            for item, state in self.pairs(ContainerKind.MAIN)
        )

    def init_failed(self) -> bool:
        return any(
            item.restart is RestartPolicy.NEVER and state.ended is not None and state.ended.exit_code != 0
            for item, state in self.pairs(ContainerKind.INIT)
        )

    def restarts(self, item: Container, state: ContainerState) -> bool:
        return state.ended is not None and item.restart.wants_restart(state.ended.exit_code)

    def move_forward(self) -> None:
        if not self.state.initialized:
            if not self.init_stage():
                return
            self.state = replace(self.state, initialized=True)
        for item, state in self.pairs(ContainerKind.SIDECAR, ContainerKind.MAIN):
            self.keep_running(item, state)

    def init_stage(self) -> bool:
        """Bring the init containers forward; True when they are through."""
        for item, state in self.pairs(ContainerKind.INIT, ContainerKind.SIDECAR):
            if item.kind is ContainerKind.INIT and state.ended is not None and state.ended.exit_code == 0:
                continue
            self.keep_running(item, state)
            if item.kind is ContainerKind.INIT or not self.state.containers[item.name].started:
                return False
        return True

    def keep_running(self, item: Container, state: ContainerState) -> None:
        if state.phase is Phase.ENDED and self.restarts(item, state):
            state = self.wait_for_restart(state)
        if state.phase is not Phase.WAITING:
            return
        if self.now_s < state.not_before_s:
            self.wake(state.not_before_s)
            return
        attempt = state.attempt + 1
        self.put(replace(state, phase=Phase.STARTING, attempt=attempt, process_id=0, started_at_s=0.0, probes={}))
        self.act(StartContainer(state.name, attempt))

    def wait_for_restart(self, state: ContainerState) -> ContainerState:
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

    def wind_down(self) -> None:
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

    def begin_stop(self, state: ContainerState, *, grace_s: float, why: str) -> None:
        has_hook = self.pod.container(state.name).pre_stop is not None and grace_s > 0
        stop = Stop(deadline_s=self.now_s + grace_s, hook=HookPhase.DUE if has_hook else HookPhase.ABSENT)
        self.put(replace(state, phase=Phase.STOPPING, stop=stop))
        self.tell("Killing", why, state.name)

    def drive_stops(self) -> None:
        for state in self.state.containers.values():
            if state.phase is Phase.STOPPING and state.stop is not None and not state.stop.killed:
                self.put(replace(state, stop=self.drive_stop(state, state.stop)))

    def drive_stop(self, state: ContainerState, stop: Stop) -> Stop:
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

    def run_probes(self) -> None:
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
