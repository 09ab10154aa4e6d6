"""When the threads that call CUDA were off the CPU, and why: SCHED_EVENTS of nsys (--cpuctxsw, on by default).

Each row is a thread that got a CPU or lost one. The newer columns threadState and threadBlock say why, but they
are Unknown in all files of Linux that were seen. Then the call of the C library that the thread was in says it;
where such calls were recorded and it was in none, nothing but the scheduler took the CPU from it.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from llmtop.trace import model
from llmtop.trace.groups import distinct_values, is_among
from llmtop.trace.intervals import Ns
from llmtop.trace.nsys.database import NEVER, Database

_EVENTS, _STATES, _BLOCKS = "SCHED_EVENTS", "ENUM_SAMPLING_THREAD_STATE", "ENUM_SCHEDULING_THREAD_BLOCK"
SCHEDULING_TABLES = (_EVENTS, _STATES, _BLOCKS)
_SLEEPS = re.compile(r"^(?:clock_)?nanosleep$|^u?sleep$")
"""Calls of the C library that do nothing but let time pass."""
_OF_STATE = {
    "Running": model.PREEMPTED,
    "Interruptible": model.WAITING,
    "Uninterruptible": model.WAITING,
    "Waiting": model.WAITING,
}
_OF_BLOCK = {
    "Nanosleep": model.SLEEPING,
    "DelayExecution": model.SLEEPING,
    "Preempted": model.PREEMPTED,
    "DeferredPreempt": model.PREEMPTED,
    "QuantumEnd": model.PREEMPTED,
}
_NOT_SAID = ("Unknown", "NonBlocked")
_UNIFIED = (11, 12, 13)
"""Directions of copies that page faults in managed memory make, as CUPTI numbers them."""
_FAULT_NS = 100_000
"""How long after such a copy the thread that touched the page may lose its CPU for it: up to 70 µs were seen."""


def read_off_cpu(database: Database, trace: model.Trace) -> model.OffCpu:
    """Return when the threads with CUDA calls were off the CPU, from one switch to the next.

    Args:
        database: the export.
        trace: with its calls, and with the waits in the C library (`Trace.host`), which tell why.
    """
    none = model.empty(model.OffCpu)
    columns = {"start": NEVER, "globalTid": NEVER, "isSchedIn": 0, "threadState": NEVER, "threadBlock": NEVER}
    if not {"start", "globalTid", "isSchedIn"} <= database.columns.get(_EVENTS, set()) or not len(trace.calls):
        return none
    rows = database.numbers(_EVENTS, columns)
    owner = rows["globalTid"] & 0xFFFFFFFFFFFF
    callers = distinct_values((trace.calls.process << 24) | trace.calls.thread)
    kept = np.flatnonzero(is_among(owner, callers) & (rows["start"] != NEVER) & (rows["globalTid"] != NEVER))
    kept = kept[np.lexsort((rows["start"][kept], owner[kept]))]
    owner, start, inside = owner[kept], rows["start"][kept], rows["isSchedIn"][kept] != 0
    if len(kept) < 2:
        return none
    off = np.flatnonzero(~inside[:-1] & inside[1:] & (owner[:-1] == owner[1:]))
    why = _reasons(database, rows["threadState"][kept[off]], rows["threadBlock"][kept[off]])
    process, thread, begin = owner[off] >> 24, owner[off] & 0xFFFFFF, start[off]
    why = np.where(why > 0, why, _reasons_by_calls(trace, owner[off], begin))
    return model.build(
        model.OffCpu,
        {"start": begin, "end": start[off + 1], "process": process, "thread": thread, "why": why},
    )


def _reasons(database: Database, states: Ns, blocks: Ns) -> Ns:
    """Return why by the two columns that newer versions have; 0 where they do not say."""
    found = np.zeros(len(states), dtype=np.int64)
    for table, values, reasons in ((_STATES, states, _OF_STATE), (_BLOCKS, blocks, _OF_BLOCK)):
        named = {
            number: str(name)
            for number, name in database.rows(f"SELECT id, name FROM {table}", table)
            if isinstance(number, int)
        }
        for number in distinct_values(values).tolist():
            name = named.get(number, "Unknown")
            if name not in _NOT_SAID and name in reasons:
                found[values == number] = reasons[name]
    return found


def _reasons_by_calls(trace: model.Trace, owner: Ns, begin: Ns) -> Ns:
    """Return why by the call of the C library that a thread was in when it lost its CPU."""
    waits = trace.host.select(trace.host.kind == model.OS_CALL)
    found = np.zeros(len(owner), dtype=np.int64)
    if not len(waits):
        return found
    sleeps = np.array([bool(_SLEEPS.match(name)) for name in trace.names])
    callers = (waits.process << 24) | waits.thread
    for one in distinct_values(owner).tolist():
        mine, at = waits.select(callers == one), np.flatnonzero(owner == one)
        if not len(mine):
            continue
        mine = mine.select(np.argsort(mine.start, kind="stable"))
        last = np.searchsorted(mine.start, begin[at], side="right") - 1
        within = (last >= 0) & (mine.end[np.maximum(last, 0)] >= begin[at])
        asleep = sleeps[mine.name[np.maximum(last, 0)]]
        found[at] = np.where(within, np.where(asleep, model.SLEEPING, model.WAITING), model.PREEMPTED)
    return np.where((found == model.PREEMPTED) & _follows_page_fault(trace, begin), model.WAITING, found)


def _follows_page_fault(trace: model.Trace, begin: Ns) -> npt.NDArray[np.bool_]:
    """Return which instants lie in a copy that a page fault in managed memory made, or shortly after one."""
    moved = trace.ops.select((trace.ops.kind == model.MEMCPY) & is_among(trace.ops.direction, _UNIFIED))
    if not len(moved):
        return np.zeros(len(begin), dtype=bool)
    starts = np.sort(moved.start)
    reach = np.maximum.accumulate(moved.end[np.argsort(moved.start, kind="stable")]) + _FAULT_NS
    before = np.searchsorted(starts, begin, side="right") - 1
    return np.asarray((before >= 0) & (begin <= reach[np.maximum(before, 0)]))
