"""A snapshot of PyTorch's CUDA allocator as columns: segments, blocks, and the history of both.

`torch.cuda.memory._snapshot` gives lists of dicts, and is kept as a pickle. A pickle is a program; what a snapshot
has in it are numbers, texts and lists of them, so whatever else a file asks for is refused before it is done.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from llmtop.errors import UnusableInput
from llmtop.format import printable
from llmtop.memory.frames import Stack, StackLine, normalized_file, stack_of
from llmtop.memory.pickle_memo import check_memo
from llmtop.system.inputs import DEFAULT, Limits, open_input

Ints = npt.NDArray[np.int64]

ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, OOM, OTHER = range(7)
_ACTIONS: Final = {
    "alloc": ALLOC,
    "free_requested": FREE_REQUESTED,
    "free_completed": FREE_COMPLETED,
    "segment_alloc": SEGMENT_ALLOC,
    "segment_map": SEGMENT_ALLOC,
    "segment_free": SEGMENT_FREE,
    "segment_unmap": SEGMENT_FREE,
    "oom": OOM,
}
INACTIVE, ACTIVE, AWAITING_FREE = range(3)
_STATES: Final = {
    "inactive": INACTIVE,
    "active_allocated": ACTIVE,
    "active_pending_free": AWAITING_FREE,
    "active_awaiting_free": AWAITING_FREE,
}
_LARGEST: Final = 1 << 42
"""Bytes; no piece of device memory is larger, and sums of what is not stay below 2**63."""
_DEEPEST: Final = 2048
"""Frames of a stack that are read, the innermost ones: of C++ there are several for one of Python."""
_NAMES: Final = 400
"""Characters of a file's or function's name."""
LLMTOP_PREFIX: Final = "llmtop"
"""The key under which llmtop's own capture adds what it knows: when steps began, and whose some tensors are."""


class AllocatorPhase(NamedTuple):
    """One stretch of time with a name."""

    name: str
    begin_us: int
    end_us: int


@dataclass(frozen=True)
class Blocks:
    """Pieces of segments, one row each, by address within their segment."""

    address: Ints
    bytes: Ints
    requested: Ints
    """Requested bytes; the allocator rounds up."""
    state: Ints
    stack: Ints
    segment: Ints


@dataclass(frozen=True)
class AllocatorEvents:
    """Events of the allocator, one row each, in order."""

    action: Ints
    address: Ints
    bytes: Ints
    """Requested bytes; for an out-of-memory error the refused ones."""
    stack: Ints
    time_us: Ints
    """Unix time; 0 where the snapshot has none."""
    device_free: Ints
    """Memory that CUDA had left at an out-of-memory error; else -1."""

    def __len__(self) -> int:
        return len(self.action)


class FailedAllocation(NamedTuple):
    """An allocation that failed."""

    wanted_bytes: int
    device_free_bytes: int
    """Memory that CUDA had left."""
    stack: int


@dataclass(frozen=True)
class DeviceMemory:
    """The allocator of one device."""

    device: int
    segment_bytes: Ints
    expandable: bool
    """True if some segment can grow in place."""
    blocks: Blocks
    events: AllocatorEvents
    failed: tuple[FailedAllocation, ...] = ()
    """Allocations that failed, as the training noted them where no history was recorded."""


@dataclass(frozen=True)
class MemorySnapshot:
    """All that a file holds."""

    source: str
    devices: tuple[DeviceMemory, ...]
    stacks: tuple[Stack, ...]
    """Stacks by number: the columns called `stack` hold these numbers. The first is empty."""
    phases: tuple[AllocatorPhase, ...] = ()
    steps_us: tuple[int, ...] = ()
    """When steps began, in Unix time, and at last when the last one ended."""
    owners: dict[int, str] = field(default_factory=dict)
    """Owners by address: "parameters", "gradients" or "optimizer", where the training reported them."""


