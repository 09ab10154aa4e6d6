"""Stacks of this process's threads while a step takes far longer than usual; none in usual steps.

They are for the last two minutes of a run on disk: what a rank did before it was killed, or in a slow step that is
over. `sys._current_frames` holds Python's lock while it runs (0.34 ms for 40 threads of 40 frames), so there is at
most one sample a second and ten a step, in the writer's thread, and none while torch.compile works.
"""

from __future__ import annotations

import statistics
import sys
import threading
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from llmtop.instrument.serve.stacks.own_stacks import StackSamples
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
_MOST_FRAMES = 40
_COMPILERS = ("torch._dynamo.convert_frame", "torch._inductor", "torch.fx.experimental")


class SlowStepStacks:
    """Decides when to sample. In the writer's thread only."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._step = -1
        self._taken = 0
        self._next = 0.0

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
        return records.Stacks(at=at, mono=mono, finished=finished, seconds=seconds, threads=_threads())


def _compiles() -> bool:
    """Whether the main thread runs torch.compile's compiler; looks at its frames alone."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    for _ in range(200):
        if frame is None:
            return False
        if str(frame.f_globals.get("__name__", "")).startswith(_COMPILERS):
            return True
        frame = frame.f_back
    return False


def _threads() -> list[records.StackOfThread]:
    samples = StackSamples()
    samples.sample()
    found = samples.to_message("")
    rows = [
        records.StackOfThread(
            name=found.threads[stack.thread].name,
            frames=[
                (found.frames[place].name, found.frames[place].file, found.frames[place].line or 0)
                for place in stack.frames[::-1][:_MOST_FRAMES]
            ],
        )
        for stack in found.stacks
    ]
    rows.sort(key=lambda row: row.name != "MainThread")
    return rows[:_MOST_THREADS]
