"""Communication: what each collective costs, what of it is exposed, and which rank the others wait for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.analysis.work.operators import launching_operators, matching_names
from llmtop.format import duration
from llmtop.naming.communication import collective_of, communication_library
from llmtop.report.model import CollectiveTime, PhaseMean
from llmtop.trace import intervals as iv
from llmtop.trace import model
from llmtop.trace.groups import distinct_values
from llmtop.trace.intervals import Ns

UNEVEN_PCT = 5.0
"""Share of a step. The exposed NCCL time of the two ranks of a healthy run differed by 0.2 points on two H200s,
that of a run with one rank 40 % slower by 12."""


def collective_times(timelines: list[DeviceTimeline]) -> tuple[CollectiveTime, ...]:
    """Kernels that communicate, by collective, library and device, over whole steps; over all activity of a device
    that has none."""
    rows = []
    for timeline in timelines:
        inside = (timeline.ops.start >= timeline.begin_ns) & (timeline.ops.start < timeline.end_ns)
        chosen = np.flatnonzero(timeline.is_nccl & inside)
        if not len(chosen):
            continue
        ops = timeline.ops.select(chosen)
        said = np.where(ops.collective > 0, ops.collective, _names_of_operators(timeline, chosen))
        used, which = np.unique(np.stack([said, ops.full_name], axis=1), axis=0, return_inverse=True)
        names = np.array([_collective_label(timeline.trace.names, *pair) for pair in used.tolist()])[
            which.reshape(-1)
        ]
        for name in sorted(set(names.tolist())):
            mine = ops.select(names == name)
            spans = iv.clip(iv.union(mine.start, mine.end), timeline.begin_ns, timeline.end_ns)
            exposed = iv.intersection(spans, timeline.exposed_nccl).total
            rows.append(
                CollectiveTime(
                    device=timeline.device,
                    pid=timeline.process,
                    name=name,
                    count_per_step=len(mine) / timeline.counted if timeline.counted else None,
                    ms_per_step=timeline.per_step_ms(spans.total),
                    ms_deviation=_deviation_ms(timeline, spans),
                    exposed_ms_per_step=timeline.per_step_ms(exposed),
                    share_pct=timeline.share(spans.total),
                    exposed_pct=timeline.share(exposed),
                    **_bandwidth(name.partition(" (")[0], mine),
                )
            )
    return tuple(rows)


def _names_of_operators(timeline: DeviceTimeline, chosen: Ns) -> Ns:
    """Return the name of PyTorch's operator that launched each of these kernels (nccl:all_to_all); 0 for
    others."""
    trace = timeline.trace
    row = launching_operators(trace)[timeline.rows[chosen]]
    if not len(trace.host):
        return np.zeros(len(chosen), dtype=np.int64)
    name = trace.host.name[np.maximum(row, 0)]
    return np.where((row >= 0) & matching_names(trace, _OPERATOR.match)[name], name, 0)


_OPERATOR: Final = re.compile(r"(?:nccl:|c10d::|_c10d_functional::)")


def _deviation_ms(timeline: DeviceTimeline, spans: iv.Spans) -> float | None:
    """Return how far the time that lies in single steps is from its mean; None without whole steps."""
    if not timeline.counted:
        return None
    return float(np.std(np.diff(iv.time_before(spans, timeline.bounds)))) / 1e6


def _collective_label(names: list[str], said: int, kernel: int) -> str:
    """Return PyTorch's name of a collective. Without one (send, recv), return the kernel's name; with a library
    that is not one of PyTorch's backends: AllToAll (DeepEP)."""
    found = collective_of(names[said]) if said else "other"
    kind = collective_of(names[kernel]) if found == "other" else found
    library = communication_library(names[kernel])
    return f"{kind} ({library})" if library and library not in _BACKENDS else kind


