"""Steps of a process without step markers, inferred from the repetition of its kernels.

Each step of a steady run launches the same kernels in the same order, so a kernel that each step launches once
comes back after the same number of others. Layers repeat too, within a step: a step differs from a layer in that
nothing occurs less often than steps, and in what comes once in each (`repetition.may_be_layers`). Where the
kernels of a step are not the same each time (shapes that vary), the bursts of the optimizer's kernels, or of
collectives, still divide a training.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmtop.analysis.steps.repetition import FEWEST_KERNELS, RARER, LaunchedKernels, is_loop_of, may_be_layers
from llmtop.naming.kernel_names import is_collective, kind_of
from llmtop.trace import model
from llmtop.trace.groups import distinct_values, is_among
from llmtop.trace.intervals import Ns

FEWEST_MARKS = 4
"""Three whole steps: with fewer, anything that occurs twice appears regular."""
_UNEVEN_TIME = 0.5
"""How far, in parts of the mean, the steps' times may spread."""
_MOST_MARKS = 50
"""How many of the kernels that come as often as steps are tried."""
_UNEVEN = 0.05
"""How far, in parts of the mean, the numbers of kernels between two marks may spread."""
_BURSTS_UNEVEN = 0.3
_APART = 5.0
"""Bursts lie so many times as far from each other as their kernels do, at least."""


@dataclass(frozen=True)
class InferredSteps:
    """Step boundaries that were inferred from repeating kernels."""

    places: Ns
    """Which of the process's kernels, by their order, mark a step."""
    instants: Ns
    """When the host launched the mark of each step, in ns (when it ran, where the capture has no calls)."""
    how: str


def infer_steps(trace: model.Trace, process: int) -> InferredSteps | None:
    """Return the steps of a process by its repeating kernels; None where nothing repeats like a step."""
    rows = _kernel_rows(trace, process)
    if len(rows) < FEWEST_MARKS:
        return None
    used = distinct_values(trace.ops.full_name[rows]).tolist()
    optimizer = [name for name in used if kind_of(trace.names[name]) == "optimizer"]
    collective = [name for name in used if is_collective(trace.names[name])]
    for found in (
        _infer_from_period(trace, rows),
        _infer_from_bursts(trace, rows, optimizer, "the optimizer's kernels"),
        _infer_from_bursts(trace, rows, collective, "collectives"),
    ):
        if found is not None and _are_steady(found, len(rows)):
            kernels = LaunchedKernels.from_trace(trace, process)
            parts = may_be_layers(kernels, found.instants) or is_loop_of(
                kernels, found.instants, FEWEST_KERNELS - 1
            )
            return None if parts else found
    return None


def _are_steady(found: InferredSteps, kernels: int) -> bool:
    """Return True if these are steps that take about the same time, each with a step's worth of kernels, and
    together with most of them."""
    apart, within = np.diff(found.instants), np.diff(found.places)
    if len(apart) + 1 < FEWEST_MARKS or np.median(within) < FEWEST_KERNELS or 2 * within.sum() < kernels:
        return False
    return bool(np.std(apart) <= _UNEVEN_TIME * np.mean(apart))


def _kernel_rows(trace: model.Trace, process: int) -> Ns:
    """Return the rows of the kernels and graphs of a process on the GPU that runs most, in order of their
    start."""
    work = is_among(trace.ops.kind, (model.KERNEL, model.GRAPH))
    rows = np.flatnonzero((trace.ops.process == process) & work)
    if not len(rows):
        return rows
    devices, counts = np.unique(trace.ops.device[rows], return_counts=True)
    rows = rows[trace.ops.device[rows] == devices[np.argmax(counts)]]
    return np.asarray(rows[np.argsort(trace.ops.start[rows], kind="stable")])


def _infer_from_period(trace: model.Trace, rows: Ns) -> InferredSteps | None:
    """Return steps from one kernel to its next launch, where all repeating work has the same period."""
    names = trace.ops.full_name[rows]
    took = trace.ops.end[rows] - trace.ops.start[rows]
    counts = np.bincount(names, minlength=len(trace.names))
    seconds = np.bincount(names, weights=took, minlength=len(trace.names))
    present = np.flatnonzero(counts)
    order = present[np.argsort(counts[present], kind="stable")]
    # The share of all kernels, and of their time, that has each name or a rarer one.
    number = np.cumsum(counts[order]) / len(rows)
    time = np.cumsum(seconds[order]) / max(float(took.sum()), 1.0)
    first = order[int(np.argmax((number > RARER) | (time > RARER)))]
    fewest = int(counts[first])
    if fewest < FEWEST_MARKS:
        return None
    best: tuple[float, Ns] | None = None
    for name in np.flatnonzero(counts == fewest)[:_MOST_MARKS].tolist():
        places = np.flatnonzero(names == name)
        spread = _relative_spread(places)
        if spread <= _UNEVEN and (best is None or spread < best[0]):
            best = (spread, places)
    if best is None:
        return None
    _, places = best
    short = trace.names[trace.ops.name[rows[places[0]]]]
    how = f"inferred from what repeats, no range marks a step: from one kernel {short!r} to the next"
    return InferredSteps(places, _launch_times(trace, rows[places]), how)


def _relative_spread(places: Ns) -> float:
    """Return how unevenly places lie: the standard deviation of the distances over their mean."""
    apart = np.diff(places)
    return float(np.std(apart) / max(float(np.mean(apart)), 1.0))


def _infer_from_bursts(trace: model.Trace, rows: Ns, wanted: list[int], what: str) -> InferredSteps | None:
    """Return steps from the end of one burst of such kernels to the end of the next."""
    places = np.flatnonzero(is_among(trace.ops.full_name[rows], wanted))
    if len(places) < FEWEST_MARKS:
        return None
    apart = np.diff(places)
    border = apart > max(_APART * float(np.median(apart)), 0.5 * float(apart.max()))
    if not border.any():
        return None
    begins = places[np.append(True, border)]
    if len(begins) < FEWEST_MARKS or _relative_spread(begins) > _BURSTS_UNEVEN:
        return None
    how = f"inferred from what repeats, no range marks a step: from one burst of {what} to the next"
    return InferredSteps(begins, _launch_times(trace, rows[begins]), how)


def _launch_times(trace: model.Trace, rows: Ns) -> Ns:
    """Return when these kernels were launched, in order; when they ran, where that is not known of all."""
    called = trace.launched_by[rows]
    known = len(trace.calls) > 0 and bool((called >= 0).all())
    return distinct_values(trace.calls.start[called] if known else trace.ops.start[rows])
