"""A report for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from llmtop.format import duration, printable
from llmtop.report.model import Finding, Report
from llmtop.report.tables import evidence_text, headline, shown_notes, step_lines, tables
from llmtop.report.text_table import Text

SIGNS = {"critical": "!!", "warning": "!", "info": "·"}
"""Before a finding; never colour alone."""

_Style = Callable[[str, str], str]


def _plain(text: str, _role: str) -> str:
    return text


def render(report: Report, width: int = 100, style: _Style | None = None) -> str:
    """The whole report as lines of at most about `width` characters (tables of many columns may be wider).

    Args:
        report: what to show.
        width: of the terminal.
        style: puts colour on a piece of text by its role: "title", "critical", "warning", "info" or "dim".
    """
    paint = style or _plain
    width = max(60, min(width, 140))
    lines = [*(paint(line, "dim") for line in _wrapped(headline(report), width)), ""]
    role = "title" if report.verdict == "gpu_bound" else "warning"
    lines += [paint(line, role) for line in _wrapped(printable(report.summary, 2000), width)]
    lines += [paint(line, "dim") for text in step_lines(report) for line in _wrapped(text, width)]
    if report.findings:
        lines += ["", paint("Findings", "title")]
        for finding in report.findings:
            lines += _finding(finding, width, paint)
    if report.roofline:
        lines += ["", paint("Ceilings", "title"), *_wrapped(printable(report.roofline, 2000), width, "  ")]
    for table in tables(report, name_width=max(24, width - 56)):
        lines += ["", paint(table.title, "title"), *_table(table)]
    if report.notes:
        lines += ["", paint("Notes", "title")]
        for note in shown_notes(report):
            lines += _wrapped(printable(note, 600), width, "  ")
    return "\n".join(lines) + "\n"


def _finding(finding: Finding, width: int, paint: _Style) -> list[str]:
    sign = SIGNS.get(finding.severity, "·")
    head = f"{sign} {printable(finding.id, 40)} ({finding.severity}): {printable(finding.summary, 1000)}"
    lines = [paint(line, finding.severity) for line in _wrapped(head, width, "", "  ")]
    for label, text in (
        ("evidence", evidence_text(finding)),
        ("fix", printable(finding.fix, 2000)),
        ("next", printable(finding.next, 1000)),
        ("confirm", printable(finding.confirm, 500)),
    ):
        if text:
            lines += _wrapped(f"{label}: {text}", width, "    ", "      ")
    if finding.saves_at_most_ms is not None:
        lines.append(f"    saves at most {duration(finding.saves_at_most_ms / 1e3)} a step")
    return lines


def _wrapped(text: str, width: int, first: str = "", later: str | None = None) -> list[str]:
    later = first if later is None else later
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    ) or [""]


def _table(table: Text) -> list[str]:
    lines = [("  " + "  ".join(cells)).rstrip() for cells in table.lines()]
    if table.more:
        lines.append(f"  … and {table.more} more (--json has all)")
    return lines
