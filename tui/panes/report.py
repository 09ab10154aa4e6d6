"""A report on the screen: the verdict, the findings as a list that unfolds, then the tables."""

from __future__ import annotations

from llmtop.compare.compare import Comparison
from llmtop.document.model import Paragraph
from llmtop.format import printable
from llmtop.report import document
from llmtop.report.model import Report
from tui.paint.document import document_rows, finding_rows, paragraph_rows
from tui.paint.rows import CellTheme, Row


def verdict(
    report: Report, name: str, baseline: str, comparison: Comparison | None, width: int, theme: CellTheme
) -> list[Row]:
    """Return the rows of the source, the verdict in a sentence, and the comparison with the baseline.

    Args:
        report: to show.
        name: of the capture.
        baseline: name of the capture that is marked as baseline; empty: none is.
        comparison: with that, unless it is this one itself.
        width: of the rows.
        theme: how to draw.
    """
    palette = theme.palette
    title = Row(width).add(" Report ", palette.strong).add(printable(name), palette.text)
    title.add(f" {theme.glyphs.dot} {document.origin(report)}", palette.dim)
    blocks = [block for block in document.head(report) if block.text != document.headline(report)]
    if report.stopped_early:
        blocks.insert(0, Paragraph(report.stopped_early, "warning"))
    blocks += [Paragraph(f"Note: {note}", "dim") for note in report.notes]
    if comparison is not None:
        blocks.append(Paragraph(f"Against the baseline {baseline}: {comparison.summary}", "info", is_lead=True))
    elif baseline:
        blocks.append(
            Paragraph("This capture is the baseline: later captures are compared with it.", "info", is_lead=True)
        )
    return [title.end(palette.text), Row(width), *document_rows(blocks, width, theme)]


def findings(
    report: Report, chosen: int, unfolded: set[int], width: int, theme: CellTheme
) -> tuple[list[Row], list[int]]:
    """Return the findings, the chosen one marked; returns the rows and at which of them each finding begins."""
    rows = [Row(width), Row(width).add(" Findings", theme.palette.strong)]
    if not report.findings:
        none = (
            "no findings: no significant loss of time, no action needed"
            if report.verdict != "unknown"
            else "no findings; the verdict above gives the reason"
        )
        return [*rows, *paragraph_rows(none, "dim", width, theme)], []
    places = []
    for index, finding in enumerate(document.findings(report)):
        places.append(len(rows))
        rows += finding_rows(finding, width, theme, is_chosen=index == chosen, is_unfolded=index in unfolded)
    return rows, places


def details(report: Report, width: int, theme: CellTheme) -> list[Row]:
    """Return the rows below the findings of a report: the ceilings, and all its tables."""
    return [Row(width), *document_rows(document.details(report), width, theme)]
