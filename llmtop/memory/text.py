"""A memory report for a terminal: what is held, by whom, when; and what grew between two snapshots."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Sequence
from pathlib import PurePath

from llmtop.format import BRIEF_LINES, DASH, counted, duration, printable, size
from llmtop.memory.model import (
    DeviceGrowth,
    Growth,
    Held,
    LeakReport,
    MemoryDevice,
    MemoryFinding,
    MemoryReport,
    MemoryTimeline,
)
from llmtop.report.render.text import BRIEF_FINDINGS, SIGNS
from llmtop.report.render.text_table import TextTable

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_ROWS = 6
"""Of the drawn timeline, in a brief report and in a full one."""
_FULL_ROWS = 12
_ALL = 1 << 30

Style = Callable[[str, str], str]


def _plain(text: str, _role: str) -> str:
    return text


def brief(report: MemoryReport, width: int = 100, style: Style | None = None) -> str:
    """What is to be read first, in `BRIEF_LINES` lines at most: the device that holds most.

    Args:
        report: what to show.
        width: of the terminal.
        style: puts colour on a piece of text by its role: "title", "critical", "warning", "info" or "dim".
    """
    paint, width = style or _plain, max(60, min(width, 140))
    lines = _head(report, width, paint)[:6]
    for finding in report.findings[:BRIEF_FINDINGS]:
        lines += ["", *_finding(finding, width, paint)[:4]]
    shown = sorted(report.devices, key=lambda device: -_most(device))[:1]
    last = "--full says all: stacks, modules, sizes, every device and finding; --json has them as data."
    for device in shown:
        if device.timeline is not None:
            lines += ["", paint("Allocated and reserved over the window", "title")]
            lines += draw_timeline(device.timeline, width - 4, _ROWS)
        chosen = [table for table in tables(device, width) if table.rows]
        room = BRIEF_LINES - len(lines) - 2
        for place, table in enumerate(chosen):
            # A blank line, the title, the columns and what is left out; those after it want a row or two, but
            # where there is not room for all, the first come first.
            fits = min(room - 4, max(4, room - 4 - 6 * (len(chosen) - place - 1)))
            if fits >= 1:
                made = _table(table, min(fits, table.most), paint)
                lines += made
                room -= len(made)
    return "\n".join([*lines[: BRIEF_LINES - 2], "", paint(last, "dim")]) + "\n"


def render(report: MemoryReport, width: int = 100, style: Style | None = None) -> str:
    """All of it; see `brief` for the arguments."""
    paint, width = style or _plain, max(60, min(width, 140))
    lines = _head(report, width, paint)
    for finding in report.findings:
        lines += ["", *_finding(finding, width, paint)]
    for device in report.devices:
        lines += ["", paint(f"GPU {device.device}, {printable(PurePath(device.source).name, 80)}", "title")]
        lines += [f"  {text}" for text in figures(device)]
        if device.timeline is not None:
            lines += ["", paint("Allocated and reserved over the window", "title")]
            lines += draw_timeline(device.timeline, width - 4, _FULL_ROWS)
        for table in tables(device, width):
            if table.rows:
                lines += _table(table, _ALL, paint)
        lines += _stacks(device, paint)
    if report.notes:
        lines += ["", paint("Notes", "title")]
        lines += [line for note in report.notes for line in _wrapped(printable(note, 600), width, "  ")]
    return "\n".join(lines) + "\n"


def _head(report: MemoryReport, width: int, paint: Style) -> list[str]:
    parts = [printable(report.source, 200), "memory snapshot"]
    if report.window_seconds is not None:
        parts.append(f"history of {duration(report.window_seconds)}")
    if report.steps is not None:
        parts.append(counted(report.steps, "step"))
    lines = [paint(line, "dim") for line in _wrapped(" · ".join(parts), width)]
    lines += ["", *(paint(line, "title") for line in _wrapped(printable(report.summary, 1000), width))]
    if not report.findings:
        lines += [paint(line, "dim") for note in report.notes[:1] for line in _wrapped(note, width)]
    return lines


def _finding(finding: MemoryFinding, width: int, paint: Style) -> list[str]:
    saved = finding.saves_at_most_bytes
    saves = "" if saved is None else f" Saves at most {size(saved)}."
    said = f"{SIGNS.get(finding.severity, '·')} {printable(finding.summary, 1000)}{saves}"
    lines = [paint(line, finding.severity) for line in _wrapped(said, width, "", "  ")]
    if finding.fix:
        lines += _wrapped(f"do: {printable(finding.fix, 1000)}", width, "  ", "      ")
    if finding.next:
        lines += _wrapped(f"next: {printable(finding.next, 1000)}", width, "  ", "      ")
    return lines


def figures(device: MemoryDevice) -> list[str]:
    """What is reserved, allocated and free, and the peak, in a sentence each."""
    spare, peak = device.fragmentation, device.peak
    lines = [
        f"reserved {size(device.reserved_bytes)} in {counted(device.segments, 'segment')}, allocated "
        f"{size(device.allocated_bytes)}, asked for {size(device.requested_bytes)}, awaiting another stream "
        f"{size(device.awaiting_free_bytes)}",
        f"free {size(spare.free_bytes)}: beside used pieces {size(spare.split_bytes)}, in empty segments "
        f"{size(spare.releasable_bytes)}; largest free piece {size(spare.largest_free_bytes)}",
    ]
    if peak is not None:
        at = "" if peak.at_seconds is None else f" after {duration(peak.at_seconds)}"
        during = f" in {printable(peak.phase, 60)}" if peak.phase else ""
        lines.append(f"peak {size(peak.bytes)}{during}{at}, at most {size(peak.reserved_bytes)} reserved")
    return lines


def draw_timeline(timeline: MemoryTimeline, width: int, rows: int) -> list[str]:
    """Return allocated and reserved memory over time as a chart of text lines.

    Args:
        timeline: what to draw.
        width: cells, the scale at the left counted.
        rows: lines, the axis not counted.
    """
    top = max(*timeline.reserved_bytes, *timeline.allocated_bytes, 1)
    label = max(len(size(top)), len("0 B"))
    columns = max(1, min(width - label - 3, 2 * len(timeline.allocated_bytes)))
    allocated = _spread(timeline.allocated_bytes, columns)
    reserved = _spread(timeline.reserved_bytes, columns)
    lines = []
    for row in range(rows, 0, -1):
        cells = "".join(_cell(one, two, top, row, rows) for one, two in zip(allocated, reserved, strict=True))
        name = size(top) if row == rows else ""
        lines.append(f"  {name:>{label}} ┤{cells.rstrip()}")
    whole = None if timeline.seconds is None else timeline.seconds * len(timeline.allocated_bytes)
    end = duration(whole) if whole is not None else "events in order"
    lines.append(f"  {'0 B':>{label}} └{'─' * max(0, columns - len(end) - 1)} {end}")
    lines.append(f"  {'':>{label}}  █ allocated (as asked for)   ░ reserved besides")
    return lines


def _spread(values: Sequence[int], columns: int) -> list[int]:
    """The most of the values that fall into each column."""
    count = len(values)
    edges = [place * count // columns for place in range(columns + 1)]
    return [max(values[first : max(last, first + 1)]) for first, last in itertools.pairwise(edges)]


def _cell(allocated: int, reserved: int, top: int, row: int, rows: int) -> str:
    filled = min(8, max(0, round(8 * (allocated / top * rows - (row - 1)))))
    if filled > 0:
        return _EIGHTHS[filled]
    return "░" if reserved / top * rows > row - 0.5 else " "


def tables(device: MemoryDevice, width: int) -> list[TextTable]:
    """The tables of one device, the most important first.

    Args:
        device: what they are of.
        width: of the terminal.
    """
    name = max(24, width - 60)
    return [
        TextTable("Held by", ("", "now", "peak", "blocks"), [_held(one, 40) for one in device.holders], most=8),
        _phase_table(device),
        TextTable(
            "Lines that allocated it",
            ("line", "holder", "now", "peak", "blocks"),
            [(printable(one.name, name), one.holder, *_held(one, 0)[1:]) for one in device.lines],
            text_columns=2,
        ),
        TextTable(
            "Kept in every step",
            ("line", "holder", "a step", "blocks"),
            [
                (printable(one.line, name), one.holder, size(one.bytes_per_step), str(one.blocks))
                for one in device.growing
            ],
            text_columns=2,
        ),
        TextTable(
            "Modules whose forward pass allocated it",
            ("module", "now", "peak", "blocks"),
            [_held(one, name) for one in device.modules],
        ),
        TextTable(
            "Without a stack, by size",
            ("size", "now", "peak", "blocks"),
            [_held(one, name) for one in device.sizes],
            most=6,
        ),
    ]


def _phase_table(device: MemoryDevice) -> TextTable:
    return TextTable(
        "Peak by phase",
        ("phase", "peak", "grows by", "times"),
        [
            (printable(one.name, 40), size(one.peak_bytes), size(one.median_growth_bytes), str(one.count))
            for one in device.phases
        ],
    )


def _held(one: Held, width: int) -> tuple[str, str, str, str]:
    peak = DASH if one.peak_bytes is None else size(one.peak_bytes)
    return printable(one.name, width) if width else "", size(one.bytes), peak, str(one.blocks)


def _stacks(device: MemoryDevice, paint: Style) -> list[str]:
    """The stacks of what grows and of the largest lines."""
    told = [(f"{size(one.bytes_per_step)} a step {one.line}", one.stack) for one in device.growing[:10]]
    told += [(f"{size(max(one.bytes, one.peak_bytes or 0))} {one.name}", one.stack) for one in device.lines[:10]]
    found = ["", paint("Stacks, the innermost frame first", "title")] if told else []
    for name, stack in told:
        found.append(f"  {printable(name, 120)}")
        found += [f"      {printable(frame, 120)}" for frame in stack]
    return found


def _table(table: TextTable, most: int, paint: Style) -> list[str]:
    cut = TextTable(table.title, table.header, table.rows, table.text_columns, most)
    lines = ["", paint(table.title, "title")]
    lines += [("  " + "  ".join(cells)).rstrip() for cells in cut.lines()]
    if cut.more:
        lines.append(f"  … and {cut.more} more (--json has all)")
    return lines


def _most(device: MemoryDevice) -> int:
    return device.peak.bytes if device.peak is not None else device.requested_bytes


def render_growth(report: LeakReport, width: int = 100, style: Style | None = None, *, full: bool = False) -> str:
    """What grew between two snapshots.

    Args:
        report: what to show.
        width: of the terminal.
        style: as of `brief`.
        full: all lines with their stacks; without, in `BRIEF_LINES` lines at most.
    """
    paint, width = style or _plain, max(60, min(width, 140))
    lines = [paint(line, "dim") for line in _wrapped(printable(f"{report.before} → {report.after}", 300), width)]
    role = "title" if report.verdict == "same" else "warning"
    lines += ["", *(paint(line, role) for line in _wrapped(printable(report.summary, 1000), width))]
    devices = sorted(report.devices, key=lambda one: one.allocated_before_bytes - one.allocated_after_bytes)
    for device in devices if full else devices[:2]:
        lines += ["", paint(_growth_title(device), "title")]
        for title, rows in (("grown", device.grown), ("shrunk", device.shrunk)):
            table = TextTable(
                title,
                (title, "holder", "change", "blocks", "before", "after"),
                _growths(rows, width),
                text_columns=2,
            )
            if rows:
                lines += _table(table, _ALL if full else 10, paint)[2:]
        if full:
            lines += [
                f"      {printable(frame, 120)}" for one in device.grown[:10] for frame in (one.name, *one.stack)
            ]
    lines += ["", *(paint(line, "dim") for note in report.notes for line in _wrapped(note, width))]
    return "\n".join(lines if full else lines[:BRIEF_LINES]) + "\n"


def _growth_title(device: DeviceGrowth) -> str:
    return (
        f"GPU {device.device}: allocated {size(device.allocated_before_bytes)} → "
        f"{size(device.allocated_after_bytes)}, reserved {size(device.reserved_before_bytes)} → "
        f"{size(device.reserved_after_bytes)}"
    )


def _growths(rows: Sequence[Growth], width: int) -> list[tuple[str, ...]]:
    return [
        (
            printable(f"{one.name} (by size)" if one.by_size else one.name, max(24, width - 66)),
            one.holder,
            f"{'+' if one.bytes > 0 else ''}{size(one.bytes)}",
            f"{one.blocks:+d}",
            size(one.before_bytes),
            size(one.after_bytes),
        )
        for one in rows
    ]


def _wrapped(text: str, width: int, first: str = "", later: str | None = None) -> list[str]:
    later = first if later is None else later
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    ) or [""]
