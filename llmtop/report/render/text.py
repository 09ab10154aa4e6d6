"""A report for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace

from msgspec import structs

from llmtop.format import BRIEF_LINES, duration, printable
from llmtop.model.severity import severity_rank
from llmtop.report.model import Finding, Report
from llmtop.report.render.tables import (
    evidence_text,
    first_lines,
    headline,
    shown_notes,
    step_lines,
    tables,
    tables_by_name,
)
from llmtop.report.render.text_table import TextTable

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
    lines = [paint(line, "warning") for text in first_lines(report) for line in _wrapped(text, width)]
    lines += [*(paint(line, "dim") for line in _wrapped(headline(report), width)), ""]
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


BRIEF_FINDINGS = 3
_BRIEF_ROWS = {"devices": 8, "phases": 8, "idle": 5, "operators": 10, "kernels": 10}
"""Tables of the brief report and their rows, in its order; where there is less room, the last shrink first."""
_LEAST_ROWS = 3
_SMALL_PCT = 2.0
"""Under so much of the steps no cause of idle time is worth a line."""


def brief(report: Report, width: int = 100, style: _Style | None = None) -> str:
    """What is to be read first, in `BRIEF_LINES` lines at most.

    The verdict, three findings with what to do, where the step goes, the largest kernels.

    Args:
        report: what to show.
        width: of the terminal.
        style: as of `render`.
    """
    paint = style or _plain
    width = max(60, min(width, 140))
    lines = [paint(line, "warning") for text in first_lines(report) for line in _wrapped(text, width)[:3]]
    lines += [paint(line, "dim") for line in _wrapped(headline(report), width)[:2]]
    role = "title" if report.verdict == "gpu_bound" else "warning"
    lines += ["", *(paint(line, role) for line in _wrapped(printable(report.summary, 2000), width)[:5])]
    lines += [paint(line, "dim") for line in _wrapped(step_lines(report)[0], width)[:2]]
    worth = sorted(report.findings, key=lambda finding: -severity_rank(finding.severity))[:BRIEF_FINDINGS]
    for finding in worth:
        lines += ["", *_brief_finding(finding, width, paint)]
    last = _last_line(report, len(worth))
    made = _brief_tables(report, width, BRIEF_LINES - len(lines) - 1 - len(_wrapped(last, width)))
    for title, rows in made:
        lines += ["", paint(title, "title"), *rows]
    return "\n".join([*lines, "", *(paint(line, "dim") for line in _wrapped(last, width))]) + "\n"


def _brief_finding(finding: Finding, width: int, paint: _Style) -> list[str]:
    sign = SIGNS.get(finding.severity, "·")
    saved = finding.saves_at_most_ms
    saves = "" if saved is None else f" Saves at most {duration(saved / 1e3)} a step."
    said = _first_lines(3, _wrapped(f"{sign} {printable(finding.summary, 1000)}{saves}", width, "", "  "))
    todo = _wrapped(f"do: {_first_sentence(printable(finding.fix, 2000))}", width, "  ", "      ")
    todo = _first_lines(2, todo)
    then = _first_lines(2, _wrapped(f"next: {printable(finding.next, 1000)}", width, "  ", "      "))
    return [
        *(paint(line, finding.severity) for line in said),
        *(todo if finding.fix else []),
        *(then if finding.next else []),
    ]


def _first_lines(count: int, lines: list[str]) -> list[str]:
    """The first so many lines; where there are more, the last one says so."""
    if len(lines) <= count:
        return lines
    shown, _, _ = lines[count - 1].rpartition(" ")  # a word goes for the sign
    return [*lines[: count - 1], f"{shown} …"]


def _first_sentence(text: str) -> str:
    """Up to the first full stop or semicolon that ends a thought."""
    ends = [place for mark in (". ", "; ") if (place := text.find(mark)) > 0]
    return text[: min(ends)] + "." if ends else text


def _brief_tables(report: Report, width: int, room: int) -> list[tuple[str, list[str]]]:
    """Titles and lines of the tables for which there are so many lines, blank ones and titles counted."""
    known = tables_by_name(_with_few_phases(report), name_width=max(24, width - 56))
    if all((gap.share_pct or 0.0) < _SMALL_PCT for gap in report.gaps):
        known.pop("idle", None)
    chosen = [(known[name], most) for name, most in _BRIEF_ROWS.items() if name in known]
    rows = [min(most, len(table.rows)) for table, most in chosen]
    frame = 4  # a blank line, the title, the columns, and how many rows are left out

    def needed() -> int:
        return sum(count + frame for count in rows if count)

    for place in reversed(range(len(rows))):
        while needed() > room and rows[place] > _LEAST_ROWS:
            rows[place] -= 1
    for place in reversed(range(len(rows))):
        if needed() > room:
            rows[place] = 0
    return [
        (table.title, _table(replace(table, most=count)))
        for (table, _), count in zip(chosen, rows, strict=True)
        if count
    ]


def _with_few_phases(report: Report) -> Report:
    """With the largest of its top-level phases, in the order of a step."""
    top = [phase for phase in report.phases if "/" not in phase.name]
    most = _BRIEF_ROWS["phases"]
    by_size = sorted(top, key=lambda phase: -max(phase.share_pct or 0.0, phase.gpu_share_pct or 0.0))
    largest = {id(phase) for phase in by_size[:most]}
    return structs.replace(report, phases=tuple(phase for phase in top if id(phase) in largest))


def _last_line(report: Report, shown: int) -> str:
    more = len(report.findings) - shown
    notes = [
        *([f"{more} more finding{'s' if more > 1 else ''}"] if more > 0 else []),
        *([f"{len(report.notes)} note{'s' if len(report.notes) > 1 else ''}"] if report.notes else []),
    ]
    return f"--full says all{': ' + ', '.join(notes) if notes else ''}, with evidence, gaps, calls and copies."


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


def _table(table: TextTable) -> list[str]:
    lines = [("  " + "  ".join(cells)).rstrip() for cells in table.lines()]
    if table.more:
        lines.append(f"  … and {table.more} more (--json has all)")
    return lines
