"""When a recording inside the training has enough: so many steps, so many seconds, or the bound of its memory."""

from __future__ import annotations

import time

from llmtop.instrument.control.recording import MANY_STEPS, Recording
from llmtop.model.setting_ranges import MAX_CAPTURE_SECONDS, MAX_CAPTURE_STEPS
from llmtop.protocol import wire
from llmtop.system.procfs import private_bytes

MEMORY_EVERY_SECONDS = 0.1
"""How often the memory is read at most; to read it takes some 10 µs."""


class RecordingLength:
    """The length that was asked for, and how much of it is there. For the training thread alone."""

    def __init__(self, request: wire.CaptureRequest) -> None:
        """Take what was asked for; nothing is recorded yet."""
        self._steps = max(1, min(request.steps, MAX_CAPTURE_STEPS))
        self._seconds = None if request.seconds is None else min(max(0.0, request.seconds), MAX_CAPTURE_SECONDS)
        self._growth = MemoryGrowth(request.memory_bytes)
        self._began: float | None = None
        self._ended: float | None = None
        self.stopped_early = ""
        """Why less was recorded than was asked for; "" where it is all there, or not over."""

    @property
    def most_steps(self) -> int:
        """How many steps there may be."""
        return self._steps if self._seconds is None else MANY_STEPS

    @property
    def seconds(self) -> float | None:
        """How long it has recorded; None before it began."""
        if self._began is None:
            return None
        return (time.monotonic() if self._ended is None else self._ended) - self._began

    def begin(self) -> None:
        """Note that the first step begins that is kept."""
        self._began = time.monotonic()
        self._growth.begin()

    def end(self) -> None:
        """Note that the last step that is kept has ended."""
        self._ended = time.monotonic()

    def is_full(self, steps: int, recording: Recording) -> bool:
        """Return whether nothing more is to be recorded; asked once after each step.

        Args:
            steps: how many whole steps have been recorded.
            recording: what records them.
        """
        if self._seconds is None:
            full = steps >= self._steps
        else:
            full = steps >= recording.least_steps and (self.seconds or 0.0) >= self._seconds
        if not full and self._growth.is_over(recording.peak_factor):
            self.stopped_early = (
                f"the recording reached the bound of {self._growth.limit_mib} MiB of the training's memory "
                "(--memory-limit raises it)"
            )
            return True
        return full

    def so_far(self) -> str:
        """Return how much of it there was, to follow "the training ended"."""
        seconds = self.seconds
        if seconds is None or self._seconds is None:
            return " before it was complete"
        return f" after {seconds:.1f} s of the {self._seconds:.1f} s to be recorded"


class MemoryGrowth:
    """Growth of this process's own memory; a single jump is the script's own, and is left out.

    What a profiler keeps grows with every step. A script that loads a checkpoint or makes a buffer grows at once.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Prepare.

        Args:
            limit_bytes: of the memory that the recording may need; 0: any.
        """
        self._limit = limit_bytes
        self._first = self._last = 0
        self._largest_jump = 0
        self._read_at = 0.0

    @property
    def limit_mib(self) -> int:
        """The limit, for sentences."""
        return self._limit >> 20

    def begin(self) -> None:
        """Take the memory of now as what the process has without the recording."""
        if self._limit:
            self._first = self._last = private_bytes()
            self._read_at = time.monotonic()

    def is_over(self, factor: float) -> bool:
        """Return whether `factor` times the growth is over the limit."""
        now = time.monotonic()
        if not self._limit or now - self._read_at < MEMORY_EVERY_SECONDS:
            return False
        self._read_at = now
        used = private_bytes()
        self._largest_jump = max(self._largest_jump, used - self._last)
        self._last = used
        return factor * (used - self._first - self._largest_jump) >= self._limit
