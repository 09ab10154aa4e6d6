"""Several captures of one run (one file a rank) as one trace."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from llmtop.format import duration
from llmtop.system.free_memory import return_free_memory
from llmtop.trace import model
from llmtop.trace.files import align, windows
from llmtop.trace.intervals import Ns

_OF_XLA = ("hlo", "hlo_module", "hlo_category", "hlo_source")
_NAMED = ("name", "full_name", "domain", "inputs", "collective", "place", "caller", *_OF_XLA)
"""Columns whose values are numbers of names."""
_MANY_ROWS = 1_000_000
"""Rows of all files from which the freed parts of a column (4 MB and more) are given back: that takes some ms."""
_TABLES = ("ops", "calls", "ranges", "host", "off_cpu", "samples", "memory", "overhead")


def merge(traces: list[model.Trace], source: str, *, release: bool = False) -> model.Trace:
    """Return all events on one time line.

    Where every file has the origin of its times (or none does, as in old Chrome traces, which count from one
    clock) they are aligned by that; the clocks of one machine agree. Those of several are aligned by the ends of
    the collectives that their ranks were in together, where that is more than chance (`llmtop.trace.files.align`).

    Args:
        traces: of the files.
        source: what messages and the report call them.
        release: whether the tables of several files are emptied for it, so that no row is in memory twice.
    """
    if len(traces) == 1:
        traces[0].source = source
        return traces[0]
    merged = model.Trace(source=source, engine=traces[0].engine, version=traces[0].version)
    names = model.Names()
    origins = [trace.origin_unix_ns for trace in traces]
    known = [origin for origin in origins if origin is not None]
    merged.origin_unix_ns = min(known) if len(known) == len(traces) else None
    if 0 < len(known) < len(traces):
        merged.notes.append("some files do not say when they were recorded: their times may not match the others'")
    shifts: list[int] = []
    for index, trace in enumerate(traces):
        shift = (trace.origin_unix_ns or 0) - (merged.origin_unix_ns or 0) if merged.origin_unix_ns else 0
        shifts.append(shift - (_measured_offset(traces[0], trace, shift, merged) if index else 0))
    apart_by = windows.processes_apart(traces, shifts)
    shifts = windows.without_unrecorded_time(traces, shifts, apart_by, merged.notes)
    parts: dict[str, list[model.Table]] = {field: [] for field in _TABLES}
    for index, (trace, shift, apart) in enumerate(zip(traces, shifts, apart_by, strict=True)):
        number = np.array([names.number(name) for name in trace.names], dtype=np.int64)
        if any(process + by in merged.file_of for process, by in apart.items()):
            windows.renumber_correlations(traces[:index], trace)
        for field in _TABLES:
            parts[field].append(_shifted_table(getattr(trace, field), shift, number, apart))
        merged.gpus |= trace.gpus
        merged.file_of = {process + by: index for process, by in apart.items()} | merged.file_of
        pairs = model.pairs(trace.ops.process, trace.ops.device).tolist()
        known_gpus = {(process, device): trace.gpu(process, device) for process, device in pairs}
        merged.gpu_of |= {
            (pid + apart.get(pid, 0), device): gpu for (pid, device), gpu in known_gpus.items() if gpu is not None
        }
        merged.metrics += [dataclasses.replace(metric, start=metric.start + shift) for metric in trace.metrics]
        ranks = [dataclasses.replace(one, process=one.process + apart.get(one.process, 0)) for one in trace.ranks]
        merged.ranks += [one for one in ranks if one not in merged.ranks]
        merged.process_names |= {pid + apart.get(pid, 0): name for pid, name in trace.process_names.items()}
        merged.notes += [f"{trace.source}: {note}" for note in trace.notes]
    for trace in traces if release else ():
        # The rows are in `parts` alone, which frees each column of them once it is joined.
        vars(trace).update({field: model.empty(type(getattr(trace, field))) for field in _TABLES})
    for field in _TABLES:
        setattr(merged, field, _joined_and_freed(parts.pop(field)))
    merged.names = names.all
    return merged


def _joined_and_freed(tables: list[model.TableT]) -> model.TableT:
    """Return the rows of all tables after one another; each column's parts are freed before the next is joined.

    Numbers of processes take 32 bits where they fit: in the tables of one file they mostly take none.
    """
    kind = type(tables[0])
    filled = [table for table in tables if len(table)]
    if len(filled) < 2:
        return filled[0] if filled else tables[0]
    rows = sum(map(len, filled))
    parts = {field.name: [getattr(table, field.name) for table in filled] for field in dataclasses.fields(kind)}
    del tables[:], filled
    columns = {}
    for name in list(parts):
        columns[name] = model.join_columns(parts.pop(name), narrow=name == "process")
        if rows > _MANY_ROWS:
            return_free_memory()
    return kind(**columns)


def _with_numbers_apart(processes: Ns, apart: dict[int, int]) -> Ns:
    """Return the pids of rows as the merged trace has them."""
    if len(set(apart.values())) < 2:
        return processes + next(iter(apart.values()), 0)
    different, which = np.unique(processes, return_inverse=True)
    return np.array([pid + apart.get(pid, 0) for pid in different.tolist()], dtype=np.int64)[which.reshape(-1)]


def _measured_offset(first: model.Trace, trace: model.Trace, shift: int, merged: model.Trace) -> int:
    """Return how far a file's clock is ahead of the first file's, which is noted; 0 where they agree."""
    of_first = (first.origin_unix_ns or 0) - merged.origin_unix_ns if merged.origin_unix_ns else 0
    found = align.clock_offset(first, trace, shift - of_first)
    if found is None:
        return 0
    how = "ahead of" if found.ns > 0 else "behind"
    merged.notes.append(
        f"{trace.source}: its clock is {duration(abs(found.ns) / 1e9)} {how} that of {first.source}, by the ends "
        f"of {found.collectives} collectives; its times were moved by that"
    )
    return found.ns


def _shifted_table(table: model.Table, shift: int, number: Ns, apart: dict[int, int]) -> model.Table:

    def renumbered(names: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.asarray(number[names], dtype=names.dtype)

    changed: dict[str, Ns] = {}
    if shift:
        changed["start"] = table.start + shift
        changed["end"] = np.where(table.end == model.OPEN, model.OPEN, table.end + shift)
    is_numbered_alike = np.array_equal(number, np.arange(len(number)))
    for field in _NAMED:
        if hasattr(table, field) and not is_numbered_alike:
            changed[field] = model.change_values(getattr(table, field), renumbered)
    if hasattr(table, "process"):
        changed["process"] = model.change_values(table.process, lambda pids: _with_numbers_apart(pids, apart))
    return dataclasses.replace(table, **changed)
