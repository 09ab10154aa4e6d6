"""JAX: ``with llmtop.integrations.jax.step(tokens=n): state, loss = train_step(state, batch)``.

JAX dispatches asynchronously and this waits for nothing: within a step the host's time is that of dispatching, and
from the start of a step to the start of the next it is the device's pace as soon as the runtime's queue is full or
the script waits itself (to log a loss, say). So rates and whole steps are right over many steps; what a phase
takes on the device is not known, and the monitor says so. Windows by ``jax.profiler`` tell, with each step marked:
``llmtop capture`` takes them.

Jitted functions are not detected, not even under ``llmtop run``: what ``jax.jit`` returns cannot be wrapped
without changing what it is to JAX (a hashable, traceable, lowerable object with a fast path in C++), and a call of
it says nothing of whether it trains.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import jax

import llmtop
from llmtop.instrument.guest import guard, registry
from llmtop.instrument.record import recorder
from llmtop.instrument.record.recorder import Step
from llmtop.integrations.guarded import run_guarded
from llmtop.naming import profiler_marks

F = TypeVar("F", bound=Callable[..., Any])
"""Name of a step in a recording of jax.profiler, beside its number."""
_COMPILED = "/jax/core/compile/backend_compile_duration"
_UNSEEN = "what a JAX step does on its device"
_WHY = "JAX dispatches asynchronously and nothing waits for it here; llmtop capture shows it, step by step"


class _Process:
    """State of JAX in this process."""

    def __init__(self) -> None:
        self.has_begun = False
        """True if a step has begun."""
        self.has_read_rank = False
        """True if it was asked which process of how many this is."""
        self.compiles, self.compile_seconds, self.reported_compiles = 0, 0.0, 0


_process = _Process()


class JaxStep:
    """One step, as a context or a decorator; `tokens` and `samples` may be set while it is open."""

    def __init__(self, tokens: float | None, samples: float | None, index: int | None) -> None:
        self.tokens, self.samples, self._index = tokens, samples, index
        self._step: Step | None = None
        self._mark: Any = None

    def __enter__(self) -> JaxStep:
        self._step = llmtop.step(self.tokens, self.samples, index=self._index)
        self._step.__enter__()
        run_guarded(self._begin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        mark, step, self._mark, self._step = self._mark, self._step, None, None
        if mark is not None:
            mark.__exit__(kind, error, trace)
        if step is not None:
            step.tokens, step.samples = self.tokens, self.samples
            run_guarded(_publish)
            step.__exit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        """Return the function with each call of it a step: the outermost, not one that jax.jit traces."""

        @functools.wraps(function)
        def stepping(*args: Any, **kwargs: Any) -> Any:
            with JaxStep(self.tokens, self.samples, self._index):
                return function(*args, **kwargs)

        return stepping  # type: ignore[return-value]  # of the same signature, as wraps says

    def _begin(self) -> None:
        if not _process.has_begun:
            _process.has_begun = True
            _begin_observing()
        number = recorder.get().next_index if self._index is None else int(self._index)
        # Costs nothing to speak of while nothing records: the number is kept only then.
        mark = jax.profiler.StepTraceAnnotation(profiler_marks.STEP, step_num=number)
        mark.__enter__()
        self._mark = mark


def step(tokens: float | None = None, samples: float | None = None, index: int | None = None) -> JaxStep:
    """Time one training step of JAX: ``with step(tokens=n):`` around what dispatches it; also a decorator.

    Args:
        tokens: tokens that this process works on in the step; may also be set later, on what ``with`` gives.
        samples: the same in samples, sequences or images.
        index: the script's own count; by default the number after the last one, from 0.

    A step within a step is ignored, and one that an exception leaves is not counted, as with `llmtop.step`.
    """
    return JaxStep(tokens, samples, index)


def marks_steps() -> bool:
    """Return True if the script's steps are marked from here for whatever jax.profiler records."""
    return _process.has_begun


def _begin_observing() -> None:
    """Register beside other listeners of the compiler at the first step, and report what cannot be observed."""
    guard.note(_UNSEEN, _WHY)
    jax.monitoring.register_event_duration_secs_listener(_count_compile)


def _count_compile(event: str, seconds: float, **_: Any) -> None:
    """Something in JAX took so long; in whatever thread that was. Nothing may come out of here."""
    if event == _COMPILED:
        _process.compiles += 1
        _process.compile_seconds += seconds


def _publish() -> None:
    """Publish at the end of a step: the identity among the processes, and new compilations."""
    if not _process.has_read_rank:
        _process.has_read_rank = True
        _read_rank()
    if _process.reported_compiles != _process.compiles:
        _process.reported_compiles = _process.compiles
        llmtop.log(jax_compiles=_process.compiles, jax_compile_seconds=_process.compile_seconds)


def _read_rank() -> None:
    """The rank, where the script has made JAX distributed: to ask otherwise would start its devices."""
    if not getattr(jax.distributed, "is_initialized", bool)():
        return
    facts = recorder.get().facts
    facts.rank, facts.world_size = int(jax.process_index()), int(jax.process_count())
    facts.changed()


registry.jax_steps_are_marked = marks_steps
