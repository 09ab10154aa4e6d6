"""Activities of a training's host outside of phases: shares of recent samples, as seconds per step."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from collectors.trainings.gpu_waits import MOST_MESSAGES
from llmtop.model.snapshot import Cause
from llmtop.protocol import wire

MOST_CAUSES: Final = 5
"""Most causes reported per training."""
LEAST_SECONDS: Final = 15.0
"""Least time covered by the samples in use: a message covers about a second and holds few samples."""


class OutsideCauses:
    """Keeps the causes of the last messages, and for how long each was seen."""

    def __init__(self) -> None:
        self._messages: deque[tuple[float, dict[str, int]]] = deque(maxlen=MOST_MESSAGES)
        """When a message came, in monotonic seconds, and what was found, in ns."""
        self._open: deque[tuple[float, dict[str, int]]] = deque(maxlen=MOST_MESSAGES)
        """Likewise, since the last step ended: the line of a hang is no part of the steps before it."""

    def add(self, message: wire.Outside) -> None:
        """Ingest a message (after `bounds`); it counts once a step has ended."""
        self._open.append((time.monotonic(), message.found))

    def step_ended(self) -> None:
        """Assign what was reported since the last step to the step that is known now."""
        self._messages.extend(self._open)
        self._open.clear()

    def figures(self, outside_seconds: float | None, window_seconds: float | None) -> tuple[Cause, ...]:
        """Return the largest of what was seen, as parts of the time outside phases.

        Args:
            outside_seconds: mean a step in no phase; None where that is not known.
            window_seconds: what that is over.
        """
        if not outside_seconds:
            return ()
        since = time.monotonic() - max(LEAST_SECONDS, window_seconds or 0.0)
        seen: dict[str, int] = {}
        lately: list[dict[str, int]] = []
        for received_at, found in reversed(self._messages):
            if received_at < since:
                break
            lately.append(found)
        for found in reversed(lately):
            for what, ns in found.items():
                seen[what] = seen.get(what, 0) + ns
        total = sum(seen.values())
        largest = sorted(filter(None, seen), key=lambda what: -seen[what])[:MOST_CAUSES]
        return tuple(Cause(what=what, seconds=outside_seconds * seen[what] / total) for what in largest)
