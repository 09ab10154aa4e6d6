"""GPU memory that a step keeps, by the phase that allocated it.

The net allocation of a phase cannot name a leak: a forward pass allocates what the backward pass frees, so
"forward +X, backward -X + 12 MiB" and "forward +X + 12 MiB, backward -X" are the same numbers to an allocator's
counters. So the blocks are compared. In a sampled step the allocator's blocks are listed at each border of a
phase. What a phase keeps is the sum of blocks that it allocated, that were not allocated at the step's begin, and
that are allocated at the ends of the `FOLLOWED` steps that follow: an output or a loss that lives until the next
step replaces it is not among them.

The figure is published only if it explains the growth: over `LEAST_SAMPLES` sampled steps or more, the blocks kept
in all phases and outside of phases add up to the growth of allocated memory in those steps, within `TOLERANCE`.
Otherwise the phase is unknown.

A list of blocks takes about a microsecond a block, so steps are sampled only while the memory at the end of the
steps keeps rising, and for `BUDGET` of the time at most. Nothing here synchronises: the allocator's list is the
host's.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from itertools import pairwise
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from llmtop.instrument.guest.interrupts import raised_by_handler

if TYPE_CHECKING:
    from llmtop.instrument.steps.phase_tree import PhaseNode

OUTSIDE: Final = ""
"""Name for what is allocated outside of phases."""
FLOOR_READINGS: Final = 3
"""Readings of the allocator, one a second, of which the least counts."""
RISES: Final = 3
"""Times in a row that the floor must rise before a step is sampled; by chance that happens once in 24."""
LEAST_RISE: Final = 1 << 20
FOLLOWED: Final = 3
"""Steps that a block must outlive. The last output of a loop outlives one."""
LEAST_SAMPLES: Final = 2
MOST_SAMPLES: Final = 4
TOLERANCE: Final = 0.25
BUDGET: Final = 0.001
"""Share of the training thread's time that the lists of blocks may take, as for the GPU clock."""
PAUSE_NS: Final = 2_000_000_000
"""Time between two samples at least."""
MOST_NS: Final = 100_000_000
"""Time for the lists of one sample; one that takes longer is dropped."""

Blocks = dict[int, int]
"""Address -> bytes of each block in use."""


class _TooLongError(Exception):
    """The lists of this sample have taken `MOST_NS`."""


class _Sample:
    """One sampled step, and the steps after it."""

    def __init__(self, blocks: Blocks) -> None:
        self.base = self.last = blocks
        self.born: dict[int, tuple[int, str]] = {}
        """Address -> bytes and phase of the blocks allocated since `base`."""
        self.growth = 0
        self.followed = -1
        """Steps that have ended since the sampled one; -1 while that runs."""

    def add(self, blocks: Blocks, phase: str) -> None:
        """Count what was allocated since the last list to a phase."""
        self.keep(blocks)
        for address, size in blocks.items() - self.last.items():
            self.born[address] = size, phase
        self.last = blocks

    def keep(self, blocks: Blocks) -> None:
        """Drop what is no longer allocated."""
        self.born = {place: born for place, born in self.born.items() if blocks.get(place) == born[0]}

    def end_step(self) -> None:
        """The sampled step has ended: blocks that replace equal ones at the same place are no growth."""
        self.growth = sum(self.last.values()) - sum(self.base.values())
        self.born = {place: born for place, born in self.born.items() if self.base.get(place) != born[0]}
        self.followed = 0

    def kept(self) -> Counter[str]:
        """Return the bytes that are left, by phase."""
        found: Counter[str] = Counter()
        for size, phase in self.born.values():
            found[phase] += size
        return found


