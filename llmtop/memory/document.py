"""A memory report as a document: what is held, by whom, when; and what grew between two snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

from llmtop.document.model import (
    BRIEF_FINDINGS,
    BRIEF_LINES,
    AreaChart,
    Block,
    Document,
    Finding,
    Heading,
    Listing,
    Paragraph,
    Table,
    columns,
)
from llmtop.format import DASH, counted, duration, evidence_text, size
from llmtop.memory.model import DeviceGrowth, Growth, Held, LeakReport, MemoryDevice, MemoryReport, MemoryTimeline

_FULL_CHART_ROWS = 12
_BRIEF_GROWN = 10
_MOST_STACKS = 10
_ALL = 1 << 30


def memory_document(report: MemoryReport) -> Document:
    """Return all of a memory report."""
    blocks: list[Block] = [*_head(report), *_findings(report)]
    for device in report.devices:
        blocks += _device(device)
    if report.notes:
        blocks += [Heading("Notes"), *(Paragraph(note, is_item=True) for note in report.notes)]
    return Document("Memory snapshot", blocks)


def brief_memory(report: MemoryReport) -> Document:
    """Return what is to be read first: the device that holds most."""
    head = [replace(block, most_lines=4 if block.is_lead else 1) for block in _head(report)]
    findings = [
        replace(finding, name="", evidence="", most_lines=3) for finding in _findings(report)[:BRIEF_FINDINGS]
    ]
    first = max(report.devices, key=_most, default=None)
    shown: list[Block] = []
    if first is not None:
        shown = [*([timeline_chart(first.timeline)] if first.timeline else []), *_tables(first)]
    last = Paragraph(
        "--full says all: stacks, modules, sizes, every device and finding; --json has them as data.", "dim"
    )
    return Document("Memory snapshot", (*head, *findings, *shown, last), most_lines=BRIEF_LINES)


def _head(report: MemoryReport) -> list[Paragraph]:
    parts = [report.source, "memory snapshot"]
    if report.window_seconds is not None:
        parts.append(f"history of {duration(report.window_seconds)}")
    if report.steps is not None:
        parts.append(counted(report.steps, "step"))
    return [
        Paragraph(" · ".join(parts), "dim"),
        Paragraph(report.summary, "title", is_lead=True),
        *(Paragraph(note, "dim") for note in report.notes[: 0 if report.findings else 1]),
    ]


def _findings(report: MemoryReport) -> list[Finding]:
    return [
        Finding(
            severity=finding.severity,
            summary=finding.summary,
            name=finding.id,
            saving="" if finding.saves_at_most_bytes is None else size(finding.saves_at_most_bytes),
            evidence=evidence_text(finding.evidence),
            todo=finding.fix,
            next=finding.next,
        )
        for finding in report.findings
    ]


def _device(device: MemoryDevice) -> list[Block]:
    """Return all of one device."""
    blocks: list[Block] = [Heading(f"GPU {device.device}, {PurePath(device.source).name}")]
    blocks += [Paragraph(text, is_item=True) for text in _figures(device)]
    if device.timeline is not None:
        blocks.append(replace(timeline_chart(device.timeline), rows=_FULL_CHART_ROWS))
    return [*blocks, *(replace(table, most=_ALL) for table in _tables(device)), *_stacks(device)]


def _figures(device: MemoryDevice) -> list[str]:
    """Return sentences on reserved, allocated, free and peak memory."""
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
        during = f" in {peak.phase}" if peak.phase else ""
        lines.append(f"peak {size(peak.bytes)}{during}{at}, at most {size(peak.reserved_bytes)} reserved")
    return lines


def timeline_chart(timeline: MemoryTimeline) -> AreaChart:
    """Return allocated and reserved memory over time as a chart."""
    whole = None if timeline.seconds is None else timeline.seconds * len(timeline.allocated_bytes)
    return AreaChart(
        title="Allocated and reserved over the window",
        lower=timeline.allocated_bytes,
        upper=timeline.reserved_bytes,
        names=("allocated (as asked for)", "reserved besides"),
        format_value=size,
        end=duration(whole) if whole is not None else "events in order",
    )


def _tables(device: MemoryDevice) -> list[Table]:
    """Return the tables of one device that have rows, the most important first."""
    numbers = ("now", "peak", "blocks")
    phases = [
        (one.name, size(one.peak_bytes), size(one.median_growth_bytes), str(one.count)) for one in device.phases
    ]
    growing = [(one.line, one.holder, size(one.bytes_per_step), str(one.blocks)) for one in device.growing]
    made = (
        Table("Held by", columns(("holder",), numbers), list(map(_holder_row, device.holders)), most=8),
        Table("Peak by phase", columns(("phase",), ("peak", "grows by", "times")), phases),
        Table(
            "Lines that allocated it",
            columns(("line", "holder"), numbers, cut="middle"),
            [(one.name, one.holder, *_holder_row(one)[1:]) for one in device.lines],
        ),
        Table("Kept in every step", columns(("line", "holder"), ("a step", "blocks"), cut="middle"), growing),
        Table(
            "Modules whose forward pass allocated it",
            columns(("module",), numbers, cut="start"),
            list(map(_holder_row, device.modules)),
        ),
        Table(
            "Without a stack, by size",
            columns(("size",), numbers),
            [_holder_row(one) for one in device.sizes],
            most=6,
        ),
    )
    return [table for table in made if table.rows]


def _holder_row(one: Held) -> tuple[str, str, str, str]:
    return one.name, size(one.bytes), DASH if one.peak_bytes is None else size(one.peak_bytes), str(one.blocks)


def _stacks(device: MemoryDevice) -> list[Listing]:
    """Return the stacks of what grows and of the largest lines."""
    stacks = [(f"{size(one.bytes_per_step)} a step {one.line}", one.stack) for one in device.growing]
    largest = [(f"{size(max(one.bytes, one.peak_bytes or 0))} {one.name}", one.stack) for one in device.lines]
    stacks = stacks[:_MOST_STACKS] + largest[:_MOST_STACKS]
    lines = [line for name, stack in stacks for line in (f"  {name}", *(f"      {frame}" for frame in stack))]
    return [Listing("Stacks, the innermost frame first", lines)] if lines else []


def _most(device: MemoryDevice) -> int:
    return device.peak.bytes if device.peak is not None else device.requested_bytes


def growth_document(report: LeakReport) -> Document:
    """Return all that grew between two snapshots, with stacks."""
    return _growth(report, report.devices, full=True)


def brief_growth(report: LeakReport) -> Document:
    """Return what grew most between two snapshots."""
    by_change = sorted(report.devices, key=lambda one: one.allocated_before_bytes - one.allocated_after_bytes)
    return replace(_growth(report, by_change[:2], full=False), most_lines=BRIEF_LINES)


def _growth(report: LeakReport, devices: Sequence[DeviceGrowth], *, full: bool) -> Document:
    blocks: list[Block] = [
        Paragraph(f"{report.before} → {report.after}", "dim"),
        Paragraph(report.summary, "title" if report.verdict == "same" else "warning", is_lead=True),
    ]
    for device in devices:
        blocks.append(Heading(_growth_title(device)))
        for title, rows in (("grown", device.grown), ("shrunk", device.shrunk)):
            heads = columns((title, "holder"), ("change", "blocks", "before", "after"), cut="middle")
            cells = [_growth_cells(one) for one in rows]
            blocks += [Table("", heads, cells, most=_ALL if full else _BRIEF_GROWN)] if rows else []
        frames = [f"      {frame}" for one in device.grown[:_MOST_STACKS] for frame in (one.name, *one.stack)]
        blocks += [Listing("", frames)] if full and frames else []
    return Document("Memory growth", (*blocks, *(Paragraph(note, "dim") for note in report.notes)))


def _growth_title(device: DeviceGrowth) -> str:
    return (
        f"GPU {device.device}: allocated {size(device.allocated_before_bytes)} → "
        f"{size(device.allocated_after_bytes)}, reserved {size(device.reserved_before_bytes)} → "
        f"{size(device.reserved_after_bytes)}"
    )


def _growth_cells(one: Growth) -> tuple[str, ...]:
    return (
        f"{one.name} (by size)" if one.by_size else one.name,
        one.holder,
        f"{'+' if one.bytes > 0 else ''}{size(one.bytes)}",
        f"{one.blocks:+d}",
        size(one.before_bytes),
        size(one.after_bytes),
    )
