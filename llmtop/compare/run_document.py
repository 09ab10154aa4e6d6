"""A comparison of two runs as a document."""

from __future__ import annotations

from collections.abc import Sequence

from llmtop.compare.document import changes_table, environment_blocks
from llmtop.compare.model import Comparison
from llmtop.compare.run_model import RunComparison, RunRegime, RunSide, SignalChange, StretchChange, ValueChange
from llmtop.compare.words import signed
from llmtop.document.model import BRIEF_LINES, Block, Document, Paragraph, Table, columns
from llmtop.format import DASH, counted, duration, figure, number, percent, rate, size
from llmtop.model.signals import BY_FIELD

_BRIEF_VALUES = 8
_BRIEF_SIGNALS = ("util_pct", "sm_active_pct", "power_watts", "temperature_c", "sm_clock_mhz", "mem_used_bytes")


def run_document(found: Comparison, runs: RunComparison, *, full: bool) -> Document:
    """Return a comparison of two runs.

    Args:
        found: the comparison.
        runs: its part on runs.
        full: all of it; else what is to be read first.
    """
    head: list[Block] = [
        *environment_blocks(found),
        Paragraph(f"before: {_origin(found.before, runs.before)}", "dim"),
        Paragraph(f"after:  {_origin(found.after, runs.after)}", "dim"),
        Paragraph(found.summary, "title", is_lead=True),
    ]
    values = runs.values if full else runs.values[:_BRIEF_VALUES]
    signals = [row for row in runs.signals if full or row.field in _BRIEF_SIGNALS]
    tables = [
        changes_table("", [found.step] if found.step is not None else []),
        changes_table(
            "Phases, mean per step", found.phases if full else [row for row in found.phases if _large(row)]
        ),
        _stretches("The same steps", "steps", runs.by_step, by_time=False),
        _stretches("The same time since the start", "time", runs.by_time, by_time=True),
        _regimes(runs.regimes),
        _values(values),
        _signals(signals),
    ]
    notes = [Paragraph(f"note: {note}", "dim") for note in found.notes]
    if not full:
        notes.append(Paragraph("--full says all, --json too.", "dim"))
    blocks = [*head, *(table for table in tables if table.rows), *notes]
    return Document("Comparison of runs", blocks, most_lines=None if full else BRIEF_LINES)


def _large(row: object) -> bool:
    return bool(getattr(row, "before", None) or getattr(row, "after", None))


def _origin(name: str, side: RunSide) -> str:
    return f"{name} ({counted(side.steps, 'step')} in {duration(side.wall_seconds)}, {side.how})"


def _stretches(title: str, unit: str, rows: Sequence[StretchChange], *, by_time: bool) -> Table:
    cells = []
    for row in rows:
        first, last = (
            (duration(row.first), duration(row.last)) if by_time else (f"{row.first:.0f}", f"{row.last:.0f}")
        )
        reached = (_count(row.last_step_before), _count(row.last_step_after)) if by_time else ()
        cells.append(
            (
                f"{first} to {last}",
                duration(row.step_seconds_before),
                duration(row.step_seconds_after),
                DASH if row.change_pct is None else f"{signed(row.change_pct)} %",
                *reached,
            )
        )
    reached_titles = ("step before", "step after") if by_time else ()
    heads = columns((unit,), ("before", "after", "change", *reached_titles))
    return Table(f"{title}: median step", heads, cells, most=len(cells))


def _count(value: int | None) -> str:
    return DASH if value is None else str(value)


def _regimes(rows: Sequence[RunRegime]) -> Table:
    cells = [
        (
            row.side,
            row.kind,
            str(row.first_step),
            str(row.last_step),
            duration(row.elapsed_seconds),
            duration(row.step_seconds),
            "" if row.change_pct is None else f"{signed(row.change_pct)} %",
        )
        for row in rows
    ]
    heads = columns(("run", "begins with"), ("from step", "to step", "after", "median step", "change"))
    return Table("Stretches of equal steps", heads, cells, most=len(cells))


def _values(rows: Sequence[ValueChange]) -> Table:
    step = next((row.step for row in rows if row.step is not None), None)
    cells = [
        (row.name, figure(row.before), figure(row.after), figure(row.last_before), figure(row.last_after))
        for row in rows
    ]
    at = "the same step" if step is None else f"step {step}"
    heads = columns(("value",), (f"before, {at}", f"after, {at}", "before, last", "after, last"), cut="middle")
    return Table("Logged values", heads, cells, most=len(cells))


def _signals(rows: Sequence[SignalChange]) -> Table:
    cells = [
        (
            _title(row.field),
            _amount(row.before, row.unit),
            _amount(row.after, row.unit),
            f"{row.gpu_hours_before:.1f}",
            f"{row.gpu_hours_after:.1f}",
        )
        for row in rows
    ]
    heads = columns(("signal",), ("before", "after", "GPU h seen before", "after"))
    return Table("GPUs, mean while a monitor watched", heads, cells, most=len(cells))


def _title(field: str) -> str:
    signal = BY_FIELD[field]
    return signal.chart.title if signal.chart is not None else field


def _amount(value: float | None, unit: str) -> str:
    if unit == "%":
        return percent(value)
    if unit in ("B", "B/s"):
        return (size if unit == "B" else rate)(value)
    return number(value, 0, f" {unit}" if unit else "")