class KeptMemory:
    """Observer of the phases of a sampled step. For the training thread alone."""

    def __init__(self, cuda: Any) -> None:
        """Prepare.

        Args:
            cuda: torch.cuda, initialised; its `memory_snapshot` lists the blocks.
        """
        self._cuda = cuda
        self._readings: list[int] = []
        self._floors: deque[int] = deque(maxlen=RISES + 1)
        self._samples: deque[tuple[Counter[str], int]] = deque(maxlen=MOST_SAMPLES)
        self._sample: _Sample | None = None
        self._spent_ns = self._due_ns = 0
        self._is_rising = self._is_off = False

    @property
    def is_sampling(self) -> bool:
        """Return True if the next step's phases are to be observed."""
        return self._sample is not None and self._sample.followed < 0

    def add_reading(self, allocated_bytes: int) -> None:
        """Take the bytes allocated at the end of a step; called once a second or so."""
        self._readings.append(allocated_bytes)
        if len(self._readings) < FLOOR_READINGS:
            return
        self._floors.append(min(self._readings))
        self._readings.clear()
        floors = tuple(self._floors)
        steady = len(floors) > RISES and all(later > earlier for earlier, later in pairwise(floors))
        self._is_rising = steady and floors[-1] - floors[0] >= LEAST_RISE
        if not self._is_rising:
            self._samples.clear()

    def kept_bytes(self) -> dict[str, int]:
        """Return the bytes that each phase keeps in a step (`OUTSIDE` for code outside of phases).

        Empty if the memory does not rise, too few steps were sampled, or their blocks do not explain the rise.
        """
        if len(self._samples) < LEAST_SAMPLES:
            return {}
        growth = sum(grown for _, grown in self._samples)
        kept = sum((found for found, _ in self._samples), Counter[str]())
        if growth <= 0 or abs(kept.total() - growth) > TOLERANCE * growth:
            return {}
        return {phase: round(size / len(self._samples)) for phase, size in kept.items()}

    def after_step(self, now: int, *, may_begin: bool) -> bool:
        """Do what is due between two steps.

        Args:
            now: perf_counter ns.
            may_begin: True if no other sample is taken in the next step.

        Returns:
            True if this wants to be called after the next step too.
        """
        try:
            return self._advance(now, may_begin=may_begin)
        except Exception as error:  # noqa: BLE001 - another allocator may raise what it likes
            self._give_up(error)
            return False

    def begins(self, node: PhaseNode) -> None:
        """Count what was allocated outside of phases before a top-level phase."""
        if node.depth == 1:
            self._count(OUTSIDE)

    def ends(self, node: PhaseNode) -> None:
        """Count what a top-level phase has allocated."""
        if node.depth == 1:
            self._count(node.name)

    def give_up(self) -> None:
        """Drop the sample: a phase is not counted."""
        self._sample = None

    def _count(self, phase: str) -> None:
        if self._sample is None:
            return
        try:
            self._sample.add(self._blocks(), phase)
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)

    def _advance(self, now: int, *, may_begin: bool) -> bool:
        sample = self._sample
        if sample is None:
            if not (self._is_rising and may_begin) or self._is_off or now < self._due_ns:
                return False
            self._spent_ns = 0
            self._due_ns = now + PAUSE_NS
            if not can_list_blocks(self._cuda):
                return False
            self._sample = _Sample(self._blocks())
            return True
        if sample.followed < 0:
            sample.add(self._blocks(), OUTSIDE)
            sample.end_step()
            return True
        sample.keep(self._blocks())
        sample.followed += 1
        if sample.followed < FOLLOWED:
            return True
        self._samples.append((sample.kept(), sample.growth))
        self._sample = None
        self._due_ns = now + max(PAUSE_NS, round(self._spent_ns / BUDGET))
        return False

    def _blocks(self) -> Blocks:
        """Return the blocks in use on the calling thread's device."""
        begun = perf_counter_ns()
        device = self._cuda.current_device()
        found: Blocks = {}
        for segment in self._cuda.memory_snapshot():
            if segment["device"] != device:
                continue
            place = segment["address"]
            for block in segment["blocks"]:
                size = block["size"]
                if block["state"] == "active_allocated":
                    found[place] = size
                place += size
        self._spent_ns += perf_counter_ns() - begun
        if self._spent_ns > MOST_NS:
            raise _TooLongError
        return found

    def _give_up(self, error: Exception) -> None:
        """Drop the sample, and take no further one from an allocator that lists no blocks."""
        if raised_by_handler(error):
            raise error
        self._sample = None
        if isinstance(error, _TooLongError):
            self._due_ns = perf_counter_ns() + round(self._spent_ns / BUDGET)
        else:
            self._is_off = True


def can_list_blocks(cuda: Any) -> bool:
    """Return True if torch's allocator can list its blocks at the cost above.

    A script that records the allocator's history has a stack beside each block and a trace, which cost far more.
    """
    is_recorded = getattr(getattr(sys.modules.get("torch"), "_C", None), "_cuda_isHistoryEnabled", None)
    return hasattr(cuda, "memory_snapshot") and not (is_recorded is not None and is_recorded())
