"""Two reports side by side: what moved, what is noise, and whether the bottleneck is another one now.

Like is set beside like: one device beside the same one, a step beside a step, and times with a profiler beside
such times only where both were made with the same one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from msgspec import structs

from llmtop.compare.conditions import unlike_conditions
from llmtop.compare.device_pairs import (
    DevicePair,
    DeviceShares,
    MovedKinds,
    PairedDevices,
    compared_device,
    device_time,
    figures_of,
    pair_devices,
    parts_of,
    shares_of,
)
from llmtop.compare.model import Basis, ComparedFigure, Comparison, DeviceChange, FindingChange, WorkChange
from llmtop.compare.phase_pairs import mean_phases, phase_changes
from llmtop.compare.step_times import StepTime, basis_of, step_change, step_time
from llmtop.compare.verdict_change import verdict_change
from llmtop.compare.words import (
    comparison_notes,
    comparison_summary,
    has_lost_records,
    has_no_change,
    has_whole_graphs,
    other_work_ratio,
)
from llmtop.compare.work_changes import (
    NOT_BY_STEP,
    Work,
    collective_changes,
    compared_steps,
    has_little_in_common,
    kernels_of,
    kind_changes,
    operators_of,
    size_change_text,
    window_note,
    work_changes,
    work_ratio,
)
from llmtop.format import times
from llmtop.report.environment import differences
from llmtop.report.model import Device, PhaseMean, Report

__all__ = ["ComparedFigure", "Comparison", "compare_reports", "is_regression", "is_undecided"]


_Works: TypeAlias = tuple[dict[str, Work], dict[str, Work]]
"""Kernels or operators of both sides, by name."""


@dataclass(frozen=True)
class _ReportPair:
    """Two reports, and what the parts of a comparison have in common."""

    before: Report
    after: Report
    paired: PairedDevices
    steps: tuple[StepTime | None, StepTime | None]
    """Step times of the leading device."""
    basis: Basis

    @property
    def alike(self) -> bool:
        """Return True if one profiler made both: the host's times hold what it costs."""
        return self.before.engine == self.after.engine

    @property
    def complete(self) -> bool:
        """Return True if all kernels that were launched are in both: else what a step holds is not known."""
        return not any(has_lost_records(report) for report in (self.before, self.after))

    @property
    def relative(self) -> float:
        """How uncertain the steps are: of both sides, so that the comparison the other way round calls the same
        things noise."""
        one, two = self.steps
        return 0.0 if one is None or two is None else math.hypot(one.uncertainty, two.uncertainty)

    @property
    def longest(self) -> float | None:
        """The longer of both steps in seconds; None without one on both sides."""
        one, two = self.steps
        return None if one is None or two is None else max(one.captured, two.captured)

    def shares(self, pair: DevicePair) -> tuple[DeviceShares, DeviceShares]:
        """Shares of its steps that a device lost, on both sides."""
        return shares_of(pair, self.before, self.after, self.basis)

    def figures(
        self, pair: DevicePair, steps: tuple[StepTime | None, StepTime | None]
    ) -> tuple[ComparedFigure, ...]:
        """Return the shares of a device, and its work in a step."""
        judged = MovedKinds(self.alike, self.alike or self.basis == "undisturbed")
        time = device_time(pair, self.relative, self.complete)
        rows = figures_of(pair, self.shares(pair), self.relative, steps, judged)
        return (*rows, *([time] if time is not None else []))

    def rows(self, side: int) -> list[PhaseMean]:
        """Return the phases of one side (0 or 1), means over the devices that are on both sides; of all
        processes where no device is."""
        report = (self.before, self.after)[side]
        if not self.paired.pairs:
            return mean_phases(report.phases)
        own = [_rows_of(report, (pair.before, pair.after)[side]) for pair in self.paired.pairs]
        return mean_phases([row for rows in own for row in rows])


