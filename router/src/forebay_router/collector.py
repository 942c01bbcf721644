"""Waits for a complete answer to a request of the router's own."""

import asyncio

from forebay_router.answer import Answer
from forebay_router.errors import WorkerFailure


class Collector:
    """Listens to one answer; `done` has its end, or raises WorkerFailure."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answer_opened(self, answer: Answer) -> None:  # noqa: ARG002 - opened is complete, for an answer that is collected
        """It is there."""
        if not self.done.done():
            self.done.set_result(None)

    def answer_ended(self, answer: Answer, failure: WorkerFailure | None) -> None:  # noqa: ARG002
        """It will not come."""
        if failure is not None and not self.done.done():
            self.done.set_exception(failure)
