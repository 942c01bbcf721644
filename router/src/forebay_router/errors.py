"""Every way in which a request can go wrong, and how a client is told.

- `RequestRefused`: the router answers by itself, no worker is asked (or asked again)
  - made by the functions below: bad body, unknown model, too large, no worker, queue full, ...
- `WorkerFailure`: one attempt on one worker failed; the relay decides whether another worker is tried
  - `reason` says how (a bounded set: it is a metric label)
  - its subclass `refusal.WorkerRefusal` holds the worker's own error answer where it gave one

Bodies have the shape that the client's SDK expects: OpenAI's `{"error": {"message", "type", "param", "code"}}`, or Anthropic's
`{"type": "error", "error": {"type", "message"}}` on its paths.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import orjson


class Shape(StrEnum):
    """Whose error format a path speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class FailureReason(StrEnum):
    """Why a request, or one attempt of it, failed. Values are metric labels."""

    CONNECT = "connect"
    """The worker refused the connection or could not be reached in time."""
    RESET = "reset"
    """The connection ended before the answer began."""
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    """Nothing came within the first-byte limit."""
    IDLE_TIMEOUT = "idle_timeout"
    """The answer stopped coming for longer than the idle limit."""
    TOTAL_TIMEOUT = "total_timeout"
    """The whole request took longer than allowed."""
    WORKER_ERROR = "worker_error"
    """The worker answered with a 5xx status or an error event."""
    ABORTED = "aborted"
    """The engine cut the answer off itself (finish_reason "abort" under status 200)."""
    CUT_OFF = "cut_off"
    """The answer ended without its end marker."""
    BAD_ANSWER = "bad_answer"
    """What came is not HTTP, or not what was asked for."""
    NO_WORKER = "no_worker"
    """No worker became ready within the time a request is held."""
    QUEUE_FULL = "queue_full"
    """Too many requests were held already."""
    OVERLOADED = "overloaded"
    """The workers had no room within the time a request may wait for it."""
    DEADLINE = "deadline"
    """It could not have been answered within the time its client gives it."""
    FROZEN = "frozen"
    """The worker made no progress with anything, whatever its health check says."""
    SHUTDOWN = "shutdown"
    """The router stopped before the request had ended."""
    ROUTER_ERROR = "router_error"
    """A fault of the router itself."""


@dataclass(slots=True)
class RequestRefused(Exception):  # noqa: N818 - reads as what happened
    """The router's own answer to a request that it does not forward."""

    status: int
    message: str
    type: str = "invalid_request_error"
    """OpenAI's error type."""
    param: str | None = None
    """Which field of the request is at fault."""
    code: str | None = None
    """A word for programs."""
    retry_after_s: int | None = None
    """Sent as Retry-After."""
    reason: FailureReason | None = None
    """Set where the service, not the client, is at fault: then the request counts as bad."""
    allow: str | None = None
    """The Allow header of a 405."""
    lines: bytes = b""
    """Further header lines of the answer."""


@dataclass(slots=True)
class WorkerFailure(Exception):  # noqa: N818 - reads as what happened
    """One attempt failed."""

    reason: FailureReason
    message: str
    refused: bool = False
    """Nothing listens there."""
    answered: bool = False
    """The worker gave an answer, an error: worth another worker that is there, not worth waiting for one."""
    died: bool = False
    """The worker told that its engine is dead: it is about to end, and was asked for nothing better."""


_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


def error_body(
    shape: Shape, status: int, message: str, *, error_type: str, param: str | None = None, code: str | None = None
) -> bytes:
    """The JSON body of an error answer, or the data of an error event."""
    if shape is Shape.ANTHROPIC:
        kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})
    return orjson.dumps({"error": {"message": message, "type": error_type, "param": param, "code": code}})


def refusal_body(shape: Shape, refused: RequestRefused) -> bytes:
    """The JSON body of a refusal."""
    return error_body(
        shape, refused.status, refused.message, error_type=refused.type, param=refused.param, code=refused.code
    )


def error_event(shape: Shape, status: int, message: str, code: str) -> bytes:
    """A server-sent event that ends a stream which cannot go on."""
    body = error_body(shape, status, message, error_type="server_error", code=code)
    prefix = b"event: error\n" if shape is Shape.ANTHROPIC else b""
    return b"%bdata: %b\n\n" % (prefix, body)


def not_found(path: str) -> RequestRefused:
    """No such path."""
    return RequestRefused(404, f"Unknown path {path}; see docs/router.md for the paths served.", code="unknown_path")


def method_not_allowed(method: str, path: str, allow: str) -> RequestRefused:
    """The path exists, the method does not."""
    return RequestRefused(
        405, f"Method {method} is not allowed on {path}; use {allow}.", code="method_not_allowed", allow=allow
    )


def no_tunnels() -> RequestRefused:
    """CONNECT: this is no proxy for whatever a client names."""
    return RequestRefused(
        405, "Method CONNECT is not allowed; use GET or POST.", code="method_not_allowed", allow="GET, POST"
    )


def bad_body(message: str, param: str | None = None) -> RequestRefused:
    """The body cannot be understood."""
    return RequestRefused(400, message, param=param, code="invalid_body")


def not_split() -> RequestRefused:
    """Prefill and decode run on different workers, and the request needs one that does both."""
    return bad_body(
        "prompt_logprobs and echo are not supported for this model, whose prefill and decode run on different workers; "
        "leave them out."
    )


