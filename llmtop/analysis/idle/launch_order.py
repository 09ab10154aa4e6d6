"""Positions of a hot kernel's launches among those of its function name, for ncu's command line.

ncu counts launches by the function's name, and templates share few names: the order within a step says how many
launches in a row hold one of the kernel that is wanted, wherever in the step ncu begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from msgspec import structs

from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.naming.kernel_names import functor_of
from llmtop.report.model import KernelTime, LaunchOrder
from llmtop.trace import model
from llmtop.trace.groups import distinct_values, is_among
from llmtop.trace.intervals import Ns, Numbers

_HOTTEST = 20
"""Most kernels that are examined: the twenty-first is never profiled."""


def with_launch_order(
    kernels: tuple[KernelTime, ...], timelines: Sequence[DeviceTimeline]
) -> tuple[KernelTime, ...]:
    """Return the kernels, the hottest with their `launches`; without whole steps none has any.

    Args:
        kernels: most time first.
        timelines: all of the capture.
    """
    whole = [_KernelRuns.inside_steps(timeline) for timeline in timelines if timeline.counted]
    found, left = [], _HOTTEST
    for row in kernels:
        order = None
        if left and row.kind != "NCCL":
            left -= 1
            order = _launch_order(row, whole)
        found.append(structs.replace(row, launches=order))
    return tuple(found)


@dataclass(frozen=True)
class _KernelRuns:
    """Kernels that ran inside the whole steps of a device timeline, in order, found once for all hot kernels."""

    timeline: DeviceTimeline
    names: list[int]
    """Numbers of the short names of all its ops."""
    name: Numbers
    full_name: Numbers
    took: Ns
    """Time of each, in ns."""

    @classmethod
    def inside_steps(cls, timeline: DeviceTimeline) -> _KernelRuns:
        ops = timeline.ops
        inside = (ops.start >= timeline.begin_ns) & (ops.start < timeline.end_ns)
        at = np.flatnonzero((ops.kind == model.KERNEL) & inside)
        names = distinct_values(ops.name).tolist()
        return cls(timeline, names, ops.name[at], ops.full_name[at], (ops.end - ops.start)[at])


def _launch_order(row: KernelTime, timelines: Sequence[_KernelRuns]) -> LaunchOrder | None:
    """Return the launch order on the device timeline that runs it longest."""
    best: tuple[int, LaunchOrder] | None = None
    for runs in timelines:
        names = runs.timeline.trace.names
        mine = [number for number in runs.names if names[number] == row.short_name]
        at = np.flatnonzero(is_among(runs.name, mine))
        full = runs.full_name[at]
        own = [
            number for number in distinct_values(full).tolist() if (functor_of(names[number]) or "") == row.functor
        ]
        took = runs.took[at]
        wanted = is_among(full, own)
        total = int(took[wanted].sum())
        if wanted.any() and (best is None or total > best[0]):
            long = took >= took[wanted].mean() / 2
            order = LaunchOrder(
                per_step=max(1, round(len(at) / runs.timeline.counted)),
                in_a_row=_longest_window(wanted & long),
                own_in_a_row=_longest_window(long[wanted]),
            )
            best = total, order
    return best[1] if best else None


def _longest_window(marked: npt.NDArray[np.bool_]) -> int:
    """Return how many launches in a row hold at least one that is marked, if these launches repeat for ever."""
    places = np.flatnonzero(marked)
    round_the_end = len(marked) - int(places[-1]) + int(places[0])
    return int(max([round_the_end, *np.diff(places).tolist()]))
