"""A report as tables of text: what the text, Markdown and HTML outputs have in common.

Every cell has passed `printable`: names come from capture files, and a report may come from anywhere.
"""

from __future__ import annotations

from llmtop.format import DASH, count, counted, duration, figure, number, percent, printable, shorten_middle, size
from llmtop.report.model import CollectiveTime, Finding, GapTime, LongGap, Report
from llmtop.report.render.device_time_tables import gemm_table, makeup_table, operator_table
from llmtop.report.render.text_table import TextTable


def tables(report: Report, name_width: int = 60) -> list[TextTable]:
    """All tables that have rows, in the order in which a reader wants them."""
    return list(tables_by_name(report, name_width).values())


def tables_by_name(report: Report, name_width: int = 60) -> dict[str, TextTable]:
    """The same, each by the name of what it is of."""
    made = {
        "devices": _devices(report),
        "phases": _phases(report, name_width),
        "idle": _gaps(report),
        "gaps": _longest(report, name_width),
        "makeup": makeup_table(report),
        "operators": operator_table(report, name_width),
        "gemms": gemm_table(report),
        "kernels": _kernels(report, name_width),
        "collectives": _collectives(report),
        "waits": _waits(report, name_width),
        "copies": _copies(report),
        "calls": _api(report, name_width),
        "metrics": _metrics(report),
    }
    return {name: table for name, table in made.items() if table.rows}


def headline(report: Report) -> str:
    """One line on what the report was made of."""
    parts = [part for part in (printable(report.engine, 40), printable(report.tool_version, 40)) if part]
    steps = counted(report.steps.count, "whole step") if report.steps.count else "no whole step in it"
    return f"{printable(report.source, 200)} ({' '.join(parts)}, {duration(report.window_seconds)}, {steps})"


def first_lines(report: Report) -> list[str]:
    """Return the sentence on a capture that recorded less than was asked for, which begins a report."""
    return [printable(report.stopped_early, 400)] if report.stopped_early else []


def step_lines(report: Report) -> list[str]:
    """Sentences on how steps were found, how long they are, and what was left out."""
    steps = report.steps
    lines = [f"Steps: {printable(steps.found_by, 200)}."]
    if steps.seconds_p50 is not None:
        lines[0] = (
            f"Steps: {steps.count} ({printable(steps.found_by, 200)}), by the {steps.clock}'s clock median "
            f"{duration(steps.seconds_p50)}, "
            f"{duration(steps.seconds_min)} to {duration(steps.seconds_max)}, "
            f"spread {percent(steps.spread_pct, 1)}."
        )
    if steps.left_out:
        lines.append(f"Left out: {printable(steps.left_out, 400)}.")
    return lines


_MOST_NOTES = 40


def shown_notes(report: Report) -> list[str]:
    """The first notes: a damaged file can have one for each of a thousand GPUs."""
    more = len(report.notes) - _MOST_NOTES
    return [*report.notes[:_MOST_NOTES], *([f"and {more} notes more (--json has all)"] if more > 0 else [])]


def evidence_text(finding: Finding) -> str:
    """The numbers of a finding in one line."""
    return ", ".join(f"{printable(key, 60)} {_value(value)}" for key, value in finding.evidence.items())


