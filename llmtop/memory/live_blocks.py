"""Allocations at the end and at the peak: each with its stack and its holder, and their sums."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast

import numpy as np

from llmtop.format import size
from llmtop.memory.frames import Stack
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
    ends_autocast,
    frame_text,
    holder_of,
    innermost_line,
    innermost_module,
    is_autocast_copy,
    is_of_attention,
    is_of_loss,
    is_of_optimizer,
    maker_of,
    own_classes,
    own_frame,
)
from llmtop.memory.model import HOLDERS, Held, Holder
from llmtop.memory.snapshot import ACTIVE, DeviceMemory, MemorySnapshot

_FRAMES = 24
"""Frames of a stack in a report."""
_SAME_PASS: Final = 0.9
"""Share of the bytes that an earlier pass left: less in blocks of the recorded pass's sizes is another pass."""
_BLOCKS_OF_LAYERS: Final = 4
"""Blocks of one line at once: without gradients a line has its result and perhaps the one before, as it is
replaced."""


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
    _classes: dict[str, Maker] | None = None
    _makers: dict[int, Maker | None] = field(default_factory=dict)
    _lines: dict[int, str] = field(default_factory=dict)

    def maker(self, stack: int) -> Maker | None:
        """See `maker_of`."""
        if stack not in self._makers:
            self._makers[stack] = maker_of(self.stacks[stack]) or self._constructor(stack)
        return self._makers[stack]

    def _constructor(self, stack: int) -> Maker | None:
        """Return what the `__init__` of a script's own module or optimizer makes."""
        if self._classes is None:
            self._classes = own_classes(self.stacks)
        own = own_frame(self.stacks[stack])
        return self._classes.get(own.file) if own is not None and own.function == "__init__" else None

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
        steps = set(self._optimizer_rows)
        self._other_rows = [row for row in self.lives.made if row not in steps]
        backward = [
            row
            for row in self.lives.made
            if not self._stack[row] or stacks.maker(self._stack[row]) in ("gradient", "backward")
        ]
        self._first_backward = next(iter(backward), None)
        self._gradient_sizes = {self._bytes[row] for row in backward}
        self.has_backward = bool(self._gradient_sizes) or any(
            phases.role(number) == "backward" for number in range(len(phases.phases))
        )
        """True if a backward pass is in the history."""
        self._weight_sizes = self._sizes_of_weights()
        self.pieces = [*self._from_blocks(), *self._freed_since()]

    def time_us(self, row: int) -> int:
        """Return when an event was; 0 where that is not recorded."""
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
        """Return the pieces that were allocated at the peak and are freed at the end."""
        if self.peak is None:
            return
        for row in self.lives.made[: bisect.bisect_right(self.lives.made, self.peak)]:
            if self.lives.freed.get(row, NOT_FREED) > self.peak:
                stack = self._stack[row]
                yield Piece(self._bytes[row], stack, self._of_window(stack, row), False, True, row)
        earlier = self._earlier_pass()
        for row in self.lives.freed_from_before:
            if row > self.peak:
                holder: Holder = "gradients" if self._clears_gradients(row) else earlier.get(row, "unknown")
                yield Piece(self._bytes[row], 0, holder, False, True, -1)

    def _clears_gradients(self, row: int) -> bool:
        return clears_gradients(self.stacks.stacks[self._stack[row]])

    def _earlier_pass(self) -> dict[int, Holder]:
        """Holders of what an earlier forward pass kept and the recorded one replaces, by the event that freed it.

        A forward pass that runs again frees its earlier results late: two generations lie beside each other at the
        peak. They have the sizes of the recorded generation.
        """
        # A backward pass frees what its forward pass kept: nothing of an earlier one is left.
        before = () if self.has_backward else self.lives.freed_from_before
        rows = [row for row in before if not self._clears_gradients(row)]
        sizes = {self._bytes[row] for row in rows}
        recorded: dict[int, Counter[Holder]] = {}
        for row in self.lives.made if rows else ():
            if self._bytes[row] in sizes and self.stacks.maker(self._stack[row]) == "forward":
                recorded.setdefault(self._bytes[row], Counter())[self._of_window(self._stack[row], row)] += 1
        found: dict[int, Holder] = {}
        for row in rows:
            of = recorded.get(self._bytes[row])
            if of:
                holder = of.most_common(1)[0][0]
                of[holder] -= 1
                recorded[self._bytes[row]] = +of
                found[row] = holder
        whole = sum(self._bytes[row] for row in rows)
        return found if sum(self._bytes[row] for row in found) >= _SAME_PASS * whole else {}

    def _sizes_of_weights(self) -> set[int]:
        """Bytes of each block that may be a weight: of a module's construction, or older than the history."""
        blocks = self.device.blocks
        columns = (blocks.address, blocks.requested, blocks.state, blocks.stack)
        return {
            asked
            for address, asked, state, stack in zip(*(column.tolist() for column in columns), strict=True)
            if state == ACTIVE and self._is_weight(address, stack)
        }

    def _is_weight(self, address: int, stack: int) -> bool:
        row = self.lives.living.get(address, -1)
        maker = self.stacks.maker(stack or (self._stack[row] if row >= 0 else 0))
        return maker == "parameters" or self._owners.get(address) == "parameters" or (row < 0 and maker is None)

    def _is_weight_copy(self, stack: int, row: int) -> bool:
        """Return True if autocast keeps it for all uses of a weight. It casts activations as well."""
        if not is_autocast_copy(self.stacks.stacks[stack]):
            return False
        freed = self.lives.freed.get(row, NOT_FREED)
        if freed != NOT_FREED and ends_autocast(self.stacks.stacks[self._stack[freed]]):
            return True
        return 2 * self._bytes[row] in self._weight_sizes

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
        maker, role = self.stacks.maker(stack), self.phases.role(number)
        if self._is_weight_copy(stack, row):
            return "autocast"
        if is_of_optimizer(maker, role):
            return holder_of(maker, role, stackless=not stack, kept=self._outlives_step(row, number))
        if maker is None and stack and role == "other" and self._is_state_by_size(row):
            return "optimizer"
        return holder_of(maker, role, stackless=not stack, kept=self._outlived_phase(row, number))

    def _outlives_step(self, row: int, number: int) -> bool:
        """Return True if what the optimizer's step allocated is there when the next pass begins, or at the end."""
        freed = self.lives.freed.get(row, NOT_FREED)
        if freed == NOT_FREED:
            return True
        phase = self.phases.named(number)
        if phase is not None and self.phases.role(number) == "optimizer":
            return self.time_us(freed) > phase.end_us
        place = bisect.bisect_right(self._other_rows, row)
        return place < len(self._other_rows) and freed > self._other_rows[place]

    def _is_state_by_size(self, row: int) -> bool:
        """Return True if a script's own code keeps something of a gradient's size until the end, once there are
        gradients: the state of an optimizer that is no class of torch.optim."""
        if row in self.lives.freed or self._bytes[row] not in self._gradient_sizes:
            return False
        return self._first_backward is not None and row > self._first_backward

    def batch_bytes(self) -> int:
        """Return the bytes of the pieces at the peak that grow with the batch: activations and temporaries of
        forward and backward, except pieces of a gradient's size."""
        weights = {piece.bytes for piece in self.pieces if piece.holder in ("gradients", "parameters")}
        return sum(
            piece.bytes for piece in self.pieces if piece.at_peak and self._grows_with_batch(piece, weights)
        )

    def _grows_with_batch(self, piece: Piece, weights: set[int]) -> bool:
        if piece.holder == "activations":
            return True
        if piece.holder != "temporaries" or piece.row < 0:
            return False
        role = self.phases.role(self.phases.at(self._times[piece.row]))
        return not is_of_optimizer(self.stacks.maker(piece.stack), role) and piece.bytes not in weights

    def optimizer_temporary_bytes(self) -> int:
        """Return the bytes at the peak that an optimizer's step allocated and frees before it ends."""
        return sum(piece.bytes for piece in self._optimizer_temporaries())

    def optimizer_temporary_saving(self) -> int:
        """Return by how much the peak falls without these: as far as the next one, which may lie in another
        phase."""
        temporary = self._optimizer_temporaries()
        if self.curve is None or not temporary:
            return 0
        held = np.zeros(len(self.curve.allocated) + 1, dtype=np.int64)
        for piece in temporary:
            # The curve's first value is before the first event.
            held[piece.row + 1] += piece.bytes
            freed = self.lives.freed.get(piece.row, NOT_FREED)
            held[freed + 1 if freed != NOT_FREED else -1] -= piece.bytes
        without = self.curve.allocated - np.cumsum(held)[:-1]
        return int(self.curve.allocated.max() - without.max())

    def _optimizer_temporaries(self) -> list[Piece]:
        return [
            piece
            for piece in self.pieces
            if piece.at_peak
            and piece.holder == "temporaries"
            and piece.row >= 0
            and is_of_optimizer(
                self.stacks.maker(piece.stack), self.phases.role(self.phases.at(self._times[piece.row]))
            )
        ]

    def is_kept_by_forward(self) -> bool:
        """Return True if the forward pass keeps its results, as it does for a backward pass: those of each
        layer live at once, so that most of their bytes lie in lines with several blocks."""
        bytes_of, blocks_of = Counter[str](), Counter[str]()
        for piece in self.pieces:
            if piece.at_peak and piece.holder == "activations":
                line = self.stacks.line(piece.stack)
                bytes_of[line] += piece.bytes
                blocks_of[line] += 1
        repeated = sum(size for line, size in bytes_of.items() if blocks_of[line] >= _BLOCKS_OF_LAYERS)
        return 2 * repeated > sum(bytes_of.values())

    def attention_bytes(self) -> int:
        """Return the bytes at the peak that attention of single operators, or its softmax, allocated."""
        stacks = self.stacks.stacks
        scores = {number for number in {piece.stack for piece in self.pieces} if is_of_attention(stacks[number])}
        return sum(piece.bytes for piece in self.pieces if piece.at_peak and piece.stack in scores)

    def _outlived_phase(self, row: int, number: int) -> bool | None:
        """Return True if an allocation outlived the phase it was made in; without phases, until the optimizer's
        step."""
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
        """Return the bytes at the peak that a loss over classes allocated."""
        stacks = self.stacks.stacks
        of_loss = {number for number in {piece.stack for piece in self.pieces} if is_of_loss(stacks[number])}
        return sum(piece.bytes for piece in self.pieces if piece.at_peak and piece.stack in of_loss)

    def by_holder(self) -> tuple[Held, ...]:
        """Return the holders of memory in the order of `HOLDERS`."""
        found = {held.name: held for held in self._sums(lambda piece: piece.holder)}
        return tuple(found[holder] for holder in HOLDERS if holder in found)

    def by_line(self) -> tuple[Held, ...]:
        """Return the holders with a stack, largest first."""
        return tuple(self._sums(lambda piece: self.stacks.line(piece.stack)))

    def by_module(self) -> tuple[Held, ...]:
        """Return the holders made in a module's forward pass, largest first."""
        known: dict[int, str] = {}

        def module(piece: Piece) -> str:
            if piece.stack not in known:
                known[piece.stack] = self.stacks.module(piece.stack)
            return known[piece.stack]

        return tuple(self._sums(module))

    def by_size(self) -> tuple[Held, ...]:
        """Return the holders without a stack, by requested size, largest sum first."""
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
    """Return a size that tells blocks apart: in bytes, and readable."""
    return f"blocks of {size(asked)} ({asked:,} B)" if asked >= 1024 else f"blocks of {asked} B"
