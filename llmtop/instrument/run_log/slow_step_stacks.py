"""Stacks of this process's threads while a step takes far longer than usual; none in usual steps.

They are for the last two minutes of a run on disk: what a rank did before it was killed, or in a slow step that is
over. A sample holds Python's lock, so there is at
most one sample a second and ten a step, in the writer's thread, and none while torch.compile works.
"""

from __future__ import annotations

import statistics
import sys
import threading
from collections import deque
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from llmtop.instrument.serve.stacks.own_stacks import sampled_frame, sampled_threads
from llmtop.runs import records

if TYPE_CHECKING:
    from llmtop.instrument.steps.ring import Ring

SLOW_FACTOR = 3.0
"""The running step is sampled once it has taken so many times the median step."""
MOST_IN_A_STEP = 10
LEAST_SECONDS_APART = 1.0
_FEWEST_STEPS = 5
"""Before so many steps there is no usual one."""
_REMEMBERED = 101
_MOST_THREADS = 32
_MOST_FRAMES = 32
"""Innermost. A record beside 40 threads takes 0.38 ms (docs/measurements.md)."""
_COMPILERS = ("torch._dynamo.convert_frame", "torch._inductor", "torch.fx.experimental")


class SlowStepStacks:
    """Decides when to sample. In the writer's thread only."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._step = -1
        self._taken = 0
        self._next = 0.0
        self._newest: records.Stacks | None = None

    def add(self, rows: Iterable[records.StepRow]) -> None:
        """Take finished steps, of which the median is."""
        self._seconds.extend(max(row[2], row[3] or 0) / 1e9 for row in rows)

    def sample(self, ring: Ring, mono: float, at: float) -> records.Stacks | None:
        """Return stacks if the running step is slow and they are due.

        Args:
            ring: of the recorder.
            mono: CLOCK_MONOTONIC in seconds.
            at: the same moment in unix time.
        """
        finished, ended = ring.count, ring.last_end()
        if finished != self._step:
            self._step, self._taken = finished, 0
        if self._taken >= MOST_IN_A_STEP or mono < self._next or len(self._seconds) < _FEWEST_STEPS or not ended:
            return None
        seconds = mono - ended / 1e9
        if seconds <= SLOW_FACTOR * statistics.median(self._seconds) or _compiles():
            return None
        self._next = mono + LEAST_SECONDS_APART
        self._taken += 1
        self._newest = records.Stacks(at=at, mono=mono, finished=finished, seconds=seconds, threads=_threads())
        return self._newest

    def of_running(self, ring: Ring) -> list[records.Stacks]:
        """Return the newest stacks where the step that they are of still runs.

        They are written again when a new file of the last minutes begins: a hang may last longer than two files.

        Args:
            ring: of the recorder.
        """
        newest = self._newest
        return [newest] if newest is not None and newest.finished == ring.count else []


def _compiles() -> bool:
    """Return True if the main thread runs torch.compile's compiler; looks at its frames alone."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    for _ in range(200):
        if frame is None:
            return False
        if str(frame.f_globals.get("__name__", "")).startswith(_COMPILERS):
            return True
        frame = frame.f_back
    return False


def _threads() -> list[records.StackOfThread]:
    """Sample all threads but this one; lines and names are found out after Python's lock is free again."""
    mine, main = threading.get_ident(), threading.main_thread().ident
    seen: list[tuple[int, list[tuple[CodeType, int]]]] = []
    for thread, innermost in sys._current_frames().items():
        if thread == mine or (len(seen) >= _MOST_THREADS and thread != main):
            continue
        frame: FrameType | None = innermost
        places: list[tuple[CodeType, int]] = []
        while frame is not None and len(places) < _MOST_FRAMES:
            places.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        seen.append((thread, places))
    innermost = frame = None  # type: ignore[assignment] # a frame keeps alive all that its function holds
    seen.sort(key=lambda one: one[0] != main)
    known: dict[tuple[CodeType, int], tuple[str, str, int]] = {}
    rows = []
    for (_, places), named in zip(seen, sampled_threads([thread for thread, _ in seen]), strict=True):
        for place in places:
            if place not in known:
                found = sampled_frame(*place)
                known[place] = (found.name, found.file, found.line)
        rows.append(records.StackOfThread(name=named.name, frames=[known[place] for place in places]))
    return rows[:_MOST_THREADS]
