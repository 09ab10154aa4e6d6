"""Columns from events of a Chrome trace.

Some arguments changed their names over the years ("external id", "inDevice"). ts and dur are µs, since
`baseTimeNanoseconds` where the file has that, else since 1970 or boot.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np

from llmtop.format import printable
from llmtop.trace import model
from llmtop.trace.chrome import learn
from llmtop.trace.chrome.at_once import BatchCollector, device_of, record_message, stream_of
from llmtop.trace.chrome.fields import PRODUCT_US, Args, Event, MemoryArgs, Number
from llmtop.trace.chrome.learn import EMPTY_LIST, NO_ARGS, EventType, TraceIndex, int_or
from llmtop.trace.chrome.rows import Rows, Tables
from llmtop.trace.groups import distinct_values, grouped
from llmtop.trace.intervals import Ns

_LATEST_US = 4e15
"""No clock of a capture gets there; in ns a start and a duration together still fit into 64 bits."""
_MEMORY = "[memory]"
"""The name of an allocation or a release, of torch.profiler with profile_memory."""
_MOST_NAMES = 10_000
_CPU = 0
"""c10::DeviceType::CPU."""
NO_ROWS = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
_ROW_OF_WORK = ("start", "end", "device", "stream", "correlation", "bytes")
_SHARED_BY_WORK = {"name": np.int64, "full_name": np.int64} | dict.fromkeys(
    ("kind", "direction", "source_memory", "target_memory"), np.int8
)


class Collector:
    """Takes events in any order and makes a trace of them."""

    def __init__(self) -> None:
        self.seen = 0
        self._learnt = TraceIndex()
        self._tables = Tables()
        self._at_once = BatchCollector(self._learnt, self._tables)
        self._broken = 0
        self._open: dict[tuple[Number, Number], list[Event]] = {}
        self.deepest = 0
        """How many ranges that were written as begin and end were open at once on one thread."""
        self._process_names: dict[int, str] = {}

    @property
    def names(self) -> model.Names:
        """All names so far."""
        return self._learnt.names

    @property
    def threads(self) -> int:
        """How many threads there are so far."""
        return len(self._learnt.threads) + len(self._open)

    def kinds_of_events(self) -> tuple[set[str], set[str]]:
        """Return the categories so far, and the names of processes and of some events."""
        known = list(self._learnt.what)
        names = {str(name) for _, name in known[:_MOST_NAMES]} | set(self._process_names.values())
        return {category for category, _ in known if category}, names

    def add(self, events: list[Event]) -> None:
        """Take some events; what is neither timed nor known is counted or passed over."""
        self.seen += len(events)
        timed = [event for event in events if event.ph == "X"]
        others = [event for event in events if event.ph != "X"] if len(timed) < len(events) else []
        if any(event.ph in ("B", "E") for event in others) or not self._at_once.add_all(timed):
            self._one_by_one(events)
            return
        for event in others:
            self._add_untimed(event)

    def _one_by_one(self, events: list[Event]) -> None:
        for event in events:
            if event.ph == "X":
                self._add_timed(event, event.ts, event.dur)
            elif event.ph in ("B", "E"):
                self._half(event)
            else:
                self._add_untimed(event)

    def _add_untimed(self, event: Event) -> None:
        """The name of a process, or an allocation or a release of memory."""
        if event.ph == "i" and event.name == _MEMORY:
            self._memory(event, event.args)
        elif event.ph == "M" and event.name == "process_name" and event.args is not None:
            pid = int_or(event.pid, -1)
            if pid >= 0 and isinstance(event.args.name, str):
                self._process_names[pid] = printable(event.args.name, 200)

    def _memory(self, event: Event, args: Args | None) -> None:
        if not isinstance(args, MemoryArgs):
            return
        if event.ts is None or not -_LATEST_US < event.ts < _LATEST_US:
            self._broken += 1
            return
        at = round(event.ts * 1000)
        device = model.HOST_MEMORY if int_or(args.device_type, 0) == _CPU else int_or(args.device_id, 0)
        figures = [int_or(figure, -1) for figure in (args.memory_level, args.memory_reserved)]
        owner, size = self._owner(event), int_or(args.memory_bytes, 0)
        self._tables.memory.extend((at, at, *owner, device, model.MEMORY_UNKNOWN, size, *figures))

    def _half(self, event: Event) -> None:
        """Begin or end of a range that was not written as one event."""
        stack = self._open.setdefault((event.pid, event.tid), [])
        if event.ph == "B":
            stack.append(event)
            self.deepest = max(self.deepest, len(stack))
        elif stack:
            begun = stack.pop()
            known = begun.ts is not None and event.ts is not None
            self._add_timed(
                begun, begun.ts, float(Decimal(event.ts or 0) - Decimal(begun.ts or 0)) if known else None
            )

    def _add_timed(self, event: Event, begin: float | None, took: float | None) -> None:
        learnt, tables = self._learnt, self._tables
        what = learnt.what.get((event.cat, event.name)) or learnt.add_event_type(event.cat, event.name)
        kind = what.kind
        if kind < 0:
            return
        if (
            begin is None
            or took is None
            or not (-_LATEST_US < begin < _LATEST_US and -_LATEST_US < took < _LATEST_US)
        ):
            self._broken += 1
            return
        if type(begin) is not float or begin < PRODUCT_US:
            start = round(begin * 1000)
        else:
            # The product would be rounded once more; the fraction by itself is not, up to COARSE_US.
            start = int(begin) * 1000 + round(begin % 1 * 1000)
        end = start + round(took * 1000)
        if kind <= learn.MEMSET:
            self._op(event, what, start, end)
        elif kind == learn.CALL:
            correlation = int_or(event.args.correlation, -1) if event.args is not None else -1
            tables.calls.extend((start, end, *self._owner(event), what.name, correlation))
        elif kind == learn.RANGE:
            tables.ranges.extend((start, end, *self._owner(event), what.name, 0, model.PUSH_POP))
        elif kind == learn.OVERHEAD:
            tables.overhead.extend((start, end))
        else:
            host = model.PYTHON
            if kind == learn.OPERATOR:
                host = model.OPERATOR
                if event.args is not None:
                    self._operator(event.args)
            tables.host.extend((start, end, *self._owner(event), what.name, host))

    def _owner(self, event: Event) -> tuple[int, int]:
        return self._learnt.owners[self._learnt.thread(event)]

    def _operator(self, arguments: Args) -> None:
        """Note what the operator that comes next among the host's rows was called with."""
        sequence = int_or(arguments.sequence, -1) + 1
        shaped = len(arguments.dims) > EMPTY_LIST
        inputs = self._learnt.inputs_of(arguments.dims, arguments.types) if shaped else 0
        if not 0 < sequence < 1 << 31:
            sequence = 0
        if inputs or sequence:
            self._tables.operators.extend((len(self._tables.host), inputs, sequence))

    def _op(self, event: Event, what: EventType, start: int, end: int) -> None:
        arguments = event.args or NO_ARGS
        size = 0 if arguments.bytes is None else max(int_or(arguments.bytes, 0), 0)
        if arguments.group is not None:
            size = record_message(self._learnt, self._tables, len(self._tables.ops), arguments)
        place = (device_of(self._learnt, event), stream_of(event), int_or(arguments.correlation, -1))
        # The process is filled in when all launches are known; the rest all of one name have in common.
        self._tables.ops.extend((start, end, *place, size, what.number))

    def _device_ops(self) -> model.DeviceOps:
        """Return all device work, with what all of one name have in common."""
        ops, groups = self._tables.ops, self._tables.groups
        columns: dict[str, Any] = {name: ops.pop_column(place) for place, name in enumerate(_ROW_OF_WORK)}
        what = ops.pop_column(len(_ROW_OF_WORK))
        for name, kind in _SHARED_BY_WORK.items():
            columns[name] = np.array([getattr(one, name) for one in self._learnt.of_work], dtype=kind)[what]
        columns["process"] = np.broadcast_to(np.int64(-1), len(what))
        row = groups.pop_column(0)
        for place, name in enumerate(("ranks", "collective"), 1):
            columns[name] = np.zeros(len(what), dtype=np.int32)
            columns[name][row] = groups.pop_column(place)
        return model.build(model.DeviceOps, columns)

    def trace(self, source: str, properties: dict[str, Any]) -> model.Trace:
        """Everything taken so far.

        Args:
            source: what the report calls the file.
            properties: its top-level fields besides the events.
        """
        trace = model.Trace(source=source, engine="kineto", names=self.names.all)
        base = int_or(properties.get("baseTimeNanoseconds"), 0)
        tables = self._tables
        trace.ops = self._device_ops()
        trace.calls = _table(model.ApiCalls, tables.calls, {"place": NO_ROWS})
        trace.ranges = _table(model.Ranges, tables.ranges)
        row = tables.operators.pop_column(0)
        trace.host = _table(
            model.HostSpans,
            tables.host,
            {
                name: (row, tables.operators.pop_column(place))
                for place, name in enumerate(("inputs", "sequence"), 1)
            },
        )
        trace.memory = _table(model.MemoryEvents, tables.memory, {"place": NO_ROWS})
        trace.overhead = _table(model.Table, tables.overhead)
        trace.origin_unix_ns = base or None
        if self._broken:
            trace.notes.append(f"{self._broken} events have no time and are left out")
        _give_processes(trace)
        _describe(trace, properties)
        known = set(distinct_values(trace.calls.process).tolist())
        process_names = self._learnt.process_names | self._process_names
        trace.process_names = {p: n for p, n in process_names.items() if p in known}
        return trace


