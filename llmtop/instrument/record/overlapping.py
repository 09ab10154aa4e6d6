"""Steps that may overlap: requests of an inference server, or steps under a running asyncio loop.

Each step is identified by the thread and the asyncio task that opened it, and a phase counts for the step of its
own thread and task. That costs some ten microseconds a step, so plain training loops do not come here.
"""

from __future__ import annotations

import sys
import threading
from _thread import get_ident
from contextvars import ContextVar
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from llmtop.instrument.guest import sanitize
from llmtop.instrument.record.boundary_observers import STEP_RANGE, Nvtx
from llmtop.instrument.steps.phase_tree import HIDDEN, MAX_DEPTH, MAX_NAME, MAX_PATHS
from llmtop.instrument.steps.ring import MASK

if TYPE_CHECKING:
    from llmtop.instrument.record.recorder_parts import OpenStep
    from llmtop.instrument.record.state import State

Owner = tuple[int, Any]


def _here() -> Owner:
    """Return the calling thread and, under asyncio, its running task."""
    tasks = sys.modules.get("asyncio.tasks")
    events = sys.modules.get("asyncio.events")
    if tasks is None or events is None or events._get_running_loop() is None:
        return get_ident(), None
    return get_ident(), tasks.current_task()


class _OpenPhase:
    """An open phase of a track."""

    __slots__ = ("begun", "name", "path", "range", "valid")

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path
        self.valid = True
        self.range: Any = None
        self.begun = perf_counter_ns()


class Track:
    """Open step, or open phases before a step, of one thread and task."""

    __slots__ = ("begun", "depth", "owner", "pending", "range", "stack", "step", "times")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.step: OpenStep | None = None
        self.begun = 0
        self.depth = 0
        self.pending: int | None = None
        self.range: Any = None
        self.stack: list[_OpenPhase] = []
        self.times: dict[str, list[int]] = {}

    def add(self, path: str, ns: int, begun: int) -> None:
        """Count one finished phase.

        Args:
            path: "forward/attention". New paths beyond `MAX_PATHS` share the path "", which is never reported.
            ns: duration.
            begun: `perf_counter_ns` at its begin. Between steps the earliest one is where the next step may begin.
        """
        cell = self.times.get(path)
        if cell is None:
            # One more than there may be in all: the rest is then reported as left out.
            path = path if len(self.times) <= MAX_PATHS else ""
            cell = self.times.setdefault(path, [0, 0])
        cell[0] += ns
        cell[1] += 1
        if self.step is None and (self.pending is None or begun < self.pending):
            self.pending = begun


