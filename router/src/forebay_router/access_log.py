"""One JSON line for a request: always for failures, for all requests when asked. Never one a token.

Stages are told in seconds since arrival: worker chosen, prefill done (of a pair), first byte, first token, end.

Values are JSON strings, so a control character that a client sends is escaped and cannot make a line of its own.
"""

import logging
from enum import StrEnum

from forebay_api.objective import Verdict
from forebay_router.accounting import Record
from forebay_router.errors import RequestRefused
from forebay_router.tenancy.keys import Grant

log = logging.getLogger("forebay_router.access")


class AccessLogMode(StrEnum):
    """Which requests get a line."""

    OFF = "off"
    ERRORS = "errors"
    ALL = "all"


class AccessLog:
    """Writes the lines."""

    __slots__ = ("mode",)

    def __init__(self, mode: AccessLogMode) -> None:
        self.mode = mode

    def wants(self, record: Record) -> bool:
        """Whether an ended request gets a line."""
        if self.mode is AccessLogMode.ERRORS:
            return record.status >= 400 or record.reason is not None
        return self.mode is AccessLogMode.ALL

    def write(
        self,
        record: Record,
        verdict: Verdict | None,
        *,
        request_id: bytes,
        path: bytes,
        grant: Grant | None = None,
    ) -> None:
        """The line of an ended request."""
        usage, model = record.usage, record.model
        fields = {
            "request_id": request_id.decode(),
            "path": path[:200].decode(errors="replace"),
            "model": model[:200] if model else model,
            "tenant": grant.tenant if grant else None,
            "key": grant.key if grant else None,
            "status": record.status,
            "outcome": record.outcome.value if record.outcome else "client_error",
            "verdict": verdict.value if verdict else None,
            "reason": record.reason.value if record.reason else None,
            "worker": record.worker,
            "prefill_worker": record.prefill_worker,
            "attempts": record.attempts,
            "chosen_seconds": _since(record, record.chosen_s),
            "prefilled_seconds": _since(record, record.prefilled_s),
            "first_byte_seconds": _since(record, record.opened_s),
            "ttft_seconds": _since(record, record.first_content_s),
            "seconds": _since(record, record.ended_s),
            "tpot_seconds": None if record.tpot_s is None else round(record.tpot_s, 6),
            "prompt_tokens": usage.prompt_tokens if usage else None,
            "cached_tokens": usage.cached_tokens if usage else None,
            "output_tokens": usage.output_tokens if usage else None,
        }
        log.info("request", extra=fields)

    def write_refused(self, refused: RequestRefused, *, request_id: bytes, path: bytes) -> None:
        """The line of a request that never reached the relay: malformed, too large, no such path."""
        if self.mode is AccessLogMode.OFF:
            return
        fields = {
            "request_id": request_id.decode(),
            "path": path[:200].decode(errors="replace"),
            "status": refused.status,
            "outcome": "client_error",
            "code": refused.code,
            "cause": refused.message,
        }
        log.info("request", extra=fields)


def _since(record: Record, at_s: float | None) -> float | None:
    """A stage's end, in seconds since arrival."""
    return None if at_s is None else round(at_s - record.arrived_s, 6)