class _PlainData(pickle.Unpickler):
    """Makes numbers, texts, lists, tuples and dicts only."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise _Code(f"{module_name}.{global_name}")


class _Code(pickle.UnpicklingError):
    """A pickle names a class or a function."""


def load(path: Path, limits: Limits = DEFAULT) -> MemorySnapshot:
    """Read a snapshot.

    Args:
        path: a pickle of what `torch.cuda.memory._snapshot` gives.
        limits: how large it may be.

    Raises:
        UnusableInput: it cannot be read, is damaged, holds more than plain data, or is no snapshot.
    """
    with open_input(path) as file:
        try:
            limits.check_snapshot(path, os.fstat(file.fileno()).st_size)
            data = _unpickle(file)
        except _Code as error:
            raise UnusableInput(
                f"{path} asks for {printable(str(error), 80)}, and a memory snapshot is plain data: it was not "
                "read; make it with llmtop capture --engine memory or torch.cuda.memory._dump_snapshot"
            ) from None
        except OSError as error:
            raise UnusableInput(f"{path} cannot be read: {error.strerror}; check its permissions") from None
        except _DAMAGE as error:
            raise UnusableInput(
                f"{path} is a damaged or cut pickle ({printable(str(error), 120) or type(error).__name__}); take "
                "the snapshot again"
            ) from None
    try:
        return _Reader(str(path), limits).read(data)
    except (TypeError, ValueError, OverflowError, KeyError, AttributeError) as error:
        raise _no_snapshot(path, printable(str(error), 120)) from None


_DAMAGE = (
    pickle.UnpicklingError,
    EOFError,
    AttributeError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors of the unpickler for damaged bytes."""


def _unpickle(file: io.BufferedReader) -> Any:
    import gc

    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        check_memo(data)
    # A million dicts and lists: looking for cycles among them again and again takes longer than reading them.
    collects = gc.isenabled()
    gc.disable()
    try:
        return _PlainData(file).load()
    finally:
        if collects:
            gc.enable()


def _no_snapshot(path: object, why: str) -> UnusableInput:
    return UnusableInput(
        f"{path} is a pickle but no snapshot of torch.cuda.memory ({why}): make one with llmtop capture "
        "--engine memory"
    )


