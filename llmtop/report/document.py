"""A report as a document: all of it, or what is to be read first."""

from __future__ import annotations

import re
from dataclasses import replace

from msgspec import structs

from llmtop.document.cells import unclosed
from llmtop.document.model import (
    BRIEF_FINDINGS,
    BRIEF_LINES,
    Block,
    Document,
    Finding,
    Heading,
    Paragraph,
    Point,
    RooflinePlot,
)
from llmtop.document.timeline import DeviceRows, PieceRow, WholeTimeline
from llmtop.format import counted, duration, evidence_text, percent, percent_text
from llmtop.model.severity import severity_rank
from llmtop.report import model
from llmtop.report.model import Report, Timeline
from llmtop.report.tables import tables

_BRIEF_ROWS = {
    "devices": (8, 3),
    "phases": (8, 6),
    "idle": (5, 3),
    "operators": (10, 3),
    "host_operators": (12, 6),
    "samples": (6, 3),
    "call_places": (4, 2),
    "memory": (4, 2),
    "kernels": (10, 3),
}
"""Tables of the brief document in its order, with the most and the least rows."""
_SMALL_PCT = 2.0
"""Below this share of the steps no cause of idle time is in the brief document."""
_MOST_NOTES = 40
_THOUGHT_END = re.compile(r"[.;] ")


def report_document(report: Report) -> Document:
    """Return all of a report."""
    found = findings(report)
    return Document(
        title=report.verdict,
        blocks=(
            *head(report),
            *_timeline(report),
            *([Heading("Findings")] if found else []),
            *found,
            *details(report),
            *notes(report),
        ),
        warning=report.stopped_early or "",
    )


def brief_document(report: Report) -> Document:
    """Return the verdict, three findings with what to do, where the step goes, and the largest kernels."""
    worst = sorted(report.findings, key=lambda finding: -severity_rank(finding.severity))[:BRIEF_FINDINGS]
    known = tables(_with_few_phases(report))
    if all((gap.share_pct or 0.0) < _SMALL_PCT for gap in report.gaps):
        known.pop("idle", None)
    shown = [
        replace(known[name], most=most, least=least)
        for name, (most, least) in _BRIEF_ROWS.items()
        if name in known
    ]
    blocks: list[Block] = [replace(block, most_lines=5 if block.is_lead else 2) for block in _brief_head(report)]
    blocks += [_brief_finding(finding) for finding in worst]
    return Document(
        title=report.verdict,
        blocks=(*blocks, *shown, _last_line(report, len(worst))),
        warning=report.stopped_early or "",
        most_lines=BRIEF_LINES,
    )


def head(report: Report) -> list[Paragraph]:
    """Return what was read, of several runs which one, the verdict in a sentence, and its steps."""
    which = [Paragraph(f"{report.which_run}.", "warning", is_lead=True)] if report.which_run else []
    return [
        Paragraph(headline(report), "dim"),
        *which,
        Paragraph(report.summary, "title" if report.verdict == "gpu_bound" else "warning", is_lead=True),
        *(Paragraph(line, "dim") for line in step_lines(report)),
    ]


def _brief_head(report: Report) -> list[Paragraph]:
    blocks = head(report)
    return blocks[: len(blocks) - len(step_lines(report)) + 1]  # without what was left out


def headline(report: Report) -> str:
    """Return one line on what the report was made of."""
    return f"{report.source} ({origin(report)})"


def origin(report: Report) -> str:
    """Return the tool, the window and the number of steps."""
    parts = [part for part in (report.engine, report.tool_version) if part]
    steps = counted(report.steps.count, "whole step") if report.steps.count else "no whole step in it"
    return f"{' '.join(parts)}, {duration(report.window_seconds)}, {steps}"


def step_lines(report: Report) -> list[str]:
    """Return sentences on how steps were found, how long they are, and what was left out."""
    steps = report.steps
    lines = [f"Steps: {steps.found_by}."]
    if steps.count == 1 and steps.seconds_p50 is not None:
        lines[0] = f"Steps: 1 ({steps.found_by}), by the {steps.clock}'s clock {duration(steps.seconds_p50)}."
    elif steps.seconds_p50 is not None:
        lines[0] = (
            f"Steps: {steps.count} ({steps.found_by}), {steps.clock} clock: median "
            f"{duration(steps.seconds_p50)}, "
            f"{duration(steps.seconds_min)} to {duration(steps.seconds_max)}, "
            f"spread {percent_text(steps.spread_pct, 1)}."
        )
    if steps.left_out:
        lines.append(f"Ignored: {steps.left_out}.")
    return lines


def findings(report: Report) -> list[Finding]:
    """Return the findings with all their parts."""
    return [
        Finding(
            severity=finding.severity,
            summary=finding.summary,
            name=finding.id,
            saving=_saving(finding),
            evidence=evidence_text(finding.evidence),
            todo=finding.fix,
            next=finding.next,
            confirm=finding.confirm,
            share=percent(finding.share_pct, 1) if finding.share_pct is not None else "",
        )
        for finding in report.findings
    ]


