"""A comparison for a terminal: what differs around it, what moved, and where it comes from."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llmtop.compare.model import ComparedFigure, Comparison, DeviceChange, FindingChange, WorkChange
from llmtop.compare.words import difference, signed
from llmtop.format import BRIEF_LINES, DASH, counted, duration, number, percent, printable, shorten_middle, times
from llmtop.report.render.text_table import TextTable

_Style = Callable[[str, str], str]

_LEAST_ROWS = 2
_SMALL = 0.01
"""Of a step: a part that is smaller on both sides is left to --full."""
_LARGE_PCT = 100.0
"""From here on a change is told as so many times."""
_BRIEF_ROWS = {"devices": 8, "phases": 8, "operators": 8, "kinds": 6, "kernels": 10, "nccl": 4}
_MARK = "*"
_WIDEST_NAME = 80
_UNBROKEN = 10_000
"""Wider than any sentence."""


@dataclass(frozen=True)
class _Table:
    """One table, with what is said below it and which of its rows moved."""

    text: TextTable
    moved: Sequence[bool]
    below: tuple[str, ...] = ()


def render(comparison: Comparison, style: _Style | None = None, width: int | None = None) -> str:
    """All of the comparison as text for a terminal.

    Args:
        comparison: what moved.
        style: paints a text by its role ("dim", "title", ...); None for plain text.
        width: of the terminal; None: sentences are not broken into lines.
    """
    paint = style or _plain
    width = _UNBROKEN if width is None else max(60, min(width, 140))
    lines = _head(comparison, width, paint, brief=False)
    for made in _tables(comparison, width, brief=False).values():
        lines += ["", *_table_lines(made, paint)]
    notes = _notes(comparison, width, paint, most=None)
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def brief(comparison: Comparison, style: _Style | None = None, width: int = 100) -> str:
    """What is to be read first, in `BRIEF_LINES` lines at most; arguments as of `render`."""
    paint = style or _plain
    width = max(60, min(width, 140))
    lines = _head(comparison, width, paint, brief=True)
    last = _notes(comparison, width, paint, most=3)
    last.append(paint("--full says all, --json too.", "dim"))
    for made in _fit_tables(_tables(comparison, width, brief=True), BRIEF_LINES - len(lines) - len(last) - 1):
        lines += ["", *_table_lines(made, paint)]
    return "\n".join([*lines, "", *last]) + "\n"


def _plain(text: str, _role: str) -> str:
    return text


def _wrapped(text: str, width: int, later: str = "") -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=later, break_long_words=False, break_on_hyphens=False) or [
        ""
    ]


def _head(found: Comparison, width: int, paint: _Style, brief: bool) -> list[str]:
    """In what the environments differ, what is compared, and the summary."""
    lines = []
    for row in found.environment:
        if row.told:
            text = f"{row.name}: {row.told}"
        else:
            text = f"{row.name}: {printable(row.before or DASH, 400)} -> {printable(row.after or DASH, 400)}"
        shown = _wrapped(printable(text, 900), width, "    ")
        lines += [paint(line, "warning") for line in (shown[:3] if brief else shown)]
    for word, source, made in (
        ("before:", found.before, _report_origin(found.engine_before, found.steps_before)),
        ("after: ", found.after, _report_origin(found.engine_after, found.steps_after)),
    ):
        lines.append(paint(f"{word} {shorten_middle(source, width - len(word) - len(made) - 1)}{made}", "dim"))
    lines.append("")
    return [*lines, *(paint(line, "title") for line in _wrapped(printable(found.summary, 1500), width))]


def _report_origin(engine: str, steps: int) -> str:
    """What a report was made of."""
    return f" ({printable(engine, 20)}, {counted(steps, 'whole step') if steps else 'no whole steps'})"


def _notes(found: Comparison, width: int, paint: _Style, most: int | None) -> list[str]:
    said = found.notes
    shown = said[:most]
    left = len(said) - len(shown)
    lines = [
        paint(line, "dim") for text in shown for line in _wrapped(f"note: {printable(text, 300)}", width, "      ")
    ]
    return [*lines, *([paint(f"and {counted(left, 'more note')}", "dim")] if left > 0 else [])]


def _tables(found: Comparison, width: int, brief: bool) -> dict[str, _Table]:
    """Those that have rows, in the order in which a reader wants them."""
    names = min(max(22, width - 60), _WIDEST_NAME)
    made = {
        "step": _step(found, brief),
        "devices": _devices(found.devices),
        "phases": _changes("Phases, mean a step", _phases(found, brief), names + 14),
        "kinds": _work("Kernels by kind", found.kinds, names, brief),
        "operators": _work("Operators", found.operators, names, brief),
        "kernels": _work("Kernels", found.kernels, names, brief),
        "nccl": _collectives(found, brief),
        "findings": _findings(found, width),
    }
    if len(found.devices) < 2:
        made.pop("devices")
    if brief and not any(row.worth_seconds is not None and row.state != "same" for row in found.kinds):
        made.pop("kinds")  # the line below the kernels says it
    return {name: table for name, table in made.items() if table.text.rows or table.below}


def _step(found: Comparison, brief: bool) -> _Table:
    """The step, what it is made of, and what is lost of it."""
    rows = [found.step] if found.step is not None else []
    rows += [row for row in found.figures if row.unit == "s"]
    longest = max((row.before or 0.0) + (row.after or 0.0) for row in found.parts) if found.parts else 0.0
    rows += [
        replace_name(row, f"  {row.name}")
        for row in found.parts
        if not brief or row.moved or max(row.before or 0.0, row.after or 0.0) > _SMALL * longest
    ]
    shares = [row for row in found.figures if row.unit == "pct"]
    if brief and found.parts:
        shares = [row for row in shares if not row.name.startswith("lost: ")]
    if brief:
        shares = [row for row in shares if row.moved or (row.before or 0.0) + (row.after or 0.0) > 1.0]
    return _changes("", [*rows, *shares], 48)


def replace_name(row: ComparedFigure, name: str) -> ComparedFigure:
    """The same figure under another name."""
    from msgspec import structs

    return structs.replace(row, name=name)


def _phases(found: Comparison, brief: bool) -> list[ComparedFigure]:
    """In brief the outermost ones, the largest change first of what does not come to next to nothing."""
    rows = [row for row in found.phases if row.before or row.after]
    if not brief:
        return rows
    step = found.step.before if found.step is not None and found.step.before else 0.0
    outer = [row for row in rows if "/" not in row.name.replace(" / ", "") or row.moved]
    worth = [row for row in outer if row.moved or max(row.before or 0.0, row.after or 0.0) > _SMALL * step]
    return sorted(worth, key=lambda row: (not row.moved, -abs((row.after or 0.0) - (row.before or 0.0))))


def _changes(title: str, rows: Sequence[ComparedFigure], width: int) -> _Table:
    cells = [
        (
            f"{_MARK if row.moved else ' '} {shorten_middle(row.name, width)}",
            _show(row.before, row.unit),
            _show(row.after, row.unit),
            *_difference(row),
        )
        for row in rows
    ]
    text = TextTable(title, ("", "before", "after", "change", ""), cells, text_columns=1, most=len(cells))
    return _Table(text, [row.moved for row in rows])


def _show(value: float | None, unit: str) -> str:
    return percent(value, 1) if unit == "pct" else duration(value)


def _difference(row: ComparedFigure) -> tuple[str, str]:
    """A change as a difference, and as a part of what was there."""
    if row.before is None or row.after is None:
        return DASH, row.told
    if row.unit == "pct":
        return f"{signed(row.after - row.before)} pt", ""
    share = row.told
    if not share and row.change_pct is not None:
        share = f"{signed(row.change_pct)}%" if row.change_pct < _LARGE_PCT else times(row.after / row.before)
    return difference(row.after - row.before), share


def _devices(devices: Sequence[DeviceChange]) -> _Table:
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
    header = ("device (*: judged)", "step", "GPU time in it", "idle", "exposed NCCL")
    return _Table(TextTable("Devices, each against itself", header, rows, text_columns=1, most=len(rows)), moved)


def _work(title: str, rows: Sequence[WorkChange], width: int, brief: bool) -> _Table:
    """Kernels or operators; in brief those that moved."""
    if not rows:
        return _Table(TextTable(title, ("",), ()), ())
    stepwise = any(row.worth_seconds is not None for row in rows)
    shown = [row for row in rows if row.state != "same"] if brief else list(rows)
    before = sum(bool(row.window_before) for row in rows)
    after = sum(bool(row.window_after) for row in rows)
    over = "time a step" if stepwise else "one by one, for a step is not known on both sides"
    head = f"{title}, {over} ({before} before, {after} after, {_states(rows)})"
    make = _work_of_step if stepwise else _work_of_window
    cells = [make(row, width) for row in shown]
    header: tuple[str, ...] = ("", "name", "times", "before", "after", "worth", "")
    if not stepwise:
        header = ("", "name", "in the window", "mean before", "after", "change", "")
    text = TextTable(head, header, cells, text_columns=2, most=len(cells))
    return _Table(text, [row.state != "same" for row in shown], below=() if shown else ("  none of them moved",))


def _states(rows: Sequence[WorkChange]) -> str:
    found: dict[str, int] = {}
    for row in rows:
        if row.state != "same":
            found[row.state] = found.get(row.state, 0) + 1
    return ", ".join(f"{count} {state}" for state, count in found.items()) or "none moved"


def _work_of_step(row: WorkChange, width: int) -> tuple[str, ...]:
    a, b = row.seconds_before or 0.0, row.seconds_after or 0.0
    return (
        "" if row.state == "same" else row.state,
        shorten_middle(row.name, width),
        _both_counts(row.count_before, row.count_after),
        duration(a) if row.count_before else DASH,
        duration(b) if row.count_after else DASH,
        difference(b - a),
        _part(a, b) if row.count_before and row.count_after else "",
    )


def _work_of_window(row: WorkChange, width: int) -> tuple[str, ...]:
    a, b = row.mean_us_before, row.mean_us_after
    known = a is not None and b is not None
    return (
        "" if row.state == "same" else row.state,
        shorten_middle(row.name, width),
        _both_counts(row.window_before, row.window_after),
        duration(None if a is None else a / 1e6),
        duration(None if b is None else b / 1e6),
        difference((b - a) / 1e6) if a is not None and b is not None else DASH,
        _part(a, b) if known and a is not None and b is not None else "",
    )


def _part(before: float, after: float) -> str:
    """By how much of what was there it changed."""
    if not before:
        return ""
    change = 100.0 * (after / before - 1)
    return f"{signed(change)}%" if change < _LARGE_PCT else times(after / before)


def _both_counts(before: float | None, after: float | None) -> str:
    """How often, once where it is the same on both sides."""
    one, two = _count_text(before), _count_text(after)
    return one if one == two else f"{one} -> {two}"


def _count_text(value: float | None) -> str:
    """A count, or a mean of counts with one decimal."""
    text = number(value, 1)
    return text.removesuffix(".0")


def _arrow(before: float | None, after: float | None) -> str:
    return "" if before is None and after is None else f"{duration(before)} -> {duration(after)}"


def _collectives(found: Comparison, brief: bool) -> _Table:
    rows = [row for row in found.collectives if row.state != "same" or not brief]
    cells = [
        (
            "" if row.state == "same" else row.state,
            f"{printable(row.name, 30)}, {row.device}",
            _both_counts(row.count_before, row.count_after),
            _arrow(row.seconds_before, row.seconds_after),
            _arrow(row.exposed_seconds_before, row.exposed_seconds_after),
            f"{number(row.bus_gb_per_s_before, 1)} -> {number(row.bus_gb_per_s_after, 1)}"
            if row.bus_gb_per_s_before or row.bus_gb_per_s_after
            else "",
        )
        for row in rows
    ]
    header = ("", "collective", "times", "time a step", "exposed", "bus GB/s")
    text = TextTable("NCCL, a step", header, cells, text_columns=2, most=len(cells))
    return _Table(text, [row.state != "same" for row in rows])


def _findings(found: Comparison, width: int) -> _Table:
    """One line a state: what is new, what is gone, what stayed."""
    lines = []
    for state in ("new", "gone", "stayed"):
        rows = [_finding(row) for row in found.findings if row.state == state]
        if rows:
            lines += _wrapped(f"  {state}: {', '.join(rows)}", width, "    ")
    return _Table(TextTable("Findings", (), ()), (), below=tuple(lines))


def _finding(row: FindingChange) -> str:
    name = printable(row.id, 40)
    if row.state != "stayed":
        share = row.after_pct if row.state == "new" else row.before_pct
        return name if share is None else f"{name} {percent(share, 1)}"
    if row.before_pct is None and row.after_pct is None:
        return name
    one, two = percent(row.before_pct, 1), percent(row.after_pct, 1)
    return f"{name} {one}" if one == two else f"{name} {one} -> {two}"


def _fit_tables(tables: dict[str, _Table], room: int) -> list[_Table]:
    """As many rows of each as there are lines for; where there are too few, the last tables shrink first."""
    names = list(tables)
    rows = [min(len(tables[name].text.rows), _BRIEF_ROWS.get(name, 20)) for name in names]

    def needed() -> int:
        total = 0
        for name, count in zip(names, rows, strict=True):
            table = tables[name]
            frame = 1 + bool(table.text.title) + len(table.below)
            total += frame + (1 + count + (count < len(table.text.rows)) if count else 0)
        return total

    while needed() > room and max(rows) > _LEAST_ROWS:
        # The longest goes first; of equal ones the last, which is the least important.
        rows[len(rows) - 1 - rows[::-1].index(max(rows))] -= 1
    made = []
    for name, count in zip(names, rows, strict=True):
        made.append(replace(tables[name], text=replace(tables[name].text, most=count)))
    while made and needed() > room:
        made.pop()
        names.pop()
        rows.pop()
    return made


def _table_lines(table: _Table, paint: _Style) -> list[str]:
    """A table's title and lines."""
    lines = [paint(table.text.title, "title")] if table.text.title else []
    if table.text.shown:
        head, *rows = [("  " + "  ".join(cells)).rstrip() for cells in table.text.lines()]
        lines.append(paint(head, "dim"))
        lines += [paint(row, "title" if moved else "info") for row, moved in zip(rows, table.moved, strict=False)]
    if table.text.more and table.text.shown:
        lines.append(paint(f"  … and {table.text.more} more (--full)", "dim"))
    if table.below:
        lines += [paint(line, "dim") for line in table.below]
    return lines
