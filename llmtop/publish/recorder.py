"""The hot path: what runs in the training thread at every step and phase.

A phase is two stamps, one NVTX range and two additions into a preallocated list; a finished step swaps that
list into the ring. Nothing here sends, allocates much, takes a lock or lets an error of ours out: the server
thread does the rest.

Whose phases count: those of the thread that runs the steps. A step taken by another thread while none is open
makes that one the owner. Where steps may overlap (requests of an inference server, a running asyncio loop)
`concurrent` takes over, and a phase counts for the step that was opened in the same thread and task. Whatever
cannot be told is left out and counted in `left_out`, which the monitor shows.

A phase outside a step belongs to the step that follows, and that step's time begins with it. So in
``for batch in loader(data): with step(): ...`` the wait for the batch is part of its step, and the phases of a
step never add up to more than the step.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from llmtop.publish import nvtx_ranges, values
from llmtop.publish.compiling import is_compiling
from llmtop.publish.facts import Facts
from llmtop.publish.phases import HIDDEN, STEP, Node, Paths
from llmtop.publish.ring import MASK, Ring

if TYPE_CHECKING:
    from llmtop.publish.concurrent import Track, Tracks
    from llmtop.publish.gpu_clock import GpuClock
    from llmtop.publish.gpu_metrics import GpuMetrics
    from llmtop.publish.memory import Reading
    from llmtop.publish.server import Server

Kind = Literal["step", "request"]

NEVER = 1 << 62
"""Later than any stamp."""
NO_THREAD = 0
"""Owner when every call has to be looked at: concurrent, or off."""


def _nobody_waits() -> None:
    """No server runs."""


class Recorder:
    """What this process publishes. There is one; `get()` returns it."""

    # Slots: an attribute of the hot path is then a fixed offset, and a misspelt hook is an error.
    __slots__ = (
        "attached",
        "begun",
        "boundary_hook",
        "cells",
        "chores_in",
        "clock",
        "compiling",
        "facts",
        "go_concurrent_next",
        "gpu_metrics",
        "left_out",
        "manual_used",
        "mark",
        "memory",
        "memory_version",
        "metrics",
        "next_index",
        "node",
        "off",
        "open_step",
        "paths",
        "pending",
        "previous",
        "ring",
        "root",
        "run_chores",
        "server",
        "step_pop",
        "step_push",
        "thread",
        "tracks",
        "waiting",
        "wake",
        "zeros",
    )

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew: at import, and in a forked child, which inherits nothing."""
        self.thread = get_ident()
        """The thread whose phases count, or `NO_THREAD`."""
        self.off = bool(os.environ.get("LLMTOP_OFF"))
        self.attached = False
        self.manual_used = False
        """Whether the script itself calls step(), phase() or loader(); hooks then keep still."""
        self.boundary_hook: Callable[[int], None] | None = None
        """Called in the training thread right after a step ended, with its index."""
        self.paths = Paths()
        self.ring = Ring(self.paths)
        self.root = Node("", None, "", HIDDEN)
        self.node = self.root
        self.cells = [0, 0]
        self.zeros = [0, 0]
        self.open_step: Step | None = None
        self.begun = 0
        self.pending = NEVER
        """When the first phase after the last step began."""
        self.previous = -1
        self.next_index = 0
        self.go_concurrent_next = False
        """Tasks overlapped in the open step, so that from the next on each call is told by its task."""
        self.compiling = is_compiling()
        """Whether torch.compile is tracing the caller, as torch says; None without torch."""
        self.chores_in = 1
        self.run_chores: Callable[[int, int], int] | None = None
        """Called every `chores_in` steps with (index, now); returns after how many steps again."""
        self.mark: Callable[[int, bool], None] | None = None
        """In a step whose GPU time is taken: called at each boundary with (slot, whether it begins)."""
        self.clock: GpuClock | None = None
        self.gpu_metrics: GpuMetrics | None = None
        self.memory: Reading | None = None
        self.memory_version = 0
        self.waiting = False
        """Set by the server thread when it has sent all there is and wants to be woken."""
        self.wake: Callable[[], None] = _nobody_waits
        self.server: Server | None = None
        self.tracks: Tracks | None = None
        self.metrics: dict[str, float] = {}
        self.left_out: dict[str, int] = {}
        """Why something is not in the numbers -> how often."""
        self.facts = Facts()
        self.step_push, self.step_pop = nvtx_ranges.nothing()
        if self.off:
            self.thread = NO_THREAD

    # --- for hooks that have no `with` to stand in -------------------------------------------------------------

    def begin_step(
        self,
        tokens: float | None = None,
        samples: float | None = None,
        kind: Kind = "step",
        index: int | None = None,
    ) -> Step:
        """Begin a step in the calling thread; set `tokens` and `samples` on the answer while it is open.

        A step that is still open goes on, and this one is ignored.
        """
        step = Step(tokens, samples, kind, index)
        step.__enter__()
        return step

    def end_step(self) -> None:
        """Finish the open step; nothing happens when there is none."""
        step = self.open_step if self.tracks is None else self.tracks.open_step()
        if step is not None:
            step.__exit__(None, None, None)

    def begin_phase(self, name: str) -> None:
        """Begin a phase in the calling thread."""
        phase_of(name).__enter__()

    def end_phase(self, name: str | None = None) -> None:
        """End the phase `name`, or the innermost one. What was begun within it and not ended is left out."""
        if name is None:
            name = self.node.name if self.tracks is None else self.tracks.innermost()
        if name:
            phase_of(name).__exit__(None, None, None)

    def cancel_phase(self, name: str) -> None:
        """End the phase `name`, which must be the innermost one, without counting it."""
        if get_ident() != self.thread:
            if self.tracks is not None:
                self.tracks.cancel(name)
        elif self.node.name == name and self.node is not self.root:
            if self.mark is not None and self.clock is not None:
                self.clock.unmark(self.node.slot)
            self._close_open(self.node.parent)

    def forget_pending(self) -> None:
        """Drop the phases since the last step: what a hook took for the beginning of the next one was not."""
        if self.open_step is None and self.tracks is None and get_ident() == self.thread:
            self._forget_unfinished()

    def log_other(self, name: str, value: object) -> None:
        """A metric that is not a plain number."""
        if getattr(value, "is_cuda", False):
            if self.gpu_metrics is not None and get_ident() == self.thread:
                try:
                    self.gpu_metrics.take(name, value)
                except Exception as error:  # noqa: BLE001 - a failing device fails in the training's own calls
                    self.gpu_metrics = None
                    complain(error)
            return
        number = values.number(value)
        if number is not None:
            self.metrics[name] = number

    def count_left_out(self, reason: str) -> None:
        """Remember that something is not in the numbers, and why; the monitor shows it."""
        self.left_out[reason] = self.left_out.get(reason, 0) + 1
        if self.left_out[reason] == 1:
            self.facts.changed()

    # --- slow paths of the hot path -----------------------------------------------------------------------------

    def new_node(self, here: Node, name: str) -> Node:
        """The node for a phase entered at this place for the first time."""
        node = here.child(name, self.paths)
        if node.name != name:
            self.count_left_out(f"phases over the limit of {len(self.paths.names) - 1} names or too deeply nested")
        self._fit(node.slot)
        return node

    def _fit(self, slot: int) -> None:
        while len(self.cells) < slot + 2:
            self.cells.append(0)
        while len(self.zeros) < len(self.cells):
            self.zeros.append(0)

    def enter_elsewhere(self, name: str) -> None:
        """A phase begins, and the calling thread is not the owner."""
        if self.tracks is not None:
            self.tracks.enter(name)
        elif not self.off:
            self.count_left_out("phases of other threads")

    def exit_elsewhere(self, name: str, now: int) -> None:
        """A phase ends in another thread, or it is not the innermost one of its thread."""
        if self.tracks is not None:
            self.tracks.exit(name, now)
        elif get_ident() == self.thread:
            self._exit_out_of_order(name)

    def _exit_out_of_order(self, name: str) -> None:
        """Tell an ended phase that is not innermost from one that was dropped before."""
        node = self.node
        if node.name == "" and node is not self.root:
            self.node = node.parent  # beyond the limits: all names share one node
            return
        while node is not self.root and node.name != name:
            node = node.parent
        if node is self.root:
            return  # dropped before
        # Two phases overlap without one enclosing the other: neither's time can be told from the other's.
        self.count_left_out("overlapping phases")
        self._close_open(node.parent)
        self.cells[node.slot] = self.cells[node.slot + 1] = 0
        for below in node.subtree():
            self.cells[below.slot] = self.cells[below.slot + 1] = 0
        if _loop_runs():
            self.go_concurrent_next = True
            self.chores_in = 0

    def _close_open(self, down_to: Node) -> None:
        """Give up phases that are open, with their NVTX ranges."""
        while self.node is not down_to:
            self.node.pop(None, None, None)
            self.node = self.node.parent

    def drop_open(self) -> None:
        """At a boundary of a step: phases that are open belong to no step.

        What ended within them before this step does: it moves up to where it stands without them, so that a loader
        used within ``phase("epoch")`` is still the step's ``dataload``.
        """
        self.count_left_out("phases that enclose a step or were not ended within it")
        chain = []
        node = self.node
        while node is not self.root:
            chain.append(node)
            node = node.parent
        self._close_open(self.root)
        cells = self.cells
        for place, open_node in enumerate(chain):
            inner = chain[place - 1] if place else None
            for child in open_node.children.values():
                if child is not inner:
                    self._move_up(child, open_node.path)
        for open_node in chain:
            self._fit(open_node.slot)
            cells[open_node.slot] = cells[open_node.slot + 1] = 0

    def _move_up(self, node: Node, prefix: str) -> None:
        for moved in (node, *node.subtree()):
            slot = moved.slot
            if slot == HIDDEN or slot >= len(self.cells) or not self.cells[slot + 1]:
                continue
            target = self.paths.slot(moved.path[len(prefix) + 1 :])
            self._fit(target)
            self.cells[target] += self.cells[slot]
            self.cells[target + 1] += self.cells[slot + 1]
            self.cells[slot] = self.cells[slot + 1] = 0
            if self.mark is not None and self.clock is not None:
                self.clock.move(slot, target)

    def enter_step_elsewhere(self, step: Step) -> None:
        """A step begins, and the calling thread is not the owner."""
        if self.off:
            return
        if self.tracks is None and self.open_step is None:
            self._forget_unfinished()
            self.thread = get_ident()
            step.__enter__()
        elif self.tracks is None:
            self.count_left_out("steps of a second thread")
        else:
            self.tracks.enter_step(step)

    def forget_step(self) -> None:
        """The open step was left by an exception: it is not a step's usual time."""
        self.count_left_out("steps left by an exception")
        self.step_pop(None, None, None)
        self._forget_unfinished()

    def _forget_unfinished(self) -> None:
        self._close_open(self.root)
        self._fit(self.paths.cells - 2)
        self.cells[:] = self.zeros
        self.open_step = None
        self.pending = NEVER

    def go_concurrent(self) -> None:
        """From now on steps may overlap: every call is told by its thread and task. For good."""
        self.go_concurrent_next = False
        if self.tracks is not None or self.off:
            return
        self._forget_unfinished()
        self.thread = NO_THREAD
        self.mark = self.clock = None
        try:
            from llmtop.publish.concurrent import Tracks

            self.tracks = Tracks(self)
        except Exception as error:  # noqa: BLE001 - no descriptor for the import, say: no step is recorded then
            self.off = True
            complain(error)

    def after_step(self, index: int, now: int) -> None:
        """What is not done at every step: chores when they are due, and a capture that counts steps."""
        try:
            if self.go_concurrent_next:
                self.go_concurrent()
            if self.chores_in <= 0:
                self.chores_in = NEVER if self.run_chores is None else self.run_chores(index, now)
            if self.boundary_hook is not None:
                self.boundary_hook(index)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the training
            self.run_chores = self.boundary_hook = self.mark = None
            complain(error)

    # --- once ----------------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Start to publish. Never raises: what cannot be started stays off."""
        if self.attached or self.off:
            return
        self.attached = True
        self.compiling = is_compiling()
        self.step_push, self.step_pop = nvtx_ranges.pair(nvtx_ranges.STEP)
        try:
            from llmtop.publish import startup

            startup.start(self)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the training
            complain(error)
        if _loop_runs():
            self.go_concurrent()


