"""One heap for all threads of a monitor, and what is free in it given back.

glibc gives each thread a heap of its own, and what one frees another cannot use. A monitor's threads take turns
under Python's lock anyway: with one heap it holds 2 to 4 MiB less, and stops growing sooner. Snapshots come in all
sizes and leave holes, which the C library keeps: a monitor that runs for days would hold the most that it ever
needed.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

from llmtop.system.free_memory import return_free_memory

_M_ARENA_MAX = -8
"""malloc.h of glibc."""
_NEW_OBJECTS = 50_000
"""More than come between two calls of `release_free_memory`, which collects cycles anyway. While the windows of
eight ranks fill, 700 objects a snapshot stay for good: with a tenth of this, they took 3 % of its time."""


def share_one_heap() -> None:
    """Make the threads that start from now on share the main one's heap; does nothing where the C library has
    none."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def reduce_cycle_collections() -> None:
    """Make Python's garbage collector scan only objects made from now on, and less often.

    Objects of a started monitor stay for good, and scanning them takes 30 ms. A snapshot makes a few thousand
    objects which the next one replaces, so nearly all scans found nothing.
    """
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 10, 10)


def release_free_memory() -> None:
    """Return to the system what is free, unused cycles with it; where the C library cannot, nothing."""
    gc.collect()
    return_free_memory()
