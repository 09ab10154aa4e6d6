"""Evaluation of the allocator's history: lifetime and phase of each allocation, and the memory held at each
time."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import numpy as np

from llmtop.memory.snapshot import (
    ALLOC,
    FREE_REQUESTED,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    AllocatorEvents,
    AllocatorPhase,
    DeviceMemory,
    Ints,
    MemorySnapshot,
)
from llmtop.naming.phase_names import role_of

NOT_FREED = -1


@dataclass(frozen=True)
class AllocationLifetimes:
    """Events at which each allocation was made and freed."""

    made: list[int]
    """The events that allocated, in order."""
    freed: dict[int, int]
    """Event that freed each allocation, by its event; those that live on are not in it."""
    living: dict[int, int]
    """Event that allocated each block that lives at the end, by address."""
    freed_from_before: list[int]
    """Events that freed what was allocated before the first event."""


def allocation_lifetimes(events: AllocatorEvents) -> AllocationLifetimes:
    """Follow each address from its allocation to its release."""
    made: list[int] = []
    freed: dict[int, int] = {}
    living: dict[int, int] = {}
    before: list[int] = []
    for row, (action, address) in enumerate(zip(events.action.tolist(), events.address.tolist(), strict=True)):
        if action == ALLOC:
            made.append(row)
            living[address] = row
        elif action == FREE_REQUESTED:
            start = living.pop(address, NOT_FREED)
            if start == NOT_FREED:
                before.append(row)
            else:
                freed[start] = row
    return AllocationLifetimes(made, freed, living, before)


@dataclass(frozen=True)
class Curve:
    """Bytes held after each event, and before the first."""

    allocated: Ints
    """One value more than there are events: the first is before them. As requested."""
    reserved: Ints

    @property
    def is_possible(self) -> bool:
        """Return True if it never falls below nothing, as it does where the history does not reach to the
        snapshot."""
        return int(self.allocated.min()) >= 0 and int(self.reserved.min()) >= 0


def memory_curve(device: DeviceMemory, allocated: int) -> Curve:
    """Return the bytes held at each event, computed backwards from what is held at the end.

    Args:
        device: with its history.
        allocated: bytes that tensors hold at the end, as requested.
    """
    events = device.events
    reserved = int(device.segment_bytes.sum())
    return Curve(
        _backwards(events, allocated, ALLOC, FREE_REQUESTED),
        _backwards(events, reserved, SEGMENT_ALLOC, SEGMENT_FREE),
    )


def _backwards(events: AllocatorEvents, last: int, more: int, less: int) -> Ints:
    change = np.where(events.action == more, events.bytes, 0) - np.where(events.action == less, events.bytes, 0)
    sums = np.concatenate(([0], np.cumsum(change)))
    return sums + (last - int(sums[-1]))


class PhasesInTime:
    """Which phase runs at a time: the innermost one."""

    def __init__(self, snapshot: MemorySnapshot) -> None:
        self.phases = snapshot.phases
        self._at: list[int] = []
        self._phase: list[int] = []
        points = [(phase.begin_us, 1, number) for number, phase in enumerate(self.phases)]
        points += [(phase.end_us, 0, number) for number, phase in enumerate(self.phases)]
        opened: dict[int, None] = {}
        for at, begins, number in sorted(points):
            if begins:
                opened[number] = None
            else:
                opened.pop(number, None)
            self._at.append(at)
            self._phase.append(next(reversed(opened), -1))
        self._roles = [role_of(phase.name) for phase in self.phases]

    def at(self, time_us: int) -> int:
        """Return the number of the innermost phase at a time.

        A phase contains its last microsecond and not its first.

        Args:
            time_us: time of the allocator's clock, in µs.

        Returns:
            -1 for no phase.
        """
        place = bisect.bisect_left(self._at, time_us) - 1
        return self._phase[place] if place >= 0 else -1

    def named(self, number: int) -> AllocatorPhase | None:
        """Return the phase of that number."""
        return self.phases[number] if number >= 0 else None

    def role(self, number: int) -> str:
        """Return the role of an allocation; "other" for none."""
        return self._roles[number] if number >= 0 else "other"


def step_at(snapshot: MemorySnapshot, time_us: int) -> int | None:
    """Return the number of the whole step at a time, from 0.

    Args:
        snapshot: the snapshot with the steps.
        time_us: time of the allocator's clock, in µs.

    Returns:
        None outside of all steps.
    """
    place = bisect.bisect_left(snapshot.steps_us, time_us) - 1
    return place if 0 <= place < len(snapshot.steps_us) - 1 else None
