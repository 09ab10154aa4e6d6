"""Share of time in which a training's host waits for its GPU, by stack samples."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final

from llmtop.model.gpu_busy import WINDOW_SECONDS
from llmtop.model.snapshot import Cause
from llmtop.protocol import wire

LEAST_SECONDS: Final = 2.5
"""Fewest samples for a share: about seven per second, so one of them is less than a tenth."""
MOST_CALLS: Final = 3
MOST_MESSAGES: Final = 512


class GpuWaits:
    """Keeps the last messages about it."""

    def __init__(self) -> None:
        self._messages: deque[tuple[float, int, dict[str, int]]] = deque(maxlen=MOST_MESSAGES)
        """When a message came, in monotonic seconds, the ns that were judged, and of these the waits."""

    def add(self, message: wire.Outside) -> None:
        """Ingest a message (after `bounds`)."""
        if message.judged_ns:
            self._messages.append((time.monotonic(), message.judged_ns, message.waited))

    def figures(self, step_seconds: float | None, window_seconds: float | None) -> dict[str, Any]:
        """Fields of `Rank`: the share of the time that was spent waiting, and in which calls.

        Args:
            step_seconds: the mean step; None where that is not known.
            window_seconds: what that is over; samples from before it are of steps of another length.
        """
        since = time.monotonic() - min(WINDOW_SECONDS, max(window_seconds or 0.0, LEAST_SECONDS + 1.0))
        judged, waited = 0, dict[str, int]()
        while self._messages and self._messages[0][0] < since - WINDOW_SECONDS:
            self._messages.popleft()  # no window reaches back so far
        for received_at, ns, calls in reversed(self._messages):
            if received_at < since:
                break
            judged += ns
            for what, spent in calls.items():
                waited[what] = waited.get(what, 0) + spent
        if judged < LEAST_SECONDS * 1e9:
            return {}
        largest = sorted(filter(None, waited), key=lambda what: -waited[what])[:MOST_CALLS]
        return {
            "gpu_wait_pct": min(100.0, 100.0 * sum(waited.values()) / judged),
            "gpu_waits": tuple(
                Cause(what=what, seconds=(step_seconds or 0.0) * waited[what] / judged) for what in largest
            )
            if step_seconds
            else (),
        }
