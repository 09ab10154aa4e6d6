"""The tables of a report."""

from __future__ import annotations

from collections.abc import Sequence

from llmtop.document.model import Column, Table, columns
from llmtop.format import DASH, count, duration, number, percent, pid_text, size
from llmtop.naming.kernel_names import kind_text
from llmtop.naming.own_phases import phase_label
from llmtop.report.device_time_tables import gemm_table, makeup_table, operator_table
from llmtop.report.device_words import device_word, table_of_device
from llmtop.report.host_work_tables import (
    call_place_table,
    host_operator_table,
    memory_operator_table,
    memory_table,
    sample_table,
)
from llmtop.report.model import CollectiveTime, GapTime, LongGap, Report


def tables(report: Report) -> dict[str, Table]:
    """Return all tables that have rows, in the order in which a reader wants them, each by the name of what it
    is of."""
    made = {
        "devices": _devices(report),
        "phases": _phases(report),
        "idle": _gaps(report),
        "gaps": _longest(report),
        "makeup": makeup_table(report),
        "operators": operator_table(report),
        "host_operators": host_operator_table(report),
        "gemms": gemm_table(report),
        "kernels": _kernels(report),
        "collectives": _collectives(report),
        "waits": _waits(report),
        "call_places": call_place_table(report),
        "samples": sample_table(report),
        "memory": memory_table(report),
        "memory_operators": memory_operator_table(report),
        "copies": _copies(report),
        "calls": _api(report),
        "metrics": _metrics(report),
    }
    word = device_word(report)
    return {name: table_of_device(table, word) for name, table in made.items() if table.rows}


def _devices(report: Report) -> Table:
    rows = [
        (
            f"{device.device}{'*' if device.judged and len(report.devices) > 1 else ''}",
            device.name or DASH,
            pid_text(device.pid) + (f" rank {device.rank}" if device.rank is not None else ""),
            # What pauses there are within a graph that was traced as a whole is not seen.
            ("≤ " if device.graphs else "") + percent(device.busy_pct, 1),
            ("≥ " if device.graphs else "") + percent(device.idle_pct, 1),
            percent(device.memcpy_pct, 1),
            percent(device.nccl_pct, 1),
            percent(device.nccl_exposed_pct, 1),
            count(device.kernels),
            percent(device.kernels_under_10us_pct, 1),
            count(device.launches_per_step),
        )
        for device in report.devices
    ]
    numbers = ("busy", "idle", "copies", "comm", "exposed", "kernels", "<10 µs", "launches/step")
    heads = columns(("GPU", "name", "pid"), numbers)
    bases = ["busy: first to last activity; idle to exposed: whole steps"] if report.steps.count else []
    if len(report.devices) > 1 and any(device.judged for device in report.devices):
        bases.append("*: the one that the verdict is on")
    heading = f"Devices ({'; '.join(bases)})" if bases else "Devices"
    return _without_absent(heading, heads, rows, ("launches/step",), most=64)


def _without_absent(
    heading: str, heads: Sequence[Column], rows: Sequence[tuple[str, ...]], absent: tuple[str, ...], most: int
) -> Table:
    """Return a table without those of the columns named in `absent` in which no row has a value."""
    kept = [
        place
        for place, head in enumerate(heads)
        if head.title not in absent or any(row[place] != DASH for row in rows)
    ]
    return Table(
        heading,
        tuple(heads[place] for place in kept),
        [tuple(row[place] for place in kept) for row in rows],
        most=most,
    )


def _phases(report: Report) -> Table:
    several = len({row.pid for row in report.phases}) > 1
    gpus = len({(row.pid, row.device) for row in report.phases}) > len({row.pid for row in report.phases})
    rows = [
        (
            (f"{pid_text(row.pid)} " if several else "")
            + (f"GPU {row.device} " if gpus and row.device is not None else "")
            + phase_label(row.name),
            duration(row.host_seconds),
            percent(row.share_pct, 1),
            *(
                (duration(row.gpu_seconds), percent(row.gpu_share_pct, 1), duration(row.gpu_idle_seconds))
                if report.devices
                else ()
            ),
            number(row.count_per_step, 1),
        )
        for row in report.phases
    ]
    on_device = ("GPU", "of step", "GPU idle in it") if report.devices else ()
    numbers = ("host", "of step", *on_device, "times")
    return Table(
        "Phases (host: by the host clock; GPU: device time of what was launched in it)"
        if report.devices
        else "Phases, by the host clock",
        columns(("phase, mean per step",), numbers, cut="middle"),
        rows,
        most=32,
    )


def _gaps(report: Report) -> Table:
    several = len(report.devices) > 1
    rows = [
        (
            (f"{_gpu(report, row)}: " if several else "") + row.summary,
            percent(row.share_pct, 2),
            duration(row.ms_per_step / 1e3 if row.ms_per_step is not None else None),
            count(row.gaps),
            duration(row.longest_us / 1e6),
        )
        for row in report.gaps
    ]
    numbers = (_share_header(report, "of steps"), "per step", "gaps", "longest")
    heads = columns(("the GPU was idle because",), numbers, cut="never")
    return _without_absent("Idle time by cause", heads, rows, ("per step",), most=40)