_BACKENDS: Final = frozenset({"NCCL", "RCCL", "XLA"})
_BUS_FACTORS: Final[dict[str, Callable[[float], float]]] = {
    "AllReduce": lambda ranks: 2 * (ranks - 1) / ranks,
    **dict.fromkeys(
        ("AllGather", "ReduceScatter", "AllToAll", "Gather", "Scatter"), lambda ranks: (ranks - 1) / ranks
    ),
    **dict.fromkeys(("Broadcast", "Reduce", "SendRecv"), lambda ranks: 1.0),
}
"""Bytes that a link carries for each byte of a message, by number of ranks (github.com/NVIDIA/nccl-tests,
doc/PERFORMANCE.md, "Bus bandwidth"). The message is the size of nccl-tests: all bytes that one rank sends or
receives, whichever is more."""
_LARGE = 0.1


def _bandwidth(name: str, ops: model.DeviceOps) -> dict[str, Any]:
    """Sizes and rates of one collective's kernels; nothing where the file does not say the sizes."""
    known = ops.select((ops.ranks > 1) & (ops.bytes > 0) & (ops.end > ops.start))
    if not len(known):
        return {}
    took = known.end - known.start
    # The same kernel may serve several groups: each message counts with the ranks of its own.
    factor = _BUS_FACTORS.get(name)
    bus = None if factor is None else known.bytes * np.array([factor(ranks) for ranks in known.ranks.tolist()])
    large = known.bytes >= _LARGE * known.bytes.max()
    groups = distinct_values(known.ranks)
    return {
        "message_bytes": float(known.bytes.mean()),
        "ranks": int(groups[0]) if len(groups) == 1 else None,
        "algorithm_gb_per_s": float(known.bytes.sum() / took.sum()),
        "bus_gb_per_s": None if bus is None else float(bus.sum() / took.sum()),
        "fastest_bus_gb_per_s": None if bus is None else float((bus / took)[large].max()),
    }


@dataclass(frozen=True)
class Straggler:
    """Rank that the others wait for in collectives."""

    culprit: DeviceTimeline
    waiting: DeviceTimeline
    """The one that waits most."""
    culprit_pct: float
    """Exposed NCCL of that rank, in percent of whole steps."""
    waiting_pct: float


def exposed_pct(timeline: DeviceTimeline) -> float:
    """Return exposed NCCL time in percent of the whole steps."""
    return timeline.share(timeline.ns_in_steps(timeline.exposed_nccl))


def find_straggler(timelines: list[DeviceTimeline]) -> Straggler | None:
    """Return the rank that waits least in NCCL, if the others wait clearly longer for it."""
    with_nccl = [timeline for timeline in timelines if len(timeline.nccl)]
    if len(with_nccl) < 2:
        return None
    least, most = min(with_nccl, key=exposed_pct), max(with_nccl, key=exposed_pct)
    low, high = exposed_pct(least), exposed_pct(most)
    if high - low < UNEVEN_PCT or high < 1.5 * low:
        return None
    return Straggler(least, most, low, high)


def slower_phase(
    phases: list[PhaseMean], culprit: DeviceTimeline, waiting: DeviceTimeline, apart: float
) -> str | None:
    """Return the phase in which the straggler takes longer than the other rank.

    Args:
        phases: phases of both ranks.
        culprit: timeline of the straggler.
        waiting: timeline of the rank that waits.
        apart: seconds per step that the other rank waits longer in NCCL.

    Returns:
        None where no phase takes longer by at least a third of `apart`: less does not explain the wait.
        Phases are compared on the device, or on the host where the device does not show it; on the device the wait
        itself lies in a phase of the other rank.
    """
    clocks: tuple[tuple[str, Callable[[PhaseMean], float | None]], ...] = (
        ("device", lambda row: row.gpu_seconds),
        ("host", lambda row: row.host_seconds),
    )
    for clock, seconds in clocks:
        mine, other = (
            {
                row.name: seconds(row) or 0.0
                for row in phases
                if (row.pid, row.device) == (timeline.process, timeline.device)
            }
            for timeline in (culprit, waiting)
        )
        longer = {name: mine[name] - other[name] for name in mine.keys() & other.keys()}
        # Of a phase and the one around it the inner one, where it explains as much.
        name = max(longer, key=lambda key: (round(longer[key], 5), key.count("/"), key), default=None)
        if name is not None and longer[name] >= apart / 3:
            return f"{name}: {duration(mine[name])} against {duration(other[name])} on the {clock}"
    return None
