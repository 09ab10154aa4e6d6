"""The source of GPUs in this process: the program has it in one of its own, which tells and is never closed."""

from __future__ import annotations

import json
import threading
import time

import msgspec

from collectors.base.source import GpuReading
from collectors.nvml.calls import Caller
from collectors.nvml.enumerate import FoundGpus
from collectors.nvml.source import NvmlSource


class OwnSource(NvmlSource):
    """A GpuSource made of an `NvmlSource`: its reading as the monitor gets it; an end that leaves no thread."""

    _closing = False

    def latest(self) -> GpuReading:
        """What it tells, through JSON."""
        self.hand_over()
        return msgspec.convert(json.loads(json.dumps(self.reading_values())), GpuReading)

    def close(self, seconds: float = 0.8) -> None:
        """Stop its threads, and NVML with them unless one is still inside a call after so many seconds."""
        deadline = time.monotonic() + seconds
        self._closing = True
        self._watch.stop()
        samplers = list(self._samplers.copy().values())
        for sampler in samplers:
            sampler.stop()
        ended = self._watch.join(seconds / 2) and all(sampler.join(deadline) for sampler in samplers)
        if not (ended and self._initialised) or self._lookup.is_waiting:
            return
        self._initialised = False
        # In a thread, because shutting down waits for the driver too.
        farewell = threading.Thread(target=Caller(), args=("nvmlShutdown",), name="llmtop-nvml-end", daemon=True)
        farewell.start()
        farewell.join(max(0.0, deadline - time.monotonic()))

    def _place(self, found: FoundGpus, index: int) -> None:
        if not self._closing:
            super()._place(found, index)

    def _restart(self) -> None:
        if not self._closing:
            super()._restart()