def no_service(model: str | None) -> RequestRefused:
    """No service is known that serves the model; None where the request names none and there is not exactly one."""
    if model is None:
        return bad_body("The field `model` is required; GET /v1/models lists the models.", "model")
    return unknown_model(model)


def too_deep() -> RequestRefused:
    """The body is nested more deeply than it could be passed on."""
    return bad_body("The request body is nested too deeply: at most 250 levels of arrays and objects are taken.")


def bad_header(name: bytes, fix: str) -> RequestRefused:
    """A header of the router's own that cannot be read."""
    shown = name.decode()
    return RequestRefused(400, f"The header `{shown}` cannot be read; {fix}.", param=shown, code="invalid_header")


def body_too_large(limit_bytes: int) -> RequestRefused:
    """The body is above the limit."""
    return RequestRefused(
        413, f"The request body is larger than {limit_bytes} bytes, the limit here.", code="request_too_large"
    )


def head_too_large(limit_bytes: int) -> RequestRefused:
    """The request line and headers are above the limit."""
    return RequestRefused(
        431,
        f"The request line and headers are larger than {limit_bytes} bytes, the limit here.",
        code="headers_too_large",
    )


def bad_http(detail: str) -> RequestRefused:
    """The bytes are not a valid HTTP/1.1 request."""
    return RequestRefused(400, f"Malformed HTTP request: {detail}.", code="malformed_http")


def unknown_model(model: str) -> RequestRefused:
    """No service offers this model."""
    shown = model if len(model) <= 200 else model[:200] + "..."
    return RequestRefused(
        404,
        f"The model `{shown}` does not exist; GET /v1/models lists those that do.",
        param="model",
        code="model_not_found",
    )


def no_worker(model: str, retry_after_s: int) -> RequestRefused:
    """A known model whose workers did not become ready in time."""
    return RequestRefused(
        503,
        f"No worker is ready for model `{model}`; try again later.",
        type="service_unavailable",
        code="no_ready_worker",
        retry_after_s=retry_after_s,
        reason=FailureReason.NO_WORKER,
    )


def queue_full(model: str, retry_after_s: int) -> RequestRefused:
    """Too many requests wait for this model already."""
    return RequestRefused(
        503,
        f"Too many requests are waiting for model `{model}`; try again later.",
        type="service_unavailable",
        code="queue_full",
        retry_after_s=retry_after_s,
        reason=FailureReason.QUEUE_FULL,
    )


def queue_share(model: str, retry_after_s: int) -> RequestRefused:
    """The queue is full, and the client's own tenant has the most in it."""
    return RequestRefused(
        429,
        f"Too many requests are waiting for model `{model}`, most of them yours; send fewer at a time, or try again later.",
        type="rate_limit_error",
        code="queue_share_exceeded",
        retry_after_s=retry_after_s,
        reason=FailureReason.QUEUE_FULL,
    )


def overloaded(model: str, retry_after_s: int) -> RequestRefused:
    """Workers are there, and were full for as long as a request may wait."""
    return RequestRefused(
        503,
        f"All workers of model `{model}` are busy; try again later.",
        type="service_unavailable",
        code="overloaded",
        retry_after_s=retry_after_s,
        reason=FailureReason.OVERLOADED,
    )


def deadline(model: str, retry_after_s: int) -> RequestRefused:
    """By the predicted wait, or by now, the answer would come after the client has given up."""
    return RequestRefused(
        503,
        f"The request cannot be answered by model `{model}` within the time that it allows; try again later or allow more.",
        type="service_unavailable",
        code="deadline_unreachable",
        retry_after_s=retry_after_s,
        reason=FailureReason.DEADLINE,
    )


def shutting_down() -> RequestRefused:
    """The router's drain limit is over."""
    return RequestRefused(
        503,
        "The router is shutting down; send the request again.",
        type="service_unavailable",
        code="shutdown",
        retry_after_s=1,
        reason=FailureReason.SHUTDOWN,
    )


def router_fault(request_id: str) -> RequestRefused:
    """A fault of the router itself; details are in its log under the request id."""
    return RequestRefused(
        500,
        f"The router failed on this request; its log has the details under request id {request_id}.",
        type="server_error",
        code="router_error",
        reason=FailureReason.ROUTER_ERROR,
    )


_FAILURE_STATUS = {
    FailureReason.FIRST_BYTE_TIMEOUT: (504, "The worker did not begin its answer in time."),
    FailureReason.IDLE_TIMEOUT: (504, "The worker stopped answering."),
    FailureReason.TOTAL_TIMEOUT: (504, "The request took longer than allowed."),
    FailureReason.DEADLINE: (504, "The request was not answered within the time that it allows."),
    FailureReason.CONNECT: (503, "No worker could be reached."),
    FailureReason.RESET: (502, "The worker closed the connection before answering."),
    FailureReason.CUT_OFF: (502, "The worker's answer ended before it was complete."),
    FailureReason.ABORTED: (503, "The worker stopped this answer before it was complete."),
    FailureReason.SHUTDOWN: (503, "The router is shutting down."),
    FailureReason.FROZEN: (503, "The worker stopped working on its requests."),
    FailureReason.BAD_ANSWER: (502, "The worker's answer could not be understood."),
}


def failure_status(reason: FailureReason) -> tuple[int, str]:
    """Status and sentence for a client whose request failed on every worker tried."""
    return _FAILURE_STATUS.get(reason, (502, "The worker failed on this request."))


@cache
def failure_event(shape: Shape, reason: FailureReason) -> bytes:
    """The event that ends a stream whose worker failed so."""
    status, message = failure_status(reason)
    return error_event(shape, status, message, reason.value)
