"""A worker's own error answer, as the failure of an attempt. Beside `errors`, which knows of no answers."""

from dataclasses import dataclass

from forebay_router.answer import Answer
from forebay_router.errors import WorkerFailure


@dataclass(slots=True, kw_only=True)
class WorkerRefusal(WorkerFailure):
    """The worker answered, with an error that another worker may not give."""

    answer: Answer
    """Complete; relayed when no other worker is left."""
    answered: bool = True
