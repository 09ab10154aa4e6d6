"""Where the program was, by stacks that nsys recorded: CPU samples, Python stacks, the stacks of CUDA calls.

COMPOSITE_EVENTS has a row for each CPU sample and SAMPLING_CALLCHAINS its frames, the innermost at depth 0;
CUDA_CALLCHAINS has those of slow CUDA calls (--cudabacktrace). Python stacks are in no table of nsys's own:
`llmtop.nsys_cli.python_stacks` adds one.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from llmtop.naming.python_frames import frame_name, is_own_frame
from llmtop.nsys_cli.python_stacks import DOMAIN, TABLE, has_python_stacks
from llmtop.trace import model
from llmtop.trace.groups import distinct_values, is_among
from llmtop.trace.intervals import Ns
from llmtop.trace.nsys.database import NEVER, Database, int_or_never, printable_name

_SAMPLES, _SAMPLE_STACKS, _CALL_STACKS = "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS", "CUDA_CALLCHAINS"
STACK_TABLES = (_SAMPLES, _SAMPLE_STACKS, _CALL_STACKS, TABLE)
_DEEPEST = 12
"""Frames of a CPU sample that are looked at for a caller in another module."""
_TOOL = re.compile(r"libToolsInjection|libcupti|libcuda\.so|libcudart|libnvtx|Nsight", re.IGNORECASE)
"""Modules of CUDA and of nsys: a call is made where the first other one is."""
_OUTERMOST = (": <module>", ": _run_module_as_main")
"""The outermost frame of a main thread, of `python FILE` and of `python -m MODULE`."""
_OF_CALL_NS = 1_000_000
"""A Python stack that nsys takes at a CUDA call is of the call that is under way on the thread, or begins within
so many ns."""


def read_samples(database: Database, trace: model.Trace, names: model.Names) -> model.StackSamples:
    """Return the CPU samples and the Python stacks of the processes that CUDA calls, ranges or waits are of.

    Args:
        database: the export.
        trace: with its calls, ranges and host spans.
        names: of the trace; those of frames are added.
    """
    return model.joined([_cpu_samples(database, trace, names), _python_samples(database, trace, names)])


def _processes(trace: model.Trace) -> set[int]:
    tables = (trace.calls.process, trace.ranges.process)
    found = {pid for column in tables for pid in distinct_values(column).tolist()}
    return found or set(distinct_values(trace.host.process).tolist())


def _cpu_samples(database: Database, trace: model.Trace, names: model.Names) -> model.StackSamples:
    none = model.empty(model.StackSamples)
    if not {"id", "start", "globalTid"} <= database.columns.get(_SAMPLES, set()):
        return none
    # Whole tables, since those are read ten times as fast as what a condition chooses.
    rows = database.numbers(_SAMPLES, {"id": NEVER, "start": NEVER, "globalTid": 0})
    rows = _chosen(rows, is_among((rows["globalTid"] >> 24) & 0xFFFFFF, sorted(_processes(trace))))
    if not len(rows["id"]):
        return none
    columns = {"id": NEVER, "symbol": NEVER, "module": NEVER, "unresolved": 0, "stackDepth": 0}
    frames = database.numbers(_SAMPLE_STACKS, columns)
    frames = _chosen(frames, (frames["stackDepth"] < _DEEPEST) & is_among(frames["id"], rows["id"]))
    innermost, caller = _frames(database, frames, names, _nearest_in_another_module)
    ids = rows["id"]
    return model.build(
        model.StackSamples,
        {"start": rows["start"], "end": rows["start"]}
        | {"process": (rows["globalTid"] >> 24) & 0xFFFFFF, "thread": rows["globalTid"] & 0xFFFFFF}
        | {"kind": np.full(len(ids), model.CPU_SAMPLE)}
        | {"name": _looked_up(ids, *innermost), "caller": _looked_up(ids, *caller)},
    )


def _chosen(rows: dict[str, Ns], which: npt.NDArray[np.bool_]) -> dict[str, Ns]:
    return {name: column[which] for name, column in rows.items()}


def _frames(
    database: Database, frames: dict[str, Ns], names: model.Names, second: Any
) -> tuple[tuple[Ns, Ns], tuple[Ns, Ns]]:
    """Return the names of the innermost frames, and of the frames that `second` chooses, each with the ids of
    stacks."""
    order = np.lexsort((frames["stackDepth"], frames["id"]))
    ordered = {name: column[order] for name, column in frames.items()}
    labels, which = _frame_names(database, ordered)
    ids, module = ordered["id"], ordered["module"]
    first = np.flatnonzero(np.diff(ids, prepend=NEVER - 1) != 0)
    begins = first[np.searchsorted(first, np.arange(len(ids)), side="right") - 1]
    chosen = np.flatnonzero(second(ordered, module, begins, labels, which))
    # The rows are in order of their depth: the first of each stack is the nearest.
    chosen = chosen[np.diff(ids[chosen], prepend=NEVER - 1) != 0]
    number = np.array([names.number(label) for label in labels], dtype=np.int64)[which]
    return (ids[first], number[first]), (ids[chosen], number[chosen])


def _nearest_in_another_module(frames: dict[str, Ns], module: Ns, begins: Ns, _labels: Any, _which: Any) -> Any:
    return (module != module[begins]) & (frames["unresolved"] == 0)


def _frame_names(database: Database, frames: dict[str, Ns]) -> tuple[list[str], Ns]:
    """Different frames as texts, and which one each row is: "addmm (libtorch_cpu.so)"; unresolved, "libfoo.so"."""
    plain = model.Names()
    number = database.names([frames["symbol"], frames["module"]], plain)
    parts = [frames["symbol"], frames["module"], (frames["unresolved"] != 0).astype(np.int64)]
    key = np.stack(parts, axis=1)
    axis = 0 if ((key < 0) | (key >= 1 << 31)).any() else None
    if axis is None:  # numbers of strings: one number says all three
        key = (parts[0] << 32) | (parts[1] << 1) | parts[2]
    _, first, which = np.unique(key, return_index=True, return_inverse=True, axis=axis)
    labels = []
    for symbol, module, unresolved in zip(*(part[first].tolist() for part in parts), strict=True):
        file = PurePosixPath(plain.all[number.get(module, 0)]).name or "unknown module"
        labels.append(f"({file})" if unresolved else f"{plain.all[number.get(symbol, 0)]} ({file})")
    return labels, which.reshape(-1)


def _looked_up(ids: Ns, keys: Ns, values: Ns) -> Ns:
    """Return the value of each id; 0 where there is none. `keys` are ascending."""
    if not len(keys):
        return np.zeros(len(ids), dtype=np.int64)
    at = np.minimum(np.searchsorted(keys, ids), len(keys) - 1)
    return np.where(keys[at] == ids, values[at], 0)


def _python_rows(database: Database) -> list[tuple[int, int, int, list[str]]]:
    """Start, global tid, number of the thread and frames, the innermost first, of each Python stack."""
    found = []
    query = f"SELECT start, globalTid, thread, stack FROM {TABLE}"
    for start, tid, thread, text in database.stream(query, TABLE):
        try:
            frames = [frame_name(str(file), int(line), str(function)) for file, line, function in json.loads(text)]
        except (ValueError, TypeError):
            continue
        if frames:
            frames = [printable_name(frame) for frame in frames]
            found.append((int_or_never(start), int_or_never(tid), int_or_never(thread), frames))
    return found


def _python_samples(database: Database, trace: model.Trace, names: model.Names) -> model.StackSamples:
    """Python stacks; those of CUDA calls are given to these."""
    if TABLE not in database.columns:
        # The names of domains are known where there are ranges; without ranges the table is small.
        if DOMAIN in names.all or (not len(trace.ranges) and has_python_stacks(database.connection)):
            trace.notes.append(
                "Python stacks were recorded, but nsys's export to SQLite leaves them out: report on the "
                ".nsys-rep on a machine that has nsys"
            )
        return model.empty(model.StackSamples)
    rows = _python_rows(database)
    callers = set(distinct_values((trace.calls.process << 24) | trace.calls.thread).tolist())
    of_calls = [row for row in rows if row[1] & 0xFFFFFFFFFFFF in callers]
    _give_places(trace, of_calls, names)
    main = _main_threads(rows)
    columns: dict[str, list[int]] = {name: [] for name in ("start", "process", "thread", "name", "caller")}
    for start, tid, thread, frames in rows:
        if tid & 0xFFFFFFFFFFFF in callers:
            continue
        pid = (tid >> 24) & 0xFFFFFF
        own = next((frame for frame in frames if is_own_frame(frame)), "")
        # The mark is written by a thread of nsys; the kernel gives a main thread the number of its process.
        values = (
            start,
            pid,
            pid if (pid, thread) in main else -thread,
            names.number(frames[0]),
            names.number(own),
        )
        for name, value in zip(columns, values, strict=True):
            columns[name].append(value)
    kind = np.full(len(columns["start"]), model.PYTHON_SAMPLE)
    return model.build(model.StackSamples, columns | {"end": columns["start"], "kind": kind})


def _main_threads(rows: list[tuple[int, int, int, list[str]]]) -> set[tuple[int, int]]:
    """Return the pids with the numbers of their main threads, whose outermost frame is a module's."""
    seen: dict[tuple[int, int], list[bool]] = {}
    for _, tid, thread, frames in rows:
        seen.setdefault(((tid >> 24) & 0xFFFFFF, thread), []).append(frames[-1].endswith(_OUTERMOST))
    return {key for key, found in seen.items() if 2 * sum(found) > len(found)}


