"""One heap for all threads of a monitor, and what is free in it given back.

glibc gives each thread a heap of its own, and what one frees another cannot use. A monitor's threads take turns
under Python's lock anyway: with one heap it holds 2 to 4 MiB less, and stops growing sooner. Snapshots come in all
sizes and leave holes, which the C library keeps: a monitor that runs for days would hold the most that it ever
needed.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_ARENA_MAX = -8
"""malloc.h of glibc."""


def share_one_heap() -> None:
    """Have the threads that start from now on share the main one's; where the C library knows of none, nothing."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def give_back() -> None:
    """Return to the system what is free on the heap; where the C library cannot, nothing."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