def _table(kind: type[model.TableT], rows: Rows, sparse: dict[str, tuple[Ns, Ns]] | None = None) -> model.TableT:
    """Rows as a table.

    Args:
        kind: the type of the table.
        rows: its columns but the sparse ones.
        sparse: columns of which few rows are not 0, by name: which rows, and their values.
    """
    sparse = sparse or {}
    names = [name for name in kind.__dataclass_fields__ if name not in sparse]
    columns = {name: rows.pop_column(place) for place, name in enumerate(names)}
    for name, (row, value) in sparse.items():
        columns[name] = np.zeros(len(columns["start"]), dtype=np.int32)
        columns[name][row] = value
    return model.build(kind, columns)


def _give_processes(trace: model.Trace) -> None:
    """Give device events the process that launched them, from the launching call with the same correlation id."""
    calls, ops = trace.calls, trace.ops
    if not len(ops):
        return
    owners = calls.process if len(calls) else trace.host.process
    different, which = grouped(owners)
    usual = different[int(np.argmax(np.bincount(which)))][0] if different else 0
    process: Ns = np.broadcast_to(np.int64(usual), len(ops))
    if len(different) > 1 and len(calls):
        order = np.argsort(calls.correlation, kind="stable")
        at = np.minimum(np.searchsorted(calls.correlation[order], ops.correlation), len(order) - 1)
        hit = (calls.correlation[order][at] == ops.correlation) & (ops.correlation >= 0)
        process = np.where(hit, calls.process[order][at], usual)
    trace.ops = replace(ops, process=process)


def _describe(trace: model.Trace, properties: dict[str, Any]) -> None:
    devices = properties.get("deviceProperties")
    for device in devices if isinstance(devices, list) else []:
        if isinstance(device, dict) and isinstance(device.get("id"), int):
            number, name = int_or(device["id"], -1), device.get("name")
            trace.gpus[number] = model.TracedGpu(
                number=number,
                name=printable(name, 100) if isinstance(name, str) and name else None,
            )
    place = properties.get("distributedInfo")
    if isinstance(place, dict) and isinstance(place.get("rank"), int) and len(trace.calls):
        process = int(trace.calls.process[0])
        trace.ranks.append(
            model.TracedRank(process, int_or(place["rank"], -1), int_or(place.get("world_size"), 0))
        )
    versions = [properties.get(key) for key in ("cuda_runtime_version", "cupti_version")]
    if isinstance(versions[0], int) and 0 < versions[0] < 1_000_000:
        trace.version = f"CUDA {versions[0] // 1000}.{versions[0] % 1000 // 10}"
