"""Positions of a hot kernel's launches among those of its function name, for ncu's command line.

ncu counts launches by the function's name, and templates share few names: the order within a step says how many
launches in a row hold one of the kernel that is wanted, wherever in the step ncu begins.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import structs

from llmtop.analysis.idle.launches import runs_per_step
from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.naming.kernel_names import functor_of
from llmtop.report.model import KernelTime, LaunchOrder
from llmtop.trace import model
from llmtop.trace.groups import distinct_values

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
    whole = [timeline for timeline in timelines if timeline.counted]
    found, left = [], _HOTTEST
    for row in kernels:
        order = None
        if left and row.kind != "NCCL":
            left -= 1
            order = _launch_order(row, whole)
        found.append(structs.replace(row, launches=order))
    return tuple(found)


def _launch_order(row: KernelTime, timelines: Sequence[DeviceTimeline]) -> LaunchOrder | None:
    """Return the launch order on the device timeline that runs it longest."""
    best: tuple[int, LaunchOrder] | None = None
    for timeline in timelines:
        ops, names = timeline.ops, timeline.trace.names
        mine = np.array(
            [number for number in distinct_values(ops.name).tolist() if names[number] == row.short_name]
        )
        inside = (ops.start >= timeline.begin_ns) & (ops.start < timeline.end_ns)
        at = np.flatnonzero((ops.kind == model.KERNEL) & np.isin(ops.name, mine) & inside)
        full = ops.full_name[at]
        own = [
            number for number in distinct_values(full).tolist() if (functor_of(names[number]) or "") == row.functor
        ]
        took = (ops.end - ops.start)[at]
        wanted = np.isin(full, own)
        total = int(took[wanted].sum())
        if wanted.any() and (best is None or total > best[0]):
            long = took >= took[wanted].mean() / 2
            order = LaunchOrder(
                per_step=runs_per_step(mine, [timeline]) or 1,
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
