"""Bounds of waits in tests, for machines that stall."""

from typing import Final

NEVER_S: Final = 30.0
"""What has not come after so long does not come.

For waits whose failure is that something never happens: far above what a loaded or stalled machine takes.
"""
STALL_S: Final = 10.0
"""Longer than a machine stands still, shorter than what a test would otherwise wait for: a test that takes it says why."""