def _longest(report: Report) -> Table:
    rows = []
    for gap in report.longest_gaps:
        cause = next(iter(gap.causes), "")
        rows.append(
            (
                f"{gap.start_seconds:.4f} s" + (f", {_gpu(report, gap)}" if len(report.devices) > 1 else ""),
                cause,
                gap.phase or DASH,
                "; ".join(gap.host),
                duration(gap.seconds),
            )
        )
    host = Column("what the launching threads did", is_text=True, cut="never")
    heads = (*columns(("at", "cause", "phase")), host, Column("long"))
    return Table("Longest gaps", heads, rows, most=6)


def _kernels(report: Report) -> Table:
    launched = any(row.operator for row in report.kernels)
    rows = [
        (
            row.name,
            kind_text(row.kind),
            *((row.operator or DASH,) if launched else ()),
            percent(row.share_pct, 1),
            count(row.count),
            duration(row.mean_us / 1e6),
            duration(row.seconds),
        )
        for row in report.kernels
    ]
    by = ("by operator",) if launched else ()
    numbers = ("of kernels", "count", "mean", "total")
    return Table("Kernels", columns(("kernel, whole capture", "kind", *by), numbers, cut="middle"), rows)


def _collectives(report: Report) -> Table:
    sized = any(row.message_bytes for row in report.collectives)
    rows: list[tuple[str, ...]] = []
    for row in report.collectives:
        cells: tuple[str, ...] = (
            _gpu(report, row),
            row.name,
            number(row.count_per_step, 1),
            duration(None if row.ms_per_step is None else row.ms_per_step / 1e3),
            _exposed(row),
            percent(row.share_pct, 1),
        )
        if sized:
            rate = number(row.bus_gb_per_s, 1, " GB/s")
            fastest = number(row.fastest_bus_gb_per_s, 1, " GB/s")
            cells += (size(row.message_bytes), number(row.algorithm_gb_per_s, 1, " GB/s"), rate, fastest)
        rows.append(cells)
    numbers: tuple[str, ...] = ("per step", "time", "exposed", _share_header(report, "of step"))
    if sized:
        numbers += ("message", "algorithm", "bus", "fastest bus")
    return Table("Communication", columns(("GPU", "collective"), numbers), rows, most=32)


def _exposed(row: CollectiveTime) -> str:
    """Return how long it ran alone in a step; without steps, for which part of the time."""
    if row.exposed_ms_per_step is None:
        return percent(row.exposed_pct, 1)
    return duration(row.exposed_ms_per_step / 1e3)


def _gpu(report: Report, row: GapTime | LongGap | CollectiveTime) -> str:
    """Return which GPU a row is about; with the process, where several call different ones by the same number."""
    alike = sum(device.device == row.device for device in report.devices)
    return f"GPU {row.device}" if alike < 2 else f"GPU {row.device}, pid {pid_text(row.pid)}"


def _share_header(report: Report, steps: str) -> str:
    """Column header of shares: of steps, or of the whole time where there are no steps."""
    return steps if any(device.steps for device in report.devices) else "of time"


def _waits(report: Report) -> Table:
    rows = [
        (
            row.phase or DASH,
            row.call,
            row.operator or DASH,
            number(row.calls_per_step, 1),
            duration(row.host_ms_per_step / 1e3),
        )
        for row in report.waits
    ]
    heads = columns(("phase", "call that waits", "operator"), ("per step", "host time per step"))
    return Table("Waits for the GPU (host clock)", heads, rows, most=6)


def _copies(report: Report) -> Table:
    rows = [
        (
            row.direction,
            f"{row.source_memory} to {row.target_memory}" if row.source_memory else row.target_memory,
            count(row.count),
            size(row.bytes),
            number(row.gb_per_s, 1, " GB/s"),
            duration(row.seconds),
        )
        for row in report.copies
    ]
    heads = columns(("direction", "memory"), ("count", "size", "rate", "total"))
    return Table("Copies, whole capture", heads, rows)


def _api(report: Report) -> Table:
    rows = [
        (
            row.name,
            row.kind,
            count(row.count),
            number(row.calls_per_step, 1),
            duration(row.mean_us / 1e6),
            duration(row.max_us / 1e6),
            duration(row.seconds),
        )
        for row in report.api
    ]
    numbers = ("count", "per step", "mean", "longest", "total")
    heads = columns(("CUDA call, whole capture", "kind"), numbers, cut="middle")
    return _without_absent("CUDA calls", heads, rows, ("per step",), most=10)


def _metrics(report: Report) -> Table:
    rows = [
        (
            f"GPU {row.device}",
            row.name.replace("_", " "),
            percent(row.mean_pct, 1),
            percent(row.p95_pct, 1),
            _sparkline(row.values_pct),
        )
        for row in report.metrics
    ]
    heads = (*columns(("GPU", "metric"), ("mean", "p95")), Column("over time, 0 to 100%", is_optional=True))
    return Table("GPU metrics, of peak", heads, rows, most=64)


def _sparkline(values: tuple[float | None, ...], cells: int = 40) -> str:
    """Return a row of blocks on a fixed axis; a blank where nothing was measured."""
    levels = "▁▂▃▄▅▆▇█"
    drawn = []
    for cell in range(cells):
        part = [
            v for v in values[cell * len(values) // cells : (cell + 1) * len(values) // cells] if v is not None
        ]
        drawn.append(levels[min(int(sum(part) / len(part) * 8 / 100), 7)] if part else " ")
    return "".join(drawn)
