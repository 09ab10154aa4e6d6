"""Stamps of a few steps a second that show when this rank reached the step's collectives.

A rank for which the others wait comes last. When it comes shows where its gradients are ready (DDP begins its
all-reduces there), and where its forward and its backward begin (FSDP gathers parameters there). Each stamp is
two: this host's monotonic clock, and one CUDA event, because the host of a CUDA training runs ahead of its GPU.

All ranks must sample the same steps without a message: those whose index a power of two divides, the smallest for
which `EVERY_NS` passes between two. Ranks that train together have steps of the same length.

In a step that is not sampled nothing of this runs. In one that is, the recorder's watch tells of phases, and two
parameters have a hook on their accumulated gradient during its backward passes, and not afterwards. No hook that
can be had once only (a communication hook of DDP) is touched.

The offset of the GPU's clock to the host's follows from an event on an idle stream, which is passed at once; where
it was not, GPU stamps have a zero of their own, and only their distances count.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol

from llmtop.instrument.arrival.samples import Sample, Samples
from llmtop.instrument.gpu.events import Events
from llmtop.instrument.gpu.stream_waits import Pairs, StreamWaits
from llmtop.instrument.guest.forks import keep_in_children
from llmtop.instrument.guest.guard import report_internal_error
from llmtop.instrument.guest.interrupts import raised_by_handler
from llmtop.naming.phase_names import role_of

if TYPE_CHECKING:
    from llmtop.instrument.arrival.replicas import Replica
    from llmtop.instrument.steps.phase_tree import PhaseNode

EVERY_NS = 100_000_000
"""Shortest time between two sampled steps; at most twice as much. A sample costs some 0.1 ms."""
MOST_PENDING = 8
MOST_EVERY = 1024
AT_ONCE_NS = 200_000
"""Longest time to pass an event on an idle stream for a valid reading of the GPU's clock. That takes some 10 µs,
where streams do not share one queue (CUDA_DEVICE_MAX_CONNECTIONS=1)."""
LOOKS = 25
"""Number of looks at it; one takes a microsecond."""
BUDGET = 0.001
"""Share of the time that may go into events around waits."""
MOST_ROLES = 256
MISSES = 8
"""Sampled steps without one of the two gradients, after which it is not searched any more."""
ARRIVALS = "when this rank reaches the collectives"

FORWARD, BACKWARD, FIRST, LAST, END = "forward", "backward", "first_gradient", "last_gradient", "end"


class ArrivalEvents(Events, Protocol):
    """Timing events, and one by which the GPU's clock is laid over the host's."""

    def record_aside(self, event: Any) -> bool:
        """Record the event where nothing is before it; False where there is no such place."""


class _Open:
    """The step that is being sampled, or whose events the GPU has not passed yet."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.host_ns: dict[str, int] = {}
        self.events: dict[str, Any] = {}
        self.reference: Any = None
        self.reference_ns = 0
        self.waited_ns: int | None = None
        self.waits: Pairs | None = None
        self.spoilt = False

    def all_events(self) -> list[Any]:
        """Return the events that the GPU has not passed yet."""
        return [*self.events.values(), *(behind for _, behind in self.waits or ())]


