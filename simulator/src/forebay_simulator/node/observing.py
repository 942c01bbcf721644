"""What an observation changes in a pod's state: pure. What is to be done about it is decided by `machine.advance`."""

from dataclasses import replace

from forebay_simulator.node.lifecycle import (
    ALIVE_PHASES,
    ContainerState,
    Ended,
    Exited,
    Hindered,
    HookEnded,
    HookKind,
    HookPhase,
    Observation,
    Phase,
    PodState,
    Prepared,
    ProbeAnswered,
    RunHook,
    Started,
    StartFailed,
    StartProblem,
    Step,
    StopAsked,
)
from forebay_simulator.node.pods import Pod, ProbeKind
from forebay_simulator.node.probing import Verdict, count, first_probes
from forebay_simulator.node.turn import Backoff, Turn

_CONFIG_RETRY_S = 5.0
_SIGNAL_EXIT_BASE = 128
_START_ERROR_EXIT_CODE = 128


def observe(pod: Pod, state: PodState, observation: Observation, *, now_s: float, backoff: Backoff) -> Step:
    """Take in one observation. What is about an attempt that has passed changes nothing."""
    turn = _Observing(pod, state, now_s, backoff)
    match observation:
        case Prepared():
            turn.state = replace(state, prepared=True, preparing=False)
        case Hindered(message=message):
            for waiting in state.containers.values():
                turn.put(replace(waiting, reason=StartProblem.CONFIG.value, message=message))
        case StopAsked():
            turn.ask_to_stop(observation)
        case _:
            container = state.containers[observation.container]
            if container.attempt == observation.attempt:
                turn.take_in(container, observation)
    return turn.step()


class _Observing(Turn):
    """A step that takes in one observation."""

    def ask_to_stop(self, asked: StopAsked) -> None:
        """End the pod within a grace period; the shortest of several counts."""
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
        """What a container's current attempt brought."""
        match observation:
            case Started() if container.phase is Phase.STARTING:
                self._started(container, observation)
            case StartFailed() if container.phase is Phase.STARTING:
                self._start_failed(container, observation)
            case Exited() if container.active:
                self._exited(container, observation)
            case ProbeAnswered() if container.phase in ALIVE_PHASES:
                self._probed(container, observation)
            case HookEnded():
                self._hook_ended(container, observation)
            case _:
                pass

    def _started(self, container: ContainerState, observation: Started) -> None:
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

    def _start_failed(self, container: ContainerState, observation: StartFailed) -> None:
        problem, message = observation.problem, observation.message
        if self.state.stopping:
            self.put(replace(container, phase=Phase.WAITING))  # it was given up on purpose
            return
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

    def _exited(self, container: ContainerState, observation: Exited) -> None:
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

    def _probed(self, container: ContainerState, observation: ProbeAnswered) -> None:
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

    def _hook_ended(self, container: ContainerState, observation: HookEnded) -> None:
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