def _saving(finding: model.Finding) -> str:
    saved = finding.saves_at_most_ms
    return "" if saved is None else f"{duration(saved / 1e3)} per step"


def _brief_finding(finding: model.Finding) -> Finding:
    todo = _first_sentence(finding.fix)
    return Finding(
        finding.severity, finding.summary, saving=_saving(finding), todo=todo, next=finding.next, most_lines=3
    )


def _first_sentence(text: str) -> str:
    """Up to the first full stop or semicolon that ends a thought, outside of brackets."""
    ends = (found.start() for found in _THOUGHT_END.finditer(text))
    end = next((place for place in ends if not unclosed(text[:place])), None)
    return text if end is None else f"{text[:end]}."


def details(report: Report) -> list[Block]:
    """Return the ceilings and all tables."""
    blocks: list[Block] = []
    if report.roofline:
        blocks += [Heading("Ceilings"), Paragraph(report.roofline), *_roofline(report)]
    return [*blocks, *tables(report).values()]


def _roofline(report: Report) -> list[RooflinePlot]:
    """Return the matrix products under the roofs; nothing without sizes, or for a GPU whose peaks are not
    known."""
    roof = next((roof for roof in report.roofs if roof.bytes_per_s and roof.flops_per_s), None)
    rows = [row for row in report.gemms if row.flops_per_byte and row.tflops_per_s > 0]
    if roof is None or not roof.bytes_per_s:
        return []
    peaks = {dtype: rate for dtype, rate in roof.flops_per_s.items() if dtype in {row.dtype for row in rows}}
    points = [
        Point(
            x=row.flops_per_byte or 1.0,
            y=row.tflops_per_s * 1e12,
            weight=row.seconds,
            text=f"{row.operator} {f'{row.batch} of ' if row.batch > 1 else ''}{row.m} x {row.n} x {row.k} "
            f"{row.dtype or ''}: {row.tflops_per_s:.1f} TFLOP/s, {row.calls} calls of "
            f"{duration(row.mean_us / 1e6)}",
        )
        for row in rows
    ]
    title = f"Roofline of {roof.name}: matrix products by size"
    return [RooflinePlot(title, roof.bytes_per_s, peaks, points)] if peaks else []


def notes(report: Report) -> list[Block]:
    """Return the first notes: a damaged file can have one for each of a thousand GPUs."""
    if not report.notes:
        return []
    more = len(report.notes) - _MOST_NOTES
    shown = [*report.notes[:_MOST_NOTES], *([f"and {more} notes more (--json has all)"] if more > 0 else [])]
    return [Heading("Notes"), *(Paragraph(note, is_item=True) for note in shown)]


def _with_few_phases(report: Report) -> Report:
    """Return the report with the largest of its top-level phases, in the order of a step."""
    top = [phase for phase in report.phases if "/" not in phase.name]
    by_size = sorted(top, key=lambda phase: -max(phase.share_pct or 0.0, phase.gpu_share_pct or 0.0))
    largest = {id(phase) for phase in by_size[: _BRIEF_ROWS["phases"][0]]}
    return structs.replace(report, phases=tuple(phase for phase in top if id(phase) in largest))


def _last_line(report: Report, shown: int) -> Paragraph:
    more = len(report.findings) - shown
    counts = [
        *([counted(more, "more finding")] if more > 0 else []),
        *([counted(len(report.notes), "note")] if report.notes else []),
    ]
    rest = f": {', '.join(counts)}" if counts else ""
    return Paragraph(f"--full says all{rest}, with evidence, gaps, calls and copies.", "dim", is_lead=True)


def _timeline(report: Report) -> list[WholeTimeline]:
    if report.whole_timeline is not None:
        return [report.whole_timeline]
    return [] if report.timeline is None else [_whole_from_step(report.timeline)]


def _whole_from_step(timeline: Timeline) -> WholeTimeline:
    """Return the one step of a report that was made without a page in mind."""
    kinds: dict[str, int] = {}
    texts: dict[str, int] = {}
    rows = []
    for row in timeline.rows:
        spans = sorted(row.spans, key=lambda span: span.start)
        starts = [round(span.start * 1e9) for span in spans]
        rows.append(
            PieceRow(
                label=row.label,
                starts=tuple(start - before for before, start in zip([0, *starts], starts, strict=False)),
                lengths=tuple(round(span.seconds * 1e9) for span in spans),
                kinds=tuple(kinds.setdefault(span.kind, len(kinds)) for span in spans),
                texts=tuple(texts.setdefault(span.text, len(texts)) for span in spans),
                fills=tuple(round(100 * span.fill) for span in spans),
            )
        )
    which = f"Step {timeline.step} of the whole ones" if timeline.step is not None else "The beginning"
    return WholeTimeline(
        title=which,
        length=max(round(timeline.seconds * 1e9), 1),
        kinds=tuple(kinds),
        texts=tuple(texts),
        devices=(DeviceRows(label="", rows=tuple(rows)),),
    )
