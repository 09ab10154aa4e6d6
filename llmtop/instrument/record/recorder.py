"""The hot path: what runs in the training thread at every step and phase.

A phase is two stamps and two additions into a list; a finished step is one row in the ring. Nothing here
sends, allocates much, takes a lock or lets an error of ours out: the server thread does the rest. In a real
training most of the cost is cache misses, so few lines of code and memory are touched: checks come together in
`boundary_observers`, and what is rare is in methods of its own.

Whose phases count: those of the thread that runs the steps. A step taken by another thread while none is open
makes that one the owner. Where steps may overlap (requests of an inference server, a running asyncio loop)
`overlapping` takes over, and a phase counts for the step that was opened in the same thread and task. Whatever
cannot be attributed is left out and counted in `left_out`, which the monitor shows.

A phase outside a step belongs to the step that follows, and that step's time begins with it. So in
``for batch in loader(data): with step(): ...`` the wait for the batch is part of its step, and the phases of a
step never add up to more than the step.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any

from llmtop.instrument.guest import forks, guard, registry, sanitize  # noqa: F401 - forks' callback comes before ours
from llmtop.instrument.guest.guard import report_internal_error, run_alone
from llmtop.instrument.record.state import State
from llmtop.instrument.steps.phase_tree import NEVER
from llmtop.instrument.steps.ring import MASK

if TYPE_CHECKING:
    from llmtop.instrument.record.recorder_parts import Kind, OpenStep

MAX_NAMES = 1024
"""Names of phases that are remembered; names made from data must not fill the memory."""
PLAIN = (type(None), float, int)
"""Types that are stored unchanged. Converting any other type to a number might wait for a device."""


_HELD_BY_US = 2
"""References to an open step that only the recorder holds: its own, and that of the call that counts them."""


class Recorder(State):
    """Recorder of this process; `get()` returns the only one. These methods are for hooks, which cannot use
    ``with``."""

    __slots__ = ("by_hand",)

    def __init__(self) -> None:
        self.by_hand: dict[str, Phase] = {}
        """The phases that the script has named itself."""
        super().__init__()

    def reset(self) -> None:
        """Begin anew: at import, and in a forked child, which inherits nothing."""
        super().reset()
        self.by_hand.clear()

    def begin_step(
        self,
        tokens: float | None = None,
        samples: float | None = None,
        kind: Kind = "step",
        index: int | None = None,
    ) -> Step:
        """Begin a step in the calling thread; a step that is still open goes on, and this call is ignored.

        Args:
            tokens: processed in this step by this process; None: not known. May be set on the result while it is
                open.
            samples: sequences or images in this step; likewise.
            kind: "step" of a training, or "request" of a server, which is counted apart.
            index: the script's number of the step; None: the number after the last one.
        """
        step = Step(tokens, samples, kind, index)
        step.__enter__()
        if self.open_step is step:
            self.held = step
        return step

    def end_step(self) -> None:
        """Finish the open step; nothing happens when there is none."""
        step = self.open_step if self.tracks is None else self.tracks.open_step()
        self.held = None
        if step is not None:
            step.__exit__(None, None, None)

    def cancel_phase(self, name: str) -> None:
        """End the phase `name`, which must be the innermost one, without counting it."""
        if get_ident() != self.thread:
            if self.tracks is not None:
                self.tracks.cancel(name)
        elif self.node.name == name and self.node is not self.root:
            self.close_down_to(self.node.parent)

    def forget_pending(self) -> None:
        """Drop the phases since the last step: what a hook took for the beginning of the next one was not."""
        if self.open_step is None and self.tracks is None and get_ident() == self.thread:
            self.forget_unfinished()

    def begin_around(self, step: OpenStep) -> None:
        """Begin a step of the hooks', within phases of the script's own that are open: they are part of it."""
        inner = self.node
        self.node = self.root
        step.__enter__()
        if inner is not self.root:
            self.node = outer = inner
            while outer.parent is not self.root:
                outer = outer.parent
            self.begun = min(self.begun, outer.begun)
        if self.cut:
            self.cut.clear()
            self.count_left_out("phases that enclose a step or were not ended within it")

    def cut_open(self) -> None:
        """A step of the hooks' ends within phases of the script's own: they count up to here."""
        now = perf_counter_ns()
        while self.node is not self.root:
            node = self.node
            if self.watch is not None:
                self.watch.end(node)
            self.cells[node.slot] += now - node.begun
            self.cells[node.slot + 1] += 1
            self.node = node.parent
            self.cut.append(node.name)

    def began_earlier(self, name: str, begun: int) -> None:
        """The phase `name`, which is the innermost one, began already then (perf_counter ns)."""
        if self.node.name == name and get_ident() == self.thread and self.node.begun > begun:
            self.node.begun = max(begun, self.previous)

    def add_phase(self, name: str, begun: int, ns: int) -> None:
        """Count a phase after its end, for calls that turn out to be one only then.

        Args:
            name: one level below the phase that is open now.
            begun: `perf_counter_ns` at its begin.
            ns: duration. Nothing is counted in a thread other than that of the steps.
        """
        if self.tracks is None and get_ident() == self.thread:
            node = self.node.children.get(name) or self.new_node(self.node, name)
            self.cells[node.slot] += ns
            self.cells[node.slot + 1] += 1
            self.pending = min(self.pending, begun)
            node.begun = max(node.begun, begun)

    def step_failed(self, step: OpenStep) -> None:
        """Recording a step has failed: it is not counted, and the next one begins anew."""
        if self.open_step is step:
            self.open_step = None
        with suppress(Exception):  # reporting the open phases may be what has failed
            self.close_down_to(self.root)
        self.node = self.root
        self.cells = [0] * len(self.zeros)
        self.pending = NEVER

    def __reduce__(self) -> tuple[Callable[[], Recorder], tuple[()]]:
        """Pickling or copying an object that refers to the recorder gives the recorder of the process that
        unpickles."""
        return get, ()

    def forget_step(self) -> None:
        """The open step was left by an exception: it is not a step's usual time."""
        self.count_left_out("steps left by an exception")
        if self.watch is not None:
            self.watch.end_step()
        self.forget_unfinished()


