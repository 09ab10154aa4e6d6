"""Numbers given to log() that are still on the GPU.

A copy into pinned memory is put behind the work that computes the number, and read after an event behind it was
passed. Nothing waits, and the graph that belongs to a loss is not kept alive. The first copy allocates pinned
memory, once for each dtype.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from llmtop.instrument.guest import sanitize
from llmtop.instrument.guest.forks import keep_in_children

EVERY_NS = 250_000_000
"""A copy with its event costs some 25 µs in the training thread: 0.01 %."""
MAX_WAITING = 16


class GpuMetrics:
    """Numbers on their way from the GPU; used in the training thread only."""

    def __init__(self, cuda: Any) -> None:
        keep_in_children(self)
        self._cuda = cuda
        self._taken_ns: dict[str, int] = {}
        self._waiting: dict[str, tuple[Any, Any, int | None]] = {}

    def on_same_device(self) -> GpuMetrics:
        """Another one on the same device, for numbers of other origin."""
        return GpuMetrics(self._cuda)

    def take(self, name: str, tensor: Any, step: int | None = None) -> None:
        """Begin to fetch a tensor of one element, which belongs to `step` where that is kept."""
        now = perf_counter_ns()
        if (
            now - self._taken_ns.get(name, -EVERY_NS) < EVERY_NS
            or name in self._waiting
            or len(self._waiting) >= MAX_WAITING
            or tensor.numel() != 1
            or self._cuda.is_current_stream_capturing()
        ):
            return
        self._taken_ns[name] = now
        torch = sys.modules["torch"]
        pinned = torch.empty((1,), dtype=tensor.dtype, pin_memory=True)
        pinned.copy_(tensor.detach().reshape(1), non_blocking=True)
        arrived = self._cuda.Event()
        arrived.record()
        self._waiting[name] = pinned, arrived, step

    def collect(self, into: dict[str, float], keep: Callable[[str, float, int], None] | None = None) -> None:
        """Move what has arrived into `into`, and call `keep` with what belongs to a step."""
        if self._cuda.is_current_stream_capturing():
            return
        for name, (pinned, arrived, step) in list(self._waiting.items()):
            if arrived.query():
                del self._waiting[name]
                number = sanitize.number(pinned)
                if number is not None:
                    into[name] = number
                    if keep is not None and step is not None:
                        keep(name, number, step)
