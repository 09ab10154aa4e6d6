"""Tables on the host's work and on memory: operators on the CPU, stack samples, places of calls, allocations."""

from __future__ import annotations

from llmtop.document.model import Column, Table, columns
from llmtop.format import DASH, count, duration, percent, pid_text, size
from llmtop.report.host_work import MemoryOperator, MemoryUse
from llmtop.report.model import Report


def host_operator_table(report: Report) -> Table:
    """Operators by their own host time, of a capture without device work."""
    placed = any(row.module or row.source for row in report.host_operators)
    shaped = any(row.shape for row in report.host_operators)
    steps = any(row.self_ms_per_step is not None for row in report.host_operators)
    rows = [
        (
            row.name,
            *((row.module or row.source or DASH,) if placed else ()),
            *((row.shape or DASH,) if shaped else ()),
            percent(row.share_pct, 1),
            count(row.calls),
            *((_milliseconds(row.self_ms_per_step),) if steps else ()),
            duration(row.self_seconds),
            duration(row.total_seconds),
        )
        for row in report.host_operators
    ]
    heads = (
        Column("operator, whole capture", is_text=True, cut="middle"),
        *((Column("mostly in", is_text=True, cut="start"),) if placed else ()),
        *((Column("shape with most time", is_text=True, is_optional=True),) if shaped else ()),
        *columns((), ("of all", "calls", *(("per step",) if steps else ()), "own time")),
        Column("with others", is_optional=True),
    )
    return Table("Operators on the CPU by their own host time", heads, rows, most=16)


def _milliseconds(value: float | None) -> str:
    return duration(None if value is None else value / 1e3)


def sample_table(report: Report) -> Table:
    """Functions that stack samples found innermost on the launching threads."""
    several = len({row.pid for row in report.sampled}) > 1
    on_device = any(row.idle_samples is not None for row in report.sampled)
    rows = [
        (
            (f"{pid_text(row.pid)} " if several else "") + row.kind,
            row.name,
            row.caller or DASH,
            *((percent(row.idle_pct, 1), count(row.call_samples)) if on_device else ()),
            percent(row.share_pct, 1),
            count(row.samples),
        )
        for row in report.sampled
    ]
    whose = "of the threads that launch" if on_device else "of the threads with ranges"
    if not on_device and not report.ranges:
        whose = "of all threads"
    heads = (
        Column("by", is_text=True),
        Column("function or frame", is_text=True, cut="start"),
        Column("called from", is_text=True, cut="start", is_optional=True),
        *columns((), (*(("while GPU idle", "in CUDA calls") if on_device else ()), "of all", "samples")),
    )
    return Table(f"Stack samples {whose}, by the innermost frame", heads, rows, most=20)


def call_place_table(report: Report) -> Table:
    """CUDA calls whose stacks were recorded, by place of the program."""
    rows = [
        (row.call, row.place, count(row.count), duration(row.max_us / 1e6), duration(row.seconds))
        for row in report.call_places
    ]
    heads = (
        Column("CUDA call", is_text=True, cut="middle"),
        Column("made at", is_text=True, cut="start"),
        *columns((), ("count", "longest", "total")),
    )
    return Table("CUDA calls by place, where a stack was recorded", heads, rows, most=12)


def memory_table(report: Report) -> Table:
    """Memory in use by process and device."""
    several = len({row.pid for row in report.memory}) > 1
    rows = [
        (
            (f"{pid_text(row.pid)} " if several else "")
            + _memory(row)
            + ("" if row.absolute else ", above the start"),
            size(row.peak_bytes),
            f"{row.peak_seconds:.3f} s",
            size(row.start_bytes),
            size(row.end_bytes),
            _signed_size(row.growth_bytes_per_step),
            size(row.reserved_bytes),
            size(row.largest_bytes),
            row.largest_by or DASH,
            count(row.allocations),
        )
        for row in report.memory
    ]
    heads = (
        *columns(("memory",), ("peak",)),
        Column("at", is_optional=True),
        Column("at start", is_optional=True),
        *columns((), ("at end", "growth per step")),
        Column("reserved", is_optional=True),
        *columns((), ("largest",)),
        Column("largest by", is_text=True, cut="middle", is_optional=True),
        Column("allocations", is_optional=True),
    )
    return Table("Memory in use, whole capture", heads, rows, most=16)


def _memory(row: MemoryUse | MemoryOperator) -> str:
    where = "host" if row.device is None else f"GPU {row.device}"
    kind = row.memory if isinstance(row, MemoryUse) and row.memory not in ("", "device") else ""
    return f"{where} ({kind})" if kind else where


def _signed_size(value: float | None) -> str:
    if value is None:
        return DASH
    return f"{'-' if value < 0 else ''}{size(abs(value))}"


def memory_operator_table(report: Report) -> Table:
    """Table of the operators that requested memory."""
    rows = [
        (
            row.name,
            _memory(row),
            size(row.bytes),
            _signed_size(row.net_bytes),
            size(row.largest_bytes),
            count(row.allocations),
        )
        for row in report.memory_operators
    ]
    heads = (
        Column("operator, range or place", is_text=True, cut="middle"),
        *columns(("memory",), ("allocated", "less released", "largest")),
        Column("allocations", is_optional=True),
    )
    return Table("Memory by who asked for it, whole capture", heads, rows, most=12)
