"""Events that a file has twice, as scripts that merge traces make them, and files that are copies of others."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from llmtop.format import count
from llmtop.trace import model
from llmtop.trace.groups import distinct_values
from llmtop.trace.sanitize import ABSENT

_LOOKED_AT = 16
"""Rows of a table whose twin is looked for before all are compared: a file that is there twice has one of each."""
_WORK = ("ops", "calls")
"""Tables in which no two rows can be alike: a stream runs one kernel at a time, a thread makes one call."""
_MERGED = 0.4
"""Share of the rows that are second ones: a half in a file that is there twice, less what only one part has."""
_HOST = ("ranges", "host", "memory")
_COMPARED = ("start", "end", "process", "device", "thread", "stream", "name", "correlation", "kind", "bytes")


def drop_doubled_events(trace: model.Trace) -> model.Trace:
    """Leave out the second of events that are there twice, in place, with a note; return the trace.

    Ranges, operators and work without a correlation id may be alike where times are rounded to microseconds: they
    are left out where numbered work or calls are there twice or, in a file without these, where half of them are.
    """
    dropped = sum(_drop(trace, name, numbered=True) for name in _WORK)
    least = 0.0 if dropped else _MERGED
    has_numbers = any((getattr(trace, name).correlation > 0).any() for name in _WORK)
    if dropped or not has_numbers:
        dropped += sum(_drop(trace, name, least=least) for name in (*_WORK, *_HOST))
    if dropped:
        trace.notes.append(
            f"{count(dropped)} events are in the file twice, with the same time, name and place: "
            "each is counted once"
        )
    return trace


def _drop(trace: model.Trace, name: str, *, numbered: bool = False, least: float = 0.0) -> int:
    """Drop the doubled rows of one table; returns how many.

    Args:
        trace: of which.
        name: of the table.
        numbered: only rows with a correlation id.
        least: the share of the rows that must be doubled; else none is dropped.
    """
    table = getattr(trace, name)
    if not _has_twins(table):
        return 0
    again = _second_rows(table) & (table.start > ABSENT)
    if numbered:
        again &= table.correlation > 0
    found = int(again.sum())
    if not found or found < least * len(table):
        return 0
    setattr(trace, name, table.select(~again))
    return found


def _columns(table: model.Table) -> list[npt.NDArray[np.int64]]:
    present = {field.name for field in dataclasses.fields(table)}
    return [getattr(table, column) for column in _COMPARED if column in present]


def _has_twins(table: model.Table) -> bool:
    """Return True if one of some rows, evenly spread, is there twice."""
    if len(table) < 2:
        return False
    rows = distinct_values(np.linspace(0, len(table) - 1, _LOOKED_AT).astype(np.int64))
    columns = _columns(table)
    for row in rows:
        alike = np.flatnonzero(table.start == table.start[row])
        if len(alike) > 1 and any(
            all(column[other] == column[row] for column in columns) for other in alike.tolist() if other != row
        ):
            return True
    return False


def _second_rows(table: model.Table) -> npt.NDArray[np.bool_]:
    """Return which rows have the same values as an earlier one."""
    columns = _columns(table)
    order = np.lexsort(columns)
    same = np.ones(max(len(order) - 1, 0), dtype=bool)
    for column in columns:
        ordered = column[order]
        same &= ordered[1:] == ordered[:-1]
    again = np.zeros(len(order), dtype=bool)
    again[order[1:]] = same
    return again


def without_copies(traces: list[model.Trace], notes: list[str]) -> list[model.Trace]:
    """Return the traces without those that hold the same events as an earlier one.

    Args:
        traces: one for each file.
        notes: to which it is added what was left out.
    """
    kept: list[model.Trace] = []
    for trace in traces:
        original = next((one for one in kept if _are_alike(one, trace)), None)
        if original is None:
            kept.append(trace)
        else:
            notes.append(f"{trace.source} holds the same events as {original.source}: it is left out")
    return kept


def _are_alike(one: model.Trace, other: model.Trace) -> bool:
    # Traces of XLA do not say whose process they are: ranks that did the same cannot be told from copies.
    if one.framework or one.origin_unix_ns != other.origin_unix_ns or one.ranks != other.ranks:
        return False
    tables = [(getattr(one, name), getattr(other, name)) for name in (*_WORK, *_HOST)]
    filled = [pair for pair in tables if len(pair[0]) or len(pair[1])]
    return bool(filled) and all(
        len(mine) == len(theirs)
        and all(np.array_equal(getattr(mine, key), getattr(theirs, key)) for key in ("start", "end", "process"))
        for mine, theirs in filled
    )