class _Reader:
    """Converter from lists of dicts to columns; data of any other form is refused."""

    def __init__(self, source: str, limits: Limits) -> None:
        self._source = source
        self._limits = limits
        self._stacks: dict[Stack, int] = {(): 0}
        self._by_identity: dict[int, int] = {}
        """Stacks that torch shares between events are one list after unpickling, too; `read` holds them all."""
        self._by_frames: dict[tuple[int, ...], int] = {}
        """Most are not: each event has a list of its own, of frames that are one dict for each place in code."""
        self._frames: dict[int, StackLine] = {}
        self._failed: dict[int, list[FailedAllocation]] = {}

    def read(self, data: Any) -> MemorySnapshot:
        if not isinstance(data, dict) or not isinstance(data.get("segments"), list):
            raise _no_snapshot(self._source, "it has no list of segments")
        traces = _list_or_raise(data.get("device_traces"))
        segments: dict[int, list[dict[str, Any]]] = {}
        for segment in data["segments"]:
            segments.setdefault(_whole(segment.get("device", 0)), []).append(segment)
        numbers = sorted({*segments, *(number for number, trace in enumerate(traces) if trace)})
        self._limits.check_number(self._source, "devices", len(numbers))
        rows = sum(len(_list_or_raise(trace)) for trace in traces)
        rows += sum(
            len(_list_or_raise(segment.get("blocks"))) for all_of in segments.values() for segment in all_of
        )
        self._limits.check_events(self._source, rows, 0)
        ours = data.get(LLMTOP_PREFIX)
        ours = ours if isinstance(ours, dict) else {}
        for error in _list_or_raise(ours.get("out_of_memory")):
            failed = FailedAllocation(
                _whole(error["wanted_bytes"]), _whole(error["device_free_bytes"]), self._stack(error.get("frames"))
            )
            self._failed.setdefault(_whole(error["device"]), []).append(failed)
        devices = tuple(
            self._device(
                number,
                segments.get(number, []),
                _list_or_raise(traces[number]) if 0 <= number < len(traces) else [],
            )
            for number in numbers
        )
        return MemorySnapshot(
            source=self._source,
            devices=devices,
            stacks=tuple(self._stacks),
            phases=_phases(_list_or_raise(data.get("external_annotations"))),
            steps_us=tuple(sorted(_whole(at) for at in _list_or_raise(ours.get("steps_us")))),
            owners={
                _whole(address): _text(kind)
                for kind, addresses in (ours.get("owners") or {}).items()
                for address in _list_or_raise(addresses)
            },
        )

    def _device(self, number: int, segments: list[dict[str, Any]], trace: list[Any]) -> DeviceMemory:
        rows: list[tuple[int, int, int, int, int, int]] = []
        for place, segment in enumerate(segments):
            address = _whole(segment["address"])
            for block in _list_or_raise(segment.get("blocks")):
                rows.append(self._block(block, address, place))
                address += rows[-1][1]
        blocks = Blocks(*_columns(rows, 6))
        events = AllocatorEvents(*_columns([self._event(entry) for entry in trace], 6))
        sizes = np.array([_whole(segment["total_size"]) for segment in segments], np.int64)
        # What could not be had may be of any size: such a request is often the fault itself.
        for values in (sizes, blocks.bytes, blocks.requested, events.bytes[events.action != OOM]):
            if len(values) and not (int(values.min()) >= 0 and int(values.max()) < _LARGEST):
                raise ValueError("a size in it is no size of device memory")
        expandable = any(segment.get("is_expandable") is True for segment in segments)
        failed = () if (events.action == OOM).any() else tuple(self._failed.get(number, ()))
        return DeviceMemory(number, sizes, expandable, blocks, events, failed)

    def _block(self, block: dict[str, Any], address: int, segment: int) -> tuple[int, int, int, int, int, int]:
        size = _whole(block["size"])
        state = _STATES.get(block["state"])
        if state is None:
            raise ValueError(f"a block is {block['state']!r}")
        frames = block.get("frames")
        if frames is None and (history := block.get("history")):  # before PyTorch 2.1
            frames = history[0].get("frames")
        return (
            _whole(block.get("address", address)),
            size,
            _whole(block.get("requested_size", size)) if state != INACTIVE else 0,
            state,
            self._stack(frames),
            segment,
        )

    def _event(self, entry: dict[str, Any]) -> tuple[int, int, int, int, int, int]:
        action = _ACTIONS.get(entry["action"], OTHER)
        # An out-of-memory error has what CUDA still had where others have an address.
        free = _whole(entry.get("device_free", -1)) if action == OOM else -1
        return (
            action,
            _whole(entry.get("addr", 0)) if action != OOM else 0,
            _whole(entry.get("size", 0)) if action != OTHER else 0,
            self._stack(entry.get("frames")),
            _whole(entry.get("time_us", 0)),
            free,
        )

    def _stack(self, frames: Any) -> int:
        if not frames:
            return 0
        known = self._by_identity.get(id(frames))
        if known is None:
            kept = _list_or_raise(frames)[:_DEEPEST]
            same = tuple(map(id, kept))
            known = self._by_frames.get(same)
            if known is None:
                stack = stack_of(map(self._frame, kept))
                known = self._by_frames[same] = self._stacks.setdefault(stack, len(self._stacks))
            self._by_identity[id(frames)] = known
        return known

    def _frame(self, frame: dict[str, Any]) -> StackLine:
        known = self._frames.get(id(frame))
        if known is None:
            file, name = _text(frame["filename"]), _text(frame["name"])
            known = self._frames[id(frame)] = StackLine(normalized_file(file), _whole(frame["line"]), name)
        return known


def _columns(rows: Sequence[tuple[int, ...]], count: int) -> list[Ints]:
    if not rows:
        return [np.zeros(0, np.int64) for _ in range(count)]
    return list(np.array(rows, np.int64).T)


def _list_or_raise(value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise TypeError(f"{type(value).__name__} where a list is")
    return list(value) if isinstance(value, tuple) else value


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{type(value).__name__} where a whole number is")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where a text is")
    return value[:_NAMES]


def _phases(annotations: list[Any]) -> tuple[AllocatorPhase, ...]:
    """Starts and ends of the same name, put together; what never ended is left out."""
    opened: dict[str, list[int]] = {}
    found = []
    for one in annotations:
        name, stage, at = _text(one.get("name", "")), one.get("stage"), _whole(one.get("time_us", 0))
        if stage == "START":
            opened.setdefault(name, []).append(at)
        elif stage == "END" and opened.get(name):
            found.append(AllocatorPhase(name, opened[name].pop(), at))
    return tuple(sorted(found, key=lambda phase: (phase.begin_us, -phase.end_us)))
