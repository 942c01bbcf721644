"""`forebay-router`: settings, then the process."""

import os
import sys

from forebay_router.process import run
from forebay_router.settings import parse_settings


def main() -> None:
    """Entry point of the console script."""
    settings = parse_settings(sys.argv[1:], os.environ)
    if settings.replica.processes > 1 and settings.replica.part is None:
        from forebay_router.processes.parent import run_several  # noqa: PLC0415 - one process spares its imports

        run_several(settings, sys.argv[1:])
    else:
        run(settings)


if __name__ == "__main__":
    main()
