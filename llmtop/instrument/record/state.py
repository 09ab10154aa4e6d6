"""All that a recorder holds, and what it does when something is not as usual.

The usual is in `recorder`: it reads and writes these attributes directly.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from llmtop.instrument.guest import registry, sanitize
from llmtop.instrument.guest.guard import raised_by_user_code, report_internal_error
from llmtop.instrument.guest.interrupts import raised_by_handler
from llmtop.instrument.guest.sanitize import log_once
from llmtop.instrument.identity.run_info import Facts
from llmtop.instrument.record.boundary_observers import Annotate, Nvtx, Watch
from llmtop.instrument.record.capture_holds import CaptureHolds
from llmtop.instrument.record.logged_values import LoggedValues
from llmtop.instrument.record.open_phases import OpenPhases
from llmtop.instrument.record.saved_checkpoints import SavedCheckpoints
from llmtop.instrument.steps.phase_tree import NEVER
from llmtop.instrument.steps.ring import Ring
from llmtop.naming import variable_names

if TYPE_CHECKING:
    from llmtop.instrument.arrival.sampler import Sampler
    from llmtop.instrument.gpu.clock import GpuClock
    from llmtop.instrument.gpu.kept_memory import KeptMemory
    from llmtop.instrument.gpu.logged_tensors import GpuMetrics
    from llmtop.instrument.pytorch.allocator import Reading
    from llmtop.instrument.record.cpu_waits import CpuWaits
    from llmtop.instrument.record.recorder_parts import MeasuredCosts, OpenStep, Overlapping, PublishingServer

NO_THREAD = 0
"""Owner when every call needs a check: concurrent, or off."""


# What each step reads (`waiting`, `periodic_in`, `boundary_hook`, `op_ranges`) stays in the recorder itself: in a
# struct of its own it would be one more line of memory that each step touches.


class Factories:
    """Factories of the parts that are imported late; set by `api`."""

    __slots__ = ("overlap", "start")

    def __init__(self) -> None:
        self.start: Callable[[State, Watch], None] | None = None
        """Function that attach() starts."""
        self.overlap: Callable[[State, Nvtx | None], Overlapping] | None = None
        """Makes the object that separates overlapping steps."""


class HookCallbacks:
    """Callbacks of the hooks on torch; set by `auto`."""

    __slots__ = ("before_batch", "periodic", "refresh", "roots")

    def __init__(self) -> None:
        self.before_batch: Callable[[object], AbstractContextManager[None] | None] | None = None
        """Called with what gives it when the script asks a loader of llmtop's for a batch; returns the phase that
        the wait is, None for the usual."""
        self.roots: Callable[[], list[Any]] | None = None
        """Returns the modules that are trained and that no other holds."""
        self.reset()

    def reset(self) -> None:
        """Drop the state that a forked child does not need."""
        self.periodic: list[Callable[[], None]] = []
        """Called in the training thread some times a second, after a step: by these hooks find out what they can
        know beside the steps, and what has been loaded only now."""
        self.refresh: Callable[[bool], None] | None = None
        """Called in the server thread while a monitor is there: take in the numbers of the moment; True: those of
        the last moment. Lets nothing out."""


class PauseSlot:
    """The pause of this process; set by `control.pause`."""

    __slots__ = ("holds", "request")

    def __init__(self) -> None:
        self.request: object = None
        """Request of a monitor; it owns the boundary hook until it ends."""
        self.holds = False
        """True if the training thread waits in that hook: what is raised there then is a signal handler's."""


