"""What the C library does with the memory that bodies leave.

glibc maps a block of 128 KiB or more anew and unmaps it when it is freed, and gives free memory at the end of the heap back to
the system as soon as there is as much. A long prompt goes through several such blocks, and each first touch of a page is a fault
that costs as much as copying ten times the page: together more than all that the router does with the prompt. So blocks up to
`MAPPED_MIN_BYTES` come from the heap, and `KEPT_MAX_BYTES` of free memory at its end stay.

An allocator other than glibc's has no such settings, and needs none.
"""

import ctypes
from typing import Final

MAPPED_MIN_BYTES: Final = 4 * 1024 * 1024
"""From this size on a block is mapped by itself, and given back when it is freed."""
KEPT_MAX_BYTES: Final = 32 * 1024 * 1024
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Names of glibc's parameters, of its malloc.h."""


def keep_memory() -> bool:
    """Keep the memory of bodies for the next ones; False where the C library has no such setting."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = ((_MMAP_THRESHOLD, MAPPED_MIN_BYTES), (_TRIM_THRESHOLD, KEPT_MAX_BYTES))
    return all(mallopt(name, value) == 1 for name, value in settings)
