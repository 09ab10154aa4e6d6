"""Receives the steps of the trainings under capture, so that a window holds whole ones."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from msgspec.structs import replace

from llmtop.errors import LlmtopError
from llmtop.protocol import client, wire
from llmtop.system.wall_clock import WallClock

HISTORY = 64
"""Steps before the window, from which the usual step time follows."""
MAX_STEPS = 4096


class StepListener:
    """Reads the trainings' messages, in one thread per training; a training that cannot be reached counts no
    steps."""

    def __init__(self, sockets: Iterable[tuple[int, Path]]) -> None:
        """Begin to listen.

        Args:
            sockets: (pid, path of the socket) of each training.
        """
        self._lock = threading.Lock()
        self._steps: dict[int, list[wire.StepDone]] = {}
        self._offsets: dict[int, int] = {}
        self._own_offset_ns = WallClock().offset_ns()
        """For trainings that do not send theirs: they measure it once too."""
        self._connections: list[client.Connection] = []
        for pid, path in sockets:
            with suppress(LlmtopError, client.ConnectionClosed):
                connection = client.Connection.open(path, history=HISTORY)
                self._connections.append(connection)
                self._steps[pid] = []
                threading.Thread(
                    target=self._listen, args=(pid, connection), name=f"llmtop-steps-{pid}", daemon=True
                ).start()

    @property
    def publishing_pids(self) -> frozenset[int]:
        """Return the pids that report steps."""
        return frozenset(self._steps)

    def close(self) -> None:
        """Close the connections to the trainings."""
        for connection in self._connections:
            connection.close()

    def _listen(self, pid: int, connection: client.Connection) -> None:
        while True:
            try:
                messages = connection.receive(1.0)
            except (LlmtopError, client.ConnectionClosed, OSError, ValueError):
                return  # hung up, by them or by close() here
            for message in messages:
                if isinstance(message, wire.Steps):
                    self._add(pid, message)

    def _add(self, pid: int, message: wire.Steps) -> None:
        with self._lock:
            kept = self._steps[pid]
            moved = self._update_offset(pid, message.unix_offset_ns)
            if moved:  # the wall clock was set; windows are by the new one
                kept[:] = [replace(step, started_unix_ns=step.started_unix_ns + moved) for step in kept]
            kept += message.steps
            del kept[:-MAX_STEPS]

    def _update_offset(self, pid: int, offset_ns: int) -> int:
        """Take the offset of the newest steps; returns by how much it differs from that of the ones before."""
        before, self._offsets[pid] = self._offsets.get(pid, offset_ns), offset_ns
        return offset_ns - before

    def unix_offset_ns(self, pid: int) -> int:
        """Return the offset from the steps' unix times to `time.monotonic_ns`."""
        return self._offsets.get(pid, self._own_offset_ns)

    def steps_within(self, begin_ns: int, end_ns: int | None = None) -> dict[int, list[wire.StepDone]]:
        """Return the whole steps of each training within a window.

        Args:
            begin_ns: unix ns; a step that began before is left out.
            end_ns: unix ns; a step that ended later is left out. None: now.

        Returns:
            Steps by pid, oldest first; a training without a whole step has an empty list.
        """
        end = time.time_ns() if end_ns is None else end_ns
        with self._lock:
            return {
                pid: [s for s in steps if s.started_unix_ns >= begin_ns and s.started_unix_ns + s.host_ns <= end]
                for pid, steps in self._steps.items()
            }

    def whole_step_count(self, begin_ns: int) -> int:
        """Return how many whole steps the slowest training has made since an instant.

        Args:
            begin_ns: unix ns.

        Returns:
            0 where no training reports steps.
        """
        return min((len(steps) for steps in self.steps_within(begin_ns).values()), default=0)

    def median_seconds(self, end_ns: int | None = None, begin_ns: int = 0) -> float | None:
        """Return the median step time over all trainings; None without a whole step.

        Args:
            end_ns: unix ns of the window's end; None: now.
            begin_ns: unix ns of its begin; 0: since this listener began.
        """
        within = self.steps_within(begin_ns, end_ns).values()
        durations = [step_seconds(step) for steps in within for step in steps]
        return statistics.median(durations) if durations else None

    def slowest_seconds(self, begin_ns: int, end_ns: int) -> float | None:
        """Return the longest step time that touches a window; None without a step.

        The time between two steps in which a capture held the training counts here, though such an interval is
        unknown to monitors.

        Args:
            begin_ns: unix ns.
            end_ns: unix ns. A step that is only partly within the window counts in full.
        """
        with self._lock:
            touched = [
                max(step_seconds(step), held_ns / 1e9)
                for steps in self._steps.values()
                for before, step in pairwise((None, *steps))
                if step is not None
                and step.started_unix_ns + step.host_ns >= begin_ns
                # the next one starts after the window if the training was held until its end
                and step.started_unix_ns - (held_ns := _held_ns(before, step)) <= end_ns
            ]
        return max(touched, default=None)


def _held_ns(before: wire.StepDone | None, step: wire.StepDone) -> int:
    """Return the ns from the start of the step before, where the training does not say them; else 0."""
    if before is None or step.interval_ns is not None or before.index + 1 != step.index:
        return 0
    return step.started_unix_ns - before.started_unix_ns


def step_seconds(step: wire.StepDone) -> float:
    """Return the duration of a step in seconds: from the start of the step before where that is known, to
    include gaps."""
    return max(step.interval_ns or 0, step.host_ns) / 1e9
