"""What is allocated at the end and at the peak: each piece with its stack and its holder, and their sums."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import numpy as np

from llmtop.format import size
from llmtop.memory.history import (
    NOT_FREED,
    AllocationLifetimes,
    Curve,
    PhasesInTime,
    allocation_lifetimes,
    memory_curve,
)
from llmtop.memory.holders import (
    Maker,
    clears_gradients,
    frame_text,
    holder_of,
    innermost_line,
    innermost_module,
    is_of_loss,
    maker_of,
)
from llmtop.memory.model import HOLDERS, Held, Holder
from llmtop.memory.snapshot import ACTIVE, DeviceMemory, MemorySnapshot, Stack

_FRAMES = 24
"""Of a stack, in a report."""


class Piece(NamedTuple):
    """One allocation that lives at the end, at the peak, or both."""

    bytes: int
    stack: int
    holder: Holder
    at_end: bool
    at_peak: bool
    row: int
    """The event that made it; -1: before the history."""


@dataclass
class StackTable:
    """Facts of each allocation stack, computed once."""

    stacks: tuple[Stack, ...]
    _makers: dict[int, Maker | None] = field(default_factory=dict)
    _lines: dict[int, str] = field(default_factory=dict)

    def maker(self, stack: int) -> Maker | None:
        """See `maker_of`."""
        if stack not in self._makers:
            self._makers[stack] = maker_of(self.stacks[stack])
        return self._makers[stack]

    def line(self, stack: int) -> str:
        """See `innermost_line`."""
        if stack not in self._lines:
            self._lines[stack] = innermost_line(self.stacks[stack])
        return self._lines[stack]

    def module(self, stack: int) -> str:
        """See `innermost_module`."""
        return innermost_module(self.stacks[stack])

    def frame_lines(self, stack: int) -> tuple[str, ...]:
        """Return the frames of a stack as text, innermost first."""
        return tuple(frame_text(frame) for frame in self.stacks[stack][:_FRAMES])


class LiveBlocks:
    """Live allocations of one device at the end and at the peak."""

    def __init__(
        self, snapshot: MemorySnapshot, device: DeviceMemory, stacks: StackTable, phases: PhasesInTime
    ) -> None:
        """Compute the lifetimes of all allocations of one device.

        Args:
            snapshot: the whole snapshot, for the owners of blocks.
            device: one GPU of it.
            stacks: resolves the stack ids of the snapshot.
            phases: by time in µs of the snapshot's clock; empty where none were recorded.
        """
        self.device = device
        self.stacks = stacks
        self.phases = phases
        self._owners = snapshot.owners
        blocks = device.blocks
        self.requested = int(blocks.requested[blocks.state == ACTIVE].sum())
        self.lives: AllocationLifetimes = allocation_lifetimes(device.events)
        curve = memory_curve(device, self.requested) if len(device.events) else None
        self.curve: Curve | None = curve if curve is not None and curve.is_possible else None
        self.peak: int | None = None if self.curve is None else int(np.argmax(self.curve.allocated)) - 1
        """The event after which most was allocated, -1: before the first."""
        self._times = device.events.time_us.tolist()
        self._stack = device.events.stack.tolist()
        self._bytes = device.events.bytes.tolist()
        self._optimizer_rows = [
            row for row in self.lives.made if (stacks.maker(self._stack[row]) or "").startswith("optimizer")
        ]
        self.pieces = [*self._from_blocks(), *self._freed_since()]

    def time_us(self, row: int) -> int:
        """When an event was; 0 where that is not recorded."""
        return cast(int, self._times[row])

    def _from_blocks(self) -> Iterable[Piece]:
        blocks, peak = self.device.blocks, self.peak
        columns = (blocks.address, blocks.requested, blocks.state, blocks.stack)
        for address, asked, state, stack in zip(*(column.tolist() for column in columns), strict=True):
            if state != ACTIVE:
                continue
            row = self.lives.living.get(address, -1)
            of = stack or (self._stack[row] if row >= 0 else 0)
            yield Piece(asked, of, self._holder(address, of, row), True, peak is not None and row <= peak, row)

    def _freed_since(self) -> Iterable[Piece]:
        """What lived at the peak and is no more."""
        if self.peak is None:
            return
        for row in self.lives.made[: bisect.bisect_right(self.lives.made, self.peak)]:
            if self.lives.freed.get(row, NOT_FREED) > self.peak:
                stack = self._stack[row]
                yield Piece(self._bytes[row], stack, self._of_window(stack, row), False, True, row)
        for row in self.lives.freed_from_before:
            if row > self.peak:
                holder: Holder = (
                    "gradients" if clears_gradients(self.stacks.stacks[self._stack[row]]) else "unknown"
                )
                yield Piece(self._bytes[row], 0, holder, False, True, -1)

    def _holder(self, address: int, stack: int, row: int) -> Holder:
        owner = self._owners.get(address)
        if owner is not None and owner in HOLDERS:
            return owner
        if row >= 0:
            return self._of_window(stack, row)
        maker = self.stacks.maker(stack)
        if not stack or maker is None:
            return "other" if stack else "unknown"
        # Made before the first event and alive: a gradient, if the backward pass has made it.
        return holder_of(maker, "other", stackless=False, kept=True)

    def _of_window(self, stack: int, row: int) -> Holder:
        number = self.phases.at(self._times[row])
        return holder_of(
            self.stacks.maker(stack), self.phases.role(number), stackless=not stack, kept=self._kept(row, number)
        )

    def _kept(self, row: int, number: int) -> bool | None:
        """Whether an allocation outlived the phase it was made in; without phases, until the optimizer's step."""
        freed = self.lives.freed.get(row, NOT_FREED)
        phase = self.phases.named(number)
        if phase is not None and self.phases.role(number) == "backward":
            return freed == NOT_FREED or self._times[freed] > phase.end_us
        if freed != NOT_FREED and clears_gradients(self.stacks.stacks[self._stack[freed]]):
            return True
        place = bisect.bisect_right(self._optimizer_rows, row)
        stepped = place < len(self._optimizer_rows) and (freed == NOT_FREED or self._optimizer_rows[place] < freed)
        return True if stepped else None if freed == NOT_FREED else False

    def loss_bytes(self) -> int:
        """What the pieces take at the peak that a loss over classes made."""
        stacks = self.stacks.stacks
        of_loss = {number for number in {piece.stack for piece in self.pieces} if is_of_loss(stacks[number])}
        return sum(piece.bytes for piece in self.pieces if piece.at_peak and piece.stack in of_loss)

    def by_holder(self) -> tuple[Held, ...]:
        """In the order of `HOLDERS`, those that hold something."""
        found = {held.name: held for held in self._sums(lambda piece: piece.holder)}
        return tuple(found[holder] for holder in HOLDERS if holder in found)

    def by_line(self) -> tuple[Held, ...]:
        """Those with a stack, largest first."""
        return tuple(self._sums(lambda piece: self.stacks.line(piece.stack)))

    def by_module(self) -> tuple[Held, ...]:
        """Those made in a module's forward pass, largest first."""
        known: dict[int, str] = {}

        def module(piece: Piece) -> str:
            if piece.stack not in known:
                known[piece.stack] = self.stacks.module(piece.stack)
            return known[piece.stack]

        return tuple(self._sums(module))

    def by_size(self) -> tuple[Held, ...]:
        """Those without a stack, by what they asked for, largest sum first."""
        return tuple(self._sums(lambda piece: "" if piece.stack else size_name(piece.bytes)))

    def _sums(self, name: Callable[[Piece], str]) -> list[Held]:
        """Held by name, without those that have none; largest first, by the peak where it is known."""
        sums: dict[str, list[int]] = {}
        parts: dict[str, dict[tuple[Holder, int], int]] = {}
        for piece in self.pieces:
            key = name(piece)
            if not key:
                continue
            total = sums.setdefault(key, [0, 0, 0])
            if piece.at_end:
                total[0] += piece.bytes
                total[1] += 1
            if piece.at_peak:
                total[2] += piece.bytes
            of = parts.setdefault(key, {})
            of[piece.holder, piece.stack] = of.get((piece.holder, piece.stack), 0) + piece.bytes
        found = []
        for key, (held, blocks, at_peak) in sums.items():
            holder, stack = max(parts[key], key=lambda part: parts[key][part])
            found.append(
                Held(
                    name=key,
                    bytes=held,
                    blocks=blocks,
                    holder=holder,
                    module=self.stacks.module(stack),
                    stack=self.stacks.frame_lines(stack),
                    peak_bytes=at_peak if self.peak is not None else None,
                )
            )
        return sorted(found, key=lambda one: (-max(one.bytes, one.peak_bytes or 0), one.name))


def size_name(asked: int) -> str:
    """A size that tells blocks apart: in bytes, and readable."""
    return f"blocks of {size(asked)} ({asked:,} B)" if asked >= 1024 else f"blocks of {asked} B"
