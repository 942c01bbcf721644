"""`forebay-router`: settings, then the process."""

import os
import sys

from forebay_router.process import run
from forebay_router.settings import parse_settings


def main() -> None:
    """Entry point of the console script."""
    run(parse_settings(sys.argv[1:], os.environ))


if __name__ == "__main__":
    main()
