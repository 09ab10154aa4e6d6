"""The functions that a training script calls."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from llmtop.instrument.guest.guard import report_internal_error
from llmtop.instrument.guest.sanitize import LARGEST
from llmtop.instrument.identity import declared_facts as declared
from llmtop.instrument.loader import timed_loader
from llmtop.instrument.pytorch.compile import is_compiling, keep_untraced, untraced
from llmtop.instrument.record.recorder import MAX_NAMES, PLAIN, Phase, Step, get, phase_of

if TYPE_CHECKING:
    from llmtop.instrument.record.boundary_observers import Nvtx, Watch
    from llmtop.instrument.record.recorder_parts import Kind, Overlapping
    from llmtop.instrument.record.state import State

L = TypeVar("L", bound=Iterable[Any])


def _start(recorder: State, watch: Watch) -> None:
    # With it come msgspec and the server: a script that only imports llmtop never pays for them.
    from llmtop.instrument import startup

    startup.start(recorder, watch)


def _overlap(recorder: State, nvtx: Nvtx | None) -> Overlapping:
    # Few trainings have steps that overlap.
    from llmtop.instrument.record.overlapping import Tracks

    return Tracks(recorder, nvtx)


_recorder = get()
_recorder.factories.start = _start
_recorder.factories.overlap = _overlap
_by_hand = _recorder.by_hand
keep_untraced()


class _UnrecordedStep(Step):
    """Step for code that torch.compile traces: it records nothing."""

    __slots__ = ()

    def __enter__(self) -> Step:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class _UnrecordedPhase(Phase):
    """Phase for code that torch.compile traces: it records nothing."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None


_NO_PHASE = _UnrecordedPhase("")


def _unrecorded_step(
    tokens: float | None = None,
    samples: float | None = None,
    kind: Kind = "step",
    index: int | None = None,
) -> Step:
    return _UnrecordedStep()


@untraced(_unrecorded_step)
def step(
    tokens: float | None = None,
    samples: float | None = None,
    kind: Kind = "step",
    index: int | None = None,
) -> Step:
    """Time one training step or one request: ``with llmtop.step(tokens=4096):``; also a decorator.

    Args:
        tokens: tokens that this process works on in the step; may also be set later:
            ``with llmtop.step() as s: ...; s.tokens = n``.
        samples: the same in samples, sequences or images.
        kind: "request" for an inference server: requests may overlap in threads and asyncio tasks.
        index: the script's own count; by default the number after the last one, from 0.

    A step within a step is ignored. A step that an exception leaves is not counted.

    Returns:
        What to enter with ``with``, or to decorate a function with. Its length is by the host's monotonic clock.
    """
    if not _recorder.manual_used:
        if is_compiling():
            return _UnrecordedStep()
        _recorder.manual_used = True
    if type(tokens) not in PLAIN and callable(tokens):
        return cast(Step, Step()(tokens))  # a bare @llmtop.step
    return Step(tokens, samples, kind, index)


def _unrecorded_phase(name: str) -> Phase:
    return _UnrecordedPhase(name)


@untraced(_unrecorded_phase)
def phase(name: str) -> Phase:
    """Time one part of a step: ``with llmtop.phase("forward"):``; also a decorator. Phases nest.

    Host time; where the training uses CUDA, GPU time as well. A phase outside a step counts for the step that
    follows. A phase in another thread than the steps' is left out, and one inside a function that torch.compile
    compiles: it would break the graph.

    Args:
        name: up to 64 characters. "/" is the separator of nested phases and becomes ".".

    Returns:
        What to enter with ``with``, or to decorate a function with: the same object for the same name.
    """
    try:
        return _by_hand[name]
    except (KeyError, TypeError):
        return _first_use(name)


def _first_use(name: str) -> Phase:
    """Return the phase of a name that the script has not used before, or that is no name at all."""
    if is_compiling():
        return _UnrecordedPhase("")
    try:
        if not isinstance(name, str) and callable(name):  # a bare @llmtop.phase
            return cast(Phase, phase_of(getattr(name, "__name__", "phase"))(name))
        made = phase_of(name)
        if type(name) is str and len(_by_hand) < MAX_NAMES:
            _by_hand[name] = made
    except Exception as error:  # noqa: BLE001 - the door: see guard
        report_internal_error("some phases", error)
        return _NO_PHASE
    return made


