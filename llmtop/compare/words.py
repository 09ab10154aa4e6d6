"""Differences between two reports, in sentences."""

from __future__ import annotations

from collections.abc import Iterable

from llmtop.compare.device_pairs import PairedDevices
from llmtop.compare.model import ComparedFigure, Comparison
from llmtop.compare.step_times import FEW_STEPS, correction_of
from llmtop.format import counted, duration, percent_text, times
from llmtop.report.advice.table import RECORDS_LOST
from llmtop.report.model import Report

MOST_PARTS = 3
_LARGE_PCT = 900.0
_AS_MUCH = 0.02
"""Share of the work of a step within which work counts as equal."""
_WORTH_SAYING = 0.1
"""Share of the change of the step: a part that changed by less explains little of it."""


def has_lost_records(report: Report) -> bool:
    """Return True if kernels that were launched are not in a capture."""
    return any(finding.id == RECORDS_LOST for finding in report.findings)


def has_whole_graphs(report: Report) -> bool:
    """Return True if a capture has CUDA graphs of which only the whole was recorded."""
    return any(device.graphs for device in report.devices)


def has_no_change(found: Comparison) -> bool:
    """Return True if two reports show no difference that is more than noise."""
    changes = [*([found.step] if found.step else []), *found.figures, *found.parts, *found.phases]
    changes += [row for device in found.devices for row in (*device.figures, *device.phases)]
    return not (
        any(change.moved or change.told.startswith("only") for change in changes)
        or any(row.state != "same" for row in (*found.kernels, *found.kinds, *found.operators))
        or any(row.state != "same" for row in found.collectives)
        or any(finding.state != "stayed" for finding in found.findings)
        or found.unpaired
        or found.verdict_before != found.verdict_after
    )


def comparison_summary(
    found: Comparison, same: bool, paired: PairedDevices, verdict: str, work_seconds: tuple[float, ...] | None
) -> str:
    """Return the step, where its change comes from, and the bottleneck.

    Args:
        found: the figures.
        same: whether nothing moved.
        paired: the devices of both reports.
        verdict: the sentence on the bottleneck.
        work_seconds: device time of all work in both windows, where no step can be told; else None.
    """
    where = f" of {paired.main.name}" if paired.main is not None and len(paired.pairs) > 1 else ""
    texts = [_step(found, where), _work_ratio_text(found, work_seconds), _main_cause_text(found), verdict]
    unlike = [f"Not alike: {'; '.join(found.unlike)}."] if found.unlike else []
    return " ".join([*unlike, *(["No difference."] if same else []), *(text for text in texts if text)])


def _step(found: Comparison, where: str) -> str:
    step = found.step
    if step is None or step.before is None or step.after is None or step.change_pct is None:
        lacking = [
            word for word, steps in (("first", found.steps_before), ("second", found.steps_after)) if not steps
        ]
        side = "either side" if len(lacking) == 2 else f"the side of the {lacking[0]}" if lacking else "one side"
        return f"No step time on {side}: only shares and single kernels can be compared."
    values = f"{duration(step.before)} to {duration(step.after)}"
    noise = percent_text(100 * (step.noise or 0.0) / step.before, 1)
    if found.basis == "bounded":
        return _bounds_text(found, step, where, values)
    without = " without the profiler" if found.basis == "undisturbed" else ""
    said = f"({_part(step.change_pct)}, noise {noise})"
    if not step.moved:
        return f"The step{where} did not move: {values}{without} {said}."
    if other_work_ratio(found) is not None:
        word = "shorter" if step.after < step.before else "longer"
        return f"The step{where} is {word}: {values}{without} {said}."
    if step.after < step.before:
        return f"The step{where} is faster: {values}{without}, a speed-up of {times(step.speedup)} {said}."
    return f"The step{where} is slower: {values}{without}, {times(step.after / step.before)} as long {said}."


def _bounds_text(found: Comparison, step: ComparedFigure, where: str, values: str) -> str:
    """Bounds on the step that hold although two profilers took part."""
    low, high = found.step_range_pct or (0.0, 0.0)
    if step.moved:
        word, least = ("slower", low) if low > 0 else ("faster", high)
        return (
            f"The step{where} is {word}, whatever profilers cost: {values} as captured, without them by at least "
            f"{percent_text(abs(least), 1)}."
        )
    device = next((row for row in found.figures if row.unit == "s"), None)
    text = (
        f"Whether the step{where} moved cannot be told: {values} {_profilers_text(found)}, which is "
        f"between {_part(low)} and {_part(high)} without them."
    )
    if device is None or device.change_pct is None or device.before is None or device.after is None:
        return text
    if not device.moved and abs(device.after - device.before) > (device.noise or 0.0):
        return text  # it is not judged, for kernels are missing
    moved = "did not move" if not device.moved else "moved"
    return (
        f"{text} GPU time in a step, which no profiler changes, {moved}: {duration(device.before)} to "
        f"{duration(device.after)} ({_part(device.change_pct)})."
    )


def _profilers_text(found: Comparison) -> str:
    """Return the names of the profilers."""
    one = "recording" in (found.engine_before, found.engine_after)
    return "with a profiler on one side only" if one else "with two different profilers"


def _main_cause_text(found: Comparison) -> str:
    """Sentence on the largest gain or loss of the step."""
    step = found.step
    if step is None or not step.moved or step.before is None or step.after is None:
        return ""
    least = _WORTH_SAYING * abs(step.after - step.before)
    moved = [(row.name, (row.after or 0.0) - (row.before or 0.0)) for row in found.parts if row.moved]
    worth = sorted((row for row in moved if abs(row[1]) >= least), key=lambda row: -abs(row[1]))[:MOST_PARTS]
    if not worth:
        return ""
    return f"In a step: {', '.join(f'{name} {difference(seconds)}' for name, seconds in worth)}."


