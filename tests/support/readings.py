"""Waiting until a reading of the GPUs says something."""

from __future__ import annotations

from collections.abc import Callable

from collectors.base.source import GpuReading, GpuSource
from llmtop.model.snapshot import Gpu
from tests.support.processes import wait_for


def gpu_when(source: GpuSource, index: int, holds: Callable[[Gpu], object]) -> Gpu:
    """The GPU's row as soon as something holds for it."""

    def look() -> Gpu | None:
        rows = [gpu for gpu in source.latest().gpus if gpu.index == index and gpu.mig_parent_uuid is None]
        return rows[0] if rows and holds(rows[0]) else None

    found = wait_for(look, what=f"GPU {index}: {[g for g in source.latest().gpus if g.index == index]}")
    assert found is not None
    return found


def reading_when(source: GpuSource, holds: Callable[[GpuReading], object]) -> GpuReading:
    """The reading as soon as something holds for it."""
    found = wait_for(lambda: reading if holds(reading := source.latest()) else None, what=f"{source.latest()}")
    assert found is not None
    return found
