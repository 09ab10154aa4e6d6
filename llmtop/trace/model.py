"""A capture in memory, the same whatever tool made it: tables of numpy columns, one row an event.

All times are ns since `Trace.origin_unix_ns` or, where the file does not say when that was, since an unknown
instant. Names are numbers into `Trace.names`. Nothing here knows a file format, and no rule is applied yet.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from llmtop.naming import device_names
from llmtop.trace.groups import distinct_values
from llmtop.trace.intervals import Ns, Numbers

Framework: TypeAlias = Literal["JAX", "torch_xla"]
JAX_PROFILER: Final = "jax.profiler"
XLA_PROFILER: Final = "xla.profiler"
_FRAMEWORKS: Final[dict[str, Framework]] = {JAX_PROFILER: "JAX", XLA_PROFILER: "torch_xla"}

KERNEL, MEMCPY, MEMSET, GRAPH = 0, 1, 2, 3
"""Kinds of device work. GRAPH is a CUDA graph of which the tool recorded only when it ran as a whole: what its
kernels were, and whether the device paused between them, is not known."""

UNKNOWN, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, HOST_TO_HOST, PEER = 0, 1, 2, 8, 9, 10
"""Directions of a copy, numbered as CUPTI does (CUpti_ActivityMemcpyKind)."""
DIRECTIONS = {
    UNKNOWN: "unknown",
    HOST_TO_DEVICE: "host-to-device",
    DEVICE_TO_HOST: "device-to-host",
    3: "host-to-array",
    4: "array-to-host",
    5: "array-to-array",
    6: "array-to-device",
    7: "device-to-array",
    DEVICE_TO_DEVICE: "device-to-device",
    HOST_TO_HOST: "host-to-host",
    PEER: "peer-to-peer",
    11: "unified host-to-device",
    12: "unified device-to-host",
    13: "unified device-to-device",
}
PAGEABLE, PINNED, DEVICE, MEMORY_UNKNOWN = 0, 1, 2, 7
MEMORIES = {
    PAGEABLE: "pageable",
    PINNED: "pinned",
    DEVICE: "device",
    3: "array",
    4: "managed",
    5: "device-static",
    6: "managed-static",
    MEMORY_UNKNOWN: "unknown",
}
"""Kinds of memory, numbered as nsys exports them (ENUM_CUDA_MEM_KIND)."""

PUSH_POP, START_END = 0, 1
"""Styles of a range: nested on one thread, or begun and ended anywhere."""

OPERATOR, OS_CALL, PYTHON = 0, 1, 2
"""Kinds of host activity: an operator of the framework, a call into the C library that may wait, a frame."""

Runs: TypeAlias = dict[int, slice]
"""Rows of each value of a column, where they follow one another."""

T = TypeVar("T")
TableT = TypeVar("TableT", bound="Table")


@dataclass(frozen=True)
class Table:
    """Columns of equal length, int64 by default; a row has the same index in each."""

    start: Ns
    end: Ns
    """Time in ns since instant 0 of the trace (`Trace.origin_unix_ns`)."""

    def __len__(self) -> int:
        return len(self.start)

    def part(self: TableT, rows: slice) -> TableT:
        """Return rows that follow one another, in the table's own memory."""
        return type(self)(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def select(self: TableT, chosen: npt.NDArray[Any]) -> TableT:
        """Return some of the rows.

        Args:
            chosen: a boolean for each row, or the numbers of the rows in the order wanted.

        Returns:
            The table itself when these are all of its rows in their order; rows that follow one another are in
            the table's own memory: tables are never changed.
        """
        run = _run_of_rows(chosen)
        if run is not None and run.stop - run.start == len(self):
            return self
        return type(self)(**{f.name: take_rows(getattr(self, f.name), chosen, run) for f in fields(self)})


def take_rows(column: npt.NDArray[Any], chosen: npt.NDArray[Any], run: slice | None = None) -> npt.NDArray[Any]:
    """Return some rows of a column, without a copy where they follow one another or are all the same.

    Args:
        column: of any type.
        chosen: as in `Table.select`.
        run: the same rows, where the caller knows that they follow one another.
    """
    run = run or _run_of_rows(chosen)
    if run is not None:
        return column[run]
    if _is_constant(column):
        rows = int(np.count_nonzero(chosen)) if chosen.dtype == np.bool_ else len(chosen)
        return np.broadcast_to(column[0], rows)
    return np.asarray(column[chosen])


def _run_of_rows(chosen: npt.NDArray[Any]) -> slice | None:
    """Return the rows as a slice where they follow one another, as those of one file among several do."""
    if not len(chosen):
        return None
    if chosen.dtype == np.bool_:
        first, stop = int(chosen.argmax()), len(chosen) - int(chosen[::-1].argmax())
        return slice(first, stop) if bool(chosen[first:stop].all()) else None
    first, stop = int(chosen[0]), int(chosen[-1]) + 1
    in_order = first >= 0 and stop - first == len(chosen) and bool((chosen[1:] > chosen[:-1]).all())
    return slice(first, stop) if in_order else None


@dataclass(frozen=True)
class DeviceOps(Table):
    """Work of a device: kernels, copies, memsets and graphs traced as a whole, one row each, in no order."""

    kind: npt.NDArray[np.int8]
    """KERNEL, MEMCPY, MEMSET or GRAPH."""
    device: Ns
    """The number of the GPU, as the tool counts."""
    process: Ns
    """The pid of the process that launched it."""
    stream: Ns
    name: npt.NDArray[np.int32]
    """The short name, of a kernel without template arguments."""
    full_name: npt.NDArray[np.int32]
    """The name with all its template arguments."""
    correlation: Numbers
    """Joins with `ApiCalls.correlation` within a process; -1 where the tool did not say."""
    bytes: Ns
    """Copied or set; of a collective's kernel its message, the larger of what goes in and out of one rank; 0 for
    other kernels and where the file does not say."""
    direction: npt.NDArray[np.int8]
    """Direction of a copy: a key of `DIRECTIONS`."""
    source_memory: npt.NDArray[np.int8]
    target_memory: npt.NDArray[np.int8]
    """Memories of a copy: keys of `MEMORIES`."""
    ranks: npt.NDArray[np.int32]
    """Size of the process group of a collective's kernel; 0 where the file does not give it."""
    collective: npt.NDArray[np.int32]
    """PyTorch's name of a collective's kernel; 0 where the file does not give it. The kernels of RCCL share one
    name."""
    hlo: npt.NDArray[np.int32]
    """A name: XLA's operation that this is of, as fusion.3; 0 where it is of none, or the file does not say."""
    hlo_module: npt.NDArray[np.int32]
    """A name: the compiled function that the operation is of, as jit_train_step."""
    hlo_category: npt.NDArray[np.int32]
    """A name: what kind of operation that is."""
    hlo_source: npt.NDArray[np.int32]
    """A name: the framework's operation that it was made of, as jit(train_step)/jvp(mlp)/dot_general."""


@dataclass(frozen=True)
class ApiCalls(Table):
    """Calls of the CUDA runtime and driver, as the host saw them."""

    process: Ns
    """The pid, as the tool gives it."""
    thread: Ns
    """The tid."""
    name: npt.NDArray[np.int32]
    correlation: Numbers
    place: npt.NDArray[np.int32]
    """A name: where in the program the call was made; 0 where no stack of it was recorded."""


@dataclass(frozen=True)
class Ranges(Table):
    """NVTX ranges and user annotations. An `end` of `OPEN` was never seen."""

    process: Ns
    thread: Ns
    name: npt.NDArray[np.int32]
    domain: npt.NDArray[np.int32]
    """A name; 0 (the empty name) is the default domain."""
    style: npt.NDArray[np.int8]


CPU, TPU = device_names.ON_CPU, device_names.TPU
OPEN = np.iinfo(np.int64).max


@dataclass(frozen=True)
class HostSpans(Table):
    """Activities of threads besides CUDA calls: operators, waits in the C library, Python frames."""

    process: Ns
    thread: Ns
    name: npt.NDArray[np.int32]
    kind: npt.NDArray[np.int8]
    inputs: npt.NDArray[np.int32]
    """Inputs of an operator: the name that is the JSON of its inputs' shapes, a space, and that of their types;
    0 where they were not recorded."""
    sequence: npt.NDArray[np.int32]
    """One more than autograd's sequence number of an operator, which a forward operator and the backward one
    made for it share; 0 where there is none."""


SLEEPING, WAITING, PREEMPTED = 1, 2, 3
"""Why a thread was off the CPU; 0 where the file does not say."""


@dataclass(frozen=True)
class OffCpu(Table):
    """When threads that call CUDA were off the CPU."""

    process: Ns
    thread: Ns
    why: npt.NDArray[np.int8]
    """SLEEPING, WAITING, PREEMPTED or 0."""


CPU_SAMPLE, PYTHON_SAMPLE = 0, 1
"""Kinds of stack samples: by the CPU's counters, of a thread that was on a CPU; by the interpreter, of any."""


@dataclass(frozen=True)
class StackSamples(Table):
    """Where threads were at single instants; `end` is `start`."""

    process: Ns
    thread: Ns
    """The tid; below zero the number that the tool gives a thread of Python other than the main one, whose tid is
    that of its process."""
    kind: npt.NDArray[np.int8]
    """CPU_SAMPLE or PYTHON_SAMPLE."""
    name: npt.NDArray[np.int32]
    """The innermost frame."""
    caller: npt.NDArray[np.int32]
    """A name: of Python the innermost frame that is no library's, of C the nearest frame of another module; 0 for
    none."""


HOST_MEMORY = -1
"""Value in place of a device's number."""


@dataclass(frozen=True)
class MemoryEvents(Table):
    """Allocations and releases of memory; `end` is `start`."""

    process: Ns
    thread: Ns
    """The tid; 0 where the file does not say."""
    device: Ns
    """The number of the GPU; `HOST_MEMORY`."""
    memory: npt.NDArray[np.int8]
    """A key of `MEMORIES`."""
    bytes: Ns
    """Below zero for a release."""
    level: Ns
    """Bytes in use afterwards, as the allocator counts them; -1 where the file does not say."""
    reserved: Ns
    """Bytes that the allocator holds then, used or not; -1 where the file does not say."""
    place: npt.NDArray[np.int32]
    """A name: where in the program that was; 0 where the file does not say."""


@dataclass(frozen=True)
class SampledMetric:
    """One hardware counter over time, in percent of its peak, in buckets of equal length."""

    device: int
    name: str
    """sm_active, tensor_active, dram_read, dram_write, pcie_rx, pcie_tx, nvlink_rx or nvlink_tx."""
    start: int
    """Where the first bucket begins, in ns since instant 0 of the trace."""
    bucket_ns: float
    values: npt.NDArray[np.float64]
    """The mean of each bucket, in percent; NaN where a bucket has no sample."""


@dataclass(frozen=True)
class TracedGpu:
    """Facts of the tool on a device; None for a number that it does not give."""

    number: int
    """Number, as in `DeviceOps.device`."""
    name: str | None = None
    uuid: str | None = None
    dram_bytes_per_s: float | None = None


@dataclass(frozen=True)
class TracedRank:
    """Place of a file's process in a distributed run, from the file or from capture.json."""

    process: int
    """The pid, as in the tables."""
    rank: int
    world_size: int
    """0: not known."""


@dataclass
class Trace:
    """A capture. Tables are never None: what a file lacks is an empty table."""

    source: str
    engine: str
    """"nsys", "kineto", "jax.profiler" or "xla.profiler"."""
    version: str = ""
    """The tool's version, as it writes it."""
    operators_of_a_part: bool = False
    """True if operators, if there are any, were recorded for a part of the file only: PyTorch's marks for nsys."""
    names: list[str] = field(default_factory=lambda: [""])
    """All names, by their number in the tables; 0 is the empty name."""
    ops: DeviceOps = field(default_factory=lambda: empty(DeviceOps))
    calls: ApiCalls = field(default_factory=lambda: empty(ApiCalls))
    ranges: Ranges = field(default_factory=lambda: empty(Ranges))
    host: HostSpans = field(default_factory=lambda: empty(HostSpans))
    off_cpu: OffCpu = field(default_factory=lambda: empty(OffCpu))
    samples: StackSamples = field(default_factory=lambda: empty(StackSamples))
    memory: MemoryEvents = field(default_factory=lambda: empty(MemoryEvents))
    overhead: Table = field(default_factory=lambda: empty(Table))
    """Time that the tool itself took in the traced process."""
    metrics: list[SampledMetric] = field(default_factory=list)
    gpus: dict[int, TracedGpu] = field(default_factory=dict)
    """GPUs by `DeviceOps.device`."""
    gpu_of: dict[tuple[int, int], TracedGpu] = field(default_factory=dict)
    """GPUs by process and `DeviceOps.device`, where the tool records it: a process counts the GPUs that it can
    see, so every rank may call its own 0."""
    file_of: dict[int, int] = field(default_factory=dict)
    """File of each pid, where several files were read together."""
    ranks: list[TracedRank] = field(default_factory=list)
    process_names: dict[int, str] = field(default_factory=dict)
    """Names by pid."""
    origin_unix_ns: int | None = None
    """Unix time of the trace's instant 0, in ns; None where the file does not say."""
    notes: list[str] = field(default_factory=list)
    """Sentences: what of the file was left out, and why."""
    which_run: str = ""
    """Which of a folder's runs this is, in a sentence; "" where the folder has one."""
    _kept: dict[str, tuple[object, Any]] = field(default_factory=dict, repr=False, compare=False)
    _runs: dict[str, tuple[Table, Runs | None]] = field(default_factory=dict, repr=False, compare=False)

    def once(self, what: str, key: object, make: Callable[[], T]) -> T:
        """Return the value of `make`, kept until `what` is requested with another key. A trace has hundreds of
        device timelines and a hundred thousand names, so values common to all timelines of a process are
        computed once."""
        kept = self._kept.get(what)
        if kept is None or kept[0] != key:
            kept = self._kept[what] = (key, make())
        return kept[1]

    @property
    def framework(self) -> Framework | None:
        """Framework of the program, where the tool records it; None where it may be PyTorch."""
        return _FRAMEWORKS.get(self.engine)

    def gpu(self, process: int, device: int) -> TracedGpu | None:
        """Return the GPU that a process calls by that number; None if unknown."""
        return self.gpu_of.get((process, device)) or self.gpus.get(device)

    def same_gpu(self, one: tuple[int, int], other: tuple[int, int]) -> bool:
        """Return True if two processes mean the same GPU; of each its pid and its number for it.

        A UUID decides it. Without one, equal numbers mean the same GPU in one file, and in several files, which
        are those of several ranks, different ones: ranks do not share a GPU.
        """
        gpus = [self.gpu(*one), self.gpu(*other)]
        uuids = [gpu.uuid for gpu in gpus if gpu is not None and gpu.uuid is not None]
        if len(uuids) == 2:
            return uuids[0] == uuids[1]
        return one[1] == other[1] and self.file_of.get(one[0]) == self.file_of.get(other[0])

    @functools.cached_property
    def launched_by(self) -> Ns:
        """For each device op the row of the API call that launched it; -1 where there is none."""
        calls, ops = self.calls, self.ops
        found = np.full(len(ops), -1, dtype=index_type(len(calls)))
        of_calls, of_ops = runs_of_values(calls.process), runs_of_values(ops.process)
        if of_calls is None or of_ops is None:
            keys = join_keys(calls.process, calls.correlation, ops.process, ops.correlation)
            return found if keys is None else _rows_of_keys(*keys, ops.correlation >= 0).astype(found.dtype)
        for process, own in of_ops.items():
            made = of_calls.get(process)
            if made is not None:
                wanted = ops.correlation[own]
                row = _rows_of_keys(calls.correlation[made], wanted, wanted >= 0)
                found[own] = np.where(row >= 0, row + made.start, -1)
        return found

    def rows_of(self, table: Literal["ops", "calls", "ranges", "host"], process: int) -> slice:
        """Return rows of a table of which all of a process are: its own where they follow one another, as in files
        read together, else all rows."""
        runs = self._runs.get(table)
        if runs is None or runs[0] is not getattr(self, table):
            runs = self._runs[table] = (getattr(self, table), runs_of_values(getattr(self, table).process))
        return slice(0, len(runs[0])) if runs[1] is None else runs[1].get(process, slice(0, 0))

    @functools.cached_property
    def window(self) -> tuple[int, int]:
        """The first and the last instant of any device op, API call or finished range, in ns; (0, 0) if none."""
        tables = [self.ops, self.calls, self.ranges.select(self.ranges.end != OPEN), self.host]
        filled = [table for table in tables if len(table)] or [self.samples]
        if not len(filled[0]):
            return 0, 0
        return min(int(t.start.min()) for t in filled), max(int(t.end.max()) for t in filled)


def index_type(rows: int) -> type[np.signedinteger[Any]]:
    """Return the narrowest type that holds the numbers of so many rows, and -1."""
    return np.int32 if rows <= np.iinfo(np.int32).max else np.int64


def runs_of_values(column: npt.NDArray[Any]) -> Runs | None:
    """Return the rows of each value of a column, where they follow one another, as the processes of several files
    do; None where a value comes back after others."""
    if not len(column):
        return {}
    begins = np.append(0, np.flatnonzero(column[1:] != column[:-1]) + 1)
    values = column[begins]
    if len(distinct_values(values)) < len(values):
        return None
    edges = itertools.pairwise([*begins.tolist(), len(column)])
    return {value: slice(*edge) for value, edge in zip(values.tolist(), edges, strict=True)}


def _rows_of_keys(keys: Ns, wanted: Ns, known: npt.NDArray[np.bool_]) -> Ns:
    """Return for each wanted key the first row that has it; -1 where none has, or the key is not known."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return np.where((ordered[at] == wanted) & known, order[at], -1)


def join_keys(call_process: Ns, call_correlation: Ns, op_process: Ns, op_correlation: Ns) -> tuple[Ns, Ns] | None:
    """Return one join key per row for (process, correlation id), comparable between calls and device work.

    Args:
        call_process: pid of each API call, shape (calls,).
        call_correlation: correlation id of each, unsigned 32 bit, or -1 for none.
        op_process: pid of each row of device work, shape (ops,).
        op_correlation: its correlation id, likewise.

    Returns:
        Keys of the calls and of the device work, of the shapes above; None where one side has no rows.
    """
    if not len(call_process) or not len(op_process):
        return None
    processes = distinct_values(np.concatenate([distinct_values(call_process), distinct_values(op_process)]))
    return (
        (np.searchsorted(processes, call_process) << 33) + call_correlation,
        (np.searchsorted(processes, op_process) << 33) + op_correlation,
    )


def pairs(one: Ns, other: Ns) -> Ns:
    """Return the different pairs that two columns of equal length have, in order: an array of two columns.

    Ten times faster than np.unique over rows, which sorts them as records.
    """
    ones, which_one = np.unique(one, return_inverse=True)
    others, which_other = np.unique(other, return_inverse=True)
    width = max(len(others), 1)
    found = distinct_values(which_one.reshape(-1) * width + which_other.reshape(-1))
    return np.stack([ones[found // width], others[found % width]], axis=1)


_KINDS = dict.fromkeys(("kind", "style", "why", "direction", "source_memory", "target_memory", "memory"), np.int8)
_KINDS |= dict.fromkeys(
    ("name", "full_name", "domain", "inputs", "sequence", "ranks", "collective", "place", "caller"), np.int32
)
_KINDS |= dict.fromkeys(("hlo", "hlo_module", "hlo_category", "hlo_source"), np.int32)
"""Types of columns that are no int64."""


def empty(table: type[TableT]) -> TableT:
    """Return a table of that type without rows."""
    return build(table, {})


def build(table: type[TableT], columns: dict[str, Any]) -> TableT:
    """Make a table; a column that is missing is 0 throughout.

    Args:
        table: its type.
        columns: lists or arrays of equal length by the name of the column; times in ns.

    Raises:
        ValueError: columns of different lengths.
    """
    rows = max((len(values) for values in columns.values()), default=0)
    made: dict[str, Any] = {}
    for column in fields(table):
        kind = _KINDS.get(column.name, np.int64)
        values = np.asarray(columns.get(column.name, np.zeros(rows, dtype=kind)), dtype=kind)
        if len(values) != rows:
            raise ValueError(f"{table.__name__}.{column.name} has {len(values)} rows, not {rows}")
        made[column.name] = shared_if_constant(values)
    if "correlation" in made:
        made["correlation"] = narrowed(made["correlation"])
    return table(**made)


def narrowed(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a column of whole numbers in 32 bits where all of them fit."""
    bounds = np.iinfo(np.int32)
    fits = not len(column) or (int(column.min()) >= bounds.min and int(column.max()) <= bounds.max)
    return change_values(column, lambda values: values.astype(np.int32)) if fits else column


def shared_if_constant(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a column whose rows are all the same, as a process as a rule, in the memory of one of them."""
    if len(values) > 1 and values[0] == values[-1] and bool((values == values[0]).all()):
        return np.broadcast_to(values[0].copy(), values.shape)
    return values


def _is_constant(column: npt.NDArray[Any]) -> bool:
    """Return True if the rows of a column share the memory of one."""
    return len(column) > 1 and column.strides[0] == 0


def change_values(
    column: npt.NDArray[Any], change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    """Return a column with `change` of each value; one whose rows are all the same stays in the memory of one."""
    if _is_constant(column):
        return np.broadcast_to(change(column[:1])[0], column.shape)
    return change(column)


def joined(tables: list[TableT]) -> TableT:
    """Return the rows of all tables, of the same type, after one another."""
    kind = type(tables[0])
    filled = [table for table in tables if len(table)]
    if len(filled) < 2:
        return filled[0] if filled else tables[0]
    return kind(**{f.name: join_columns([getattr(t, f.name) for t in filled]) for f in fields(kind)})


def join_columns(columns: list[npt.NDArray[Any]], *, narrow: bool = False) -> npt.NDArray[Any]:
    """Return the values of all columns after one another.

    Args:
        columns: of one name, of tables with rows.
        narrow: whether to take 32 bits for whole numbers where all of them fit.
    """
    same = all(_is_constant(column) and column[0] == columns[0][0] for column in columns)
    if same:
        return np.broadcast_to(columns[0][0], sum(map(len, columns)))
    return np.concatenate([narrowed(column) for column in columns] if narrow else columns)


LONGEST_NAME = 16_384
"""Characters of a name that are kept. Kernels of CUTLASS, with all their template arguments, have up to 10,000."""
_NAME_COST = 200
"""Cost of a name besides its characters, in the same unit."""


class Names:
    """Gives each different name a number; 0 is the empty name."""

    def __init__(self) -> None:
        self.all: list[str] = [""]
        self.characters = 0
        """Characters of all names together, with the fixed cost of each."""
        self._numbers: dict[str, int] = {"": 0}

    def number(self, name: str) -> int:
        """Return the number of a name, a new one for a new name."""
        found = self._numbers.get(name)
        if found is None:
            found = self._numbers[name] = len(self.all)
            self.all.append(name)
            self.characters += len(name) + _NAME_COST
        return found