def other_work_ratio(found: Comparison) -> float | None:
    """Return the factor of the work after over before; None where it is equal, or unknown."""
    ratio = found.work_ratio
    return None if ratio is None or abs(ratio - 1) <= _AS_MUCH else ratio


def _work_ratio_text(found: Comparison, work_seconds: tuple[float, ...] | None) -> str:
    """Return a sentence that different amounts of work are done, with the change for equal work."""
    ratio, step = other_work_ratio(found), found.step
    if ratio is None:
        return ""
    if work_seconds is not None:
        faster = work_seconds[0] / work_seconds[1] * ratio if work_seconds[1] else None
        return (
            f"The window after holds {times(ratio)} the work of the first, by how often it runs what it runs; "
            f"for equal work the GPU is {times(faster)} as fast."
        )
    if step is None or not step.speedup:
        return ""
    return (
        f"But it does {times(ratio)} the work, by how often it runs what it runs (batches accumulated, other "
        f"layers, or steps cut in another way): for equal work it is {times(step.speedup * ratio)} as fast."
    )


def difference(seconds: float) -> str:
    """Return a difference in time as text, with its sign.

    Args:
        seconds: positive where time was added.
    """
    return f"{'-' if seconds <= -5e-10 else '+'}{duration(abs(seconds))}"


def _part(change_pct: float) -> str:
    """Return a change in percent; from ten times on, in times."""
    return f"{signed(change_pct)} %" if change_pct < _LARGE_PCT else f"{times(1 + change_pct / 100)} as much"


def signed(value: float) -> str:
    """Return a number with its sign and one decimal; what rounds to nothing is +0.0."""
    return f"{round(value, 1) + 0.0:+.1f}"


def comparison_notes(
    before: Report, after: Report, paired: PairedDevices, found: Comparison, on_work: Iterable[str]
) -> tuple[str, ...]:
    """Return notes that limit the figures.

    Args:
        before: the first report.
        after: the second.
        paired: their devices.
        found: the figures.
        on_work: what to know of the kernels; an empty one says nothing.
    """
    sides = (("first", before), ("second", after))
    notes = [*paired.unpaired, *_basis_note(before, after, found), *_device_notes(before, after, paired)]
    for word, report in sides:
        if 0 < report.steps.count < FEW_STEPS:
            steps = counted(report.steps.count, "whole step")
            notes.append(f"the {word} has only {steps}: capture more to see small changes")
        if has_lost_records(report):
            notes.append(f"the {word} lacks kernels that were launched: what a step holds is not known")
        if has_whole_graphs(report):
            notes.append(
                f"the {word} has CUDA graphs that were traced as a whole: their kernels are not known (nsys "
                "--cuda-graph-trace=node)"
            )
        if report.steps.count and report.kernels and not any(row.per_step for row in report.kernels):
            notes.append(
                f"the {word} does not contain the kernels of each step: compare the capture itself to see "
                f"kernels per step"
            )
    if before.steps.inferred != after.steps.inferred and before.steps.count and after.steps.count:
        word = "first" if before.steps.inferred else "second"
        notes.append(f"the steps of the {word} are inferred from what repeats, those of the other are marked")
    if bool(before.operators) != bool(after.operators):
        notes.append(f"only the {'first' if before.operators else 'second'} knows operators")
    return (*notes, *(text for text in on_work if text))


def _basis_note(before: Report, after: Report, found: Comparison) -> list[str]:
    corrected = [correction_of(report) is not None for report in (before, after)]
    if before.engine != after.engine:
        text = f"different engines ({before.engine}, {after.engine}) slow a training down differently"
        if found.basis == "bounded":
            text += f": times of the host are not judged{_bounds_reason(before, after)}"
        return [text]
    if found.basis == "captured" and any(corrected):
        word = "first" if corrected[0] else "second"
        return [f"only the {word} knows its step without the profiler: both are compared as captured"]
    return []


def _bounds_reason(before: Report, after: Report) -> str:
    """Return why the step without the profiler is not known, as the end of a sentence."""
    for word, report in (("first", before), ("second", after)):
        if report.correction is not None and report.correction.reason:
            return f" (of the {word} {report.correction.reason})"
    return ""


def _device_notes(before: Report, after: Report, paired: PairedDevices) -> list[str]:
    notes = []
    names = [{device.name for device in report.devices if device.name} for report in (before, after)]
    if names[0] and names[1] and names[0] != names[1]:
        both = "; ".join(", ".join(sorted(side)) for side in names)
        notes.append(f"different GPUs: {both}. Each has kernels of its own: see kinds and operators")
    if len(before.devices) != len(after.devices) and not paired.unpaired:
        notes.append(f"{counted(len(before.devices), 'device')} before, {len(after.devices)} after")
    main = paired.main
    if main is not None and len(paired.pairs) > 1 and not (main.before.judged and main.after.judged):
        judged = [next((d.device for d in report.devices if d.judged), None) for report in (before, after)]
        if None not in judged:
            about = f"GPU {judged[0]} before and GPU {judged[1]} after"
            notes.append(f"the verdicts are about {about}; the figures are of {main.name}")
    alone = next((pair for pair in paired.pairs if pair.by == "alone"), None)
    if alone is not None:
        notes.append(f"{alone.name} are set against each other because neither capture has another")
    return notes
