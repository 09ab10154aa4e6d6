"""Collective counters of this process's process groups, sent once no step ends for a while.

torch's flight recorder counts them in the process, always and for every backend that it knows. To read its counts
takes some µs from any thread, also while a collective hangs; its entries, which name the operation, are read only
where counts stand still, since to write them all down holds the GIL for up to 75 ms. Both are private to torch:
what is not there, or has another form, is absent.
"""

from __future__ import annotations

import sys
import time
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from llmtop.instrument.steps.ring import MASK
from llmtop.model.stall_thresholds import COUNTS_LOOK_S, quiet_seconds
from llmtop.protocol import wire

if TYPE_CHECKING:
    from llmtop.instrument.record.state import State

MOST_GROUPS = 64
_USUAL = 32
_C10D = "torch._C._distributed_c10d"
_DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
"""Functions of NCCL's own recorder, and of the one that other backends share (gloo)."""


class _Status(msgspec.Struct):
    last_enqueued_collective: str | int | None = None
    last_completed_collective: str | int | None = None


class _Entry(msgspec.Struct):
    pg_id: int = 0
    process_group: list[str] = []
    collective_seq_id: int = 0
    profiling_name: str = ""
    is_p2p: bool = False


class _Dump(msgspec.Struct):
    pg_status: dict[str, _Status] = {}
    entries: list[_Entry] = []


_decoder = msgspec.json.Decoder(_Dump)


class CollectiveWatch:
    """State of one monitor. An hour of waiting is one message."""

    def __init__(self) -> None:
        self._looked_at = 0.0
        self._seen: _Counts = {}
        self._reported: list[wire.CollectiveCount] = []

    def pending_message(self, recorder: State) -> wire.Collectives | None:
        """Return the message to send now: counters that do not change while no step ends, or the end of that
        state."""
        now = time.monotonic()
        if now - self._looked_at < COUNTS_LOOK_S:
            return None
        self._looked_at = now
        seen, self._seen = self._seen, _counts() if is_quiet(recorder) else {}
        # Work that is no step, a validation, has collectives too: their numbers grow.
        stuck = self._seen if self._seen == seen else {}
        if bool(stuck) == bool(self._reported):
            return None
        self._reported = [_collective_count(source, group, *counts) for (source, group), counts in stuck.items()]
        return wire.Collectives(counts=self._reported)


_Counts = dict[tuple[str, str], tuple[int, int | None]]
"""Numbers of the collectives last enqueued and last completed, by recorder and process group."""


def _counts() -> _Counts:
    counts: _Counts = {}
    for source in _DUMPS:
        found = _dump(source, entries=False)
        for group, status in sorted(found.pg_status.items())[:MOST_GROUPS] if found else ():
            enqueued = _number(status.last_enqueued_collective)
            if enqueued is not None:
                counts[source, group] = enqueued, _number(status.last_completed_collective)
    return counts


def is_quiet(recorder: State) -> bool:
    """Return True if no step has ended for so long that collectives are checked; never before the first step."""
    ring = recorder.ring
    count = ring.count
    if not count:
        return False
    rows = [ring.rows[place & MASK] for place in range(max(0, count - _USUAL), count)]
    usual = median(max(row[2], row[3]) for row in rows)
    return bool(time.perf_counter_ns() - rows[-1][1] - rows[-1][2] > 1e9 * quiet_seconds(usual / 1e9))


def _collective_count(source: str, group: str, enqueued: int, completed: int | None) -> wire.CollectiveCount:
    """Return the count with the group's name and the operation of the last number."""
    # Who waits nowhere, as the rank that the others wait for, has no operation under way to name the group by.
    mine = _entries(source, group, only_active=True) or _entries(source, group, only_active=False)
    named = next((entry for entry in reversed(mine) if entry.process_group), None)
    words = named.process_group if named else [group]
    name = " ".join(word for word in words if word and word != "undefined")
    last = next((e for e in reversed(mine) if e.collective_seq_id == enqueued and not e.is_p2p), None)
    operation = last.profiling_name[:80] if last else ""
    return wire.CollectiveCount(name[:80], enqueued, completed, operation or None)


def _entries(source: str, group: str, *, only_active: bool) -> list[_Entry]:
    found = _dump(source, entries=True, only_active=only_active)
    return [entry for entry in found.entries if str(entry.pg_id) == group] if found else []


def _dump(source: str, *, entries: bool, only_active: bool = True) -> _Dump | None:
    c10d: Any = sys.modules.get(_C10D)
    dump = getattr(c10d, source, None)
    if dump is None:
        return None
    try:
        return _decoder.decode(
            dump(includeCollectives=entries, onlyActive=only_active) if entries else dump(entries)
        )
    except (TypeError, ValueError, RuntimeError, msgspec.MsgspecError):  # another form of another torch
        return None


def _number(value: str | int | None) -> int | None:
    try:
        number = int(value) if value is not None else -1
    except ValueError:
        return None
    return number if number >= 0 else None
