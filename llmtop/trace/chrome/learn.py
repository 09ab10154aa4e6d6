"""Names, kinds, threads and inputs, computed once for all equal events of a Chrome trace.

Names of categories changed over the years ("Kernel", "Runtime", "Operator" in 2021; "kernel", "cuda_runtime",
"cpu_op" now).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from llmtop.format import printable
from llmtop.trace import model
from llmtop.trace.chrome.fields import Args, Event, Number

KERNEL, MEMCPY, MEMSET, CALL, OPERATOR, RANGE, PYTHON, OVERHEAD = range(8)
_KINDS = {
    "kernel": KERNEL,
    "concurrent_kernel": KERNEL,
    "gpu_memcpy": MEMCPY,
    "memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "memset": MEMSET,
    "cuda_runtime": CALL,
    "cuda_driver": CALL,
    "runtime": CALL,
    "hip_runtime": CALL,
    "cpu_op": OPERATOR,
    "operator": OPERATOR,
    "user_annotation": RANGE,
    "python_function": PYTHON,
    "overhead": OVERHEAD,
}
LARGEST = 1 << 62
NO_ARGS = Args()
EMPTY_LIST = len("[]")
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
class EventType:
    """Properties that all events of one category and name share."""

    kind: int
    """-1 for a category that is of no use here."""
    name: int = 0
    full_name: int = 0
    direction: int = 0
    source_memory: int = model.MEMORY_UNKNOWN
    target_memory: int = model.MEMORY_UNKNOWN
    number: int = 0
    """Its place among those of device work."""
    place: int = 0
    """Its place among all."""


class TraceIndex:
    """Index of names, threads and devices of a trace. Numbers are given in order of first use."""

    def __init__(self) -> None:
        self.names = model.Names()
        self.what: dict[tuple[str | None, str | None], EventType] = {}
        """Event types by category and name."""
        self.places: dict[tuple[str | None, str | None], int] = {}
        """Their places in `all`."""
        self.all: list[EventType] = []
        self.of_work: list[EventType] = []
        """Types of device work; a row of it has the place of its own."""
        self.threads: dict[tuple[Number, Number], int] = {}
        """Places in `owners`, by pid and tid as they stand in the file."""
        self.owners: list[tuple[int, int]] = []
        """Process and thread."""
        self.inputs: dict[bytes, int] = {}
        """Numbers of texts by shapes and types; 0 for a text that is too long to be worth its memory."""
        self.collectives: dict[Any, int] = {}
        """Numbers of names, by the file's name of a collective."""
        self.process_names: dict[int, str] = {}
        self._processes: dict[Number, int] = {}
        self._devices: dict[Number, int] = {}

    def add_event_type(self, category: str | None, text: str | None) -> EventType:
        """Take the first event of its category and name."""
        kind = _KINDS.get((category or "").lower().replace(" ", "_"), -1)
        if kind == OPERATOR and RANGE_NAMES.match(text or ""):
            kind = RANGE
        number = self.names.number
        if kind == MEMCPY:
            what = self._copy(text or "")
        elif kind == MEMSET:
            what = EventType(kind, number("memset"), number("memset"))
        elif kind == KERNEL:
            full = printable(text or "", model.LONGEST_NAME)
            what = EventType(kind, number(short_kernel_name(full)), number(full))
        else:
            what = EventType(kind, number(printable(text or "", model.LONGEST_NAME)) if kind >= 0 else 0)
        what = replace(what, number=len(self.of_work), place=len(self.all))
        if 0 <= kind <= MEMSET:
            self.of_work.append(what)
        self.all.append(what)
        self.what[(category, text)] = what
        self.places[(category, text)] = what.place
        return what

    def _copy(self, text: str) -> EventType:
        found = _COPY.match(text)
        direction = _COPY_DIRECTIONS.get(found[1], model.UNKNOWN) if found else model.UNKNOWN
        source = _MEMORIES.get(found[2] or "", model.MEMORY_UNKNOWN) if found else model.MEMORY_UNKNOWN
        target = _MEMORIES.get(found[3] or "", model.MEMORY_UNKNOWN) if found else model.MEMORY_UNKNOWN
        name = self.names.number(f"memcpy {model.DIRECTIONS[direction]}")
        return EventType(MEMCPY, name, name, direction, source, target)

    def thread(self, event: Event) -> int:
        """Return the place of an event's owner. Ids are numbers as a rule; a name gets one below zero, each its
        own."""
        key = (event.pid, event.tid)
        place = self.threads.get(key)
        if place is None:
            process = self._processes.get(event.pid)
            if process is None:
                process = int_or(event.pid, -2 - len(self._processes))
                self._processes[event.pid] = process
                if process < 0 and isinstance(event.pid, str):
                    self.process_names[process] = printable(event.pid, 200)
            place = self.threads[key] = len(self.owners)
            self.owners.append((process, int_or(event.tid, -2 - place)))
        return place

    def device(self, named: Number) -> int:
        """Return the device that stands where a process does, in events that do not say theirs: a number, or a
        name."""
        device = self._devices.get(named)
        if device is None:
            last = _LAST_NUMBER.search(named) if isinstance(named, str) else None
            device = int(last[1]) if last else max(int_or(named, 0), 0)
            self._devices[named] = device
        return device

    def inputs_of(self, dims: msgspec.Raw, types: msgspec.Raw) -> int:
        """Return the number of the text of an operator's inputs."""
        key = b"\0".join((dims, types))
        known = self.inputs.get(key)
        if known is None:
            known = self.inputs[key] = self._learn_inputs(bytes(dims), bytes(types))
        return known

    def _learn_inputs(self, dims: bytes, types: bytes) -> int:
        try:
            shapes, kinds = (msgspec.json.format(text or b"[]", indent=-1) for text in (dims, types))
        except msgspec.DecodeError:
            return 0
        if len(shapes) + len(kinds) > model.LONGEST_NAME:
            return 0
        return self.names.number(printable(f"{shapes.decode()} {kinds.decode()}", model.LONGEST_NAME))

    def collective(self, name: Number) -> int:
        """Return the number of a collective's name."""
        known = self.collectives.get(name)
        if known is None:
            known = self.collectives[name] = self.names.number(printable(str(name or ""), model.LONGEST_NAME))
        return known


def int_or(value: Any, default: int) -> int:
    """Return a value of any type as an integer, `default` where it is not a number."""
    if type(value) is not int:
        try:
            value = int(value)
        except (TypeError, ValueError, OverflowError):
            return default
    return value if -LARGEST < value < LARGEST else default


_PLAIN = re.compile(r"^[A-Za-z_]\w*$")


def short_kernel_name(full: str) -> str:
    """Return the name of a kernel without return type, namespaces, template arguments and parameters.

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
