"""From events of a Chrome trace to columns.

Names of categories changed over the years ("Kernel", "Runtime", "Operator" in 2021; "kernel", "cuda_runtime",
"cpu_op" now), and so did some arguments ("external id", "inDevice"). ts and dur are µs, since
`baseTimeNanoseconds` where the file has that, else since 1970 or boot.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np

from llmtop.format import printable
from llmtop.trace import model
from llmtop.trace.chrome_fields import ELEMENT_BYTES, PRODUCT_US, Args, Event, Number
from llmtop.trace.groups import grouped
from llmtop.trace.intervals import Ns

_KERNEL, _MEMCPY, _MEMSET, _CALL, _OPERATOR, _RANGE, _PYTHON, _OVERHEAD = range(8)
_KINDS = {
    "kernel": _KERNEL,
    "concurrent_kernel": _KERNEL,
    "gpu_memcpy": _MEMCPY,
    "memcpy": _MEMCPY,
    "gpu_memset": _MEMSET,
    "memset": _MEMSET,
    "cuda_runtime": _CALL,
    "cuda_driver": _CALL,
    "runtime": _CALL,
    "hip_runtime": _CALL,
    "cpu_op": _OPERATOR,
    "operator": _OPERATOR,
    "user_annotation": _RANGE,
    "python_function": _PYTHON,
    "overhead": _OVERHEAD,
}
_LATEST_US = 4e15
"""No clock of a capture gets there; in ns a start and a duration together still fit into 64 bits."""
_NO_ARGS = Args()
_LARGEST = 1 << 62
_HOST_COLUMNS, _OPS_COLUMNS = 6, 7
"""Numbers that `_host` and `_ops` of a Collector hold for one row."""
_ROW_OF_WORK = ("start", "end", "device", "stream", "correlation", "bytes")
_SHARED_BY_WORK = {"name": np.int64, "full_name": np.int64} | dict.fromkeys(
    ("kind", "direction", "source_memory", "target_memory"), np.int8
)
_EMPTY_LIST = len("[]")
_LAST_NUMBER = re.compile(r"(\d{1,6})\s*$")
"""GPU 1 is 1."""
_COPY = re.compile(r"Memcpy (\w+)(?: \((\w+) -> (\w+)\))?")
_COPY_DIRECTIONS = {
    "HtoD": model.HOST_TO_DEVICE,
    "DtoH": model.DEVICE_TO_HOST,
    "DtoD": model.DEVICE_TO_DEVICE,
    "HtoH": model.HOST_TO_HOST,
    "PtoP": model.PEER,
    "HtoA": 3,
    "AtoH": 4,
    "AtoA": 5,
    "AtoD": 6,
    "DtoA": 7,
}
_MEMORIES = {text.title().replace("-", " "): number for number, text in model.MEMORIES.items()}
RANGE_NAMES = re.compile(r"ProfilerStep#|Optimizer\.(step|zero_grad)#|enumerate\(DataLoader\)#|\[pl\]\[profile\]")
"""Annotations that some versions wrote as operators."""


@dataclass(frozen=True)
class _What:
    """What all events of one category and name have in common."""

    kind: int
    """-1 for a category that is of no use here."""
    name: int = 0
    full_name: int = 0
    direction: int = 0
    source_memory: int = model.MEMORY_UNKNOWN
    target_memory: int = model.MEMORY_UNKNOWN
    number: int = 0
    """Its place among those of device work."""


class Collector:
    """Takes events in any order and makes a trace of them.

    Rows go flat into arrays of machine integers: as Python objects they would take ten times the memory.
    """

    def __init__(self) -> None:
        self.seen = 0
        self.names = model.Names()
        self._broken = 0
        self._what: dict[tuple[str | None, str | None], _What] = {}
        self._of_work: list[_What] = []
        """Of device work; a row of `_ops` has the place of its own."""
        self._threads: dict[tuple[Number, Number], tuple[int, int]] = {}
        self._processes: dict[Number, int] = {}
        self._named_devices: dict[Number, int] = {}
        self._ops, self._calls, self._ranges, self._host, self._overhead = (array("q") for _ in range(5))
        self._inputs: dict[tuple[bytes, bytes], int] = {}
        self._operators = array("q")
        """Of operators with inputs or a sequence number, few of the rows of the host: the row, both numbers."""
        self._groups = array("q")
        """Of the kernels of collectives: row, size of the process group, number of the name."""
        self._open: dict[tuple[Number, Number], list[Event]] = {}
        self.deepest = 0
        """How many ranges that were written as begin and end were open at once on one thread."""
        self._process_names: dict[int, str] = {}

    @property
    def threads(self) -> int:
        """How many threads there are so far."""
        return len(self._threads) + len(self._open)

    def add(self, events: list[Event]) -> None:
        """Take some events; what is neither timed nor known is counted or passed over."""
        self.seen += len(events)
        timed = self._timed
        for event in events:
            if event.ph == "X":
                timed(event, event.ts, event.dur)
            elif event.ph in ("B", "E"):
                self._half(event)
            elif event.ph == "M" and event.name == "process_name" and event.args is not None:
                pid = _whole(event.pid, -1)
                if pid >= 0 and isinstance(event.args.name, str):
                    self._process_names[pid] = printable(event.args.name, 200)

    def _half(self, event: Event) -> None:
        """Begin or end of a range that was not written as one event."""
        stack = self._open.setdefault((event.pid, event.tid), [])
        if event.ph == "B":
            stack.append(event)
            self.deepest = max(self.deepest, len(stack))
        elif stack:
            begun = stack.pop()
            known = begun.ts is not None and event.ts is not None
            self._timed(begun, begun.ts, float(Decimal(event.ts or 0) - Decimal(begun.ts or 0)) if known else None)

    def _timed(self, event: Event, begin: float | None, took: float | None) -> None:
        what = self._what.get((event.cat, event.name)) or self._learn(event.cat, event.name)
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
        if kind <= _MEMSET:
            self._op(event, what, start, end)
        elif kind == _CALL:
            correlation = event.args.correlation if event.args else -1
            if type(correlation) is not int or not 0 <= correlation < _LARGEST:
                correlation = _whole(correlation, -1)
            process, thread = self._threads.get((event.pid, event.tid)) or self._owner(event)
            self._calls.extend((start, end, process, thread, what.name, correlation))
        elif kind == _RANGE:
            self._ranges.extend((start, end, *self._owner(event), what.name, 0, model.PUSH_POP))
        elif kind == _OVERHEAD:
            self._overhead.extend((start, end))
        else:
            host = model.PYTHON
            if kind == _OPERATOR:
                host = model.OPERATOR
                if event.args is not None:
                    self._operator(event.args)
            process, thread = self._threads.get((event.pid, event.tid)) or self._owner(event)
            self._host.extend((start, end, process, thread, what.name, host))

    def _operator(self, arguments: Args) -> None:
        """Note what the operator that comes next in `_host` was called with."""
        sequence = arguments.sequence
        sequence = (sequence if type(sequence) is int else _whole(sequence, -1)) + 1
        inputs = 0
        if len(arguments.dims) > _EMPTY_LIST:
            key = (bytes(arguments.dims), bytes(arguments.types))
            known = self._inputs.get(key)
            inputs = self._inputs[key] = self._learn_inputs(*key) if known is None else known
        if not 0 < sequence < 1 << 31:
            sequence = 0
        if inputs or sequence:
            self._operators.extend((len(self._host) // _HOST_COLUMNS, inputs, sequence))

    def _learn_inputs(self, dims: bytes, types: bytes) -> int:
        """The number of the text of an operator's inputs; 0 for what is too long to be worth its memory."""
        try:
            shapes, kinds = (msgspec.json.format(text or b"[]", indent=-1) for text in (dims, types))
        except msgspec.DecodeError:
            return 0
        if len(shapes) + len(kinds) > model.LONGEST_NAME:
            return 0
        return self.names.number(printable(f"{shapes.decode()} {kinds.decode()}", model.LONGEST_NAME))

    def _op(self, event: Event, what: _What, start: int, end: int) -> None:
        arguments = event.args or _NO_ARGS
        device, stream, size = arguments.device, arguments.stream, arguments.bytes
        if type(device) is not int or not 0 <= device < _LARGEST:
            device = _whole(device if device is not None else arguments.inDevice, -1)
            if device < 0:
                device = self._device(event.pid)
        if type(stream) is not int or not 0 <= stream < _LARGEST:
            stream = _whole(stream if stream is not None else event.tid, 0)
        size = 0 if size is None else max(_whole(size, 0), 0)
        if arguments.group is not None:
            size = self._message(arguments)
        correlation = arguments.correlation
        if type(correlation) is not int or not 0 <= correlation < _LARGEST:
            correlation = _whole(correlation, -1)
        # The process is filled in when all launches are known; the rest all of one name have in common.
        self._ops.extend((start, end, device, stream, correlation, size, what.number))

    def _message(self, arguments: Args) -> int:
        """Note the process group of the collective that comes next in `_ops`; returns the bytes of its message."""
        ranks = _whole(arguments.group, 0)
        if 0 < ranks < 1 << 31:
            name = self.names.number(printable(str(arguments.collective or ""), model.LONGEST_NAME))
            self._groups.extend((len(self._ops) // _OPS_COLUMNS, ranks, name))
        elements = max(_whole(arguments.elements_in, 0), _whole(arguments.elements_out, 0), 0)
        return min(elements, 1 << 50) * ELEMENT_BYTES.get(str(arguments.dtype), 0)

    def _learn(self, category: str | None, text: str | None) -> _What:
        """Take the first event of its category and name: what it is, is found out once."""
        kind = _KINDS.get((category or "").lower().replace(" ", "_"), -1)
        if kind == _OPERATOR and RANGE_NAMES.match(text or ""):
            kind = _RANGE
        number = self.names.number
        if kind == _MEMCPY:
            what = self._copy(text or "")
        elif kind == _MEMSET:
            what = _What(kind, number("memset"), number("memset"))
        elif kind == _KERNEL:
            full = printable(text or "", model.LONGEST_NAME)
            what = _What(kind, number(short_kernel_name(full)), number(full))
        else:
            what = _What(kind, number(printable(text or "", model.LONGEST_NAME)) if kind >= 0 else 0)
        if 0 <= kind <= _MEMSET:
            what = replace(what, number=len(self._of_work))
            self._of_work.append(what)
        self._what[(category, text)] = what
        return what

    def _copy(self, text: str) -> _What:
        found = _COPY.match(text)
        direction = _COPY_DIRECTIONS.get(found[1], model.UNKNOWN) if found else model.UNKNOWN
        source = _MEMORIES.get(found[2] or "", model.MEMORY_UNKNOWN) if found else model.MEMORY_UNKNOWN
        target = _MEMORIES.get(found[3] or "", model.MEMORY_UNKNOWN) if found else model.MEMORY_UNKNOWN
        name = self.names.number(f"memcpy {model.DIRECTIONS[direction]}")
        return _What(_MEMCPY, name, name, direction, source, target)

    def _owner(self, event: Event) -> tuple[int, int]:
        """(process, thread). Ids are numbers as a rule; a name gets a number below zero, each name its own."""
        key = (event.pid, event.tid)
        owner = self._threads.get(key)
        if owner is None:
            process = self._processes.get(event.pid)
            if process is None:
                process = _whole(event.pid, -2 - len(self._processes))
                self._processes[event.pid] = process
                if process < 0 and isinstance(event.pid, str):
                    self._process_names[process] = printable(event.pid, 200)
            owner = self._threads[key] = (process, _whole(event.tid, -2 - len(self._threads)))
        return owner

    def _device(self, named: Number) -> int:
        """The device that stands where a process does, in events that do not say theirs: a number, or a name."""
        device = self._named_devices.get(named)
        if device is None:
            last = _LAST_NUMBER.search(named) if isinstance(named, str) else None
            device = int(last[1]) if last else max(_whole(named, 0), 0)
            self._named_devices[named] = device
        return device

    def _device_ops(self) -> model.DeviceOps:
        """The rows of `_ops`, with what all of one name have in common; `_ops` is emptied."""
        rows = np.frombuffer(self._ops, dtype=np.int64).reshape(-1, _OPS_COLUMNS)
        columns: dict[str, Any] = {name: np.array(rows[:, place]) for place, name in enumerate(_ROW_OF_WORK)}
        what = np.array(rows[:, -1])
        del rows  # an array that is looked into cannot be emptied
        del self._ops[:]
        for name, kind in _SHARED_BY_WORK.items():
            columns[name] = np.array([getattr(one, name) for one in self._of_work], dtype=kind)[what]
        columns["process"] = np.full(len(what), -1, dtype=np.int64)
        groups = np.frombuffer(self._groups, dtype=np.int64).reshape(-1, 3)
        for place, name in enumerate(("ranks", "collective"), 1):
            columns[name] = np.zeros(len(what), dtype=np.int32)
            columns[name][groups[:, 0]] = groups[:, place]
        return model.build(model.DeviceOps, columns)

    def trace(self, source: str, properties: dict[str, Any]) -> model.Trace:
        """Everything taken so far.

        Args:
            source: what the report calls the file.
            properties: its top-level fields besides the events.
        """
        trace = model.Trace(source=source, engine="kineto", names=self.names.all)
        base = _whole(properties.get("baseTimeNanoseconds"), 0)
        trace.ops = self._device_ops()
        trace.calls = _table(model.ApiCalls, self._calls)
        trace.ranges = _table(model.Ranges, self._ranges)
        numbers = np.frombuffer(self._operators, dtype=np.int64).reshape(-1, 3)
        trace.host = _table(
            model.HostSpans, self._host, {"inputs": numbers[:, [0, 1]], "sequence": numbers[:, [0, 2]]}
        )
        trace.overhead = _table(model.Table, self._overhead)
        trace.origin_unix_ns = base or None
        if self._broken:
            trace.notes.append(f"{self._broken} events have no time and are left out")
        _give_processes(trace)
        _describe(trace, properties)
        trace.process_names = {
            p: n for p, n in self._process_names.items() if p in set(trace.calls.process.tolist())
        }
        return trace


def _table(kind: type[model.TableT], flat: array[int], sparse: dict[str, Ns] | None = None) -> model.TableT:
    """Rows that lie one after another in `flat` as columns; `flat` is emptied.

    Args:
        kind: the type of the table.
        flat: its columns but the sparse ones.
        sparse: columns of which few rows are not 0, by name: pairs of row and value.
    """
    sparse = sparse or {}
    names = [name for name in kind.__dataclass_fields__ if name not in sparse]
    rows = np.frombuffer(flat, dtype=np.int64).reshape(-1, len(names))
    columns = {name: np.array(rows[:, i]) for i, name in enumerate(names)}
    for name, given in sparse.items():
        columns[name] = np.zeros(len(rows), dtype=np.int32)
        columns[name][given[:, 0]] = given[:, 1]
    made = model.build(kind, columns)
    del rows  # an array that is looked into cannot be emptied
    del flat[:]
    return made


def _give_processes(trace: model.Trace) -> None:
    """Give device events the process that launched them, from the launching call with the same correlation id."""
    calls, ops = trace.calls, trace.ops
    if not len(ops):
        return
    owners = calls.process if len(calls) else trace.host.process
    different, which = grouped(owners)
    usual = different[int(np.argmax(np.bincount(which)))][0] if different else 0
    process = np.full(len(ops), usual, dtype=np.int64)
    if len(different) > 1 and len(calls):
        order = np.argsort(calls.correlation, kind="stable")
        at = np.minimum(np.searchsorted(calls.correlation[order], ops.correlation), len(order) - 1)
        hit = (calls.correlation[order][at] == ops.correlation) & (ops.correlation >= 0)
        process = np.where(hit, calls.process[order][at], usual)
    ops.process[:] = process


def _describe(trace: model.Trace, properties: dict[str, Any]) -> None:
    devices = properties.get("deviceProperties")
    for device in devices if isinstance(devices, list) else []:
        if isinstance(device, dict) and isinstance(device.get("id"), int):
            sms = _whole(device.get("numSms"), -1)
            number, name = _whole(device["id"], -1), device.get("name")
            trace.gpus[number] = model.TracedGpu(
                number=number,
                name=printable(name, 100) if isinstance(name, str) and name else None,
                sm_count=sms if sms >= 0 else None,
            )
    place = properties.get("distributedInfo")
    if isinstance(place, dict) and isinstance(place.get("rank"), int) and len(trace.calls):
        process = int(trace.calls.process[0])
        trace.ranks.append(
            model.TracedRank(process, _whole(place["rank"], -1), _whole(place.get("world_size"), 0))
        )
    versions = [properties.get(key) for key in ("cuda_runtime_version", "cupti_version")]
    if isinstance(versions[0], int) and 0 < versions[0] < 1_000_000:
        trace.version = f"CUDA {versions[0] // 1000}.{versions[0] % 1000 // 10}"


def _whole(value: Any, default: int) -> int:
    if type(value) is not int:
        try:
            value = int(value)
        except (TypeError, ValueError, OverflowError):
            return default
    return value if -_LARGEST < value < _LARGEST else default


_PLAIN = re.compile(r"^[A-Za-z_]\w*$")


def short_kernel_name(full: str) -> str:
    """The name of a kernel without return type, namespaces, template arguments and parameters.

    What nsys calls the short name: "void at::native::foo<int>(int*)" is "foo".
    """
    if _PLAIN.match(full):
        return full
    depth, kept = 0, []
    text = full.replace("(anonymous namespace)", "").replace("<unnamed>", "").replace("->", "")
    for char in text:
        if char in "<":
            depth += 1
        elif char == ">":
            depth = max(0, depth - 1)
        elif char == "(" and depth == 0:
            break
        elif depth == 0:
            kept.append(char)
    last = "".join(kept).strip().split("::")[-1].split(" ")[-1]
    return last or full