def _value(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return DASH if value is None else str(value).lower()
    if isinstance(value, int):
        return f"{value}"
    if isinstance(value, float):
        return figure(value)
    return printable(str(value), 160)


def _devices(report: Report) -> TextTable:
    rows = [
        (
            f"{device.device}{'*' if device.judged and len(report.devices) > 1 else ''}",
            printable(device.name or DASH, 24),
            f"{device.pid}" + (f" rank {device.rank}" if device.rank is not None else ""),
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
    header = (
        "GPU",
        "name",
        "pid",
        "busy",
        "idle",
        "copies",
        "NCCL",
        "exposed",
        "kernels",
        "<10 µs",
        "launches/step",
    )
    return TextTable("Devices", header, rows, text_columns=3, most=64)


def _phases(report: Report, width: int) -> TextTable:
    several = len({row.pid for row in report.phases}) > 1
    gpus = len({(row.pid, row.device) for row in report.phases}) > len({row.pid for row in report.phases})
    rows = [
        (
            (f"{row.pid} " if several else "")
            + (f"GPU {row.device} " if gpus and row.device is not None else "")
            + shorten_middle(row.name, width),
            duration(row.host_seconds),
            percent(row.share_pct, 1),
            duration(row.gpu_seconds),
            percent(row.gpu_share_pct, 1),
            duration(row.gpu_idle_seconds),
            number(row.count_per_step, 1),
        )
        for row in report.phases
    ]
    header = ("phase, mean a step", "host", "of step", "GPU", "of step", "GPU idle in it", "times")
    return TextTable(
        "Phases (host: by the host's clock; GPU: device time of what was launched in it)",
        header,
        rows,
        text_columns=1,
        most=32,
    )


def _gaps(report: Report) -> TextTable:
    several = len(report.devices) > 1
    rows = [
        (
            (f"{_gpu(report, row)}: " if several else "") + printable(row.summary, 80),
            percent(row.share_pct, 2),
            duration(row.ms_per_step / 1e3 if row.ms_per_step is not None else None),
            count(row.gaps),
            duration(row.longest_us / 1e6),
        )
        for row in report.gaps
    ]
    return TextTable(
        "Idle time by cause",
        ("the GPU was idle because", _share_header(report, "of steps"), "a step", "gaps", "longest"),
        rows,
        text_columns=1,
        most=40,
    )


def _longest(report: Report, width: int) -> TextTable:
    rows = []
    for gap in report.longest_gaps:
        cause = next(iter(gap.causes), "")
        rows.append(
            (
                f"{gap.start_seconds:.4f} s" + (f", {_gpu(report, gap)}" if len(report.devices) > 1 else ""),
                printable(cause, 20),
                printable(gap.phase or DASH, 30),
                printable("; ".join(gap.host), max(width, 60)),
                duration(gap.seconds),
            )
        )
    return TextTable(
        "Longest gaps",
        ("at", "cause", "phase", "what the launching threads did", "long"),
        rows,
        text_columns=4,
        most=6,
    )


def _kernels(report: Report, width: int) -> TextTable:
    launched = any(row.operator for row in report.kernels)
    rows = [
        (
            shorten_middle(row.name, width),
            printable(row.kind, 20),
            *((printable(row.operator or DASH, 40),) if launched else ()),
            percent(row.share_pct, 1),
            count(row.count),
            duration(row.mean_us / 1e6),
            duration(row.seconds),
        )
        for row in report.kernels
    ]
    by = ("by operator",) if launched else ()
    header = ("kernel, whole capture", "kind", *by, "of kernels", "count", "mean", "total")
    return TextTable("Kernels", header, rows, text_columns=2 + launched)


def _collectives(report: Report) -> TextTable:
    sized = any(row.message_bytes for row in report.collectives)
    rows: list[tuple[str, ...]] = []
    for row in report.collectives:
        cells: tuple[str, ...] = (
            _gpu(report, row),
            printable(row.name, 30),
            number(row.count_per_step, 1),
            duration(None if row.ms_per_step is None else row.ms_per_step / 1e3),
            duration(None if row.exposed_ms_per_step is None else row.exposed_ms_per_step / 1e3),
            percent(row.share_pct, 1),
        )
        if sized:
            rate = number(row.bus_gb_per_s, 1, " GB/s")
            fastest = number(row.fastest_bus_gb_per_s, 1, " GB/s")
            cells += (size(row.message_bytes), number(row.algorithm_gb_per_s, 1, " GB/s"), rate, fastest)
        rows.append(cells)
    header: tuple[str, ...] = ("GPU", "collective", "a step", "time", "exposed", _share_header(report, "of step"))
    if sized:
        header += ("message", "algorithm", "bus", "fastest bus")
    return TextTable("NCCL", header, rows, text_columns=2, most=32)


def _gpu(report: Report, row: GapTime | LongGap | CollectiveTime) -> str:
    """Which GPU a row is about; with the process, where several call different ones by the same number."""
    alike = sum(device.device == row.device for device in report.devices)
    return f"GPU {row.device}" if alike < 2 else f"GPU {row.device}, pid {row.pid}"


def _share_header(report: Report, steps: str) -> str:
    """What shares are of, as the head of a column: of steps, or of all the time where there are none."""
    return steps if any(device.steps for device in report.devices) else "of time"


def _waits(report: Report, width: int) -> TextTable:
    rows = [
        (
            printable(row.phase or DASH, 30),
            printable(row.call, 40),
            shorten_middle(row.operator or DASH, width),
            number(row.calls_per_step, 1),
            duration(row.host_ms_per_step / 1e3),
        )
        for row in report.waits
    ]
    header = ("phase", "call that waits", "operator", "a step", "host time a step")
    return TextTable("Waits for the GPU (the host's clock)", header, rows, text_columns=3, most=6)


def _copies(report: Report) -> TextTable:
    rows = [
        (
            printable(row.direction, 30),
            printable(
                f"{row.source_memory} to {row.target_memory}" if row.source_memory else row.target_memory, 40
            ),
            count(row.count),
            size(row.bytes),
            number(row.gb_per_s, 1, " GB/s"),
            duration(row.seconds),
        )
        for row in report.copies
    ]
    return TextTable(
        "Copies, whole capture", ("direction", "memory", "count", "size", "rate", "total"), rows, text_columns=2
    )


def _api(report: Report, width: int) -> TextTable:
    rows = [
        (
            shorten_middle(row.name, width),
            printable(row.kind, 20),
            count(row.count),
            number(row.calls_per_step, 1),
            duration(row.mean_us / 1e6),
            duration(row.max_us / 1e6),
            duration(row.seconds),
        )
        for row in report.api
    ]
    header = ("CUDA call, whole capture", "kind", "count", "a step", "mean", "longest", "total")
    return TextTable("CUDA calls", header, rows, text_columns=2, most=10)


def _metrics(report: Report) -> TextTable:
    rows = [
        (
            f"GPU {row.device}",
            printable(row.name.replace("_", " "), 30),
            percent(row.mean_pct, 1),
            percent(row.p95_pct, 1),
            _sparkline(row.values_pct),
        )
        for row in report.metrics
    ]
    header = ("GPU", "metric", "mean", "p95", "over time, 0 to 100%")
    return TextTable("GPU metrics, of peak", header, rows, text_columns=2, most=64)


def _sparkline(values: tuple[float | None, ...], cells: int = 40) -> str:
    """A row of blocks on a fixed axis; a blank where nothing was measured."""
    levels = "▁▂▃▄▅▆▇█"
    drawn = []
    for cell in range(cells):
        part = [
            v for v in values[cell * len(values) // cells : (cell + 1) * len(values) // cells] if v is not None
        ]
        drawn.append(levels[min(int(sum(part) / len(part) * 8 / 100), 7)] if part else " ")
    return "".join(drawn)
