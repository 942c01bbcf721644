"""Whether this router runs compiled. `router/compiling.py` makes the extensions; with none it runs as plain Python, slower."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec


@cache
def compiled() -> bool:
    """The hot modules are extensions. They are compiled as one unit, so one stands for all."""
    spec = find_spec("forebay_router.relay")
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")


def version_line() -> str:
    """What --version prints."""
    try:
        number = version("forebay-router")
    except PackageNotFoundError:  # copied sources on the import path, as in an image
        number = "of unknown version"
    return f"forebay-router {number} ({'compiled' if compiled() else 'interpreted'})"
