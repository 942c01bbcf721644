"""One step of a pod's machine in the making: the state so far and the actions it led to. Pure, discarded after the step."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from forebay_simulator.node.lifecycle import Action, ContainerState, HookPhase, Phase, PodState, Step, Stop, Tell
from forebay_simulator.node.pods import Container, ContainerKind, Pod


@dataclass(frozen=True, slots=True)
class Backoff:
    """How restarts are spread."""

    base_s: float = 10.0
    cap_s: float = 300.0
    reset_s: float = 600.0

    def following(self, delay_s: float) -> float:
        """The delay after `delay_s`."""
        return min(self.cap_s, delay_s * 2) if delay_s > 0 else self.base_s


@dataclass(slots=True)
class Turn:
    """One step in the making."""

    pod: Pod
    state: PodState
    now_s: float
    backoff: Backoff
    actions: list[Action] = field(default_factory=list)
    wake_at_s: float | None = None

    def step(self) -> Step:
        """The outcome."""
        return Step(self.state, tuple(self.actions), self.wake_at_s)

    def put(self, container: ContainerState) -> None:
        """Replace a container's state."""
        self.state = self.state.with_container(container)

    def act(self, action: Action) -> None:
        """Add an action."""
        self.actions.append(action)

    def tell(self, reason: str, message: str, container: str = "", *, warning: bool = False) -> None:
        """Add an Event."""
        self.actions.append(Tell(reason, message, warning=warning, container=container))

    def wake(self, at_s: float) -> None:
        """Ask for another step no later than this."""
        self.wake_at_s = at_s if self.wake_at_s is None else min(self.wake_at_s, at_s)

    def pairs(self, *kinds: ContainerKind) -> Iterator[tuple[Container, ContainerState]]:
        """Containers of these kinds with their states, in starting order."""
        for container in self.pod.containers:
            if container.kind in kinds:
                yield container, self.state.containers[container.name]

    def begin_stop(self, state: ContainerState, *, grace_s: float, why: str) -> None:
        """Have a running container end; the next decision drives the stop."""
        has_hook = self.pod.container(state.name).pre_stop is not None and grace_s > 0
        stop = Stop(deadline_s=self.now_s + grace_s, hook=HookPhase.DUE if has_hook else HookPhase.ABSENT)
        self.put(replace(state, phase=Phase.STOPPING, stop=stop))
        self.tell("Killing", why, state.name)