def loader(iterable: L) -> L:
    """Time the wait for each item as phase ``dataload``: ``for batch in llmtop.loader(dataloader):``.

    The wait is part of the step that follows it. What is returned for a torch DataLoader is one too, of the same
    class and with the same attributes: what is set on either is set on both. Of anything else the object returned
    passes on len(), bool(), indexing and attributes.

    What Accelerate's `prepare` returns is another loader, made anew: wrap that one.

    Args:
        iterable: a DataLoader, or anything else that gives batches.

    Returns:
        What to iterate in its stead.
    """
    try:
        return cast(L, timed_loader(iterable))
    except Exception as error:  # noqa: BLE001 - the door: see guard
        report_internal_error("the waits for batches", error)
        return iterable


def _unrecorded_log(**metrics: object) -> None:
    return None


@untraced(_unrecorded_log)
def log(**metrics: object) -> None:
    """Show numbers of the script's own beside its steps: ``llmtop.log(loss=loss, lr=lr)``.

    Takes what float() takes, and tensors of one element. A tensor on a GPU is copied behind the work that computes
    it and read when that copy has arrived, at most a few times a second: nothing waits for the GPU, and the shown
    value may be some steps old. Anything else is left out.

    Args:
        metrics: numbers by the name under which they are shown; a name keeps its last number.
    """
    try:
        known, logged, index = _recorder.metrics, _recorder.logged, -1
        for name, value in metrics.items():
            if name in known and (type(value) is float or (type(value) is int and -LARGEST < value < LARGEST)):
                known[name] = value
                if name in logged.names:
                    if index < 0:
                        index = _recorder.current_index()
                    logged.add(name, value, index)
            else:
                _recorder.log_other(name, value)
        if _recorder.waiting:
            _recorder.wake_server()
    except Exception as error:  # noqa: BLE001 - the door: see guard
        report_internal_error("some metrics", error)


def attach(
    total_steps: float | str | None = None,
    flops_per_token: float | str | None = None,
    params: float | str | None = None,
    dtype: object = None,
    warmup_steps: float | str | None = None,
) -> None:
    """Begin to publish now instead of at the first step, and say what only the script knows. May be called again.

    Numbers may be written as "10000", "1e9", "350M" or "7b". What is none is left out, with one warning on stderr.

    Args:
        total_steps: length of the run, for progress and the remaining time.
        flops_per_token: floating-point operations of forward and backward for one token on this process, for MFU.
        params: number of parameters, where `flops_per_token` is not given: six operations each.
        dtype: which peak MFU is measured against: "bf16", "fp16", "fp8", "tf32", "fp32", or torch's own dtype.
        warmup_steps: how many first steps to leave out of rates and percentiles; by default 10, at most a tenth of
            `total_steps`.
    """
    try:
        _declare(total_steps, flops_per_token, params, dtype, warmup_steps)
        if not _is_being_spawned():
            _recorder.attach()
        _recorder.wake_server()
    except Exception as error:  # noqa: BLE001 - the door: see guard
        report_internal_error("what attach() was told", error)


def _declare(
    total_steps: float | str | None,
    flops_per_token: float | str | None,
    params: float | str | None,
    dtype: object,
    warmup_steps: float | str | None,
) -> None:
    facts = _recorder.facts
    if total_steps is not None:
        unknown = "progress and the remaining time are unknown"
        facts.total_steps = declared.steps("total_steps", total_steps, 1, unknown) or facts.total_steps
    if flops_per_token is not None:
        facts.flops_per_token = declared.amount("flops_per_token", flops_per_token) or facts.flops_per_token
    elif params is not None:
        count = declared.amount("params", params)
        if count is not None:
            facts.flops_per_token = declared.FLOPS_PER_PARAMETER_AND_TOKEN * count
    if dtype is not None:
        facts.dtype = declared.dtype(dtype) or facts.dtype
    if warmup_steps is not None:
        warmup = declared.steps("warmup_steps", warmup_steps, 0, "the usual number is taken")
        facts.warmup_steps = facts.warmup_steps if warmup is None else warmup
    facts.changed()


def _is_being_spawned() -> bool:
    """Return True if a worker of multiprocessing is running the script again only to have its functions.

    What it is for, a DataLoader or a rank, is not known yet: a rank attaches at its first step.
    """
    process = sys.modules.get("multiprocessing.process")
    return process is not None and getattr(process.current_process(), "_inheriting", False)
