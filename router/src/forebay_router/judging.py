"""Whether a worker's answer is a failure: when it opens, and when it has ended. Pure.

Until the first content an answer can still be replaced by another worker's; afterwards a failure can only be told to the client.
"""

from forebay_router.answer import Answer
from forebay_router.errors import FailureReason, WorkerFailure
from forebay_router.refusal import WorkerRefusal

ENGINE_DEAD = "EngineCore encountered an issue"
"""What vLLM's API process answers, in a body or an event, when the engine's core has died under a request."""
ENGINE_LEAVES = "cannot schedule new futures after shutdown"
"""What it answers to a new request while it ends in order, and goes on to call itself healthy."""
RETRIED_STATUSES = frozenset({500, 502, 503})
"""Answers of a worker that drains, dies or is full: another worker may well do it."""


def check_opening(answer: Answer, *, content_begun: bool, own_key: bool = False) -> None:
    """Raise WorkerFailure when an opened answer is a failure that another worker may do better.

    `own_key`: the key that the worker was given is the router's. Its refusal is no business of the client, whose own key is good.
    """
    if own_key and answer.status == 401:
        message = "the worker refused the router's key: is --worker-key-file the key that it was started with?"
        raise WorkerFailure(FailureReason.WORKER_ERROR, message, answered=True)
    if answer.status in RETRIED_STATUSES and answer.complete:
        message = f"the worker answered {answer.status}"
        said = b"" if answer.encoded else answer.buffered()
        if ENGINE_DEAD.encode() in said:
            raise WorkerFailure(FailureReason.WORKER_ERROR, f"{message}: its engine has died", died=True)
        if ENGINE_LEAVES.encode() in said:
            raise WorkerFailure(FailureReason.WORKER_ERROR, f"{message}: it is about to end")
        raise WorkerRefusal(FailureReason.WORKER_ERROR, message, answer=answer)
    scanner = answer.scanner
    if scanner is None or scanner.first_content_s is not None or content_begun:
        return
    if scanner.aborted:
        raise WorkerFailure(FailureReason.ABORTED, "the engine aborted the request")
    if scanner.error is not None and not scanner.client_error:
        raise WorkerFailure(FailureReason.WORKER_ERROR, scanner.error, died=ENGINE_DEAD in scanner.error)
    if answer.complete and not scanner.complete and scanner.error is None:
        raise WorkerFailure(FailureReason.CUT_OFF, "the stream ended before it began")


def failure_at_end(answer: Answer) -> FailureReason | None:
    """Why an answer that has ended is no good; None when it is whole, or told the client of its own error."""
    scanner = answer.scanner
    if scanner is None or scanner.client_error:
        return None
    if scanner.error is not None:
        return FailureReason.WORKER_ERROR
    if scanner.aborted:
        return FailureReason.ABORTED
    return None if scanner.complete else FailureReason.CUT_OFF
