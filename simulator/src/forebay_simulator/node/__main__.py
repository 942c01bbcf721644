"""`forebay-node`: wires the node agent and turns signals into an orderly end."""

import asyncio
import logging
import os
import signal
import sys

import uvloop

from forebay_simulator.node.agent import Agent
from forebay_simulator.node.errors import NodeError
from forebay_simulator.node.settings import Settings, parse_arguments

log = logging.getLogger(__name__)


def main() -> None:
    """Run a node until told to end; exit code 2 for settings that can't be used, 1 for any other failure."""
    try:
        settings = parse_arguments(sys.argv[1:])
    except NodeError as error:
        sys.exit(f"forebay-node: {error}")
    logging.basicConfig(
        level=logging.DEBUG if settings.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    failed = False
    try:
        uvloop.run(_run(settings))
    except* NodeError as group:
        failed = True
        for failure in group.exceptions:
            log.error("%s", failure)
    if failed:  # not within except*, which would wrap the exit
        sys.exit(1)


async def _run(settings: Settings) -> None:
    stop = asyncio.Event()

    def ended_by_signal() -> None:
        if stop.is_set():
            os._exit(1)  # asked twice: the launcher ends every pod's process
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended_by_signal)
    await Agent(settings).run(stop)


if __name__ == "__main__":
    main()
