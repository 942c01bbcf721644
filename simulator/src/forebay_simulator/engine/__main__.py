"""The process `forebay-engine`: `forebay-engine serve MODEL ...`, as `vllm serve MODEL ...`."""

from __future__ import annotations

import os
import sys
import time

_STARTED_S = time.monotonic()

import uvloop  # noqa: E402  (the clock starts before imports, whose time counts as start-up)

from forebay_simulator.engine.arguments import parse_arguments  # noqa: E402
from forebay_simulator.engine.errors import StartupError  # noqa: E402
from forebay_simulator.engine.lifecycle import End, Service  # noqa: E402
from forebay_simulator.engine.settings import VERSION, EngineSettings  # noqa: E402


def say(text: str) -> None:
    """Write one line of the log."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201  (the engine's log is its standard error)


async def _serve(settings: EngineSettings) -> End:
    return await Service(settings, started_s=_STARTED_S).run(say)


def main() -> None:
    """Run until stopped; exits 0 after a signal, 1 when the engine cannot start or dies, 2 for a wrong flag."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in ("--version", "-v"):
        say(VERSION)
        return
    if arguments and arguments[0] == "serve":
        arguments = arguments[1:]
    settings, unknown = parse_arguments(arguments, os.environ)
    for flag in unknown:
        say(f"WARNING: flag {flag} is not known to the simulated engine and has no effect")
    try:
        end = uvloop.run(_serve(settings))
    except StartupError as error:
        say(f"ValueError: {error}")
        sys.exit(1)
    sys.exit(end.value)


if __name__ == "__main__":
    main()
