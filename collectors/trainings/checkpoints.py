"""The last checkpoint of one training, and the disk that it lies on."""

from __future__ import annotations

import os
from collections import deque
from itertools import pairwise
from statistics import median

from collectors.trainings.disk_watch import DISKS, DiskUse
from llmtop.model.health import Checkpoint
from llmtop.model.snapshot import Step
from llmtop.protocol import wire
from llmtop.protocol.training_facts import SavedCheckpoint

MOST_SAVED = 16
_TREND = 3
"""Looks at the disk, one after each checkpoint, until its trend is known."""


class Checkpoints:
    """Checkpoints as hooks report them; else as phases of the script's own show them."""

    def __init__(self) -> None:
        self._saved: tuple[SavedCheckpoint, ...] = ()
        self._phases: deque[SavedCheckpoint] = deque(maxlen=MOST_SAVED)
        self._free: deque[tuple[float, int]] = deque(maxlen=MOST_SAVED)
        """Free bytes after each checkpoint, with its unix time."""

    def add(self, message: wire.Checkpoints) -> None:
        """Take the last checkpoints, oldest first."""
        self._saved = tuple(message.saved)

    def _add_steps(self, steps: tuple[Step, ...]) -> None:
        """Take steps that may have a phase "checkpoint": the step before them was the last one in it."""
        for step in steps:
            for phase in step.phases:
                if phase.name in ("checkpoint", "save_checkpoint") and phase.host_seconds > 0:
                    taken = int(phase.host_seconds * 1e9)
                    ended = int(step.started_at * 1e9) + taken
                    self._phases.append(SavedCheckpoint(max(step.index - 1, 0), ended, taken, taken))

    def current(self, new_steps: tuple[Step, ...]) -> Checkpoint | None:
        """Take new steps and return the last complete checkpoint."""
        self._add_steps(new_steps)
        known = self._saved or tuple(self._phases)
        if not known:
            return None
        last = known[-1]
        use = DISKS.get(last.path, last.ended_unix_ns) if last.path else None
        at = last.ended_unix_ns / 1e9
        if use is not None and use.free_bytes is not None and (not self._free or self._free[-1][0] < at):
            self._free.append((at, use.free_bytes))
        gaps = [(later.ended_unix_ns - earlier.ended_unix_ns) / 1e9 for earlier, later in pairwise(known)]
        return Checkpoint(
            step=last.step,
            at=at,
            seconds=last.taken_ns / 1e9,
            blocked_seconds=last.blocked_ns / 1e9,
            interval_seconds=median(gaps) if gaps else None,
            path=last.path or None,
            function=last.function or None,
            size_bytes=None if use is None else use.size_bytes,
            disk_free_bytes=None if use is None else use.free_bytes,
            disk_total_bytes=None if use is None else use.total_bytes,
            disk_bytes_per_s=self._shrinking(use),
        )

    def _shrinking(self, use: DiskUse | None) -> float | None:
        if use is None or use.free_bytes is None or len(self._free) < _TREND:
            return None
        (begun, before), (ended, after) = self._free[0], self._free[-1]
        return (before - after) / (ended - begun) if before > after and ended > begun else None


def is_valid(one: SavedCheckpoint) -> bool:
    """Return whether a checkpoint can be what a training sent."""
    return (
        0 <= one.step < 1 << 62
        and 0 <= one.blocked_ns <= one.taken_ns < 1 << 62
        and 0 < one.ended_unix_ns < 1 << 62
        and len(one.path) <= 4096
        and "\0" not in one.path
        and (not one.path or os.path.isabs(one.path))
    )
