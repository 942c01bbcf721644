"""A pod's machine in virtual time: actions are answered by a scripted world, seconds pass at once."""

from dataclasses import dataclass, field
from typing import Any

from forebay_simulator.node import lifecycle
from forebay_simulator.node.lifecycle import Action, ContainerState, Observation, PodState, Step
from forebay_simulator.node.machine import advance, new_state
from forebay_simulator.node.observing import observe
from forebay_simulator.node.pods import Pod, ProbeKind, parse_pod
from forebay_simulator.node.status import Addresses, pod_phase, pod_status
from forebay_simulator.node.turn import Backoff

BEGIN_S = 1_000_000.0


@dataclass
class Timeline:
    """Runs a pod; `script` says how the world answers."""

    raw: dict[str, Any]
    backoff: Backoff = field(default_factory=Backoff)
    terminates_in_s: float | None = 0.0
    """How long after SIGTERM a program ends by itself; None for one that ignores it."""
    lasts_s: dict[str, float] = field(default_factory=dict)
    """How long a container runs before it exits by itself."""
    exit_codes: dict[str, int] = field(default_factory=dict)
    unhealthy: set[ProbeKind] = field(default_factory=set)
    hook_takes_s: float = 0.0
    starts: bool = True

    def __post_init__(self) -> None:
        self.pod: Pod = parse_pod(self.raw)
        self.state: PodState = new_state(self.pod)
        self.now_s = BEGIN_S
        self.actions: list[tuple[float, Action]] = []
        self._pending: list[tuple[float, int, Observation]] = []
        self._sequence = 0
        self._wake_at_s: float | None = None
        self._settle()

    @property
    def elapsed_s(self) -> float:
        return self.now_s - BEGIN_S

    def container(self, name: str = "main") -> ContainerState:
        return self.state.containers[name]

    @property
    def phase(self) -> str:
        return pod_phase(self.pod, self.state)

    def status(self) -> dict[str, Any]:
        previous = self.raw["status"]
        addresses = Addresses(pod="127.1.0.2", node="127.1.0.1")
        return pod_status(self.pod, self.state, addresses=addresses, previous=previous, now_s=self.now_s)

    def at(self, kind: type[Action], container: str | None = None) -> list[float]:
        """When actions of a kind were taken, in seconds from the begin."""
        return [
            round(when - BEGIN_S, 3)
            for when, action in self.actions
            if isinstance(action, kind) and container in (None, getattr(action, "container", None))
        ]

    def told(self, reason: str) -> list[str]:
        return [a.message for _, a in self.actions if isinstance(a, lifecycle.Tell) and a.reason == reason]

    def happens(self, observation: Observation, *, after_s: float = 0.0) -> None:
        """Have something observed later, or now."""
        self._sequence += 1
        self._pending.append((self.now_s + after_s, self._sequence, observation))
        if after_s == 0.0:
            self._settle()

    def run(self, *, for_s: float) -> "Timeline":
        """Let time pass."""
        end_s = self.now_s + for_s
        for _ in range(10_000):
            moments = [when for when, _, _ in self._pending]
            if self._wake_at_s is not None:
                moments.append(self._wake_at_s)
            nearest = min(moments, default=end_s + 1)
            if nearest > end_s:
                break
            self.now_s = max(self.now_s, nearest)
            self._settle()
        else:
            raise AssertionError("the machine never comes to rest")
        self.now_s = end_s
        return self

    def _settle(self) -> None:
        for _ in range(1000):
            due = sorted(item for item in self._pending if item[0] <= self.now_s)
            for item in due:
                self._pending.remove(item)
                self._take(observe(self.pod, self.state, item[2], now_s=self.now_s, backoff=self.backoff))
            step = advance(self.pod, self.state, now_s=self.now_s, backoff=self.backoff)
            self._take(step)
            self._wake_at_s = step.wake_at_s
            if not any(when <= self.now_s for when, _, _ in self._pending):
                return
        raise AssertionError("the machine never comes to rest")

    def _take(self, step: Step) -> None:
        self.state = step.state
        for action in step.actions:
            self.actions.append((self.now_s, action))
            self._answer(action)

    def _later(self, observation: Observation, after_s: float) -> None:
        self._sequence += 1
        self._pending.append((self.now_s + after_s, self._sequence, observation))

    def _answer(self, action: Action) -> None:
        match action:
            case lifecycle.Prepare():
                self._later(lifecycle.Prepared(), 0.0)
            case lifecycle.StartContainer(container=name, attempt=attempt) if self.starts:
                self._later(lifecycle.Started(name, attempt, process_id=1000 + attempt), 0.0)
                if name in self.lasts_s:
                    code = self.exit_codes.get(name, 0)
                    self._later(lifecycle.Exited(name, attempt, code, None), self.lasts_s[name])
            case lifecycle.RunProbe(container=name, attempt=attempt, kind=kind):
                healthy = kind not in self.unhealthy
                self._later(lifecycle.ProbeAnswered(name, attempt, kind, healthy, "" if healthy else "refused"), 0.0)
            case lifecycle.RunHook(container=name, attempt=attempt, kind=kind):
                self._later(lifecycle.HookEnded(name, attempt, kind), self.hook_takes_s)
            case lifecycle.SendSignal(container=name, attempt=attempt, kill=kill):
                if kill:
                    self._later(lifecycle.Exited(name, attempt, None, 9), 0.0)
                elif self.terminates_in_s is not None:
                    self._later(lifecycle.Exited(name, attempt, None, 15), self.terminates_in_s)
            case _:
                pass
