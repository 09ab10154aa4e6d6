"""Which operators the host's time goes into, in captures without device work: a model on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from llmtop.analysis.steps.step_finder import ProcessSteps
from llmtop.analysis.work.nesting import Nesting
from llmtop.analysis.work.operators import MODULE
from llmtop.analysis.work.tensor_shapes import shape_text
from llmtop.format import duration, percent_text
from llmtop.naming.python_frames import is_own_frame
from llmtop.report.host_work import HostOperatorTime
from llmtop.trace import intervals as iv
from llmtop.trace import model
from llmtop.trace.groups import distinct_values
from llmtop.trace.intervals import Ns, Numbers

_MOST_ROWS = 60
_ALL_PCT = 99.0
"""Share from which the rest of a step is not in its operators, so that the longest operator says nothing about
it."""


def host_operators(trace: model.Trace, steps: dict[int, ProcessSteps]) -> tuple[HostOperatorTime, ...]:
    """Return the operators by self host time, most first; none for a capture with device work.

    Args:
        trace: what was read of a capture.
        steps: whole steps, by pid.
    """
    host = trace.host
    rows = np.flatnonzero(host.kind == model.OPERATOR)
    if len(trace.ops) or not len(rows):
        return ()
    nesting = Nesting(host, rows)
    took, own = _self_times(host, nesting)
    name = host.name[nesting.rows]
    within, count = _in_steps(host, nesting.rows, steps)
    calls = np.bincount(host.name[rows])
    self_sum = np.bincount(name, weights=own, minlength=len(calls))
    # Of an operator that calls itself the outer one has the time of both.
    outermost = ~_called_by_itself(nesting, name)
    total = np.bincount(name[outermost], weights=took[outermost], minlength=len(calls))
    in_steps = np.bincount(name[within], weights=own[within], minlength=len(calls))
    everything = max(float(self_sum.sum()), 1.0)
    places = _Places(trace, nesting)
    found = []
    for number in np.argsort(-self_sum, kind="stable")[:_MOST_ROWS].tolist():
        if not calls[number] or self_sum[number] <= 0:
            continue
        mine = np.flatnonzero(name == number)
        found.append(
            HostOperatorTime(
                name=trace.names[number],
                calls=int(calls[number]),
                self_seconds=float(self_sum[number]) / 1e9,
                total_seconds=float(total[number]) / 1e9,
                share_pct=100.0 * float(self_sum[number]) / everything,
                self_ms_per_step=float(in_steps[number]) / 1e6 / count if count else None,
                shape=places.shape(mine, own[mine]),
                module=places.module(mine, own[mine]),
                source=places.source(mine, own[mine]),
            )
        )
    return tuple(found)


def _self_times(host: model.HostSpans, nesting: Nesting) -> tuple[Ns, Ns]:
    """Return how long each operator took, and of that how long no operator within it was open, in ns."""
    took = host.end[nesting.rows] - host.start[nesting.rows]
    parents = nesting.parents
    inner = parents >= 0
    # Rounded times let an operator end after the one around it: only what lies within counts.
    ends = np.minimum(host.end[nesting.rows], host.end[nesting.rows[np.maximum(parents, 0)]])
    covered = np.where(inner, ends - host.start[nesting.rows], 0)
    of_children = np.bincount(parents[inner], weights=covered[inner], minlength=len(took))
    return took, np.maximum(took - of_children.astype(np.int64), 0)


def _called_by_itself(nesting: Nesting, name: Numbers) -> npt.NDArray[np.bool_]:
    parents = nesting.parents
    return np.asarray((parents >= 0) & (name[np.maximum(parents, 0)] == name))


def _in_steps(
    host: model.HostSpans, rows: Ns, steps: dict[int, ProcessSteps]
) -> tuple[npt.NDArray[np.bool_], int]:
    """Return which operators began in whole steps of their process, and how many such steps there are."""
    inside, count = np.zeros(len(rows), dtype=bool), 0
    for pid, own in steps.items():
        if len(own):
            spans = iv.union(own.starts, own.ends)
            inside |= (host.process[rows] == pid) & iv.contains(spans, host.start[rows])
            count += len(own)
    return inside, count


def operator_free_share(trace: model.Trace, steps: dict[int, ProcessSteps]) -> float | None:
    """Return in which percent of the whole steps no operator was open on any thread; None where that is not known.

    Args:
        trace: what was read of a capture.
        steps: whole steps, by pid.
    """
    host = trace.host
    rows = np.flatnonzero(host.kind == model.OPERATOR)
    length = free = 0
    for pid in distinct_values(host.process[rows]).tolist():
        own = steps.get(pid)
        if own is None or not len(own):
            continue
        mine = rows[host.process[rows] == pid]
        busy = iv.union(host.start[mine], host.end[mine])
        spans = iv.union(own.starts, own.ends)
        length += spans.total
        free += spans.total - iv.intersection(spans, busy).total
    return 100.0 * free / length if length else None


def host_time_text(operators: tuple[HostOperatorTime, ...], free_pct: float | None) -> str:
    """Return sentences on where the host's time goes; "" for a capture without operators.

    Args:
        operators: as `host_operators` returns them.
        free_pct: as `operator_free_share` returns it.
    """
    if not operators:
        return ""
    if free_pct is not None and free_pct >= _ALL_PCT:
        return f"For {percent_text(free_pct, 1)} of the steps no operator is open: the time goes elsewhere."
    top = operators[0]
    text = f"On the CPU {top.name} takes {percent_text(top.share_pct, 1)} of the operators' own time"
    if top.self_ms_per_step is not None:
        text += f", {duration(top.self_ms_per_step / 1e3)} per step"
    if free_pct is not None:
        text += f"; for {percent_text(free_pct, 1)} of the steps no operator is open"
    return f"{text}."


class _Places:
    """Shapes, modules and source lines of operators, where a capture has them."""

    def __init__(self, trace: model.Trace, nesting: Nesting) -> None:
        self._trace, self._nesting = trace, nesting
        self._modules = self._frames(lambda name: name.startswith(MODULE))
        self._lines = self._frames(is_own_frame)

    def _frames(self, wanted: Callable[[str], bool]) -> Nesting:
        host = self._trace.host
        chosen = np.array([wanted(name) for name in self._trace.names], dtype=bool)
        return Nesting(host, np.flatnonzero(chosen[host.name] & (host.kind == model.PYTHON)))

    def shape(self, mine: Ns, weight: Ns) -> str:
        """Return the shapes of the inputs with most self time of some of the operators."""
        inputs = self._trace.host.inputs[self._nesting.rows[mine]].astype(np.int64)
        number = _heaviest(inputs, weight)
        return shape_text(self._trace.names[number]) if number > 0 else ""

    def module(self, mine: Ns, weight: Ns) -> str:
        """Return the module around most of it."""
        return self._enclosing_frame(self._modules, mine, weight).removeprefix(MODULE)

    def source(self, mine: Ns, weight: Ns) -> str:
        """Return the line of the program around most of it."""
        return self._enclosing_frame(self._lines, mine, weight)

    def _enclosing_frame(self, frames: Nesting, mine: Ns, weight: Ns) -> str:
        if not len(frames):
            return ""
        host, rows = self._trace.host, self._nesting.rows[mine]
        at = frames.innermost(host.process[rows], host.thread[rows], host.start[rows])
        names = np.where(at >= 0, host.name[frames.rows[np.maximum(at, 0)]], 0)
        return self._trace.names[_heaviest(names, weight)]


def _heaviest(values: Ns, weight: Ns) -> int:
    """Return the value with most weight."""
    different, which = np.unique(values, return_inverse=True)
    return int(different[int(np.argmax(np.bincount(which.reshape(-1), weights=weight)))]) if len(values) else 0
