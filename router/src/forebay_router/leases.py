"""A request's claim on one worker: taken at dispatch, released exactly once on any exit. Use it as a context manager."""

from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from forebay_router.table import Worker, WorkerTable


class LeaseEvent(StrEnum):
    """What happened to a lease."""

    TAKEN = "taken"
    PREFILLED = "prefilled"
    RELEASED = "released"


class Lease:
    """A request's claim on a worker. Released once; a second release is a programming error."""

    __slots__ = ("_table", "held", "number", "output_tokens", "prompt_tokens", "visible", "worker")

    def __init__(
        self,
        table: "WorkerTable",
        number: int,
        worker: "Worker",
        *,
        prompt_tokens: int,
        output_tokens: int,
        visible: bool,
    ) -> None:
        self._table = table
        self.number = number
        self.worker = worker
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.visible = visible
        self.held = True

    def prefilled(self) -> None:
        """The first token came: its prompt is no longer work to do."""
        if not self.prompt_tokens:
            return
        load = self.worker.candidate.load
        load.backlog.computed(self.number, self._table.clock())
        load.prompt_tokens -= self.prompt_tokens
        self.prompt_tokens = 0
        for hook in self._table.on_lease:
            hook(self, LeaseEvent.PREFILLED)
        if self._table.waiting:
            self._table.freed(self.worker)

    def release(self) -> None:
        """End the claim."""
        self._table.release(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
