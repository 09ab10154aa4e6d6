"""Device time by XLA operation and by kind of operation, where the file names the operation of each event."""

from __future__ import annotations

import collections

import numpy as np
import numpy.typing as npt

from llmtop.analysis.steps.work_by_step import WorkSteps
from llmtop.analysis.work.operators import MOST_PARTS
from llmtop.report.device_time import DeviceTimePart, OperatorPart, OperatorTime
from llmtop.trace import model
from llmtop.trace.groups import grouped

NO_OPERATION = "(no XLA operation)"
"""Copies of input, kernels of other libraries, and all of a command buffer where XLA does not distinguish them."""


def hlo_times(trace: model.Trace, steps: WorkSteps) -> tuple[OperatorTime, ...]:
    """Device time by XLA's operation, whole file, all devices, most first; empty where none is known.

    Args:
        trace: what was read of a capture.
        steps: in which steps its device work lies.
    """
    ops = trace.ops
    if not ops.hlo.any():
        return ()
    took = ops.end - ops.start
    everything = max(int(took.sum()), 1)
    keys, which = grouped(ops.hlo, ops.hlo_module)
    counts, sums = np.bincount(which), np.bincount(which, weights=took)
    per_step = steps.per_step(np.arange(len(ops)), which, took)
    modules = collections.Counter(hlo for hlo, _ in keys)
    first = np.unique(which, return_index=True)[1]
    kernels = _kernels(trace, which, took)
    rows = []
    for place, (hlo, module) in enumerate(keys):
        name, of = trace.names[hlo] or NO_OPERATION, trace.names[module]
        total, number = float(sums[place]), int(counts[place])
        rows.append(
            OperatorTime(
                # Each compiled function counts its operations from the start.
                name=f"{name} of {of}" if modules[hlo] > 1 and of else name,
                is_operator=bool(hlo),
                calls=number,
                launches=number,
                seconds=total / 1e9,
                share_pct=100.0 * total / everything,
                mean_us=total / 1e3 / number,
                module=of,
                source=trace.names[int(ops.hlo_source[first[place]])] if hlo else "",
                kernels=kernels[place],
                per_step=per_step.get(place, ()),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _kernels(
    trace: model.Trace, which: npt.NDArray[np.int64], took: npt.NDArray[np.int64]
) -> dict[int, tuple[OperatorPart, ...]]:
    """Return the device work of each group by its full name, most time first."""
    keys, at = grouped(which, trace.ops.full_name)
    counts, sums = np.bincount(at), np.bincount(at, weights=took)
    found: dict[int, list[OperatorPart]] = {}
    for place, (group, name) in enumerate(keys):
        part = OperatorPart(name=trace.names[name], calls=int(counts[place]), seconds=float(sums[place]) / 1e9)
        found.setdefault(group, []).append(part)
    return {
        group: tuple(sorted(parts, key=lambda part: -part.seconds)[:MOST_PARTS]) for group, parts in found.items()
    }


def hlo_parts(trace: model.Trace) -> tuple[DeviceTimePart, ...]:
    """Device time by kind of XLA's operation, most first; empty where no operation is known."""
    ops = trace.ops
    if not ops.hlo.any():
        return ()
    took = ops.end - ops.start
    everything = max(int(took.sum()), 1)
    keys, which = grouped(np.where(ops.hlo > 0, ops.hlo_category, 0))
    sums = np.bincount(which, weights=took)
    parts = [
        DeviceTimePart(
            name=trace.names[number] or NO_OPERATION,
            seconds=float(sums[place]) / 1e9,
            share_pct=100.0 * float(sums[place]) / everything,
        )
        for place, (number,) in enumerate(keys)
    ]
    return tuple(sorted(parts, key=lambda part: -part.seconds))


def hlo_passes(trace: model.Trace) -> dict[str, npt.NDArray[np.bool_]]:
    """Return the pass of device work, by the path that JAX gives an operation; empty where unknown.

    JAX writes jvp(…) around what is differentiated and transpose(…) around what runs backward through it.
    """
    sources = np.array(
        [2 if "transpose(" in name else 1 if "jvp(" in name else 0 for name in trace.names], dtype=np.int8
    )
    of = sources[trace.ops.hlo_source]
    if not (of == 2).any():
        return {}
    return {"forward": of == 1, "backward": of == 2, "other": of == 0}
