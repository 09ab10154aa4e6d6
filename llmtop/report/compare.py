"""Two reports side by side: what moved, what is noise, and whether the bottleneck is another one now."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from llmtop.bottlenecks import BOTTLENECKS
from llmtop.format import DASH, counted, duration, percent, printable
from llmtop.report.model import Device, Report

SCHEMA = 1

NOTCH = 1.57
"""A median of n values is uncertain by about 1.57 IQR / sqrt(n): two medians farther apart than the root of both
squares differ at the 95 % level (McGill, Tukey, Larsen, Variations of Box Plots, 1978)."""
_FEW_PCT = 3.0
"""Uncertainty of the median of fewer than four steps, whose spread says little: between two captures of the same
healthy training on an H200 the medians of three steps differed by up to 3 %."""
_LEAST_PCT = 0.5
"""Less than that is not worth a word, however certain."""
_POINTS = 1.0
"""So many points must a share move by."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of two reports: its value before and after."""

    name: str
    unit: str
    """"s" or "pct"."""
    before: float | None
    after: float | None
    change_pct: float | None = None
    """For times: by how many percent of the time before it has changed."""
    noise: float | None = None
    """In the figure's unit: a smaller difference says nothing."""
    moved: bool = False


class FindingChange(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that was there before, is there after, or both."""

    id: str
    state: str
    """"new", "gone" or "stayed"."""
    before_pct: float | None = None
    after_pct: float | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What moved between two reports."""

    schema: int = SCHEMA
    before: str
    after: str
    verdict_before: str
    verdict_after: str
    bottleneck_changed: bool
    summary: str
    step: Change | None = None
    """The median step: the primary figure."""
    figures: tuple[Change, ...] = ()
    """Busy, idle, and what the step is lost to, of the judged devices."""
    phases: tuple[Change, ...] = ()
    findings: tuple[FindingChange, ...] = ()
    notes: tuple[str, ...] = ()


def compare_reports(before: Report, after: Report) -> Comparison:
    """Say what moved from one report to the other, as far as that is more than noise."""
    step = _step(before, after)
    # Of both sides, so that the comparison the other way round calls the same things noise.
    relative = math.hypot(_uncertainty(before), _uncertainty(after)) if step is not None else 0.0
    figures = _figures(before, after, relative)
    return Comparison(
        before=before.source,
        after=after.source,
        verdict_before=before.verdict,
        verdict_after=after.verdict,
        bottleneck_changed=before.verdict != after.verdict,
        summary=_summary(before, after, step),
        step=step,
        figures=figures,
        phases=_phases(before, after, relative),
        findings=_findings(before, after),
        notes=_notes(before, after),
    )


def regressed(comparison: Comparison, limit_pct: float) -> bool:
    """Whether the median step became slower by more than `limit_pct` percent, and by more than the noise."""
    step = comparison.step
    return step is not None and step.moved and step.change_pct is not None and step.change_pct > limit_pct


def _step(before: Report, after: Report) -> Change | None:
    a, b = before.steps, after.steps
    if not a.seconds_p50 or not b.seconds_p50:
        return None
    noise = math.hypot(_uncertainty(before) * a.seconds_p50, _uncertainty(after) * b.seconds_p50)
    change = b.seconds_p50 - a.seconds_p50
    return Change(
        name="median step",
        unit="s",
        before=a.seconds_p50,
        after=b.seconds_p50,
        change_pct=100.0 * change / a.seconds_p50,
        noise=noise,
        moved=abs(change) > max(noise, _LEAST_PCT / 100 * max(a.seconds_p50, b.seconds_p50)),
    )


def _uncertainty(report: Report) -> float:
    """How much the median step of a report may be off, as a share of it."""
    steps = report.steps
    if steps.count < 4 or steps.spread_pct is None:
        return _FEW_PCT / 100
    return NOTCH * steps.spread_pct / 100 / math.sqrt(steps.count)


def _judged(report: Report) -> Device | None:
    return next((device for device in report.devices if device.judged), next(iter(report.devices), None))


def _figures(before: Report, after: Report, relative: float) -> tuple[Change, ...]:
    a, b = _judged(before), _judged(after)
    if a is None or b is None:
        return ()
    rows = [
        _share("GPU busy, whole capture", a.busy_pct, b.busy_pct, relative),
        _share("GPU idle", a.idle_pct, b.idle_pct, relative),
        _share("exposed NCCL", a.nccl_exposed_pct, b.nccl_exposed_pct, relative),
        _share("kernels under 10 µs", a.kernels_under_10us_pct, b.kernels_under_10us_pct, relative),
    ]
    rows += [
        _share(f"lost: {kind}", a.lost_pct.get(kind, 0.0), b.lost_pct.get(kind, 0.0), relative)
        for kind in dict.fromkeys([*a.lost_pct, *b.lost_pct])
    ]
    return tuple(row for row in rows if row.before is not None or row.after is not None)


def _share(name: str, before: float | None, after: float | None, relative: float) -> Change:
    if before is None or after is None:
        return Change(name=name, unit="pct", before=before, after=after)
    noise = max(_POINTS, relative * max(abs(before), abs(after)))
    return Change(
        name=name, unit="pct", before=before, after=after, noise=noise, moved=abs(after - before) > noise
    )


def _phases(before: Report, after: Report, relative: float) -> tuple[Change, ...]:
    a, b = _by_phase(before), _by_phase(after)
    rows = []
    for name in dict.fromkeys([*a, *b]):
        for clock, index in (("host", 0), ("GPU", 1)):
            old, new = a.get(name, (None, None))[index], b.get(name, (None, None))[index]
            if old is None and new is None:
                continue
            noise = moved = change = None
            if old is not None and new is not None:
                step = max(before.steps.seconds_p50 or old, after.steps.seconds_p50 or new)
                noise = max(relative * step, 0.05 * max(old, new))
                moved = abs(new - old) > noise
                change = 100.0 * (new - old) / old if old else None
            rows.append(
                Change(
                    name=f"{name}, {clock}",
                    unit="s",
                    before=old,
                    after=new,
                    change_pct=change,
                    noise=noise,
                    moved=bool(moved),
                )
            )
    return tuple(rows)


def _by_phase(report: Report) -> dict[str, tuple[float | None, float | None]]:
    """Host and GPU seconds by phase, means over the ranks."""
    sums: dict[str, list[tuple[float, float | None]]] = {}
    for row in report.phases:
        sums.setdefault(row.name, []).append((row.host_seconds, row.gpu_seconds))
    found: dict[str, tuple[float | None, float | None]] = {}
    for name, rows in sums.items():
        gpu = [seconds for _, seconds in rows if seconds is not None]
        found[name] = (sum(host for host, _ in rows) / len(rows), sum(gpu) / len(gpu) if gpu else None)
    return found


def _findings(before: Report, after: Report) -> tuple[FindingChange, ...]:
    a = {finding.id: finding.share_pct for finding in before.findings}
    b = {finding.id: finding.share_pct for finding in after.findings}
    rows = []
    for name in dict.fromkeys([*a, *b]):
        state = "stayed" if name in a and name in b else "gone" if name in a else "new"
        rows.append(FindingChange(id=name, state=state, before_pct=a.get(name), after_pct=b.get(name)))
    return tuple(rows)


def _notes(before: Report, after: Report) -> tuple[str, ...]:
    notes = []
    if before.engine != after.engine:
        notes.append(f"different engines ({before.engine}, {after.engine}) slow a training down differently")
    names = [{device.name for device in report.devices if device.name} for report in (before, after)]
    if names[0] and names[1] and names[0] != names[1]:
        notes.append(f"different GPUs: {', '.join(sorted(names[0]))}; {', '.join(sorted(names[1]))}")
    if len(before.devices) != len(after.devices):
        notes.append(f"{len(before.devices)} devices before, {len(after.devices)} after")
    for word, report in (("first", before), ("second", after)):
        if 0 < report.steps.count < 4:
            steps = counted(report.steps.count, "whole step")
            notes.append(f"the {word} has only {steps}: capture more to see small changes")
    return tuple(notes)


def _summary(before: Report, after: Report, step: Change | None) -> str:
    if step is None or step.change_pct is None or step.noise is None:
        text = "No step time on one side: only shares can be compared."
    elif not step.moved:
        text = (
            f"The step did not move: {duration(step.before)} to {duration(step.after)} "
            f"({step.change_pct:+.1f}%, noise {percent(100 * step.noise / (step.before or 1.0), 1)})."
        )
    else:
        word = "faster" if step.change_pct < 0 else "slower"
        text = (
            f"The step is {word}: {duration(step.before)} to {duration(step.after)} "
            f"({step.change_pct:+.1f}%, noise {percent(100 * step.noise / (step.before or 1.0), 1)})."
        )
    if before.verdict == after.verdict:
        return f"{text} The bottleneck is the same: {after.verdict}."
    was, now = (f"{verdict} ({BOTTLENECKS[verdict].sentence})" for verdict in (before.verdict, after.verdict))
    return f"{text} The bottleneck changed: {was} to {now}."


def render(comparison: Comparison, style: Callable[[str, str], str] | None = None) -> str:
    """The comparison as text for a terminal.

    Args:
        comparison: what moved.
        style: paints a text by its role ("dim", "title", ...); None for plain text.
    """
    paint = style or (lambda text, _role: text)
    lines = [
        paint(f"before: {printable(comparison.before, 200)}", "dim"),
        paint(f"after:  {printable(comparison.after, 200)}", "dim"),
        "",
        paint(printable(comparison.summary, 600), "title"),
        "",
    ]
    rows = [*([comparison.step] if comparison.step else []), *comparison.figures, *comparison.phases]
    width = max([24, *(len(printable(row.name, 48)) for row in rows)])
    lines.append(f"  {'':{width}}  {'before':>9}  {'after':>9}  {'change':>9}")
    for row in rows:
        sign = "*" if row.moved else " "
        text = f"{sign} {printable(row.name, 48):{width}}  {_show(row.before, row.unit):>9}  "
        text += f"{_show(row.after, row.unit):>9}  {_difference(row):>9}"
        lines.append(paint(text, "title" if row.moved else "info"))
    lines.append(paint("* moved by more than the noise", "dim"))
    if comparison.findings:
        lines += ["", paint("Findings", "title")]
        for finding in comparison.findings:
            shares = f"{percent(finding.before_pct, 1)} to {percent(finding.after_pct, 1)}"
            known = finding.before_pct is not None or finding.after_pct is not None
            lines.append(f"  {finding.state:7} {printable(finding.id, 40)}{'  ' + shares if known else ''}")
    lines += [f"  note: {printable(note, 300)}" for note in comparison.notes]
    return "\n".join(lines) + "\n"


def _show(value: float | None, unit: str) -> str:
    return percent(value, 1) if unit == "pct" else duration(value)


def _difference(row: Change) -> str:
    if row.before is None or row.after is None:
        return DASH
    if row.unit == "pct":
        return f"{row.after - row.before:+.1f} pt"
    return f"{row.change_pct:+.1f}%" if row.change_pct is not None else DASH