class Tracks:
    """Open steps and phases of each thread and task, for a process whose steps overlap."""

    def __init__(self, recorder: State, nvtx: Nvtx | None) -> None:
        self._recorder = recorder
        self._nvtx = nvtx
        self._commit = threading.Lock()
        self.thread: int | None = None
        self._current: ContextVar[Track | None] = ContextVar("llmtop-step", default=None)

    def open_step(self) -> OpenStep | None:
        """Return the step that the calling thread and task has open."""
        track = self._own()
        return track.step if track is not None else None

    def enter(self, name: str) -> None:
        """A phase begins in the calling thread or task."""
        track = self._for_phase()
        if track is None:
            return
        parent = track.stack[-1] if track.stack else None
        if len(track.stack) >= MAX_DEPTH:
            path = ""
        elif parent is None:
            path = name[:MAX_NAME]
        else:
            path = f"{parent.path}/{name[:MAX_NAME]}" if parent.path else ""
        opened = _OpenPhase(name, path)
        opened.range = self._open_range(name)
        # Within itself it is already counted by the outer one, as in phases.Node.
        opened.valid = bool(path) and all(outer.name != name for outer in track.stack)
        track.stack.append(opened)
        self._recorder.worked = opened.begun

    def exit(self, name: str, now: int) -> None:
        """A phase ends in the calling thread or task, at `now` (perf_counter ns)."""
        track = self._own()
        if track is None or all(opened.name != name for opened in track.stack):
            return
        overlapping = track.stack[-1].name != name
        if overlapping:
            self._recorder.count_left_out("overlapping phases")
        while True:
            opened = track.stack.pop()
            self._close_range(opened.range)
            if opened.name == name:
                break
        if opened.valid and not overlapping:
            track.add(opened.path, now - opened.begun, opened.begun)

    def cancel(self, name: str) -> None:
        """End the innermost phase of the calling thread or task without counting it."""
        track = self._own()
        if track is not None and track.stack and track.stack[-1].name == name:
            self._close_range(track.stack.pop().range)

    def enter_step(self, step: OpenStep) -> None:
        """A step begins in the calling thread or task."""
        recorder = self._recorder
        if step.kind != recorder.facts.kind:
            recorder.count_left_out(f"steps of another kind than {recorder.facts.kind!r}")
            return
        track = self._own() or Track(_here())
        if track.step is not None:
            return  # a step within a step: the outer one counts
        if track.stack:
            recorder.count_left_out("phases that enclose a step or were not ended within it")
            self._close(track)
        step.track = track
        track.step = step
        self._current.set(track)
        track.range = self._open_range(STEP_RANGE)
        now = perf_counter_ns()
        track.begun = now if track.pending is None else min(now, track.pending)

    def exit_step(self, step: OpenStep, now: int, failed: bool) -> None:
        """A step ends, in whatever thread or task."""
        track: Track | None = getattr(step, "track", None)
        if track is None or track.step is not step:
            return
        if track.stack:
            self._recorder.count_left_out("phases that enclose a step or were not ended within it")
            self._close(track)
        self._close_range(track.range)
        if failed:
            self._recorder.count_left_out("steps left by an exception")
        else:
            with self._commit:
                index = self._write(track, step, now)
            self._after_step(index, now)
        track.step = None
        track.pending = None
        track.times = {}

    def _own(self) -> Track | None:
        """Return the track of this thread and task; a child task sees its parent's, which is not its own."""
        track = self._current.get()
        return track if track is not None and track.owner == _here() else None

    def _for_phase(self) -> Track | None:
        track = self._current.get()
        here = _here()
        if track is not None and track.owner == here:
            return track
        if track is not None and track.step is not None:
            self._recorder.count_left_out("phases of other threads and tasks")
            return None
        track = Track(here)
        self._current.set(track)
        return track

    def _open_range(self, name: str) -> Any:
        """Return a range that may end in another order than others of its thread: tasks take turns."""
        return None if self._nvtx is None else self._nvtx.start(name)

    def _close_range(self, handle: Any) -> None:
        if self._nvtx is not None:
            self._nvtx.end(handle)

    def _close(self, track: Track) -> None:
        while track.stack:
            self._close_range(track.stack.pop().range)

    def _after_step(self, index: int, now: int) -> None:
        """Do the periodic tasks and call a capture's hook, both always in the thread of the first step."""
        recorder = self._recorder
        if self.thread is None:
            self.thread = get_ident()
        recorder.periodic_in -= 1
        asked = recorder.boundary_hook is not None or recorder.op_ranges is not None
        if self.thread == get_ident() and (recorder.periodic_in <= 0 or asked):
            recorder.after_step(index, now)

    def _write(self, track: Track, step: OpenStep, now: int) -> int:
        recorder = self._recorder
        ring = recorder.ring
        index = sanitize.whole(step.index, recorder.next_index)
        recorder.next_index = index + 1
        previous = recorder.previous
        recorder.previous = track.begun
        cells = [0] * recorder.paths.cells
        for path, (ns, count) in track.times.items():
            slot = recorder.paths.slot(path) if path else HIDDEN
            if slot == HIDDEN:
                recorder.count_left_out("phases over the limit of names or too deeply nested")
                continue
            cells += [0] * (slot + 2 - len(cells))
            cells[slot] += ns
            cells[slot + 1] += count
        interval = track.begun - previous if 0 <= previous <= track.begun else -1
        tokens, samples = sanitize.number(step.tokens), sanitize.number(step.samples)
        row = (index, track.begun, now - track.begun, interval, tokens, samples, *cells)
        ring.rows[ring.count & MASK] = row
        ring.count += 1
        if recorder.waiting:
            recorder.wake_server()
        return index