class Phase:
    """Times what runs inside ``with``; also a decorator. The same object serves every use of its name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        r = _recorder
        if get_ident() != r.thread:
            return r.enter_elsewhere(self.name)
        here = r.node
        node = here.children.get(self.name)
        if node is None:
            node = r.new_node(here, self.name)
        r.node = node
        node.push()
        if r.mark is not None:
            r.mark(node.slot, True)
        node.begun = perf_counter_ns()
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = perf_counter_ns()
        r = _recorder
        node = r.node
        if node.name != self.name or get_ident() != r.thread:
            return r.exit_elsewhere(self.name, now)
        if r.mark is not None:
            r.mark(node.slot, False)
        node.pop(None, None, None)
        cells = r.cells
        slot = node.slot
        cells[slot] += now - node.begun
        cells[slot + 1] += 1
        r.node = node.parent
        if r.open_step is None and node.begun < r.pending:
            r.pending = node.begun
        return None

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        from llmtop.publish.decorate import decorate

        return decorate(function, lambda: self)


class Step:
    """Times one step; also a decorator. `tokens` and `samples` may be set while it is open."""

    __slots__ = ("index", "kind", "samples", "tokens", "track")

    def __init__(
        self,
        tokens: float | None = None,
        samples: float | None = None,
        kind: Kind = "step",
        index: int | None = None,
    ) -> None:
        self.tokens = tokens
        self.samples = samples
        self.kind = kind
        self.index = index if index is None else values.whole(index)
        self.track: Track | None = None

    def __enter__(self) -> Step:
        r = _recorder
        if not r.attached or self.kind != "step":
            prepare(r, self.kind)
        if get_ident() != r.thread:
            r.enter_step_elsewhere(self)
            return self
        if r.open_step is not None:
            return self  # a step within a step, such as an integration's around the script's own: the outer counts
        r.open_step = self
        if r.node is not r.root:
            r.drop_open()
        r.step_push()
        if r.mark is not None:
            r.mark(STEP, True)
        now = perf_counter_ns()
        r.begun = r.pending if r.pending < now else now
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = perf_counter_ns()
        r = _recorder
        if r.open_step is not self or get_ident() != r.thread:
            if r.tracks is not None:
                r.tracks.exit_step(self, now, failed=kind is not None)
            return
        if r.node is not r.root:
            r.drop_open()
        if kind is not None:
            r.forget_step()
            return
        if r.mark is not None:
            r.mark(STEP, False)
        r.step_pop(None, None, None)
        ring = r.ring
        count = ring.count
        index = self.index
        if index is None:
            index = r.next_index
        r.next_index = index + 1
        begun = r.begun
        previous = r.previous
        r.previous = begun
        place = count & MASK
        ring.heads[place] = (
            index,
            begun,
            now - begun,
            begun - previous if previous >= 0 else -1,
            self.tokens,
            self.samples,
        )
        rows = ring.rows
        cells = r.cells
        r.cells = rows[place]
        rows[place] = cells
        r.cells[:] = r.zeros
        r.open_step = None
        r.pending = NEVER
        ring.count = count + 1
        if r.waiting:
            r.waiting = False
            r.wake()
        r.chores_in -= 1
        if r.chores_in <= 0 or r.boundary_hook is not None:
            r.after_step(index, now)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        from llmtop.publish.decorate import decorate

        return decorate(function, lambda: Step(self.tokens, self.samples, self.kind, self.index))


def prepare(recorder: Recorder, kind: Kind) -> None:
    """Before a step: attach at the first one, whose kind is the process's; requests may overlap."""
    recorder.attach()
    if kind != "step":
        if recorder.ring.count == 0:
            recorder.facts.set_kind(kind)
        recorder.go_concurrent()


