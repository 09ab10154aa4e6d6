"""Time in which the computing stream waits for other streams in one step, such as for parameters that FSDP
gathers.

A stream waits at `torch.cuda.Stream.wait_event`, and one event before and one after it measure how long. The
method is replaced for the duration of a sampled step, and is what it was before and after; waits that C++ puts on
a stream (those of DDP) are not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from llmtop.instrument.gpu.events import Events
from llmtop.instrument.gpu.queueing import CallTimes
from llmtop.instrument.guest.forks import keep_in_children
from llmtop.instrument.guest.interrupts import raised_by_handler

MOST = 512
"""Most waits in a step; one with more is not reported."""

Pairs = list[tuple[Any, Any]]


class StreamWaits:
    """Puts an event before and behind each wait of one stream, from `begin` to `end`."""

    def __init__(self, cuda: Any, events: Events, is_compiling: Callable[[], bool]) -> None:
        """Prepare; nothing is replaced yet.

        Args:
            cuda: torch.cuda.
            events: of the device that is current in the training thread.
            is_compiling: whether torch.compile traces what runs.
        """
        keep_in_children(self)
        self._cuda = cuda
        self._class = cuda.Stream
        self._events = events
        self._is_compiling = is_compiling
        self._free: list[Any] = []
        self._pairs: Pairs = []
        self._stream: Any = None
        self._before: Any = None
        self._replaced: Any = None
        self._spoilt = False
        self.cost_ns = 0.0
        """Cost of a step's events, on average."""
        self._calls = CallTimes()

    def begin(self) -> None:
        """Record the waits of the stream that is current in this thread from now on."""
        self._stream, self._spoilt = self._cuda.current_stream(), False
        self._calls.clear()
        self._before = self._class.__dict__.get("wait_event")
        if self._before is None:
            return
        self._replaced = self._class.wait_event = self._time_wait(self._before)

    def end(self) -> Pairs | None:
        """End the recording; return the events before and after each wait, None where unknown."""
        if self._before is None:
            return None
        if self._class.__dict__.get("wait_event") is self._replaced:
            self._class.wait_event = self._before
        self._before = self._stream = None
        pairs, self._pairs = self._pairs, []
        spent_ns = self._calls.cost_ns()
        self.cost_ns += 0.3 * (spent_ns - self.cost_ns) if self.cost_ns else spent_ns
        if self._spoilt:
            self.recycle(pairs)
            return None
        return pairs

    def recycle(self, pairs: Pairs) -> None:
        """These events may be recorded again."""
        for pair in pairs:
            self._free += pair

    def _time_wait(self, wait_event: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def timed(stream: Any, event: Any) -> None:
            looked_at = self._stream is not None and not self._is_compiling() and stream == self._stream
            before = self._record(stream) if looked_at else None
            wait_event(stream, event)
            if before is not None and (behind := self._record(stream)) is not None:
                self._pairs.append((before, behind))

        return timed

    def _record(self, stream: Any) -> Any:
        """Return an event put on the stream now; None where that cannot be."""
        begun, events = perf_counter_ns(), self._events
        if self._spoilt:
            return None
        try:
            if events.is_capturing() or len(self._pairs) >= MOST:
                self._spoilt = True
                return None
            event = self._free.pop() if self._free else events.new()
            event.record(stream)
        except Exception as error:  # a device that fails, fails in the training's own calls as well
            if raised_by_handler(error):
                raise
            self._spoilt = True
            return None
        self._calls.add(perf_counter_ns() - begun)
        return event
