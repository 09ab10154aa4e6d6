"""Columns from events of XLA's profiler in the form of jax.profiler and torch_xla (`*.trace.json.gz`).

A process of the file is a plane: `/device:GPU:0`, `/device:TPU:0`, `/host:CPU`; a thread of it is a line: of a
stream, of a thread. All arguments are text. ts and dur are µs since the trace began. On a GPU each kernel, copy or
memset stands on the line of its stream with the XLA operation that it is of, and joins with the CUDA call of the
host by its correlation id. On the CPU the operations themselves stand on the lines of the threads that ran them.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from llmtop.format import printable
from llmtop.trace import model
from llmtop.trace.chrome.fields import Event, Number
from llmtop.trace.chrome.learn import int_or, short_kernel_name
from llmtop.trace.chrome.rows import Rows
from llmtop.trace.intervals import Ns
from llmtop.trace.xla import names as xla_names
from llmtop.trace.xla.fields import XlaArgs
from llmtop.trace.xla.host import HostLines

_LATEST_US = 4e12
MOST_EVENTS = 1_000_000
"""Most events that XLA writes into this kind of file; beyond that it drops some, and only .xplane.pb has them
all."""
_DEVICE = re.compile(r"^/device:(GPU|TPU):(\d{1,6})")
_STREAM = re.compile(r"^Stream #(\d{1,18})")
_OVERHEAD = "CUPTI overhead"
_OPERATIONS = "XLA Ops"
"""The line of a TPU's plane on which each operation stands; on a GPU's it is made up from the kernels."""
NO_PROCESS = 701
"""XLA's own number for the host, which stands for the process where the file does not say its pid."""


_NO_ARGS = XlaArgs()


