"""A report on the screen: the verdict, the findings as a list that unfolds, then the tables."""

from __future__ import annotations

from textwrap import wrap

from rich.style import Style

from llmtop import format as fmt
from llmtop.compare.compare import Comparison
from llmtop.report.model import Finding, Report
from llmtop.report.render.tables import evidence_text, first_lines, headline, step_lines, tables
from llmtop.report.render.text_table import TextTable
from tui.paint import alert_style
from tui.paint.rows import CellTheme, Row, clip, pad

_INDENT = 6


def verdict(
    report: Report, name: str, baseline: str, comparison: Comparison | None, width: int, theme: CellTheme
) -> list[Row]:
    """What was read, the verdict in a sentence, and how it stands against the baseline.

    Args:
        report: to show.
        name: of the capture.
        baseline: name of the capture that is marked as baseline; empty: none is.
        comparison: with that, unless it is this one itself.
        width: of the rows.
        theme: how to draw.
    """
    palette = theme.palette
    title = Row(width).add(" Report ", palette.strong).add(fmt.printable(name), palette.text)
    about = headline(report).rpartition(" (")[2].rstrip(")")
    title.add(f" {theme.glyphs.dot} {about}", palette.dim)
    rows = [title.end(palette.text), Row(width)]
    for line in first_lines(report):
        rows += _wrapped(line, width, palette.warning, 1)
    style = palette.strong if report.verdict == "gpu_bound" else palette.warning
    rows += _wrapped(fmt.printable(report.summary), width, style, 1)
    for line in step_lines(report):
        rows += _wrapped(line, width, palette.dim, 1)
    for note in report.notes:
        rows += _wrapped(f"Note: {fmt.printable(note)}", width, palette.dim, 1)
    if comparison is not None:
        said = f"Against the baseline {fmt.printable(baseline)}: {fmt.printable(comparison.summary)}"
        rows += [Row(width), *_wrapped(said, width, palette.info, 1)]
    elif baseline:
        rows += [Row(width), *_wrapped("This is the baseline.", width, palette.info, 1)]
    return rows


def findings(
    report: Report, chosen: int, unfolded: set[int], width: int, theme: CellTheme
) -> tuple[list[Row], list[int]]:
    """Paint the findings of a report.

    Args:
        report: with its findings, the most severe first.
        chosen: index of the finding under the cursor.
        unfolded: indices of those shown with their evidence.
        width: cells.
        theme: colours and glyphs of this terminal.

    Returns:
        The rows, and for each finding the index of its first row; no indices where there are no findings.
    """
    palette = theme.palette
    rows = [Row(width), Row(width).add(" Findings", palette.strong)]
    if not report.findings:
        none = (
            "none: nothing is lost that is worth a word"
            if report.verdict != "unknown"
            else "none can be made of this capture; the sentence above says why"
        )
        return [*rows, *_wrapped(none, width, palette.dim, 3)], []
    places = []
    for index, finding in enumerate(report.findings):
        places.append(len(rows))
        rows += _finding(finding, index == chosen, index in unfolded, width, theme)
    return rows, places


def _finding(finding: Finding, chosen: bool, unfolded: bool, width: int, theme: CellTheme) -> list[Row]:
    palette, glyphs = theme.palette, theme.glyphs
    sign, style = alert_style.mark(finding, theme), alert_style.ink(finding, theme)
    share = fmt.percent(finding.share_pct, 1) if finding.share_pct is not None else ""
    row = Row(width)
    row.add(f" {glyphs.selected if chosen else ' '} ", palette.cursor if chosen else palette.text)
    row.add(f"{sign} ", style).add(pad(f"{finding.severity}", 9), style)
    row.add(pad(fmt.printable(finding.id), 20), palette.strong).add(pad(share, 6, right=True), palette.text)
    room = row.free_cells - 2
    said = fmt.printable(finding.summary)
    if not unfolded:
        row.add("  " + clip(said, room), palette.cursor if chosen else palette.text)
        return [row]
    rows = [row, *_wrapped(said, width, palette.text, _INDENT)]
    for label, text, kind in (
        ("evidence", evidence_text(finding), palette.text),
        ("fix", fmt.printable(finding.fix), palette.text),
        ("saves", _saving(finding), palette.text),
        ("confirm", fmt.printable(finding.confirm), palette.text),
        ("next", fmt.printable(finding.next), palette.code),
    ):
        if text:
            rows += _labelled(label, text, width, kind, theme)
    return [*rows, Row(width)]


def _saving(finding: Finding) -> str:
    if finding.saves_at_most_ms is None:
        return ""
    return f"at most {fmt.duration(finding.saves_at_most_ms / 1e3)} a step"


def _labelled(label: str, text: str, width: int, style: Style, theme: CellTheme) -> list[Row]:
    rows = []
    for index, line in enumerate(wrap(text, max(width - _INDENT - 12, 20), break_on_hyphens=False)):
        head = label if index == 0 else ""
        rows.append(Row(width).add(" " * _INDENT + pad(head, 10), theme.palette.dim).add(line, style))
    return rows


def details(report: Report, width: int, theme: CellTheme) -> list[Row]:
    """What stands below the findings of a report: the ceilings, and all its tables."""
    palette = theme.palette
    rows: list[Row] = []
    if report.roofline:
        rows += [Row(width), Row(width).add(" Ceilings", palette.strong)]
        rows += _wrapped(fmt.printable(report.roofline), width, palette.text, 3)
    for table in tables(report, name_width=max(20, width - 62)):
        rows += [Row(width), Row(width).add(f" {table.title}", palette.strong), *_table(table, width, theme)]
    return rows


def _table(table: TextTable, width: int, theme: CellTheme) -> list[Row]:
    rows = []
    for number, cells in enumerate(table.lines()):
        row = Row(width).add("   ", theme.palette.text)
        rows.append(row.add("  ".join(cells), theme.palette.dim if number == 0 else theme.palette.text))
    if table.more:
        rows.append(Row(width).add(f"   and {table.more} more {theme.glyphs.more}", theme.palette.dim))
    return rows


def sentence(text: str, width: int, style: Style) -> list[Row]:
    """One sentence over as many lines as it takes."""
    return _wrapped(fmt.printable(text), width, style, 1)


def _wrapped(text: str, width: int, style: Style, indent: int) -> list[Row]:
    lines = wrap(text, max(width - indent - 1, 20), break_on_hyphens=False)
    return [Row(width).add(" " * indent + line, style) for line in lines]
