"""Several windows of one process among files that are read together: schedule(repeat=2), or two captures."""

from __future__ import annotations

import dataclasses

import numpy as np

from llmtop.format import PIDS_APART, duration
from llmtop.trace import model
from llmtop.trace.groups import distinct_values
from llmtop.trace.intervals import Ns

_WITH_PROCESSES = ("ops", "calls", "ranges", "host")


def processes_of(trace: model.Trace) -> list[int]:
    """Return the pids of a file, in order."""
    return sorted(
        {pid for table in _WITH_PROCESSES for pid in distinct_values(getattr(trace, table).process).tolist()}
    )


def processes_apart(traces: list[model.Trace], shifts: list[int]) -> list[dict[int, int]]:
    """Return for each file by its pids what is added to them.

    A rank or, where ranks are not known, a pid that was seen in an earlier file is the same process if the two
    files were recorded one after the other. If they overlap in time these are two processes of one pid, as in
    containers.

    Args:
        traces: the files.
        shifts: of each what is added to its times, ns.
    """
    # Times of files of which only some say when they were recorded cannot be compared.
    known = {trace.origin_unix_ns is not None for trace in traces}
    seen: dict[int, list[tuple[int, int, int | None]]] = {}
    found: list[dict[int, int]] = []
    for index, (trace, shift) in enumerate(zip(traces, shifts, strict=True)):
        ranks = {one.process: one.rank for one in trace.ranks}
        low, high = (instant + shift for instant in trace.window)
        own: dict[int, int] = {}
        for pid in processes_of(trace):
            rank = ranks.get(pid)
            target = _earlier_window(seen, pid, rank, low, high) if len(known) == 1 else None
            if target is None:
                target = pid + index * PIDS_APART if pid in seen else pid
            own[pid] = target - pid
            seen.setdefault(target, []).append((low, high, rank))
        found.append(own)
    return found


def _earlier_window(
    seen: dict[int, list[tuple[int, int, int | None]]], pid: int, rank: int | None, low: int, high: int
) -> int | None:
    """Return the process of earlier files that this is, by its number there; None for none."""
    for target, spans in seen.items():
        same_rank = rank is not None and any(rank == other for _, _, other in spans)
        same_pid = target % PIDS_APART == pid and all(
            None in (rank, other) or rank == other for _, _, other in spans
        )
        if (same_rank or same_pid) and all(end <= low or high <= start for start, end, _ in spans):
            return target
    return None


def without_unrecorded_time(
    traces: list[model.Trace], shifts: list[int], apart: list[dict[int, int]], notes: list[str]
) -> list[int]:
    """Return the shifts that close the gaps in which no file recorded anything, where a process has two windows.

    Args:
        traces: the files.
        shifts: of each what is added to its times, ns.
        apart: as `processes_apart` returns it.
        notes: to which it is added what was left out.
    """
    files_of: dict[int, list[int]] = {}
    for index, own in enumerate(apart):
        for pid, by in own.items():
            files_of.setdefault(pid + by, []).append(index)
    several = {pid: files for pid, files in files_of.items() if len(files) > 1}
    if not several:
        return shifts
    spans = sorted(
        (trace.window[0] + shift, trace.window[1] + shift, index)
        for index, (trace, shift) in enumerate(zip(traces, shifts, strict=True))
    )
    closed, reach, cut = list(shifts), spans[0][1], 0
    for low, high, index in spans:
        cut += max(low - reach, 0)
        reach = max(reach, high)
        closed[index] -= cut
    most = max(len(files) for files in several.values())
    which = ", ".join(str(pid % PIDS_APART) for pid in sorted(several)[:4]) + (", …" if len(several) > 4 else "")
    pids = {pid for own in apart for pid, by in own.items() if pid + by in several}
    whose = "process" if len(pids) <= len(several) else "rank, which was started again"
    notes.append(
        f"pid {which}: {most} files are windows of one {whose}; the {duration(cut / 1e9)} between them were not "
        "recorded and are left out; one step may consist of the end of one file and the beginning of the next"
    )
    return closed


def renumber_correlations(earlier: list[model.Trace], trace: model.Trace) -> None:
    """Give a file's calls and their work correlation ids that no earlier file of the process has, in place."""
    taken = max(
        (int(table.correlation.max()) for one in earlier for table in (one.ops, one.calls) if len(table)),
        default=0,
    )
    used = distinct_values(np.concatenate([trace.ops.correlation, trace.calls.correlation]))
    used = used[used >= 0]

    def renumbered(column: Ns) -> Ns:
        return np.where(column >= 0, np.searchsorted(used, column) + taken + 1, column)

    trace.ops = dataclasses.replace(trace.ops, correlation=renumbered(trace.ops.correlation))
    trace.calls = dataclasses.replace(trace.calls, correlation=renumbered(trace.calls.correlation))