def _give_places(trace: model.Trace, stacks: list[tuple[int, int, int, list[str]]], names: model.Names) -> None:
    """Give Python stacks that were taken at CUDA calls to the calls."""
    if not stacks:
        return
    calls = trace.calls
    owner = (calls.process << 24) | calls.thread
    order = np.lexsort((calls.start, owner))
    place = calls.place.copy()
    for start, tid, _, frames in stacks:
        own = next((frame for frame in frames if is_own_frame(frame)), frames[0])
        low, high = np.searchsorted(owner[order], [tid & 0xFFFFFFFFFFFF, (tid & 0xFFFFFFFFFFFF) + 1])
        mine = order[low:high]
        at = int(np.searchsorted(calls.start[mine], start, side="right"))
        if at and calls.end[mine[at - 1]] >= start:
            place[mine[at - 1]] = names.number(own)
        elif at < len(mine) and calls.start[mine[at]] - start <= _OF_CALL_NS:
            place[mine[at]] = names.number(own)
    trace.calls = dataclasses.replace(calls, place=place)


def call_places(database: Database, stacks: Ns, names: model.Names) -> Ns:
    """Return the name of the place that each CUDA call was made at; 0 where no stack of it was recorded.

    Args:
        database: the export.
        stacks: of each call the id of its stack; `NEVER` for none.
        names: of the trace; those of frames are added.
    """
    known = distinct_values(stacks[stacks > 0])
    if not len(known) or not {"id", "symbol", "module", "stackDepth"} <= database.columns.get(_CALL_STACKS, set()):
        return np.zeros(len(stacks), dtype=np.int64)
    columns = {"id": NEVER, "symbol": NEVER, "module": NEVER, "unresolved": 0, "stackDepth": 0}
    frames = database.numbers(_CALL_STACKS, columns)
    return _looked_up(stacks, *_frames(database, frames, names, _of_the_program)[1])


def _of_the_program(frames: dict[str, Ns], _module: Ns, _begins: Ns, labels: list[str], which: Ns) -> Any:
    own = np.array([not _TOOL.search(label.rpartition("(")[2]) for label in labels], dtype=bool)
    return own[which] & (frames["unresolved"] == 0)
