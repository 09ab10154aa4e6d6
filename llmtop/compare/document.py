"""A comparison as a document: what differs around it, what moved, and where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmtop.compare.model import ComparedFigure, Comparison, DeviceChange, FindingChange, WorkChange
from llmtop.compare.words import difference, signed
from llmtop.document.model import BRIEF_LINES, Block, Document, Heading, Paragraph, Table, columns
from llmtop.format import DASH, counted, duration, number, percent, times
from llmtop.model.bottlenecks import find_bottleneck
from llmtop.naming.own_phases import phase_label

_SMALL = 0.01
"""Share of a step: a part that is smaller on both sides is shown only with --full."""
_LARGE_PCT = 100.0
"""Percent from which a change is written as a factor."""
_BRIEF_ROWS = {
    "step": (20, 6),
    "devices": (8, 2),
    "phases": (8, 2),
    "operators": (8, 2),
    "kinds": (6, 2),
    "kernels": (10, 2),
    "nccl": (4, 2),
}
"""The most and the least rows of the tables in a brief document."""
_BRIEF_NOTES = 3
_LOST = "lost: "
"""How the names of shares of the step begin that are lost to one cause."""
_MARK = "*"


def comparison_document(comparison: Comparison) -> Document:
    """Return all of a comparison."""
    tables = _tables(comparison, brief=False).values()
    notes = [Paragraph(f"note: {note}", "dim") for note in comparison.notes]
    return Document("Comparison", (*_head(comparison), *tables, *_findings(comparison), *notes))


def brief_comparison(comparison: Comparison) -> Document:
    """Return what is to be read first."""
    head = [replace(block, most_lines=None if block.is_lead else 3) for block in _head(comparison)]
    tables = []
    for name, table in _tables(comparison, brief=True).items():
        most, least = _BRIEF_ROWS[name]
        tables.append(replace(table, most=most, least=least))
    findings = [
        replace(block, most_lines=2) if isinstance(block, Paragraph) else block for block in _findings(comparison)
    ]
    last = [Paragraph(f"note: {note}", "dim") for note in comparison.notes[:_BRIEF_NOTES]]
    left = len(comparison.notes) - len(last)
    last += [Paragraph(f"and {counted(left, 'more note')}", "dim")] if left > 0 else []
    last.append(Paragraph("--full says all, --json too.", "dim"))
    return Document("Comparison", (*head, *tables, *findings, *last), most_lines=BRIEF_LINES)


def environment_blocks(found: Comparison) -> list[Paragraph]:
    """Return in what the environments differ."""
    return [
        Paragraph(f"{row.name}: {row.told or f'{row.before or DASH} -> {row.after or DASH}'}", "warning")
        for row in found.environment
    ]


def _head(found: Comparison) -> list[Paragraph]:
    """Return the differences of the environments, the compared parts, and the summary."""
    return [
        *environment_blocks(found),
        Paragraph(f"before: {found.before} {_report_origin(found.engine_before, found.steps_before)}", "dim"),
        Paragraph(f"after:  {found.after} {_report_origin(found.engine_after, found.steps_after)}", "dim"),
        Paragraph(found.summary, "title", is_lead=True),
    ]


def _report_origin(engine: str, steps: int) -> str:
    """Source of a report."""
    return f"({engine}, {counted(steps, 'whole step') if steps else 'no whole steps'})"


def _tables(found: Comparison, brief: bool) -> dict[str, Table]:
    """Return the tables that have rows, in reading order."""
    made = {
        "step": _step(found, brief),
        "devices": _devices(found.devices),
        "phases": changes_table("Phases, mean per step", _phases(found, brief)),
        "kinds": _work("Kernels by kind", found.kinds, brief),
        "operators": _work("Operators", found.operators, brief),
        "kernels": _work("Kernels", found.kernels, brief),
        "nccl": _collectives(found, brief),
    }
    if len(found.devices) < 2:
        made.pop("devices")
    if brief and not any(row.worth_seconds is not None and row.state != "same" for row in found.kinds):
        made.pop("kinds")  # the line below the kernels says it
    return {name: table for name, table in made.items() if table.rows}


def _step(found: Comparison, brief: bool) -> Table:
    """Return the step, what it is made of, and what is lost of it."""
    rows = [found.step] if found.step is not None else []
    rows += [row for row in found.figures if row.unit == "s"]
    longest = max((row.before or 0.0) + (row.after or 0.0) for row in found.parts) if found.parts else 0.0
    parts = [
        row
        for row in found.parts
        if not brief or row.moved or max(row.before or 0.0, row.after or 0.0) > _SMALL * longest
    ]
    shares = [row for row in found.figures if row.unit == "pct"]
    if brief and found.parts:
        shares = [row for row in shares if not row.name.startswith(_LOST)]
    if brief:
        shares = [row for row in shares if row.moved or (row.before or 0.0) + (row.after or 0.0) > 1.0]
    return changes_table("", [*rows, *parts, *shares], indented=parts)


def _phases(found: Comparison, brief: bool) -> list[ComparedFigure]:
    """Return the phases; in brief the outermost ones with a share worth reporting, the largest change first."""
    rows = [row for row in found.phases if row.before or row.after]
    if not brief:
        return rows
    step = found.step.before if found.step is not None and found.step.before else 0.0
    outer = [row for row in rows if "/" not in row.name.replace(" / ", "") or row.moved]
    worth = [row for row in outer if row.moved or max(row.before or 0.0, row.after or 0.0) > _SMALL * step]
    return sorted(worth, key=lambda row: (not row.moved, -abs((row.after or 0.0) - (row.before or 0.0))))


def changes_table(title: str, rows: Sequence[ComparedFigure], indented: Sequence[ComparedFigure] = ()) -> Table:
    """Return figures before and after, one a row; those of `indented` are parts of the one above."""
    parts = set(map(id, indented))
    cells = [
        (
            f"{_MARK if row.moved else ' '} {'  ' if id(row) in parts else ''}{_label(row.name)}",
            _show(row.before, row.unit),
            _show(row.after, row.unit),
            *_difference(row),
        )
        for row in rows
    ]
    heads = columns(("",), ("before", "after", "change", "relative"), cut="middle" if title else "never")
    return Table(title, heads, cells, most=len(cells), strong=[row.moved for row in rows])


def _label(name: str) -> str:
    """Return the name of a figure in the words that a report has for it; JSON has its ids."""
    if name.startswith(_LOST):
        loss = find_bottleneck(name.removeprefix(_LOST))
        return name if loss is None else f"{_LOST}{loss.title}"
    phase, comma, clock = name.rpartition(", ")
    return f"{phase_label(phase)}{comma}{clock}" if comma else name


def _show(value: float | None, unit: str) -> str:
    return percent(value, 1) if unit == "pct" else duration(value)


def _difference(row: ComparedFigure) -> tuple[str, str]:
    """Return a change as a difference, and as a part of what was there."""
    if row.before is None or row.after is None:
        return DASH, row.told
    if row.unit == "pct":
        return f"{signed(row.after - row.before)} pt", ""
    share = row.told
    if not share and row.change_pct is not None:
        share = f"{signed(row.change_pct)}%" if row.change_pct < _LARGE_PCT else times(row.after / row.before)
    return difference(row.after - row.before), share


def _devices(devices: Sequence[DeviceChange]) -> Table:
    rows, moved = [], []
    for device in devices:
        by_name = {row.name: row for row in device.figures}
        cells = [device.name + (_MARK if device.before.judged or device.after.judged else "")]
        steps = device.step
        cells.append(f"{duration(steps.before)} -> {duration(steps.after)}" if steps is not None else DASH)
        for name in ("GPU time in a step", "GPU idle", "exposed NCCL"):
            row = by_name.get(name)
            cells.append(DASH if row is None else f"{_show(row.before, row.unit)} -> {_show(row.after, row.unit)}")
        rows.append(tuple(cells))
        moved.append((steps is not None and steps.moved) or any(row.moved for row in device.figures))
    heads = columns(("device (*: judged)",), ("step", "GPU time in it", "idle", "exposed NCCL"))
    return Table("Devices, each against itself", heads, rows, most=len(rows), strong=moved)


def _work(title: str, rows: Sequence[WorkChange], brief: bool) -> Table:
    """Kernels or operators; in brief those that moved."""
    stepwise = any(row.worth_seconds is not None for row in rows)
    shown = [row for row in rows if row.state != "same"] if brief else list(rows)
    before = sum(bool(row.window_before) for row in rows)
    after = sum(bool(row.window_after) for row in rows)
    over = "time a step" if stepwise else "one by one, for a step is not known on both sides"
    head = f"{title}, {over} ({before} before, {after} after, {_states(rows)})"
    make = _work_of_step if stepwise else _work_of_window
    cells = [make(row) for row in shown]
    if rows and not cells:
        cells = [("", "none of them moved", "", "", "", "", "")]
    numbers = ("times", "before", "after", "worth", "relative")
    if not stepwise:
        numbers = ("in the window", "mean before", "after", "change", "")
    heads = (*columns(("",)), *columns(("name",), numbers, cut="middle"))
    return Table(head, heads, cells, most=len(cells), strong=[row.state != "same" for row in shown])


def _states(rows: Sequence[WorkChange]) -> str:
    found: dict[str, int] = {}
    for row in rows:
        if row.state != "same":
            found[row.state] = found.get(row.state, 0) + 1
    return ", ".join(f"{count} {state}" for state, count in found.items()) or "none moved"


def _work_of_step(row: WorkChange) -> tuple[str, ...]:
    a, b = row.seconds_before or 0.0, row.seconds_after or 0.0
    return (
        "" if row.state == "same" else row.state,
        row.name,
        _both_counts(row.count_before, row.count_after),
        duration(a) if row.count_before else DASH,
        duration(b) if row.count_after else DASH,
        difference(b - a),
        _part(a, b) if row.count_before and row.count_after else "",
    )


def _work_of_window(row: WorkChange) -> tuple[str, ...]:
    a, b = row.mean_us_before, row.mean_us_after
    known = a is not None and b is not None
    return (
        "" if row.state == "same" else row.state,
        row.name,
        _both_counts(row.window_before, row.window_after),
        duration(None if a is None else a / 1e6),
        duration(None if b is None else b / 1e6),
        difference((b - a) / 1e6) if a is not None and b is not None else DASH,
        _part(a, b) if known and a is not None and b is not None else "",
    )


def _part(before: float, after: float) -> str:
    """Return the change as a share of the value before."""
    if not before:
        return ""
    change = 100.0 * (after / before - 1)
    return f"{signed(change)}%" if change < _LARGE_PCT else times(after / before)


def _both_counts(before: float | None, after: float | None) -> str:
    """Return how often, once where it is the same on both sides."""
    one, two = _count_text(before), _count_text(after)
    return one if one == two else f"{one} -> {two}"


def _count_text(value: float | None) -> str:
    """Return a count, or a mean of counts with one decimal."""
    text = number(value, 1)
    return text.removesuffix(".0")


def _arrow(before: float | None, after: float | None) -> str:
    return "" if before is None and after is None else f"{duration(before)} -> {duration(after)}"


def _collectives(found: Comparison, brief: bool) -> Table:
    rows = [row for row in found.collectives if row.state != "same" or not brief]
    cells = [
        (
            "" if row.state == "same" else row.state,
            f"{row.name}, {row.device}",
            _both_counts(row.count_before, row.count_after),
            _arrow(row.seconds_before, row.seconds_after),
            _arrow(row.exposed_seconds_before, row.exposed_seconds_after),
            f"{number(row.bus_gb_per_s_before, 1)} -> {number(row.bus_gb_per_s_after, 1)}"
            if row.bus_gb_per_s_before or row.bus_gb_per_s_after
            else "",
        )
        for row in rows
    ]
    heads = columns(("", "collective"), ("times", "time a step", "exposed", "bus GB/s"))
    return Table("NCCL, a step", heads, cells, most=len(cells), strong=[row.state != "same" for row in rows])


def _findings(found: Comparison) -> list[Block]:
    """Return one line a state: what is new, what is gone, what stayed."""
    lines: list[Block] = []
    for state in ("new", "gone", "stayed"):
        rows = [_finding(row) for row in found.findings if row.state == state]
        if rows:
            lines.append(Paragraph(f"{state}: {', '.join(rows)}", "dim", is_item=True))
    return [Heading("Findings"), *lines] if lines else []


def _finding(row: FindingChange) -> str:
    name = row.id
    if row.state != "stayed":
        share = row.after_pct if row.state == "new" else row.before_pct
        return name if share is None else f"{name} {percent(share, 1)}"
    if row.before_pct is None and row.after_pct is None:
        return name
    one, two = percent(row.before_pct, 1), percent(row.after_pct, 1)
    return f"{name} {one}" if one == two else f"{name} {one} -> {two}"
