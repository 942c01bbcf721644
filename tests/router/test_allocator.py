"""The memory of bodies, seen from outside: how often the system is asked for it."""

import platform
import resource
import subprocess
import sys

import pytest

from forebay_router.allocator import KEPT_MAX_BYTES, MAPPED_MIN_BYTES

BODIES = """
import resource
from forebay_router.allocator import keep_memory
if {kept}:
    keep_memory()
def use():
    held = [bytearray(230_000) for _ in range(8)]
for _ in range(5):
    use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*, kept: bool) -> int:
    """Pages that are touched first by 800 bodies, of a process that keeps memory or does not."""
    done = subprocess.run([sys.executable, "-c", BODIES.format(kept=kept)], check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_bodies_that_follow_one_another_use_the_same_memory():
    """Without it, each page of each body is a fault: 57 a body of a 32,000-word prompt."""
    pages_of_all = 800 * 230_000 // resource.getpagesize()
    assert faults(kept=False) > pages_of_all / 10
    assert faults(kept=True) < pages_of_all / 100


def test_what_is_kept_is_bounded():
    assert KEPT_MAX_BYTES <= 64 * 1024 * 1024
    assert MAPPED_MIN_BYTES <= KEPT_MAX_BYTES