class XlaCollector:
    """Takes events in any order after those that name planes and lines, and makes a trace of them."""

    def __init__(self) -> None:
        self.seen = 0
        self.deepest = 0
        self.names = model.Names()
        self._planes: dict[Number, str] = {}
        self._lines: dict[tuple[Number, Number], str] = {}
        self._ops = Rows(14)
        """start, end, kind, device, stream, names (short and full), correlation, bytes, direction, memories, and
        the numbers of the operation and of its module."""
        self._categories = Rows(2)
        self._overhead = Rows(2)
        self._host = HostLines(self.names)
        self._streams: dict[tuple[Number, Number], int] = {}
        self._tpus: set[int] = set()
        self._broken = 0

    @property
    def threads(self) -> int:
        """How many lines there are so far."""
        return len(self._lines) + len(self._streams)

    def add(self, events: list[Event]) -> None:
        """Take some events."""
        self.seen += len(events)
        for event in events:
            if event.ph == "X":
                self._add_timed(event)
            elif event.ph == "M":
                self._add_name(event)

    def _add_name(self, event: Event) -> None:
        name = event.args.name if event.args is not None else None
        if not isinstance(name, str):
            return
        if event.name == "process_name":
            self._planes[event.pid] = printable(name, 200)
        elif event.name == "thread_name":
            self._lines[(event.pid, event.tid)] = printable(name, 200)

    def _add_timed(self, event: Event) -> None:
        ts, took = event.ts, event.dur
        if ts is None or took is None or not (-_LATEST_US < ts < _LATEST_US and -_LATEST_US < took < _LATEST_US):
            self._broken += 1
            return
        start = round(ts * 1000)
        end = start + round(took * 1000)
        args: XlaArgs = event.args or _NO_ARGS  # type: ignore[assignment]
        plane = self._planes.get(event.pid, "")
        device = _DEVICE.match(plane)
        if device is not None:
            self._on_device(event, args, device, start, end)
        elif not plane.startswith("/device:"):
            self._host.take(event, args, start, end)

    def _on_device(self, event: Event, args: XlaArgs, device: re.Match[str], start: int, end: int) -> None:
        line = self._lines.get((event.pid, event.tid), "")
        if line == _OVERHEAD:
            self._overhead.extend((start, end))
            return
        stream = _STREAM.match(line)
        if stream is None and not (device[1] == "TPU" and line == _OPERATIONS):
            return  # steps, modules and scopes that are made up from what ran
        if args.allocation or args.release or args.residency:
            return
        if device[1] == "TPU":
            self._tpus.add(int(device[2]))
        number = int(stream[1]) if stream is not None else int_or(event.tid, 0)
        self._work(event, args, (start, end), (int(device[2]), number))

    def _work(self, event: Event, args: XlaArgs, span: tuple[int, int], place: tuple[int, int]) -> None:
        """A piece of device work, from where to where in ns, on which device and stream."""
        number, text = self.names.number, event.name or ""
        direction, memories, size = model.UNKNOWN, (model.MEMORY_UNKNOWN, model.MEMORY_UNKNOWN), 0
        if args.copy is not None or text.startswith("Memcpy"):
            kind = model.MEMCPY
            direction, memories, size = xla_names.parse_copy(text, str(args.copy or ""))
            name = full = number(f"memcpy {model.DIRECTIONS[direction]}")
        elif args.memset is not None or text == "Memset":
            kind, size = model.MEMSET, xla_names.parse_bytes(str(args.memset or ""))
            name = full = number("memset")
        else:
            kind = model.GRAPH if args.graph is not None else model.KERNEL
            shown = printable(text, model.LONGEST_NAME)
            name, full = number(short_kernel_name(shown)), number(shown)
        correlation = int_or(args.correlation, -1)
        hlo, module = self._operation(args, len(self._ops))
        self._ops.extend((*span, kind, *place, name, full, correlation, size, direction, *memories, hlo, module))

    def _operation(self, args: XlaArgs, row: int) -> tuple[int, int]:
        """Return the numbers of the XLA operation that the work of that row is of, and of its module."""
        if args.hlo_op is None:
            return 0, 0
        number = self.names.number
        operation = printable(str(args.hlo_op), 400)
        category = str(args.hlo_category or xla_names.operation_category(operation))
        source = str(args.tf_op or args.name or "")
        if source.startswith(("XlaModule", "Thunk")):
            source = str(args.name or "")
        self._categories.extend(
            (number(printable(category, 100)), number(printable(source.rstrip(":"), 400)) if source else 0)
        )
        return number(operation), number(printable(str(args.hlo_module or ""), 200))

    def trace(self, source: str, properties: dict[str, Any]) -> model.Trace:
        """Everything taken so far.

        Args:
            source: what the report calls the file.
            properties: its top-level fields besides the events.
        """
        told = properties.get("llmtop")
        told = told if isinstance(told, dict) else {}
        process = int_or(told.get("pid"), NO_PROCESS)
        lazy = self._host.of_torch_xla
        engine = model.XLA_PROFILER if lazy else model.JAX_PROFILER
        trace = model.Trace(source=source, engine=engine, names=self.names.all)
        on_cpu = not len(self._ops) and self._host.has_operations
        if on_cpu:
            self._take_operations()
        trace.ops = self._device_ops(process)
        trace.calls = self._host.calls(process, with_runs=on_cpu)
        trace.gpus = {one: model.TracedGpu(one, name=model.TPU) for one in self._tpus} | self._host.devices
        untold = on_cpu and not lazy and not self._host.runs_known
        trace.ranges = self._host.ranges(process, with_steps=not untold)
        trace.host = self._host.spans(process)
        trace.overhead = model.build(
            model.Table, {name: self._overhead.pop_column(place) for place, name in enumerate(("start", "end"))}
        )
        trace.process_names = {process: trace.framework or ""}
        if on_cpu:
            trace.gpus[0] = model.TracedGpu(0, name=model.CPU)
            trace.notes.append(
                "the device is the CPU: what is called its work are XLA's operations on its threads"
            )
        if untold:
            trace.notes.append(
                "the host ran ahead and did not wait for the device at the end, so which step handed over which "
                "work cannot be told: the marks of steps are left out (block_until_ready before stop_trace helps)"
            )
        if lazy:
            trace.notes.append(
                "torch_xla notes operations and hands them over at its mark of a step (torch_xla.sync), and the "
                "file does not say which mark handed over which work: steps are by the host's clock, and the "
                "device's work of one may lie in the next"
            )
        if self._broken:
            trace.notes.append(f"{self._broken} events have no time and are left out")
        if self.seen >= MOST_EVENTS:
            trace.notes.append(
                f"XLA writes {MOST_EVENTS:,} events into such a file at most, and this one is full: work may be "
                "missing; record fewer steps (.xplane.pb beside it has all)"
            )
        rank, world = int_or(told.get("rank"), -1), int_or(told.get("world_size"), 0)
        if rank >= 0:
            trace.ranks.append(model.TracedRank(process, rank, world))
        return trace

    def _take_operations(self) -> None:
        """Take operations on the CPU: work that XLA ran on the threads of the host is the device's work."""
        for start, end, line, text, args, run in self._host.operations():
            stream = self._streams.setdefault((0, line), len(self._streams))
            name = self.names.number(printable(text, model.LONGEST_NAME))
            hlo, module = self._operation(args, len(self._ops))
            memories = (model.MEMORY_UNKNOWN, model.MEMORY_UNKNOWN)
            device = max(int_or(args.device, 0), 0)
            self._ops.extend(
                (start, end, model.KERNEL, device, stream, name, name, run, 0, 0, *memories, hlo, module)
            )

    def _device_ops(self, process: int) -> model.DeviceOps:
        columns: dict[str, Any] = {name: self._ops.pop_column(place) for place, name in enumerate(_COLUMNS)}
        known = np.flatnonzero(columns["hlo"])
        for place, name in enumerate(("hlo_category", "hlo_source")):
            values: Ns = np.zeros(len(columns["start"]), dtype=np.int64)
            values[known] = self._categories.pop_column(place)
            columns[name] = values
        columns["process"] = np.full(len(columns["start"]), process, dtype=np.int64)
        return model.build(model.DeviceOps, columns)


_COLUMNS = (
    *("start", "end", "kind", "device", "stream", "name", "full_name", "correlation", "bytes", "direction"),
    *("source_memory", "target_memory", "hlo", "hlo_module"),
)
