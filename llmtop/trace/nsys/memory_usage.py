"""Allocations of device memory that nsys recorded: CUDA_GPU_MEMORY_USAGE_EVENTS (--cuda-memory-usage=true).

nsys says how much each call allocated or freed, not how much was in use before: levels count from the beginning of
the capture.
"""

from __future__ import annotations

import numpy as np

from llmtop.trace import model
from llmtop.trace.groups import is_among
from llmtop.trace.nsys.database import NEVER, Database

_EVENTS = "CUDA_GPU_MEMORY_USAGE_EVENTS"
MEMORY_TABLES = (_EVENTS,)
_FREED = 1
"""memoryOperationType of a release (ENUM_CUDA_DEV_MEM_EVENT_OPER)."""
_ON_HOST = (model.PAGEABLE, model.PINNED)


def read_memory(database: Database, trace: model.Trace) -> model.MemoryEvents:
    """Return the allocations and releases, each with the thread and the place of the CUDA call that made it.

    Args:
        database: the export.
        trace: with its calls.
    """
    none = model.empty(model.MemoryEvents)
    columns = {"start": NEVER, "globalPid": 0, "deviceId": 0, "bytes": 0, "memKind": model.MEMORY_UNKNOWN}
    columns |= {"memoryOperationType": 0, "correlationId": -1, "address": 0}
    if not {"start", "bytes", "memoryOperationType"} <= database.columns.get(_EVENTS, set()):
        return none
    rows = database.numbers(_EVENTS, columns)
    if not len(rows["start"]):
        return none
    process = (rows["globalPid"] >> 24) & 0xFFFFFF
    keys = model.join_keys(trace.calls.process, trace.calls.correlation, process, rows["correlationId"])
    thread, place = np.zeros(len(process), dtype=np.int64), np.zeros(len(process), dtype=np.int64)
    if keys is not None:
        call_keys, event_keys = keys
        order = np.argsort(call_keys, kind="stable")
        at = np.minimum(np.searchsorted(call_keys[order], event_keys), len(order) - 1)
        found = (call_keys[order][at] == event_keys) & (rows["correlationId"] >= 0)
        thread = np.where(found, trace.calls.thread[order][at], 0)
        place = np.where(found, trace.calls.place[order][at], 0)
    known = (rows["memKind"] >= 0) & (rows["memKind"] < model.MEMORY_UNKNOWN)
    memory = np.where(known, rows["memKind"], model.MEMORY_UNKNOWN)
    size = np.abs(rows["bytes"])
    absent = np.full(len(process), -1)
    return model.build(
        model.MemoryEvents,
        {"start": rows["start"], "end": rows["start"], "process": process, "thread": thread, "place": place}
        | {"device": np.where(is_among(memory, _ON_HOST), model.HOST_MEMORY, rows["deviceId"]), "memory": memory}
        | {"bytes": np.where(rows["memoryOperationType"] == _FREED, -size, size)}
        | {"level": absent, "reserved": absent},
    )