def compare_reports(before: Report, after: Report) -> Comparison:
    """Return what changed from one report to the other beyond the noise."""
    paired = pair_devices(before, after)
    main = paired.main
    sides = (before, None if main is None else main.before), (after, None if main is None else main.after)
    one, two = (step_time(*side) for side in sides)
    both = _ReportPair(before, after, paired, (one, two), basis_of(before, after, one, two))
    step, bounds = (None, None) if one is None or two is None else step_change(one, two, both.basis)
    on = compared_steps(paired, before, after, both.longest) if both.complete else NOT_BY_STEP
    operators = operators_of(before), operators_of(after)
    # Of kernels in graphs that one side recorded as a whole none is gone.
    graphs = has_whole_graphs(before) != has_whole_graphs(after)
    kernels: _Works = ({}, {}) if graphs else (kernels_of(before), kernels_of(after))
    # Operators are the same on any GPU; kernels are not.
    work = operators if all(operators) and not graphs else kernels
    changed, words = verdict_change(before, after, both.steps, both.relative, both.basis)
    found = Comparison(
        before=before.source,
        after=after.source,
        verdict_before=before.verdict,
        verdict_after=after.verdict,
        engine_before=before.engine,
        engine_after=after.engine,
        steps_before=before.steps.count,
        steps_after=after.steps.count,
        bottleneck_changed=changed,
        summary="",
        step=step,
        figures=() if main is None else both.figures(main, both.steps),
        phases=_phases(both, both.rows(0), both.rows(1)),
        findings=_findings(before, after),
        environment=differences(before.environment, after.environment),
        basis=both.basis,
        step_range_pct=bounds,
        parts=() if main is None else parts_of(main, both.shares(main), both.relative, both.complete, both.basis),
        devices=tuple(_device(both, pair) for pair in paired.pairs),
        unpaired=paired.unpaired,
        kernels=work_changes(*kernels, on),
        kinds=kind_changes(*kernels, on),
        operators=work_changes(*operators, on) if all(operators) and not graphs else (),
        collectives=collective_changes(before, after, paired),
        work_ratio=work_ratio(*work, on) if both.complete else None,
    )
    same = has_no_change(found)
    seconds = None if on.places else tuple(sum(row.seconds for row in side.values()) for side in work)
    windows = window_note(*kernels, on) if both.complete else ""
    other_work = _incomparable_note(before, after, work, found.kinds)
    on_work = (*other_work, windows)
    found = structs.replace(found, unlike=unlike_conditions(before, after, _work_clauses(found, other_work)))
    notes = comparison_notes(before, after, paired, found, on_work)
    summary = comparison_summary(found, same, paired, words, seconds)
    return structs.replace(found, same=same, summary=summary, notes=notes)


def _work_clauses(found: Comparison, notes: list[str]) -> list[str]:
    """Return the differences in the work of a step; a window without steps has other work only by its length."""
    ratio = other_work_ratio(found) if found.step is not None else None
    amount = [] if ratio is None else [f"{times(ratio)} the work in a step"]
    return [*amount, *(["other kernels or sizes"] if any(notes) else [])]


def _incomparable_note(before: Report, after: Report, work: _Works, kinds: tuple[WorkChange, ...]) -> list[str]:
    """Return a note if two captures do hardly the same work, or not of the same size."""
    if has_little_in_common(*work):
        return ["hardly any of the work is on both sides: are these captures of the same program?"]
    gpus = [{device.name for device in report.devices} for report in (before, after)]
    return [size_change_text(kinds)] if gpus[0] == gpus[1] else []


def is_regression(comparison: Comparison, limit_pct: float) -> bool:
    """Return whether the median step became slower beyond the limit and beyond the noise.

    Args:
        comparison: two compared reports.
        limit_pct: allowed slowdown, in percent of the step before.
    """
    step = comparison.step
    if step is None or not step.moved or step.change_pct is None:
        return False
    least = step.change_pct if comparison.step_range_pct is None else comparison.step_range_pct[0]
    return least > limit_pct


def is_undecided(comparison: Comparison, limit_pct: float) -> bool:
    """Return whether it is unknown if the step became slower beyond the limit.

    Two profilers took part then, and their overhead is not known.

    Args:
        comparison: two compared reports.
        limit_pct: allowed slowdown, in percent of the step before.
    """
    bounds = comparison.step_range_pct
    return bounds is not None and not is_regression(comparison, limit_pct) and bounds[1] > limit_pct


def _device(both: _ReportPair, pair: DevicePair) -> DeviceChange:
    """Return one device before and after, by itself."""
    one, two = step_time(both.before, pair.before), step_time(both.after, pair.after)
    step = None
    if one is not None and two is not None and pair.has_steps:
        step, _ = step_change(one, two, both.basis)
    own = (_rows_of(both.before, pair.before), _rows_of(both.after, pair.after))
    return DeviceChange(
        name=pair.name,
        paired_by=pair.by,
        before=compared_device(pair.before),
        after=compared_device(pair.after),
        step=step,
        figures=both.figures(pair, (one, two)),
        phases=_phases(both, *own),
    )


def _rows_of(report: Report, device: Device) -> list[PhaseMean]:
    """Return the phases of one device; of a process without device work those of the process."""
    own = [row for row in report.phases if row.pid == device.pid and row.device in (device.device, None)]
    return mean_phases(own)


def _phases(both: _ReportPair, before: list[PhaseMean], after: list[PhaseMean]) -> tuple[ComparedFigure, ...]:
    return phase_changes(before, after, both.relative, both.longest, (both.alike, both.complete))


def _findings(before: Report, after: Report) -> tuple[FindingChange, ...]:
    a = {finding.id: finding.share_pct for finding in before.findings}
    b = {finding.id: finding.share_pct for finding in after.findings}
    rows = []
    for name in dict.fromkeys([*a, *b]):
        state = "stayed" if name in a and name in b else "gone" if name in a else "new"
        rows.append(FindingChange(id=name, state=state, before_pct=a.get(name), after_pct=b.get(name)))
    return tuple(rows)
