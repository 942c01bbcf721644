"""The state of a pod and its containers, what is observed of them, and what is to be done: plain data.

`machine.py` turns (state, observation, now) into (state, actions); `status.py` turns state into what the API shows.
Times are seconds since the epoch, so that they can be shown; durations are seconds.

`attempt` counts tries to start a container and ties each observation to the try that it is about: what arrives late, of
a process that has ended, is ignored.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from forebay_simulator.node.pods import Handler, Probe, ProbeKind


class Phase(enum.Enum):
    """Where a container is."""

    WAITING = "waiting"  # not started yet, or waiting to be started again
    STARTING = "starting"  # a start is under way
    RUNNING = "running"
    STOPPING = "stopping"  # runs, but is to end
    ENDED = "ended"


ACTIVE_PHASES = frozenset({Phase.STARTING, Phase.RUNNING, Phase.STOPPING})
ALIVE_PHASES = frozenset({Phase.RUNNING, Phase.STOPPING})


class HookPhase(enum.Enum):
    """How far the preStop hook is."""

    ABSENT = "absent"
    DUE = "due"
    RUNNING = "running"
    DONE = "done"


class HookKind(enum.Enum):
    """Which hook."""

    POST_START = "PostStart"
    PRE_STOP = "PreStop"


class StartProblem(enum.Enum):
    """Why a container could not be started; the value is the reason that its status shows."""

    IMAGE = "ErrImagePull"
    CONFIG = "CreateContainerConfigError"
    PROGRAM = "StartError"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run of a container ended."""

    exit_code: int
    reason: str
    finished_at_s: float
    started_at_s: float
    signal: int | None = None
    message: str = ""
    process_id: int = 0


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop in progress."""

    deadline_s: float
    hook: HookPhase = HookPhase.ABSENT
    terminated: bool = False  # SIGTERM was sent
    killed: bool = False  # SIGKILL was sent


@dataclass(frozen=True, slots=True)
class ProbeState:
    """The run of a probe; `passed` is None until a threshold is reached."""

    next_at_s: float
    in_flight: bool = False
    successes: int = 0
    failures: int = 0
    passed: bool | None = None


@dataclass(frozen=True, slots=True)
class ContainerState:
    """One container."""

    name: str
    phase: Phase = Phase.WAITING
    reason: str = "ContainerCreating"  # while waiting
    message: str = ""
    attempt: int = 0
    restarts: int = 0
    not_before_s: float = 0.0
    next_delay_s: float = 0.0  # what the next restart will wait; 0 for the first
    pull_delay_s: float = 0.0  # what the last try to get the image waited
    process_id: int = 0
    started_at_s: float = 0.0
    ended: Ended | None = None  # of the current run
    last: Ended | None = None  # of the run before
    probes: Mapping[ProbeKind, ProbeState] = field(default_factory=dict)
    stop: Stop | None = None

    @property
    def active(self) -> bool:
        """There is a process, or will be in a moment."""
        return self.phase in ACTIVE_PHASES

    @property
    def started(self) -> bool:
        """Runs, and its startup probe (if any) has passed."""
        startup = self.probes.get(ProbeKind.STARTUP)
        return self.phase in ALIVE_PHASES and (startup is None or startup.passed is True)

    @property
    def ready(self) -> bool:
        """Started, and its readiness probe (if any) says so."""
        readiness = self.probes.get(ProbeKind.READINESS)
        return self.started and (readiness is None or readiness.passed is True)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the pod as a whole failed, other than by its containers."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PodState:
    """The whole pod."""

    containers: Mapping[str, ContainerState]
    preparing: bool = False
    prepared: bool = False  # address, devices and volumes are there
    initialized: bool = False  # stays true once reached
    stop_deadline_s: float | None = None  # deletion or node shutdown was asked for
    failure: Failure | None = None
    finished: bool = False  # nothing runs and nothing will

    @property
    def stopping(self) -> bool:
        """The pod is to end, whatever its containers do."""
        return self.stop_deadline_s is not None or self.failure is not None

    def with_container(self, container: ContainerState) -> "PodState":
        """Replace one container's state."""
        return replace(self, containers={**self.containers, container.name: container})


# Observations: what the world tells.


@dataclass(frozen=True, slots=True)
class Prepared:
    """Address, devices and volumes are there."""


@dataclass(frozen=True, slots=True)
class Hindered:
    """What keeps the pod from ever being prepared."""

    message: str


@dataclass(frozen=True, slots=True)
class Started:
    """The container's program runs."""

    container: str
    attempt: int
    process_id: int


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The container's program could not be started."""

    container: str
    attempt: int
    problem: StartProblem
    message: str


@dataclass(frozen=True, slots=True)
class Exited:
    """The container's process ended; one of `code` and `signal` is set."""

    container: str
    attempt: int
    code: int | None
    signal: int | None
    message: str = ""


@dataclass(frozen=True, slots=True)
class ProbeAnswered:
    """A probe came back."""

    container: str
    attempt: int
    kind: ProbeKind
    healthy: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class HookEnded:
    """A hook came back; `problem` empty when it succeeded."""

    container: str
    attempt: int
    kind: HookKind
    problem: str = ""


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The pod is to end within the grace period: deleted, or (with a failure) the node's own decision."""

    grace_s: float
    failure: Failure | None = None


Observation = Prepared | Hindered | Started | StartFailed | Exited | ProbeAnswered | HookEnded | StopAsked

# Actions: what to do.


@dataclass(frozen=True, slots=True)
class Prepare:
    """Get address, devices and volumes; answer with Prepared."""


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Start the container's program; answer with Started or StartFailed, later Exited."""

    container: str
    attempt: int


@dataclass(frozen=True, slots=True)
class RunProbe:
    """Probe once; answer with ProbeAnswered."""

    container: str
    attempt: int
    kind: ProbeKind
    probe: Probe


@dataclass(frozen=True, slots=True)
class RunHook:
    """Run a hook, at most `timeout_s` long; answer with HookEnded."""

    container: str
    attempt: int
    kind: HookKind
    handler: Handler
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SendSignal:
    """Signal the container's process."""

    container: str
    attempt: int
    kill: bool  # SIGKILL instead of SIGTERM


@dataclass(frozen=True, slots=True)
class Tell:
    """Record an Event on the pod."""

    reason: str
    message: str
    warning: bool = False
    container: str = ""


Action = Prepare | StartContainer | RunProbe | RunHook | SendSignal | Tell


@dataclass(frozen=True, slots=True)
class Step:
    """The outcome of one step: the new state, what to do, and when to look again unless something happens."""

    state: PodState
    actions: tuple[Action, ...] = ()
    wake_at_s: float | None = None