class State(OpenPhases):
    """Published state of this process, and its listeners."""

    __slots__ = (
        "_watch",
        "arrivals",
        "attached",
        "begun",
        "blind",
        "boundary_hook",
        "clock",
        "costs",
        "cpu_waits",
        "evaluates",
        "factories",
        "facts",
        "first_batch",
        "go_concurrent_next",
        "gpu_metrics",
        "held",
        "holds",
        "hooks",
        "logged",
        "manual_used",
        "memory",
        "memory_version",
        "metrics",
        "next_index",
        "off",
        "op_ranges",
        "open_step",
        "pause",
        "pending",
        "periodic_in",
        "previous",
        "ring",
        "run_periodic",
        "saved",
        "server",
        "thread",
        "tokens_in",
        "tracks",
        "waiting",
        "worked",
    )

    def __init__(self) -> None:
        self.factories = Factories()
        self.hooks = HookCallbacks()
        self.reset()

    def reset(self) -> None:
        """Begin anew: at import, and in a forked child, which inherits nothing."""
        self.clear()
        self._reset_steps()
        self.thread = get_ident()
        """The thread whose phases count, or `NO_THREAD`."""
        self.off = bool(os.environ.get(variable_names.OFF))
        self.attached = False
        self.manual_used = False
        """True if the script itself calls step(); hooks then keep still."""
        self.boundary_hook: Callable[[int], None] | None = None
        """Called in the training thread right after a step ended, with its index."""
        self.blind: dict[str, str] = {}
        """Signals that cannot be observed in this script, each with the reason; sent to the monitor until they
        can."""
        self._reset_requests()
        self._watch = Watch()
        self.go_concurrent_next = False
        """Tasks overlapped in the open step, so that from the next one on each call is assigned by its task."""
        self.periodic_in = 1
        self.run_periodic: Callable[[int, int], int] | None = None
        """Called every `periodic_in` steps with (index, now); returns after how many steps again."""
        self.clock: GpuClock | None = None
        self.costs: MeasuredCosts | None = None
        self.cpu_waits: CpuWaits | None = None
        """None until it attaches, and where the system cannot separate waits for a CPU."""
        self.arrivals: Sampler | None = None
        """Samples when this rank reaches the collectives; None where there are none, or it is not known."""
        self.gpu_metrics: GpuMetrics | None = None
        self.memory: Reading | None = None
        self.memory_version = 0
        self.hooks.reset()
        self.waiting = False
        """Set by the server thread when it has sent all there is and wants to be woken."""
        self.server: PublishingServer | None = None
        self.tracks: Overlapping | None = None
        self.metrics: dict[str, float] = {}
        self.logged = LoggedValues()
        self.saved = SavedCheckpoints()
        self.tokens_in: dict[int, float] = {}
        """Tokens of the prompts of requests that hooks see, by the start of the request, as in the rows of the
        ring. A row has no field for values that no training has."""
        self.evaluates = False
        """True if hooks see an evaluation go on, also between its forwards and waits, where no phase is open."""
        self.worked = 0
        """When work was last seen that is in no phase (perf_counter ns); see `serve.signs_of_life`."""
        self.first_batch = 0
        """When a torch DataLoader was first asked for a batch (perf_counter ns), before a step is known."""
        self.facts = Facts()
        if self.off:
            self.thread = NO_THREAD

    def _reset_steps(self) -> None:
        self.ring = Ring(self.paths)
        self.open_step: OpenStep | None = None
        self.held: OpenStep | None = None
        """The open step that was begun without a `with`, by an integration."""
        self.begun = 0
        self.pending = NEVER
        """When the first phase after the last step began."""
        self.previous = -1
        self.next_index = 0

    def annotate_with(self, annotate: Annotate | None) -> None:
        """Open an annotation of torch's beside each phase from now on, or no more; between two steps."""
        self._watch.annotate = annotate
        self._rewatch()

    # --- slow paths of the hot path ----------------------------------------------------------------------------

    def log_other(self, name: str, value: object) -> None:
        """A metric that is new, or not a plain number."""
        name = sanitize.metric_name(name)
        if name not in self.metrics and len(self.metrics) >= sanitize.MAX_METRICS:
            self.count_left_out(f"metrics over the limit of {sanitize.MAX_METRICS} names")
            return
        if sanitize.is_on_gpu(value):
            if self.gpu_metrics is not None and get_ident() == self.thread:
                try:
                    self.gpu_metrics.take(name, value, self.current_index() if self.logged.watch(name) else None)
                except Exception as error:  # a failing device fails in the training's own calls
                    if raised_by_handler(error):
                        raise
                    self.gpu_metrics = None
                    log_once(error)
            return
        number = sanitize.number(value)
        if number is not None:
            self.metrics[name] = number
            if self.logged.watch(name):
                self.logged.add(name, number, self.current_index())
        elif isinstance(value, int):
            self.count_left_out("metrics too large for a float")

    def current_index(self) -> int:
        """Return the index of the open step; between two steps, of the last one."""
        step = self.open_step
        if step is None:
            return max(self.next_index - 1, 0)
        index = step.index
        return index if type(index) is int else self.next_index

    def count_left_out(self, reason: str) -> None:
        """Store that something is missing in the numbers, and why; the monitor shows it."""
        super().count_left_out(reason)
        if self.left_out[reason] == 1:
            self.facts.changed()
            self.wake_server()

    def cannot_see(self, what: str, why: str) -> None:
        """Store that something of this script cannot be observed; the monitor shows it."""
        if what not in self.blind:
            self.blind[what] = why
            self.facts.changed()
            self.wake_server()

    def can_see(self, what: str) -> None:
        """Take back `cannot_see`: it can be seen after all."""
        if self.blind.pop(what, None) is not None:
            self.facts.changed()
            self.wake_server()

    def time_next_step(self, timed: bool) -> None:
        """Return True if the GPU clock is to time the step that begins now."""
        self._watch.clock = self.clock if timed else None
        self._rewatch()

    def sample_next_step(self, sampled: bool) -> None:
        """Set whether the step that begins now stamps the time at which this rank reaches each collective."""
        self._watch.arrival = self.arrivals if sampled else None
        self._rewatch()

    def separate_waits(self, sampled: bool) -> None:
        """Set whether waits for a CPU are separated in the step that begins now."""
        self._watch.waits = self.cpu_waits if sampled else None
        self._rewatch()

    def watch_memory(self, observer: KeptMemory | None) -> None:
        """Set the observer of the allocations of the step that begins now; None: no observer."""
        self._watch.memory = observer
        self._rewatch()

    def _rewatch(self) -> None:
        self.watch = self._watch if self._watch.is_needed else None

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
        elif get_ident() == self.thread and self.exit_out_of_order(name) and loop_runs():
            self.go_concurrent_next = True
            self.periodic_in = 0

    def enter_step_elsewhere(self, step: OpenStep) -> None:
        """A step begins, and the calling thread is not the owner."""
        if self.off:
            return
        if self.tracks is None and self.open_step is None:
            self.forget_unfinished()
            self.thread = get_ident()
            step.__enter__()
        elif self.tracks is None:
            self.count_left_out("steps of a second thread")
        else:
            self.tracks.enter_step(step)

    def saw_work(self) -> None:
        """The training does something that is no phase of a step, as in a validation; from any thread."""
        self.worked = perf_counter_ns()

    def forget_unfinished(self) -> None:
        self.forget_cells()
        self.open_step = None
        self.pending = NEVER

    def go_concurrent(self) -> None:
        """Allow steps to overlap from now on: every call is assigned by its thread and task. This is permanent."""
        self.go_concurrent_next = False
        if self.tracks is not None or self.off:
            return
        self.forget_unfinished()
        self.thread = NO_THREAD
        self.clock = None
        self.time_next_step(False)
        try:
            if self.factories.overlap is not None:
                self.tracks = self.factories.overlap(self, self._watch.nvtx)
        except Exception as error:  # no descriptor for the import, say: no step is recorded then
            if raised_by_handler(error):
                raise
            self.off = True
            log_once(error)
        # Once it is so, and not only when the kind was set: a Hello in between would say that it can be paused.
        self.facts.changed()
        self.wake_server()

    def _reset_requests(self) -> None:
        self.op_ranges: Callable[[int], None] | None = None
        """Marks operators for nsys; called as the hook is, after it: a pause may end in between."""
        self.pause = PauseSlot()
        self.holds = CaptureHolds()

    def after_step(self, index: int, now: int) -> None:
        """Do the work that is not due at every step: periodic tasks, and a capture that counts steps."""
        try:
            if self.go_concurrent_next:
                self.go_concurrent()
            if self.periodic_in <= 0:
                self.periodic_in = NEVER if self.run_periodic is None else self.run_periodic(index, now)
                self.wake_server()
            hook = self.boundary_hook
            if hook is not None:
                hook(index)
            marking = self.op_ranges
            if marking is not None:
                marking(index)
            if self._watch.waits is not None:
                self._watch.waits.start()
        except BaseException as error:  # nothing of ours may reach the training, and nothing of its own be kept
            if self.pause.holds or raised_by_user_code(error):
                self.pause.holds = False
                raise
            registry.run_after_failure(self)
            self.run_periodic = self.boundary_hook = self.op_ranges = None
            self._watch.clock = self._watch.arrival = self._watch.waits = self._watch.memory = None
            self._rewatch()
            if self.arrivals is not None:
                self.arrivals.give_up()
            report_internal_error("the GPU's times and captures", error)

    def wake_server(self) -> None:
        """Something beside a step is new: wake the server thread if it sleeps until there is."""
        if self.waiting:
            self.waiting = False
            if self.server is not None:
                self.server.wake()

    # --- once --------------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Start to publish. Raises only what a signal's handler does: what cannot be started stays off."""
        if self.attached or self.off:
            return
        self.attached = True
        try:
            if self.factories.start is not None:
                self.factories.start(self, self._watch)
        except BaseException as error:  # nothing of ours may reach the training, and nothing of its own be kept
            if not isinstance(error, Exception) or raised_by_handler(error):
                self.attached = False  # the next step begins again where this one was cut short
                raise
            log_once(error, aloud=not self.facts.local_rank)
        self._rewatch()
        if loop_runs() and not self.facts.auto:  # a loop that hooks see has one step at a time, in a notebook too
            self.go_concurrent()


def loop_runs() -> bool:
    """Return True if the calling thread is inside a running asyncio loop."""
    events = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None
