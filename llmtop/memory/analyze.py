"""Report from snapshots of PyTorch's CUDA allocator: held memory, its holders and times, and the fix."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from llmtop.memory.findings import memory_findings, memory_summary
from llmtop.memory.growth import find_leaks
from llmtop.memory.history import Curve, PhasesInTime
from llmtop.memory.live_blocks import LiveBlocks, StackTable
from llmtop.memory.model import (
    Fragmentation,
    MemoryDevice,
    MemoryPeak,
    MemoryReport,
    MemoryTimeline,
    OutOfMemory,
    PhasePeak,
)
from llmtop.memory.snapshot import (
    ACTIVE,
    AWAITING_FREE,
    INACTIVE,
    OOM,
    DeviceMemory,
    Ints,
    MemorySnapshot,
    load,
)
from llmtop.report.environment import read_environment
from llmtop.system.inputs import DEFAULT, Limits

_STRETCHES = 160
"""Most stretches of the timeline: more than a terminal has columns."""


def analyze_memory(paths: Sequence[Path], limits: Limits = DEFAULT) -> MemoryReport:
    """Read snapshots of one program at one time, one a rank, and say what they show.

    Raises:
        UnusableInput: see `llmtop.memory.snapshot.load`.
    """
    return build_report([load(path, limits) for path in paths], environment_path=paths[0])


def build_report(snapshots: Sequence[MemorySnapshot], environment_path: Path | None = None) -> MemoryReport:
    """Return the report of snapshots, one per rank.

    Args:
        snapshots: at least one.
        environment_path: beside which capture.json may lie.
    """
    seen = [(snapshot, living) for snapshot in snapshots for living in live_devices(snapshot)]
    devices = tuple(_device(snapshot, living) for snapshot, living in seen)
    windows = [seconds for living in (one for _, one in seen) if (seconds := _window_seconds(living)) is not None]
    steps = [max(len(snapshot.steps_us) - 1, 0) for snapshot in snapshots if snapshot.steps_us]
    environment = read_environment(environment_path) if environment_path is not None else None
    whole = MemoryReport(
        source=", ".join(snapshot.source for snapshot in snapshots),
        window_seconds=max(windows, default=None),
        steps=min(steps, default=None),
        devices=devices,
        summary="",
        environment=environment,
        notes=tuple(_notes(seen)),
    )
    import msgspec

    return msgspec.structs.replace(whole, summary=memory_summary(whole), findings=memory_findings(whole))


def live_devices(snapshot: MemorySnapshot) -> list[LiveBlocks]:
    """Return the devices of a snapshot on which there is anything, with what lives on them."""
    stacks, phases = StackTable(snapshot.stacks), PhasesInTime(snapshot)
    used = [one for one in snapshot.devices if len(one.segment_bytes) or len(one.events) or one.failed]
    return [LiveBlocks(snapshot, device, stacks, phases) for device in used]


def _device(snapshot: MemorySnapshot, living: LiveBlocks) -> MemoryDevice:
    device, blocks, curve = living.device, living.device.blocks, living.curve
    return MemoryDevice(
        device=device.device,
        source=snapshot.source,
        reserved_bytes=int(device.segment_bytes.sum()),
        allocated_bytes=int(blocks.bytes[blocks.state == ACTIVE].sum()),
        requested_bytes=living.requested,
        awaiting_free_bytes=int(blocks.bytes[blocks.state == AWAITING_FREE].sum()),
        segments=len(device.segment_bytes),
        events=len(device.events),
        expandable_segments=device.expandable,
        fragmentation=_fragmentation(device),
        holders=living.by_holder(),
        lines=living.by_line(),
        modules=living.by_module(),
        sizes=living.by_size(),
        peak=None if curve is None else _peak(living, curve),
        loss_peak_bytes=None if curve is None else living.loss_bytes(),
        batch_peak_bytes=None if curve is None else living.batch_bytes(),
        optimizer_temporary_peak_bytes=None if curve is None else living.optimizer_temporary_bytes(),
        optimizer_temporary_saving_bytes=None if curve is None else living.optimizer_temporary_saving(),
        kept_by_forward=curve is None or living.is_kept_by_forward(),
        attention_peak_bytes=None if curve is None else living.attention_bytes(),
        backward_seen=living.has_backward,
        phases=() if curve is None else _phase_peaks(living, curve),
        timeline=None if curve is None else _timeline(device.events.time_us, curve),
        growing=find_leaks(snapshot, living),
        out_of_memory=tuple(_out_of_memory(living)),
    )


def _fragmentation(device: DeviceMemory) -> Fragmentation:
    blocks = device.blocks
    free = blocks.state == INACTIVE
    used = np.zeros(len(device.segment_bytes), bool)
    used[blocks.segment[~free]] = True
    split = free & used[blocks.segment] if len(blocks.segment) else free
    total, within = int(blocks.bytes[free].sum()), int(blocks.bytes[split].sum())
    active = blocks.state == ACTIVE
    return Fragmentation(
        free_bytes=total,
        largest_free_bytes=int(blocks.bytes[free].max(initial=0)),
        split_bytes=within,
        releasable_bytes=total - within,
        rounding_bytes=int((blocks.bytes[active] - blocks.requested[active]).sum()),
    )


def _first_us(living: LiveBlocks) -> int | None:
    """Return when the window began; None where the history has no times."""
    times = living.device.events.time_us
    return int(times[0]) if len(times) and int(times[0]) > 0 else None


def _window_seconds(living: LiveBlocks) -> float | None:
    first = _first_us(living)
    return None if first is None else max(0, int(living.device.events.time_us[-1]) - first) / 1e6


def _since(living: LiveBlocks, row: int) -> float | None:
    first = _first_us(living)
    return None if first is None else max(0, living.time_us(max(row, 0)) - first) / 1e6


def _peak(living: LiveBlocks, curve: Curve) -> MemoryPeak:
    row = living.peak if living.peak is not None else -1
    number = living.phases.at(living.time_us(row)) if row >= 0 else -1
    phase = living.phases.named(number)
    return MemoryPeak(
        bytes=int(curve.allocated.max()),
        reserved_bytes=int(curve.reserved.max()),
        at_seconds=_since(living, row),
        phase=None if phase is None else phase.name,
    )


def _phase_peaks(living: LiveBlocks, curve: Curve) -> tuple[PhasePeak, ...]:
    """Return the peaks in the order in which phases first ran."""
    times = living.device.events.time_us
    found: dict[str, list[tuple[int, int]]] = {}
    for phase in living.phases.phases:
        first, last = np.searchsorted(times, (phase.begin_us, phase.end_us), side="right")
        values = curve.allocated[first : last + 1]
        found.setdefault(phase.name, []).append((int(values.max()), int(values[-1] - values[0])))
    return tuple(
        PhasePeak(
            name=name,
            peak_bytes=max(peak for peak, _ in times_of),
            median_growth_bytes=int(statistics.median(growth for _, growth in times_of)),
            count=len(times_of),
        )
        for name, times_of in found.items()
    )


def _timeline(times: Ints, curve: Curve) -> MemoryTimeline:
    """Return the most in each stretch; where nothing happened, what was held before it."""
    timed = len(times) > 1 and int(times[0]) > 0 and bool((np.diff(times) >= 0).all()) and times[-1] > times[0]
    at = times if timed else np.arange(len(times))
    count = min(_STRETCHES, max(1, len(at)))
    edges = np.linspace(float(at[0]), float(at[-1]), count + 1)
    # The value before an event holds until it, so each stretch begins with the one that it inherits.
    starts = np.searchsorted(at, edges[:-1], side="left")
    ends = np.append(np.searchsorted(at, edges[1:-1], side="left"), len(at))

    def most(values: Ints) -> tuple[int, ...]:
        return tuple(int(values[first : last + 1].max()) for first, last in zip(starts, ends, strict=True))

    seconds = float(at[-1] - at[0]) / 1e6 / count if timed else None
    return MemoryTimeline(
        seconds=seconds, allocated_bytes=most(curve.allocated), reserved_bytes=most(curve.reserved)
    )


def _out_of_memory(living: LiveBlocks) -> list[OutOfMemory]:
    events = living.device.events
    found = []
    for row in np.flatnonzero(events.action == OOM).tolist():
        stack, free = int(events.stack[row]), int(events.device_free[row])
        found.append(
            OutOfMemory(
                wanted_bytes=int(events.bytes[row]),
                device_free_bytes=free if free >= 0 else None,
                line=living.stacks.line(stack),
                stack=living.stacks.frame_lines(stack),
                at_seconds=_since(living, row),
            )
        )
    found += [
        OutOfMemory(
            wanted_bytes=one.wanted_bytes,
            device_free_bytes=one.device_free_bytes if one.device_free_bytes >= 0 else None,
            line=living.stacks.line(one.stack),
            stack=living.stacks.frame_lines(one.stack),
            at_seconds=None,
        )
        for one in living.device.failed
    ]
    return found


def _notes(seen: list[tuple[MemorySnapshot, LiveBlocks]]) -> list[str]:
    notes = []
    if not seen:
        notes.append("no memory is reserved on any device: nothing was allocated, or all of it was given back")
    elif all(len(living.device.events) == 0 for _, living in seen):
        notes.append(
            "no history was recorded, so sizes and segments are all there is: who allocated, when and how much at "
            "the peak needs llmtop capture --engine memory, or llmtop run --memory-history"
        )
    if any(len(living.device.events) and living.curve is None for _, living in seen):
        notes.append(
            "the history does not reach to the snapshot (it was stopped before): what was held when, and the "
            "peak, are not told"
        )
    unknown = sum(held.bytes for _, living in seen for held in living.by_holder() if held.name == "unknown")
    if unknown and any(len(living.device.events) for _, living in seen):
        notes.append(
            "what was allocated before the recording has no stack; llmtop run --memory-history records from the "
            "start"
        )
    return notes
