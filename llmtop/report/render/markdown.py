"""A report as Markdown: report.md of a capture."""

from __future__ import annotations

import re

from llmtop.format import duration, printable
from llmtop.report.model import Finding, Report
from llmtop.report.render.tables import evidence_text, first_lines, headline, shown_notes, step_lines, tables
from llmtop.report.render.text_table import TextTable

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def escape(text: str) -> str:
    """Text that Markdown, and HTML inside Markdown, shows as it is."""
    return _SPECIAL.sub(r"\\\1", text.replace("&", "&amp;"))


def render(report: Report) -> str:
    """The report as Markdown."""
    parts = [
        *(f"**{escape(line)}**" for line in first_lines(report)),
        f"# {escape(report.verdict)}",
        f"{escape(headline(report))}",
        f"**{escape(printable(report.summary, 2000))}**",
        *(escape(line) for line in step_lines(report)),
    ]
    if report.findings:
        parts.append("## Findings")
        parts += [_finding(finding) for finding in report.findings]
    if report.roofline:
        parts += ["## Ceilings", escape(printable(report.roofline, 2000))]
    for table in tables(report, name_width=80):
        parts += [f"## {escape(table.title)}", _table(table)]
    if report.notes:
        parts += ["## Notes", "\n".join(f"- {escape(printable(note, 600))}" for note in shown_notes(report))]
    return "\n\n".join(parts) + "\n"


def _finding(finding: Finding) -> str:
    lines = [
        f"### {escape(printable(finding.id, 40))} ({finding.severity})",
        escape(printable(finding.summary, 1000)),
    ]
    items = []
    if finding.evidence:
        items.append(f"- evidence: {escape(evidence_text(finding))}")
    if finding.fix:
        items.append(f"- fix: {escape(printable(finding.fix, 2000))}")
    if finding.saves_at_most_ms is not None:
        items.append(f"- saves at most {duration(finding.saves_at_most_ms / 1e3)} a step")
    if finding.confirm:
        items.append(f"- confirm: {escape(printable(finding.confirm, 500))}")
    if items:
        lines.append("\n".join(items))
    if finding.next:
        lines.append(_code(printable(finding.next, 1000)))
    return "\n\n".join(lines)


def _code(text: str) -> str:
    """A fenced block; the fence is longer than any run of backticks in the text, so nothing can end it early."""
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"


def _table(table: TextTable) -> str:
    marks = ["---" if index < table.text_columns else "---:" for index in range(len(table.header))]
    rows = [table.header, tuple(marks), *(tuple(escape(cell) for cell in row) for row in table.shown)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    if table.more:
        lines.append("")
        lines.append(f"… and {table.more} more")
    return "\n".join(lines)
