"""Structured log lines: one JSON object a line, with the object that a line is about as keys of its own.

`about(...)` gives the `extra` of a log call. Kopf logs through the same root handler; its `k8s_ref` is flattened into the
same three keys, so that one query finds every line on one object whoever wrote it.
"""

import logging
import re
import sys
from typing import Any, Final

from pythonjsonlogger.json import JsonFormatter

RETRY_LINE: Final = re.compile(r"Request attempt #(\d+)/\d+ failed; will retry")
RETRY_LINES_EVERY: Final = 15
"""Of so many attempts of one watch, one is logged: about two lines a minute."""


class _ObjectFilter(logging.Filter):
    """Flattens Kopf's reference to an object into namespace, name and kind."""

    def filter(self, record: logging.LogRecord) -> bool:
        reference = record.__dict__.pop("k8s_ref", None)
        if isinstance(reference, dict):
            for key in ("namespace", "name", "kind"):
                if reference.get(key):
                    record.__dict__.setdefault(f"object_{key}", reference[key])
        record.__dict__.pop("settings", None)
        record.__dict__.pop("k8s_skip", None)
        return True


def about(kind: str, namespace: str, name: str, **more: Any) -> dict[str, Any]:
    """The `extra` of a log line on one object."""
    return {"object_kind": kind, "object_namespace": namespace, "object_name": name, **more}


class _RetryFilter(logging.Filter):
    """Thins out what Kopf says while a watch cannot connect: an error a watch and attempt, for as long as that lasts."""

    def filter(self, record: logging.LogRecord) -> bool:
        found = RETRY_LINE.match(record.getMessage())
        if found is None:
            return True
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        return int(found.group(1)) % RETRY_LINES_EVERY == 1


class _Formatter(JsonFormatter):
    """Renames the object keys, which the logging module would not take under their own names."""

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        for key in ("namespace", "name", "kind"):
            if f"object_{key}" in log_data:
                log_data[key] = log_data.pop(f"object_{key}")
        return super().process_log_record(log_data)


def set_up_logging(*, level: str, log_format: str) -> None:
    """Send every logger of the process to standard error in one format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_ObjectFilter())
    handler.addFilter(_RetryFilter())
    if log_format == "json":
        handler.setFormatter(
            _Formatter(
                "%(levelname)s %(message)s",
                rename_fields={"levelname": "level", "exc_info": "exception"},
                timestamp="time",
                static_fields={"component": "operator"},
            )
        )
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("kopf").setLevel(max(logging.getLevelName(level), logging.INFO))
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # one line an event is not worth its place
    logging.getLogger("kopf.activities").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
