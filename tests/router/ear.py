"""Hears what becomes of an answer, and plays the connection that brings it."""

from dataclasses import dataclass, field

from forebay_router.answer import Answer
from forebay_router.errors import WorkerFailure


@dataclass
class Ear:
    """Hears what becomes of an answer, and ends its connection."""

    opened: int = 0
    ends: list[WorkerFailure | None] = field(default_factory=list)
    let_go_of: int = 0

    def answer_opened(self, _answer: Answer) -> None:
        self.opened += 1

    def answer_ended(self, _answer: Answer, failure: WorkerFailure | None) -> None:
        self.ends.append(failure)

    def let_go(self) -> None:
        self.let_go_of += 1

    def pause(self) -> None:
        pass

    resume = pause
