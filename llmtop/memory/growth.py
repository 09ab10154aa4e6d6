"""Lines that keep something in every step: what a leak looks like within one window."""

from __future__ import annotations

from collections import Counter

from llmtop.memory.history import step_at
from llmtop.memory.live_blocks import LiveBlocks
from llmtop.memory.model import Holder, LeakingLine
from llmtop.memory.snapshot import MemorySnapshot

LEAST_STEPS = 3
"""Whole steps before the last: one may fill a cache, two may be its two buffers."""
_BALANCED = 0.5
"""Where at least so many old blocks of the size go for those that come, a buffer turns over and nothing grows."""


def find_leaks(snapshot: MemorySnapshot, living: LiveBlocks) -> tuple[LeakingLine, ...]:
    """Stacks of which each step left something allocated until the end; the last step aside, which still uses it.

    What replaces older blocks of the same size, as a queue of the last losses does, is no growth.
    """
    whole = len(snapshot.steps_us) - 1
    if whole - 1 < LEAST_STEPS:
        return ()
    kept: dict[tuple[int, int], list[tuple[int, int, Holder]]] = {}
    for piece in living.pieces:
        if piece.at_end and piece.row >= 0:
            step = step_at(snapshot, living.time_us(piece.row))
            if step is not None and step < whole - 1:
                kept.setdefault((piece.stack, 0 if piece.stack else piece.bytes), []).append(
                    (step, piece.bytes, piece.holder)
                )
    gone = Counter(int(living.device.events.bytes[row]) for row in living.lives.freed_from_before)
    found = []
    for (stack, _), pieces in kept.items():
        steps = {step for step, _, _ in pieces}
        replaced = sum(min(gone[size], count) for size, count in Counter(size for _, size, _ in pieces).items())
        if len(steps) < whole - 1 or replaced >= _BALANCED * len(pieces):
            continue
        found.append(
            LeakingLine(
                line=living.stacks.line(stack) or "no Python frame (autograd's thread)",
                stack=living.stacks.frame_lines(stack),
                holder=Counter(holder for _, _, holder in pieces).most_common(1)[0][0],
                bytes_per_step=sum(size for _, size, _ in pieces) // len(steps),
                blocks=len(pieces),
                steps=len(steps),
            )
        )
    return tuple(sorted(found, key=lambda one: (-one.bytes_per_step, one.line)))