class UnrecordedPhase(Phase):
    """What phase() gives to code that torch.compile is tracing: nothing to trace, so that no graph breaks."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class UnrecordedStep(Step):
    """The same for step()."""

    __slots__ = ()

    def __enter__(self) -> Step:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def _loop_runs() -> bool:
    """Whether the calling thread is inside a running asyncio loop."""
    events = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None


def complain(error: BaseException) -> None:
    """Say on stderr why publishing is off, but only to a user who asked by LLMTOP_DEBUG."""
    if os.environ.get("LLMTOP_DEBUG"):
        print(f"llmtop: not publishing: {error}", file=sys.stderr, flush=True)


_recorder = Recorder()
_phases: dict[str, Phase] = {}
_MAX_PHASES = 1024


def get() -> Recorder:
    """This process's recorder."""
    return _recorder


def phase_of(name: str) -> Phase:
    """The one `Phase` of that name."""
    try:
        found = _phases.get(name)
    except TypeError:
        name = str(name)
        found = _phases.get(name)
    if found is not None:
        return found
    made = Phase(values.name(name))
    if len(_phases) < _MAX_PHASES:
        _phases[name] = made
    return made


# A forked child (a DataLoader worker) shares the parent's memory but must not speak for it.
def _after_fork() -> None:
    server = _recorder.server
    if server is not None:
        server.forget_after_fork()
    _recorder.reset()


os.register_at_fork(after_in_child=_after_fork)