class Sampler:
    """Notified of the phases of a sampled step by the recorder's watch, and of gradients by its own hooks."""

    def __init__(
        self, replica: Replica, events: ArrivalEvents | None = None, waits: StreamWaits | None = None
    ) -> None:
        """Prepare; nothing is sampled yet.

        Args:
            replica: what is trained together with other ranks.
            events: of this process's GPU; None without one.
            waits: of the computing stream, where it waits for gathered parameters; likewise.
        """
        keep_in_children(self)
        self.replica = replica
        self.events = events
        self._waits = waits
        self._samples_waits = False
        self._waiting_since: int | None = None
        self.samples = Samples()
        self.spent_ns = 0
        """Time in hooks on gradients so far, in all."""
        self._every = 1
        self._step_ns = 0.0
        self._open: _Open | None = None
        self._pending: deque[_Open] = deque()
        self._free: list[Any] = []
        self._hooks: list[Any] = []
        self._ready: dict[int, int] = {}
        """Time at which each candidate's gradient was ready in the open step, by place among the candidates."""
        self._chosen: tuple[int, ...] | None = None
        """Places of the candidates that are ready first and last; None while it is being found out."""
        self._misses = 0
        self._roles: dict[str, str] = {}
        self._knows_backward = False
        """True if backward passes are seen, so that hooks need not be there for longer than one."""
        self._in_backward = self._in_forward = self._had_backward = self._listened = False

    @property
    def is_waiting(self) -> bool:
        """Return True if events of earlier steps are still to be read."""
        return bool(self._pending)

    @property
    def is_lost(self) -> bool:
        """Return True if what is sampled is there no more, or is not what trains."""
        return not self.replica.is_there or self._misses >= MISSES

    # --- between steps, in the training thread ----------------------------------------------------

    def end_sample(self, index: int) -> None:
        """The sampled step has ended: take the hooks off, and keep its stamps."""
        step, self._open = self._open, None
        if self._waits is not None and self._samples_waits:
            self._samples_waits = False
            pairs = self._waits.end()
            if step is not None:
                step.waits = pairs
        self._listen_no_more()
        if step is None:
            return
        if self._ready:
            self._choose()
        elif self._listened and self._had_backward:
            self._note_missing_gradient()
        if step.spoilt or step.index != index or not step.host_ns:
            self._recycle(step)
            return
        self._pending.append(step)

    def begin_if_due(self, index: int, step_ns: float) -> bool:
        """Return True if the step after that of `index` is sampled, which is then begun.

        Args:
            index: of the step that has just ended.
            step_ns: how long steps take.
        """
        self._set_every(step_ns)
        if (index + 1) % self._every or len(self._pending) >= MOST_PENDING:
            return False
        self._open = step = _Open(index + 1)
        self._in_backward = self._in_forward = self._had_backward = False
        self._waiting_since = None
        self._listened = False
        self._ready.clear()
        events = self.events
        if events is not None:
            if events.is_capturing():
                step.spoilt = True
                return True
            self._put_reference(step, events)
        if not self._knows_backward:
            self._listen()
        if self._waits is not None and (index + 1) % (self._every * self._waits_every()) == 0:
            self._samples_waits = True
            self._waits.begin()
        return True

    def rest(self, index: int) -> int:
        """Return the number of steps until the next call, which is after the step before its sample."""
        return self._every - 1 - index % self._every or self._every

    def read(self) -> None:
        """Take in those sampled steps whose last event the GPU has passed; not while a graph is captured."""
        events = self.events
        while self._pending:
            step = self._pending[0]
            if events is not None and step.events:
                if events.is_capturing() or not all(map(events.is_done, step.all_events())):
                    return
                gpu_ns = self._on_a_clock(step, events)
            else:
                gpu_ns = {}
            self._pending.popleft()
            waited_ns = None
            if events is not None and step.waits is not None:
                waited_ns = sum(events.elapsed_ns(before, behind) for before, behind in step.waits)
            on_host_clock = step.reference is not None
            self.samples.add(Sample(step.index, step.host_ns, gpu_ns, on_host_clock, step.waited_ns, waited_ns))
            self._recycle(step)

    def give_up(self) -> None:
        """Take the hooks off; nothing is sampled any more."""
        self._misses = MISSES
        self._listen_no_more()
        if self._waits is not None:
            self._waits.end()
        self._open = None
        self._pending.clear()

    def _recycle(self, step: _Open) -> None:
        self._free += step.events.values()
        if step.reference is not None:
            self._free.append(step.reference)
        if self._waits is not None and step.waits is not None:
            self._waits.recycle(step.waits)

    def _waits_every(self) -> int:
        """Waits are recorded in one of this many sampled steps: a power of two, as in all ranks."""
        most = (
            0.0 if self._waits is None else self._waits.cost_ns / (BUDGET * max(self._step_ns, 1.0) * self._every)
        )
        return 1 << max(0, math.ceil(math.log2(max(most, 1.0))))

    def _set_every(self, step_ns: float) -> None:
        self._step_ns = step_ns if not self._step_ns else self._step_ns + 0.2 * (step_ns - self._step_ns)
        apart = self._every * self._step_ns
        # Not at the first difference: ranks would each change at another step.
        while apart < 0.8 * EVERY_NS and self._every < MOST_EVERY:
            self._every *= 2
            apart *= 2
        # More than twice the lower bound, or the two loops would undo each other. The closer to twice, the fewer
        # lengths of a step have two stable values here: ranks that differ share only the samples of the larger.
        while apart > 2.0 * EVERY_NS and self._every > 1:
            self._every //= 2
            apart /= 2

    def _put_reference(self, step: _Open, events: ArrivalEvents) -> None:
        """Align the GPU's clock with the host's: between two readings of the host's clock, the GPU passes an
        event."""
        event = self._event(events)
        before = perf_counter_ns()
        if events.record_aside(event):
            for _ in range(LOOKS):
                if events.is_done(event):
                    after = perf_counter_ns()
                    if after - before <= AT_ONCE_NS:
                        step.reference, step.reference_ns = event, (before + after) // 2
                        return
                    break
        self._free.append(event)

    def _on_a_clock(self, step: _Open, events: ArrivalEvents) -> dict[str, int]:
        zero = step.reference if step.reference is not None else next(iter(step.events.values()))
        base = step.reference_ns if step.reference is not None else 0
        return {name: base + events.elapsed_ns(zero, event) for name, event in step.events.items()}

    def _listen(self) -> None:
        """Register a hook on the accumulated gradients that are to be stamped."""
        if self._misses >= MISSES or self._hooks:
            return
        candidates = self.replica.candidates()
        places = range(len(candidates)) if self._chosen is None else self._chosen
        torch = _torch()
        if all(one is None for one in candidates) or torch is None or _autograd_is_compiled():
            return
        self._listened = True
        with torch._C.DisableTorchFunction():
            for place in places:
                parameter = candidates[place] if place < len(candidates) else None
                if parameter is not None:
                    hook = self._hook(place)
                    self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))

    def _listen_no_more(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _hook(self, place: int) -> Any:
        is_compiling = _torch().compiler.is_compiling

        def ready(_parameter: Any) -> None:
            if is_compiling():
                return
            try:
                self._gradient_is_ready(place)
            except BaseException as error:  # noqa: BLE001 - the door: see guard
                self._spoil()
                report_internal_error(ARRIVALS, error)

        return ready

    def _choose(self) -> None:
        """Which of the parameters with a hook were ready first and last in the step that has ended."""
        first, last = min(self._ready, key=self._ready.__getitem__), max(self._ready, key=self._ready.__getitem__)
        if self._chosen is not None and len(self._ready) < len(self._chosen):
            self._note_missing_gradient()
            return
        if self._chosen is not None:
            self._misses = 0
        self._chosen = (first,) if first == last else (first, last)

    def _note_missing_gradient(self) -> None:
        """A gradient was not computed in this step: find anew which are."""
        self._misses += 1
        self._chosen = None

    # --- within a sampled step --------------------------------------------------------------------

    def begins(self, node: PhaseNode) -> None:
        """A phase begins, in the training thread."""
        role = self._roles.get(node.name) or self._role_of(node.name)
        if role == "backward":
            self._in_backward, self._in_forward = True, False
            self._had_backward = self._knows_backward = True
            self._stamp(BACKWARD)
            self._listen()
        elif role == "compute" and not self._in_backward and not self._in_forward:
            # Of several phases before a backward pass the first; of several passes in a step the last.
            self._in_forward = True
            self._stamp(FORWARD)
        elif role == "comm" and self._waiting_since is None:
            self._waiting_since = perf_counter_ns()

    def ends(self, node: PhaseNode) -> None:
        """A phase ends, in the training thread."""
        role = self._roles.get(node.name) or self._role_of(node.name)
        if role == "backward":
            self._in_backward = False
            self._listen_no_more()
            self._stamp(END)
        elif role == "comm":
            if self._open is not None and self._waiting_since is not None:
                waited_ns = perf_counter_ns() - self._waiting_since
                self._open.waited_ns = (self._open.waited_ns or 0) + waited_ns
                self._waiting_since = None
            if self._had_backward and not self._in_backward and not self._in_forward:
                self._stamp(END)

    def _role_of(self, name: str) -> str:
        role = role_of(name)
        if len(self._roles) < MOST_ROLES:
            self._roles[name] = role
        return role

    def _gradient_is_ready(self, place: int) -> None:
        """A parameter's gradient is accumulated; for a GPU, in a thread of autograd's."""
        now = perf_counter_ns()
        if self._open is None:
            return
        self._ready[place] = now
        if self._chosen is not None:
            self._stamp(FIRST if place == self._chosen[0] else LAST)
            if len(self._chosen) == 1:
                self._stamp(LAST)
            self.spent_ns += perf_counter_ns() - now

    def _stamp(self, name: str) -> None:
        step, events = self._open, self.events
        if step is None or step.spoilt:
            return
        step.host_ns[name] = perf_counter_ns()
        if events is None:
            return
        if events.is_capturing():
            step.spoilt = True
            return
        try:
            event = step.events.get(name)
            if event is None:
                event = step.events[name] = self._event(events)
            events.take_stream()
            events.record(event)
        except Exception as error:  # a device that fails, fails in the training's own calls as well
            if raised_by_handler(error):
                raise
            step.spoilt = True

    def _spoil(self) -> None:
        if self._open is not None:
            self._open.spoilt = True

    def _event(self, events: ArrivalEvents) -> Any:
        return self._free.pop() if self._free else events.new()


def _torch() -> Any:
    return sys.modules.get("torch")


def _autograd_is_compiled() -> bool:
    """Return True if backward passes are traced: a hook would be compiled into them."""
    compiled: Any = sys.modules.get("torch._dynamo.compiled_autograd")
    config: Any = sys.modules.get("torch._dynamo.config")
    return bool(
        getattr(compiled, "compiled_autograd_enabled", False) or getattr(config, "compiled_autograd", False)
    )
