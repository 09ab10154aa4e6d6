"""torch's CUDA allocator, read now and then without touching the user's peak statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from llmtop.instrument.guest.interrupts import raised_by_handler

EVERY_NS = 1_000_000_000
"""One reading takes about 61 µs in the training thread: 0.006 %."""


class Reading(NamedTuple):
    """The fields of `wire.Memory`; the peak is since the script last reset it, or since the start."""

    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int | None
    alloc_retries: int | None
    ooms: int | None
    kept_bytes: Mapping[str, int] = {}


def read(cuda: Any) -> Reading | None:
    """Return the allocator of the calling thread's device; None when another one is plugged in that keeps no
    figures."""
    try:
        stats = cuda.memory_stats()
    except Exception as error:  # a pluggable allocator may raise what it likes
        if raised_by_handler(error):
            raise
        return None
    allocated, reserved = stats.get("allocated_bytes.all.current"), stats.get("reserved_bytes.all.current")
    if allocated is None or reserved is None:
        return None
    return Reading(
        allocated,
        reserved,
        stats.get("allocated_bytes.all.peak"),
        stats.get("num_alloc_retries"),
        stats.get("num_ooms"),
    )
