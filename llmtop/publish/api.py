"""The functions that a training script calls."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TypeVar

from llmtop.publish.compiling import is_compiling, keep_untraced, untraced
from llmtop.publish.loader import Loader
from llmtop.publish.recorder import MAX_NAMES, Kind, Phase, Step, get, phase_of

T = TypeVar("T")

_recorder = get()
_by_hand = _recorder.by_hand
keep_untraced()
FLOPS_PER_PARAMETER_AND_TOKEN = 6
"""Forward 2, backward 4: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1."""
_MAX_METRICS = 64
_MAX_METRIC_NAME = 64


class _UnrecordedStep(Step):
    """What step() is to code that torch.compile traces: nothing."""

    __slots__ = ()

    def __enter__(self) -> Step:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class _UnrecordedPhase(Phase):
    """The same for phase()."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None


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
    """
    if not _recorder.manual_used:
        if is_compiling():
            return _UnrecordedStep()
        _recorder.manual_used = True
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
    """
    try:
        return _by_hand[name]
    except (KeyError, TypeError):
        return _first_use(name)


def _first_use(name: str) -> Phase:
    """The phase of a name that the script has not used before, or that is no name at all."""
    if is_compiling():
        return _UnrecordedPhase("")
    _recorder.manual_used = True
    made = phase_of(name)
    if type(name) is str and len(_by_hand) < MAX_NAMES:
        _by_hand[name] = made
    return made


def loader(iterable: Iterable[T]) -> Loader[T]:
    """Time the wait for each item as phase ``dataload``: ``for batch in llmtop.loader(dataloader):``.

    The wait is part of the step that follows it. The object passes on len() and the attributes of `iterable`.
    """
    _recorder.manual_used = True
    return Loader(iterable)


def _unrecorded_log(**metrics: object) -> None:
    return None


@untraced(_unrecorded_log)
def log(**metrics: object) -> None:
    """Show numbers of the script's own beside its steps: ``llmtop.log(loss=loss, lr=lr)``.

    Takes what float() takes, and tensors of one element. A tensor on a GPU is copied behind the work that computes
    it and read when that copy has arrived, at most a few times a second: nothing waits for the GPU, and the shown
    value may be some steps old. Anything else is left out.
    """
    known = _recorder.metrics
    for name, value in metrics.items():
        if len(known) >= _MAX_METRICS and name not in known:
            continue
        if type(value) is float or type(value) is int:
            known[name[:_MAX_METRIC_NAME]] = value
        else:
            _recorder.log_other(name[:_MAX_METRIC_NAME], value)
    if _recorder.waiting:
        _recorder.tell()


def attach(
    total_steps: int | None = None,
    flops_per_token: float | None = None,
    params: float | None = None,
    dtype: str | None = None,
    warmup_steps: int | None = None,
) -> None:
    """Begin to publish now instead of at the first step, and say what only the script knows. May be called again.

    Args:
        total_steps: length of the run, for progress and the remaining time.
        flops_per_token: floating-point operations of forward and backward for one token on this process, for MFU.
        params: number of parameters, where `flops_per_token` is not given: six operations each.
        dtype: which peak MFU is measured against: "bf16", "fp16", "fp8", "tf32" or "fp32".
        warmup_steps: first steps to leave out of rates and percentiles; by default 10, at most a tenth of
            `total_steps`.
    """
    facts = _recorder.facts
    if flops_per_token is None and params is not None:
        flops_per_token = FLOPS_PER_PARAMETER_AND_TOKEN * params
    given = {
        "total_steps": total_steps,
        "flops_per_token": flops_per_token,
        "dtype": dtype,
        "warmup_steps": warmup_steps,
    }
    for name, value in given.items():
        if value is not None:
            setattr(facts, name, value)
    facts.changed()
    if not _is_being_spawned():
        _recorder.attach()
    _recorder.tell()


def _is_being_spawned() -> bool:
    """Whether a worker of multiprocessing is running the script again only to have its functions.

    What it is for, a DataLoader or a rank, is not known yet: a rank attaches at its first step.
    """
    process = sys.modules.get("multiprocessing.process")
    return process is not None and getattr(process.current_process(), "_inheriting", False)
