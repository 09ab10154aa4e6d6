"""True if a command that is started here would have its GPUs for itself."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from llmtop.errors import NotPossibleHere
from llmtop.format import printable, size
from llmtop.model.snapshot import Gpu
from llmtop.naming import variable_names
from llmtop.system import procfs

if TYPE_CHECKING:
    from collectors.base.source import GpuReading, GpuSource

_UNSEEN_BYTES = 2 << 30
"""Memory in use that no listed process has: more than a driver keeps for itself on any GPU."""
_ANSWER_SECONDS = 30.0
_LISTED_SECONDS = 2.5
"""The processes on a GPU are polled every two seconds: it must be free for this time."""
_LEAVING_SECONDS = 5.0
"""A process that has just ended keeps its memory for a moment."""


def refuse_used_gpus() -> None:
    """Raise if a process works on the GPUs that a command started here would see; takes some seconds.

    Raises:
        NotPossibleHere: there is no GPU, the driver does not answer, or another process works on one of them.
    """
    from collectors.driver.source import DriverSource

    source = DriverSource(0.5)
    source.start()
    try:
        refusal = _wait_for_reading(source)
    finally:
        source.close()
    if refusal:
        raise NotPossibleHere(refusal)


def _wait_for_reading(source: GpuSource) -> str:
    """Return why the GPUs are not free, once known; "" if they are."""
    asked = time.monotonic()
    reading = source.latest()
    while not (reading.settled and (reading.gpus or reading.notes)):
        if time.monotonic() - asked > _ANSWER_SECONDS:
            return (
                f"the driver did not reply within {_ANSWER_SECONDS:.0f} s: it is unknown whether the GPU is "
                "free; try again"
            )
        time.sleep(0.1)
        reading = source.latest()
    first = free_since = time.monotonic()
    while True:
        refusal, now = in_use_reason(reading, visible_gpus(reading.gpus, os.environ)), time.monotonic()
        if refusal:
            free_since = now
            if now - first >= _LEAVING_SECONDS or not reading.gpus:
                return refusal
        elif now - free_since >= _LISTED_SECONDS:
            return ""
        time.sleep(0.2)
        reading = source.latest()


def visible_gpus(gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES lets a program see; all where it is not set."""
    chosen = environ.get(variable_names.CUDA_DEVICES)
    if chosen is None:
        return gpus
    words = [word.strip() for word in chosen.split(",") if word.strip()]
    found = []
    for word in words:
        if word.isdigit():
            found += [gpu for gpu in gpus if gpu.index == int(word)]
        else:
            found += [gpu for gpu in gpus if gpu.uuid.startswith(word)]
    return tuple(dict.fromkeys(found))


def in_use_reason(reading: GpuReading, gpus: tuple[Gpu, ...]) -> str:
    """Return why these GPUs are not free, in a sentence; "" if they are."""
    if not gpus:
        return "no NVIDIA GPU can be seen here, and ncu needs one: llmtop doctor says what is missing"
    for gpu in gpus:
        if gpu.error is not None:
            return f"it is unknown whether GPU {gpu.index} is free: {printable(gpu.error)}"
        there = [one for one in reading.uses if one.gpu_uuid == gpu.uuid and one.computes]
        if there:
            who = ", ".join(f"{one.pid} ({printable(procfs.command(one.pid) or '?', 40)})" for one in there[:3])
            return (
                f"GPU {gpu.index} is in use by process {who}: ncu would pause that process repeatedly and "
                "measure both programs; wait until it ends, or choose a free GPU with CUDA_VISIBLE_DEVICES"
            )
        used = None if gpu.memory_is_system else gpu.mem_used_bytes
        if used is not None and used >= _UNSEEN_BYTES:
            return (
                f"{size(used)} of GPU {gpu.index} are in use by processes that cannot be seen "
                "from here (another container's, perhaps): wait for them, or choose a free GPU with "
                "CUDA_VISIBLE_DEVICES"
            )
    return ""
