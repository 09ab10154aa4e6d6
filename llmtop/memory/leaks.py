"""Growth between two snapshots of one program, by line where there are stacks, else by size."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Literal, NamedTuple

from llmtop.errors import UnusableInput
from llmtop.format import size
from llmtop.memory.analyze import live_devices
from llmtop.memory.findings import WORTH_PCT
from llmtop.memory.growth import find_leaks
from llmtop.memory.live_blocks import LiveBlocks, Piece, size_name
from llmtop.memory.model import DeviceGrowth, Growth, Holder, LeakingLine, LeakReport
from llmtop.memory.snapshot import MemorySnapshot, load
from llmtop.system.inputs import DEFAULT, Limits

_MOST = 50
"""Lines of each device that are listed."""
_HALF = 0.5
"""Share of the growth that a named line must explain; else the verdict is "unknown"."""


class _Key(NamedTuple):
    """Key that matches allocations of both snapshots: their stack, else their size."""

    stack: tuple[str, ...]
    bytes: int


class _Sum(NamedTuple):
    bytes: int
    blocks: int
    holder: Holder
    line: str


def compare_memory(before: list[Path], after: list[Path], limits: Limits = DEFAULT) -> LeakReport:
    """Return the memory that the second snapshot holds and the first does not.

    Args:
        before: snapshots, one a rank.
        after: later ones of the same program, in the same order.
        limits: how large each may be.

    Raises:
        UnusableInput: one cannot be read, or they are not of the same number of ranks.
    """
    if len(before) != len(after):
        raise UnusableInput(
            f"{len(before)} and {len(after)} memory snapshots cannot be compared: pass one file before and one "
            "file after"
        )
    pairs = [(load(one, limits), load(two, limits)) for one, two in zip(before, after, strict=True)]
    return find_growth(pairs)


def find_growth(pairs: list[tuple[MemorySnapshot, MemorySnapshot]]) -> LeakReport:
    """Return the growth over pairs of snapshots of the same process."""
    devices: list[DeviceGrowth] = []
    steady: list[list[LeakingLine]] = []
    for one, two in pairs:
        first = {living.device.device: living for living in live_devices(one)}
        second = {living.device.device: living for living in live_devices(two)}
        for number in sorted({*first, *second}):
            goes_on = list(find_leaks(two, second[number])) if number in second else []
            steady.append(goes_on)
            devices.append(_device(number, two.source, first.get(number), second.get(number), goes_on))
    verdict, summary = _judge_growth(devices, steady)
    return LeakReport(
        before=", ".join(one.source for one, _ in pairs),
        after=", ".join(two.source for _, two in pairs),
        verdict=verdict,
        summary=summary,
        devices=tuple(devices),
        notes=(
            "two snapshots taken at different points of a step differ by what that step holds: take both by "
            "llmtop capture, which begins and ends at a step's end",
        ),
    )


def _device(
    number: int, source: str, before: LiveBlocks | None, after: LiveBlocks | None, goes_on: list[LeakingLine]
) -> DeviceGrowth:
    old, new = _sums(before), _sums(after)
    by_size = _lines_by_size(after, goes_on)
    changes = []
    for key in {*old, *new}:
        was, now = old.get(key), new.get(key)
        some = now or was
        assert some is not None
        line = some.line or by_size.get(key.bytes, "")
        changes.append(
            Growth(
                name=line or size_name(key.bytes),
                bytes=(now.bytes if now else 0) - (was.bytes if was else 0),
                blocks=(now.blocks if now else 0) - (was.blocks if was else 0),
                before_bytes=was.bytes if was else 0,
                after_bytes=now.bytes if now else 0,
                holder=some.holder,
                stack=key.stack,
                by_size=not some.line and bool(line),
            )
        )
    grown = sorted((one for one in changes if one.bytes > 0), key=lambda one: (-one.bytes, one.name))
    shrunk = sorted((one for one in changes if one.bytes < 0), key=lambda one: (one.bytes, one.name))
    return DeviceGrowth(
        device=number,
        source=source,
        allocated_before_bytes=before.requested if before else 0,
        allocated_after_bytes=after.requested if after else 0,
        reserved_before_bytes=int(before.device.segment_bytes.sum()) if before else 0,
        reserved_after_bytes=int(after.device.segment_bytes.sum()) if after else 0,
        grown=tuple(grown[:_MOST]),
        shrunk=tuple(shrunk[:_MOST]),
    )


def _sums(living: LiveBlocks | None) -> dict[_Key, _Sum]:
    pieces: dict[_Key, list[Piece]] = defaultdict(list)
    if living is None:
        return {}
    for piece in living.pieces:
        if piece.at_end:
            key = _Key(living.stacks.frame_lines(piece.stack), 0) if piece.stack else _Key((), piece.bytes)
            pieces[key].append(piece)
    return {
        key: _Sum(sum(one.bytes for one in of), len(of), of[0].holder, living.stacks.line(of[0].stack))
        for key, of in pieces.items()
    }


def _lines_by_size(after: LiveBlocks | None, goes_on: list[LeakingLine]) -> dict[int, str]:
    """Return, by size, the one line that keeps blocks of this size from step to step; none where there are two."""
    if after is None:
        return {}
    lines = {one.line for one in goes_on}
    found: dict[int, set[str]] = defaultdict(set)
    for piece in after.pieces:
        if piece.at_end and piece.stack and after.stacks.line(piece.stack) in lines:
            found[piece.bytes].add(after.stacks.line(piece.stack))
    return {asked: next(iter(of)) for asked, of in found.items() if len(of) == 1}


def _judge_growth(
    devices: list[DeviceGrowth], steady: list[list[LeakingLine]]
) -> tuple[Literal["leak", "grown", "unknown", "same"], str]:
    """Return the word for it, and a sentence, about the device that grew most."""
    place = max(
        range(len(devices)),
        key=lambda number: devices[number].allocated_after_bytes - devices[number].allocated_before_bytes,
        default=None,
    )
    if place is None:
        return "same", "Neither snapshot has memory reserved on any device."
    device = devices[place]
    rise = device.allocated_after_bytes - device.allocated_before_bytes
    held = f"{size(device.allocated_before_bytes)} before, {size(device.allocated_after_bytes)} after"
    if rise <= 0 or not device.grown:
        return "same", f"Nothing grew: GPU {device.device} holds {held}."
    goes_on = {one.line: one for one in steady[place]}
    by_line: dict[str, int] = defaultdict(int)
    for one in device.grown:
        if one.stack or one.by_size:
            by_line[one.name] += one.bytes
    leaking = {line: rise_of for line, rise_of in by_line.items() if line in goes_on}
    words = f"GPU {device.device} holds {size(rise)} more than before ({held})"
    if leaking and sum(leaking.values()) >= _HALF * rise:
        line = max(leaking, key=lambda name: leaking[name])
        return "leak", (
            f"{words}: {size(leaking[line])} of it at {line}, which keeps {size(goes_on[line].bytes_per_step)} "
            "with every step."
        )
    if by_line and sum(by_line.values()) >= _HALF * rise:
        line = max(by_line, key=lambda name: by_line[name])
        return (
            "grown",
            f"{words}, most at {line} ({size(by_line[line])}); two snapshots do not show whether it continues.",
        )
    largest = device.grown[0]
    share = (
        f"; the largest part are {largest.name} (+{size(largest.bytes)})"
        if 100 * largest.bytes >= WORTH_PCT * rise
        else ""
    )
    return "unknown", f"{words}; most of it has no stack that names a line{share}."