class Phase:
    """Times what runs inside ``with``; also a decorator. The same object serves every use of its name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        r = _recorder
        try:
            if get_ident() != r.thread:
                return r.enter_elsewhere(self.name)
            here = r.node
            node = here.children.get(self.name)
            if node is None:
                node = r.new_node(here, self.name)
            r.node = node
            if r.watch is not None:
                r.watch.begin(node)
            node.begun = perf_counter_ns()
        except Exception as error:  # noqa: BLE001 - the door: see guard
            report_internal_error("some phases", error)
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = perf_counter_ns()
        r = _recorder
        try:
            node = r.node
            if node.name != self.name or get_ident() != r.thread:
                return r.exit_elsewhere(self.name, now)
            if r.watch is not None:
                r.watch.end(node)
            cells = r.cells
            slot = node.slot
            begun = node.begun
            cells[slot] += now - begun
            cells[slot + 1] += 1
            r.node = node.parent
            if begun < r.pending:  # noqa: PLR1730 - a call of min() costs more
                r.pending = begun
        except Exception as failed:  # noqa: BLE001 - the door: see guard
            report_internal_error("some phases", failed)
        return None

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return _decorate(function, lambda: self)


class Step:
    """Times one step; also a decorator. `tokens` and `samples` may be set while it is open."""

    __slots__ = ("index", "kind", "samples", "tokens", "track")

    track: Any

    def __init__(
        self,
        tokens: float | None = None,
        samples: float | None = None,
        kind: Kind = "step",
        index: int | None = None,
    ) -> None:
        """Prepare; the step begins with `__enter__`.

        Args:
            tokens: processed in this step by this process; None: not known.
            samples: sequences or images in this step; likewise.
            kind: "step" of a training, or "request" of a server.
            index: the script's number of the step; None: the number after the last one.
        """
        self.tokens = tokens
        self.samples = samples
        self.kind = kind
        self.index = index

    def __enter__(self) -> Step:
        r = _recorder
        try:
            if not r.attached or self.kind != "step":
                prepare(r, self)
            if get_ident() != r.thread:
                r.enter_step_elsewhere(self)
                return self
            # A step within a step, an integration's around the script's own: the outer counts. Not one without a
            # reference, which a signal handler has torn out of its `with`.
            if r.open_step is not None:
                if sys.getrefcount(r.open_step) > _HELD_BY_US:
                    return self
                r.forget_unfinished()
            r.open_step = self
            if r.node is not r.root:
                r.give_up_open()
            if r.watch is not None:
                r.watch.begin_step()
            now = perf_counter_ns()
            r.begun = r.pending if r.pending < now else now
            # Nothing within the step can begin earlier.
            r.pending = 0
        except BaseException as error:  # noqa: BLE001 - the door: see guard
            r.step_failed(self)
            report_internal_error("some steps", error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        r = _recorder
        try:
            now = perf_counter_ns()
            if r.open_step is not self or get_ident() != r.thread:
                if r.tracks is not None:
                    r.tracks.exit_step(self, now, failed=kind is not None)
                return
            if r.node is not r.root:
                r.give_up_open()
            if kind is not None:
                r.forget_step()
                return
            if r.watch is not None:
                r.watch.end_step()
            ring = r.ring
            count = ring.count
            index = r.next_index if self.index is None else sanitize.whole(self.index, r.next_index)
            r.next_index = index + 1
            begun = r.begun
            interval = begun - r.previous if r.previous >= 0 else -1
            r.previous = begun
            tokens = self.tokens
            samples = self.samples
            if type(tokens) not in PLAIN:
                tokens = sanitize.number(tokens)
            if type(samples) not in PLAIN:
                samples = sanitize.number(samples)
            cells = r.cells
            ring.rows[count & MASK] = (index, begun, now - begun, interval, tokens, samples, *cells)
            cells[:] = r.zeros
            r.open_step = None
            r.pending = NEVER
            ring.count = count + 1
            if r.waiting:
                r.wake_server()
        except BaseException as failed:  # noqa: BLE001 - the door: see guard
            r.step_failed(self)
            report_internal_error("some steps", failed)
            return
        r.periodic_in -= 1
        if r.periodic_in <= 0 or r.boundary_hook is not None or r.op_ranges is not None:
            r.after_step(index, now)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return _decorate(function, lambda: Step(self.tokens, self.samples, self.kind, self.index))


def _decorate(function: Callable[..., Any], around: Callable[[], Phase | Step]) -> Callable[..., Any]:
    try:
        from llmtop.instrument.record.decorators import decorate

        return decorate(function, around)
    except Exception as error:  # noqa: BLE001 - the door: see guard; no descriptor for the import, say
        report_internal_error("a decorated function", error)
        return function


def prepare(recorder: Recorder, step: Step) -> None:
    """Called before a step: attach at the first one, whose kind is the process's; requests may overlap."""
    recorder.attach()
    if step.kind not in ("step", "request"):
        given = sanitize.describe(step.kind)
        sanitize.warn("kind", f'step(kind=) takes "step" or "request", not {given}: it was taken for "step"')
        step.kind = "step"
    if step.kind != "step":
        if recorder.ring.count == 0:
            recorder.facts.set_kind(step.kind, since=0)
        recorder.go_concurrent()


_recorder = Recorder()
guard.note = _recorder.cannot_see
_phases: dict[str, Phase] = {}


def get() -> Recorder:
    """Return the recorder of this process; there is one from import on."""
    return _recorder


def phase_of(name: str) -> Phase:
    """Return the one `Phase` of that name."""
    try:
        found = _phases.get(name)
    except TypeError:
        name = sanitize.name(name)
        found = _phases.get(name)
    if found is not None:
        return found
    made = Phase(sanitize.name(name))
    if len(_phases) < MAX_NAMES and isinstance(name, str):
        _phases[name] = made
    return made


# A forked child (a DataLoader worker) shares the parent's memory but must not publish for it. A module that the
# parent's server thread was importing at the fork has nothing to forget yet.
def _after_fork() -> None:
    server = _recorder.server
    if server is not None:
        run_alone(server.forget_after_fork, otherwise=None)
        registry.run_at_fork(_recorder)
    _recorder.reset()


os.register_at_fork(after_in_child=_after_fork)
