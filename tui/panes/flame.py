"""Sampled stacks as a tree that folds: one line a frame, its share of the thread, and where it stands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import NamedTuple, TypeAlias

from llmtop import format as fmt
from llmtop.stacks.model import ProcessStacks, StackNode, StackReport, ThreadStacks
from tui.paint.rows import CellTheme, Row, pad

Path: TypeAlias = tuple[int, ...]
"""Which node: the places of process, thread, and of each child from the outermost frame on."""

LEAST_PCT = 0.5
"""Share of its thread below which a frame is only counted."""
UNFOLDED_PCT = 50.0
"""A frame with so much of its thread is unfolded at first: the one path that most samples took."""
_BAR = 12


class FlameLine(NamedTuple):
    """One line of the tree."""

    path: Path
    depth: int
    node: StackNode
    total: int
    """Samples of its thread."""
    folds: bool
    """True if it has anything below it."""
    small: int = 0
    """How many of its calls are left out for being small."""


def threads(report: StackReport, *, waiting: bool) -> Iterator[tuple[Path, ProcessStacks, ThreadStacks]]:
    """Yield the threads to show: those that work and the first of each process; with `waiting`, all."""
    for place, process in enumerate(report.processes):
        for number, thread in enumerate(process.threads):
            if waiting or thread.kind == "working" or number == 0:
                yield (place, number), process, thread


def initially_opened(report: StackReport) -> set[Path]:
    """Return the nodes that are unfolded when a report is opened: of each working thread the path most samples
    took."""
    opened: set[Path] = set()
    for at, _, thread in threads(report, waiting=False):
        node, path = (thread.tree if thread.kind == "working" else None), at
        while node is not None:
            opened.add(path)
            heavy = node.children[0] if node.children else None
            if heavy is None or 100.0 * heavy.samples < UNFOLDED_PCT * thread.samples:
                break
            node, path = heavy, (*path, 0)
    return opened


def visible_lines(root: StackNode, path: Path, opened: set[Path], total: int) -> list[FlameLine]:
    """Return the lines below a thread's line, outermost frames first; iterative, since stacks can be 1000 deep.

    Args:
        root: the thread's tree.
        path: of the thread; paths of frames begin with it.
        opened: paths of the unfolded frames.
        total: samples of the thread; children below `LEAST_PCT` of it are counted, not listed.
    """
    lines: list[FlameLine] = []
    waiting = [(root, path, 0)]
    while waiting:
        node, at, depth = waiting.pop()
        large: list[int] = []
        if at in opened:
            large = [i for i, child in enumerate(node.children) if 100.0 * child.samples >= LEAST_PCT * total]
        small = len(node.children) - len(large) if at in opened else 0
        if depth:
            lines.append(FlameLine(at, depth, node, total, bool(node.children), small))
        waiting += [(node.children[i], (*at, i), depth + 1) for i in reversed(large)]
    return lines


def title(report: StackReport, name: str, width: int, theme: CellTheme) -> list[Row]:
    """Return the rows above the threads: what was sampled, for how long, and what was left out.

    Args:
        report: the sampled stacks.
        name: file or training; terminal escapes in it are made visible.
        width: cells; parts that do not fit are left out.
        theme: colours and glyphs of this terminal.
    """
    palette, dot = theme.palette, f" {theme.glyphs.dot} "
    row = Row(width).add(" Python stacks", palette.strong).add(f"{dot}{fmt.printable(name)}", palette.text)
    for text in (
        "" if report.rate_hz is None else f"{fmt.number(report.rate_hz)} samples per second and thread",
        "" if report.window_seconds is None else fmt.duration(report.window_seconds),
    ):
        if text and len(text) + len(dot) <= row.free_cells:
            row.add(dot + text, palette.dim)
    notes = [Row(width).add(f" {fmt.printable(note)}", palette.dim) for note in report.notes]
    return [row, *notes]


def thread_line(
    process: ProcessStacks, thread: ThreadStacks, width: int, theme: CellTheme, *, chosen: bool, opened: bool
) -> Row:
    """Return one thread's row: its process, its samples, and its share of time on a CPU.

    Args:
        process: the thread's.
        thread: samples or, where perf made the file, µs.
        width: cells.
        theme: colours and glyphs of this terminal.
        chosen: True: the cursor is here.
        opened: True: its frames are listed below.
    """
    palette = theme.palette
    row = Row(width).add(_cursor(theme, chosen), palette.selected)
    row.add(f"{theme.glyphs.more if opened else theme.glyphs.selected} ", palette.dim)
    row.add(fmt.printable(thread.thread), palette.cursor if chosen else palette.strong)
    many = fmt.counted(thread.samples, "sample")
    said = [process.name, many if thread.unit == "samples" else fmt.duration(thread.samples / 1e6)]
    if thread.cpu_pct is not None:
        said.append(f"on a CPU {fmt.percent(thread.cpu_pct)}")
    if thread.kind != "working":
        said.append({"waiting": "waits", "llmtop": "llmtop's own"}[thread.kind])
    return row.add("  " + f" {theme.glyphs.dot} ".join(map(fmt.printable, said)), palette.dim)


def frame_line(shown: FlameLine, width: int, theme: CellTheme, *, chosen: bool, opened: bool) -> Row:
    """Return one frame's row: share of the thread as number and bar, share as innermost frame, name, place.

    Args:
        shown: from `visible_lines`.
        width: cells; the bar needs 100.
        theme: colours and glyphs of this terminal.
        chosen: True: the cursor is here.
        opened: True: its callees are listed below.
    """
    palette, node = theme.palette, shown.node
    share = 100.0 * node.samples / max(shown.total, 1)
    own = 100.0 * node.self_samples / max(shown.total, 1)
    row = Row(width).add(_cursor(theme, chosen), palette.selected)
    row.add(pad(fmt.percent(share, 1), 6, right=True), palette.text)
    row.add(pad(fmt.percent(own, 1) if node.self_samples else "", 7, right=True), palette.dim)
    if width >= 100:
        full = round(_BAR * share / 100.0)
        row.add(f"  {theme.glyphs.gauge_full * full}{' ' * (_BAR - full)}", palette.compute)
    sign = (theme.glyphs.more if opened else theme.glyphs.selected) if shown.folds else " "
    row.add(f"  {'  ' * min(shown.depth - 1, max(width // 6, 1))}{sign} ", palette.dim)
    row.add(fmt.printable(node.name), palette.cursor if chosen else palette.strong if node.own else palette.text)
    row.add(f"  {_place(node)}", palette.dim)
    if shown.small:
        row.add(f"  {fmt.counted(shown.small, 'small call')}", palette.dim)
    return row


def _cursor(theme: CellTheme, chosen: bool) -> str:
    return f" {theme.glyphs.arrow if chosen else ' '} "


def _place(node: StackNode) -> str:
    """Return where it stands: the script's own file by its name, a library's from the package on."""
    name = node.file
    for part in ("site-packages/", "dist-packages/"):
        name = name.rpartition(part)[2]
    if name == node.file:
        name = PurePath(name).name
    return fmt.printable(name if node.line is None else f"{name}:{node.line}")
