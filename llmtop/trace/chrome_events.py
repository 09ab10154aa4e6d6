"""From events of a Chrome trace to columns.

Names of categories changed over the years ("Kernel", "Runtime", "Operator" in 2021; "kernel", "cuda_runtime",
"cpu_op" now), and so did some arguments ("external id", "inDevice"). ts and dur are µs, since
`baseTimeNanoseconds` where the file has that, else since 1970 or boot.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np

from llmtop.format import printable
from llmtop.trace import model

Number = int | float | str | None


class Args(msgspec.Struct, gc=False):
    """Those of an event's arguments that matter here; any event may have any."""

    correlation: Number = None
    device: Number = None
    inDevice: Number = None  # noqa: N815  # the field's name in the file
    stream: Number = None
    bytes: Number = None
    name: Number = None


class Event(msgspec.Struct, gc=False):
    """One event, as far as it matters here."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    ts: int | float | None = None
    dur: int | float | None = None
    pid: Number = None
    tid: Number = None
    args: Args | None = None


class ExactEvent(Event, gc=False):
    """An event of a clock that counts from so long ago that a float cannot tell its nanoseconds."""

    ts: Decimal | None = None  # type: ignore[assignment]  # a number as well, and told apart nowhere


_PRODUCT_US = 2.0**42
COARSE_US = 2.0**43
"""From 102 days on a float of µs is more than a nanosecond off; of µs since 1970 it is 128."""


def lenient(raw: Any) -> Event:
    """An event of which single fields may have any type; what does not fit is dropped."""
    if not isinstance(raw, dict):
        return Event()
    known: dict[str, Any] = {}
    number = (int, float, Decimal)
    for field, kinds in (("ph", str), ("cat", str), ("name", str), ("ts", number), ("dur", number)):
        if isinstance(raw.get(field), kinds):
            known[field] = raw[field]
    for field in ("pid", "tid"):
        if isinstance(raw.get(field), int | float | Decimal | str):
            known[field] = raw[field]
    arguments = raw.get("args")
    if isinstance(arguments, dict):
        fields = {key: arguments[key] for key in Args.__struct_fields__ if key in arguments}
        known["args"] = Args(**{k: v for k, v in fields.items() if isinstance(v, int | float | str)})
    return Event(**known)


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
# Annotations that older versions wrote as operators.
_RANGE_NAMES = re.compile(r"ProfilerStep#|Optimizer\.(step|zero_grad)#|enumerate\(DataLoader\)#|\[pl\]\[profile\]")


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


class Collector:
    """Takes events in any order and makes a trace of them.

    Rows go flat into arrays of machine integers: as Python objects they would take ten times the memory.
    """

    def __init__(self) -> None:
        self.seen = 0
        self.names = model.Names()
        self._broken = 0
        self._what: dict[tuple[str | None, str | None], _What] = {}
        self._threads: dict[tuple[Number, Number], tuple[int, int]] = {}
        self._processes: dict[Number, int] = {}
        self._named_devices: dict[Number, int] = {}
        self._ops, self._calls, self._ranges, self._host, self._overhead = (array("q") for _ in range(5))
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
        for event in events:
            if event.ph == "X":
                self._timed(event, event.ts, event.dur)
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
        if type(begin) is not float or begin < _PRODUCT_US:
            start = round(begin * 1000)
        else:
            # The product would be rounded once more; the fraction by itself is not, up to COARSE_US.
            start = int(begin) * 1000 + round(begin % 1 * 1000)
        end = start + round(took * 1000)
        if kind <= _MEMSET:
            self._op(event, what, start, end)
        elif kind == _CALL:
            correlation = _whole(event.args.correlation, -1) if event.args else -1
            self._calls.extend((start, end, *self._owner(event), what.name, correlation))
        elif kind == _RANGE:
            self._ranges.extend((start, end, *self._owner(event), what.name, 0, model.PUSH_POP))
        elif kind == _OVERHEAD:
            self._overhead.extend((start, end))
        else:
            host = model.PYTHON if kind == _PYTHON else model.OPERATOR
            self._host.extend((start, end, *self._owner(event), what.name, host))

    def _op(self, event: Event, what: _What, start: int, end: int) -> None:
        arguments = event.args or _NO_ARGS
        device = _whole(arguments.device if arguments.device is not None else arguments.inDevice, -1)
        if device < 0:
            device = self._device(event.pid)
        stream = _whole(arguments.stream if arguments.stream is not None else event.tid, 0)
        size = max(_whole(arguments.bytes, 0), 0)
        # The order of model.DeviceOps; the process is filled in when all launches are known.
        self._ops.extend(
            (
                start,
                end,
                what.kind,
                device,
                -1,
                stream,
                what.name,
                what.full_name,
                _whole(arguments.correlation, -1),
            )
        )
        self._ops.extend((size, what.direction, what.source_memory, what.target_memory))

    def _learn(self, category: str | None, text: str | None) -> _What:
        """Take the first event of its category and name: what it is, is found out once."""
        kind = _KINDS.get((category or "").lower().replace(" ", "_"), -1)
        if kind == _OPERATOR and _RANGE_NAMES.match(text or ""):
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

    def trace(self, source: str, properties: dict[str, Any]) -> model.Trace:
        """Everything taken so far.

        Args:
            source: what the report calls the file.
            properties: its top-level fields besides the events.
        """
        trace = model.Trace(source=source, engine="kineto", names=self.names.all)
        base = _whole(properties.get("baseTimeNanoseconds"), 0)
        trace.ops = _table(model.DeviceOps, self._ops)
        trace.calls = _table(model.ApiCalls, self._calls)
        trace.ranges = _table(model.Ranges, self._ranges)
        trace.host = _table(model.HostSpans, self._host)
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


def _table(kind: type[model.TableT], flat: array[int]) -> model.TableT:
    """Rows that lie one after another in `flat` as columns; `flat` is emptied."""
    names = list(kind.__dataclass_fields__)
    rows = np.frombuffer(flat, dtype=np.int64).reshape(-1, len(names))
    made = model.build(kind, {name: np.array(rows[:, i]) for i, name in enumerate(names)})
    del rows  # an array that is looked into cannot be emptied
    del flat[:]
    return made


def _give_processes(trace: model.Trace) -> None:
    """Give device events the process that launched them, from the launching call with the same correlation id."""
    calls, ops = trace.calls, trace.ops
    if not len(ops):
        return
    owners = calls.process if len(calls) else trace.host.process
    different, counts = np.unique(owners, return_counts=True)
    usual = int(different[np.argmax(counts)]) if len(different) else 0
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
    return value if -(1 << 62) < value < (1 << 62) else default


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
