"""Two runs side by side: the same steps, the same time since the start, and where each of them changed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from llmtop.compare.model import ComparedFigure, Comparison
from llmtop.compare.run_model import RunComparison, RunRegime, RunSide, SignalChange, StretchChange, ValueChange
from llmtop.compare.step_times import FEW_PCT, LEAST_PCT, time_change
from llmtop.compare.words import MOST_PARTS, difference, signed
from llmtop.format import counted, duration, number, percent_text, times
from llmtop.model.signals import SIGNALS
from llmtop.naming.own_phases import OUTSIDE, phase_label
from llmtop.report.environment import Environment, differences
from llmtop.runs.energy import gpu_minutes
from llmtop.runs.node_notes import read_notes
from llmtop.runs.report import RunReport, report_of
from llmtop.runs.series import Point, Series, batch_of, series_of
from llmtop.runs.store import Run
from llmtop.step_history.regimes import BLOCKS, find_changes

STRETCHES = 8

_SURE = 1.96
"""Standard errors on either side of a mean, at the 95 % level."""
_LEAST_UNCERTAIN = 0.01
"""Least uncertainty of a median, as a share: a run keeps its percentiles to 1 %."""
_SAME_BATCH = 0.02

ENGINE = "run"
"""Name in `Comparison.engine_before` and `.engine_after`."""


class _Side(NamedTuple):
    run: Run
    report: RunReport
    series: Series
    made: list[Point]
    batch: tuple[float | None, float | None]

    @property
    def label(self) -> str:
        return f"{self.report.name} ({self.run.id})" if self.report.name else self.run.id

    @property
    def gpu_model(self) -> str | None:
        starts = [process.start for process in self.run.processes if process.start is not None]
        return next((start.gpu_model for start in starts if start.gpu_model), None)

    def points_between(self, first: float, last: float) -> list[Point]:
        """Return the points whose middle step is one of these, by number."""
        return [point for point in self.made if first <= (point.first + point.last) / 2 <= last]


def compare_runs(before: Run, after: Run) -> Comparison:
    """Return what changed from one run to another beyond the noise."""
    sides = _side(before), _side(after)
    one, two = sides
    common = _common_steps(*sides)
    points = tuple(side.made if common is None else side.points_between(*common) for side in sides)
    step = _step(sides, points, common)
    phases = _phases(points)
    unlike, unlike_command = _unlike(*sides)
    details = RunComparison(
        before=_run_side(one),
        after=_run_side(two),
        by_step=_by_step(sides, common),
        by_time=_by_time(sides),
        regimes=(*_regimes(one, "before"), *_regimes(two, "after")),
        values=_values(sides, common),
        signals=_signals(before, after),
    )
    same = not ((step is not None and step.moved) or any(row.moved or row.told for row in phases))
    return Comparison(
        before=one.label,
        after=two.label,
        verdict_before="",
        verdict_after="",
        engine_before=ENGINE,
        engine_after=ENGINE,
        steps_before=one.report.steps,
        steps_after=two.report.steps,
        bottleneck_changed=False,
        summary=_summary(sides, (unlike, unlike_command), step, phases, details),
        step=step,
        phases=phases,
        notes=_notes(sides, common),
        environment=differences(_environment(one), _environment(two)),
        basis="undisturbed" if step is not None else "",
        same=same,
        unlike=tuple(unlike),
        runs=details,
    )


def _side(run: Run) -> _Side:
    series = series_of(run)
    made = series.lasting_points()
    return _Side(run, report_of(run), series, made, batch_of(made))


def _run_side(side: _Side) -> RunSide:
    report = side.report
    return RunSide(
        id=report.id,
        name=report.name,
        started=report.started,
        wall_seconds=report.wall_seconds,
        how=report.how,
        steps=report.steps,
        first_step=side.made[0].first if side.made else None,
        last_step=side.made[-1].last if side.made else None,
        tokens_per_step=side.batch[0],
        samples_per_step=side.batch[1],
        world_size=report.world_size,
        gpu_model=side.gpu_model,
    )


def _common_steps(one: _Side, two: _Side) -> tuple[int, int] | None:
    """Return the numbers of the first and the last step that both have made; None without any."""
    if not one.made or not two.made:
        return None
    first, last = max(one.made[0].first, two.made[0].first), min(one.made[-1].last, two.made[-1].last)
    return (first, last) if first < last else None


# ---- figures ----


def _median(points: Sequence[Point]) -> float | None:
    """Return the median step of points, each weighted by its steps."""
    known = [point for point in points if point.step_seconds is not None]
    if not known:
        return None
    each = np.repeat([point.step_seconds for point in known], [point.steps for point in known])
    return float(np.median(each))


def _mean_phase(name: str) -> Callable[[Sequence[Point]], float | None]:
    def mean(points: Sequence[Point]) -> float | None:
        steps = sum(point.steps for point in points)
        return sum(point.phases.get(name, 0.0) * point.steps for point in points) / steps if steps else None

    return mean


def _uncertainty(points: Sequence[Point], figure: Callable[[Sequence[Point]], float | None]) -> float | None:
    """Return how far a figure of one run may be off, by what equal parts of the run differ by; None for a run too
    short.

    Neighbouring steps resemble each other, so the steps themselves are no independent values.
    """
    if len(points) < 2 * BLOCKS:
        return None
    edges = [round(place * len(points) / BLOCKS) for place in range(BLOCKS + 1)]
    parts = [figure(points[low:high]) for low, high in pairwise(edges)]
    known = [part for part in parts if part is not None]
    return _SURE * statistics.stdev(known) / math.sqrt(len(known)) if len(known) > 1 else None


def _noise(
    points: tuple[Sequence[Point], ...],
    values: tuple[float, float],
    figure: Callable[[Sequence[Point]], float | None],
) -> float:
    """Return the noise in seconds: a smaller difference says nothing."""
    each = []
    for side, value in zip(points, values, strict=True):
        known = _uncertainty(side, figure)
        each.append(max(value * (FEW_PCT / 100 if known is None else _LEAST_UNCERTAIN), known or 0.0))
    return math.hypot(*each)


def _step(
    sides: tuple[_Side, _Side], points: tuple[list[Point], ...], common: tuple[int, int] | None
) -> ComparedFigure | None:
    """Return the median step: of whole runs as `llmtop runs show` has it, else of the steps that both have
    made."""
    whole = [common is None or (side.made[0].first, side.made[-1].last) == common for side in sides]
    own = [
        side.report.step_seconds_p50 if all(whole) else _median(kept)
        for side, kept in zip(sides, points, strict=True)
    ]
    before, after = own
    if before is None or after is None:
        return None
    noise = _noise(points, (before, after), _median)
    found = time_change("median step", before, after, noise)
    least = LEAST_PCT / 100 * max(before, after)
    return ComparedFigure(
        name=found.name, unit="s", before=before, after=after, change_pct=100.0 * (after - before) / before,
        noise=noise, moved=abs(after - before) > max(noise, least), speedup=found.speedup,
    )  # fmt: skip


def _phases(points: tuple[list[Point], ...]) -> tuple[ComparedFigure, ...]:
    names = list(dict.fromkeys(name for side in points for point in side for name in point.phases))
    names.sort(key=lambda name: name == OUTSIDE)
    rows = []
    for name in names:
        figure = _mean_phase(name)
        known = [any(name in point.phases for point in side) for side in points]
        before, after = (figure(side) if there else None for side, there in zip(points, known, strict=True))
        noise = None
        if before is not None and after is not None:
            noise = _noise(points, (before, after), figure)
        rows.append(time_change(phase_label(name), before, after, noise))
    return tuple(rows)


def _by_step(sides: tuple[_Side, _Side], common: tuple[int, int] | None) -> tuple[StretchChange, ...]:
    if common is None:
        return ()
    first, last = common
    number_of = min(STRETCHES, last - first + 1)
    edges = [first + round(place * (last - first + 1) / number_of) for place in range(number_of + 1)]
    rows = []
    for low, high in pairwise(edges):
        parts = [side.points_between(low, high - 0.5) for side in sides]
        until = [[point for point in side.made if point.first < high] for side in sides]
        rows.append(_stretch(low, high - 1, parts, until))
    return tuple(rows)


def _by_time(sides: tuple[_Side, _Side]) -> tuple[StretchChange, ...]:
    whole = max((side.series.points[-1].elapsed for side in sides if side.series.points), default=0.0)
    rows = []
    for place in range(STRETCHES if whole > 0 else 0):
        low, high = place * whole / STRETCHES, (place + 1) * whole / STRETCHES
        if place == STRETCHES - 1:
            high = whole
        parts = [[point for point in side.series.points if low < point.elapsed <= high] for side in sides]
        until = [[point for point in side.series.points if point.elapsed <= high] for side in sides]
        rows.append(_stretch(low, high, parts, until))
    return tuple(rows)


def _stretch(low: float, high: float, parts: list[list[Point]], until: list[list[Point]]) -> StretchChange:
    before, after = map(_median, parts)
    change = 100.0 * (after - before) / before if before and after is not None else None
    last = [points[-1].last if points else None for points in until]
    values = [_values_at(points) for points in until]
    return StretchChange(
        first=low,
        last=high,
        step_seconds_before=before,
        step_seconds_after=after,
        change_pct=change,
        last_step_before=last[0],
        last_step_after=last[1],
        values_before=values[0],
        values_after=values[1],
    )


def _values_at(points: Sequence[Point]) -> dict[str, float]:
    return next((point.values for point in reversed(points) if point.values), {})


def _values(sides: tuple[_Side, _Side], common: tuple[int, int] | None) -> tuple[ValueChange, ...]:
    ends = [side.report.values for side in sides]
    there = [{} if common is None else _values_at(side.points_between(-1, common[1])) for side in sides]
    names = sorted({name for side in (*ends, *there) for name in side})
    return tuple(
        ValueChange(
            name=name,
            step=None if common is None else common[1],
            before=there[0].get(name),
            after=there[1].get(name),
            last_before=ends[0].get(name),
            last_after=ends[1].get(name),
        )
        for name in names
    )


def _regimes(side: _Side, which: str) -> list[RunRegime]:
    """Return the stretches of a run whose steps are alike; empty where it is too short to be searched."""
    points = [point for point in side.made if point.step_seconds is not None]
    points = points[1:] if side.series.is_full else points  # the first step holds what is compiled
    changes = find_changes([point.step_seconds or 0.0 for point in points])
    if not points or (not changes and len(points) < 2 * BLOCKS):
        return []
    begins: list[tuple[int, str, float | None]] = (
        [(0, "start", None)] if not changes or changes[0].step > 0 else []
    )
    begins += [(change.step, change.kind, 100.0 * math.expm1(change.log)) for change in changes]
    found = []
    for place, (begin, kind, change_pct) in enumerate(begins):
        end = begins[place + 1][0] if place + 1 < len(begins) else len(points)
        stretch = points[begin:end]
        length = _median(stretch)
        if length is None:
            continue
        found.append(
            RunRegime(
                side=which,
                first_step=stretch[0].first,
                last_step=stretch[-1].last,
                elapsed_seconds=points[begin - 1].elapsed if begin else 0.0,
                step_seconds=length,
                kind=kind,
                change_pct=change_pct,
            )
        )
    return found


def _signals(before: Run, after: Run) -> tuple[SignalChange, ...]:
    """Means over GPUs and time of each signal that both runs have."""
    sums = [_signal_means(run) for run in (before, after)]
    rows = []
    for signal in SIGNALS:
        one, two = (side.get(signal.field) for side in sums)
        if one is not None and two is not None:
            rows.append(
                SignalChange(
                    field=signal.field, unit=signal.unit, before=one[0], after=two[0],
                    gpu_hours_before=one[1] / 3600, gpu_hours_after=two[1] / 3600,
                )
            )  # fmt: skip
    return tuple(rows)


def _signal_means(run: Run) -> dict[str, tuple[float, float]]:
    """Mean and seconds by field."""
    totals: dict[str, tuple[float, float]] = {}
    for minute in gpu_minutes(run, read_notes(run).gpu_minutes):
        for field, (mean, _, _) in minute.signals.items():
            total, seconds = totals.get(field, (0.0, 0.0))
            totals[field] = total + mean * minute.seconds, seconds + minute.seconds
    return {field: (total / seconds, seconds) for field, (total, seconds) in totals.items() if seconds > 0}


# ---- words ----


def _environment(side: _Side) -> Environment:
    start = side.run.attempts[-1].leader.start
    models = () if side.gpu_model is None else (side.gpu_model,)
    if start is None:
        return Environment(gpus=models)
    return Environment(
        gpus=models, host=start.host or None, torch=start.torch, command=start.command or None,
        ranks=start.world_size,
    )  # fmt: skip


def _unlike(one: _Side, two: _Side) -> tuple[list[str], list[str]]:
    """Return the differences between two runs before any speed: conditions that decide the step time, and the
    command."""
    before, after = (side.run.attempts[-1].leader.start for side in (one, two))
    found = []
    models = [side.gpu_model for side in (one, two)]
    if all(models) and models[0] != models[1]:
        found.append(f"GPU {models[0]} before, {models[1]} after")
    uses = [any(p.start is not None and p.start.gpu_uuid for p in side.run.processes) for side in (one, two)]
    if uses[0] != uses[1]:
        found.append("a GPU before, none after" if uses[0] else "no GPU before, one after")
    if before is None or after is None:
        return found, []
    if before.world_size != after.world_size:
        found.append(f"world size {before.world_size or 1} before, {after.world_size or 1} after")
    if before.dtype and after.dtype and before.dtype != after.dtype:
        found.append(f"{before.dtype} before, {after.dtype} after")
    for unit, a, b in zip(("tokens", "samples"), one.batch, two.batch, strict=True):
        if a and b and abs(b / a - 1) > _SAME_BATCH:
            found.append(f"{number(a)} {unit} per step and rank before, {number(b)} after")
    return found, ["command"] if before.command != after.command else []


def _summary(
    sides: tuple[_Side, _Side],
    unlike: tuple[list[str], list[str]],
    step: ComparedFigure | None,
    phases: Sequence[ComparedFigure],
    details: RunComparison,
) -> str:
    texts = []
    if unlike[0]:
        texts.append(f"Not alike: {'; '.join(unlike[0])}{'; another command' if unlike[1] else ''}.")
    elif unlike[1]:
        texts.append("Alike in hardware and batch, with another command.")
    texts.append(_step_text(step, details))
    moved = [
        (row.name, (row.after or 0.0) - (row.before or 0.0)) for row in phases if row.moved and "/" not in row.name
    ]
    if step is not None and step.moved and moved:
        most = sorted(moved, key=lambda row: -abs(row[1]))[:MOST_PARTS]
        texts.append(f"In a step: {', '.join(f'{name} {difference(seconds)}' for name, seconds in most)}.")
    texts += _regime_texts(details.regimes)
    return " ".join(texts)


def _step_text(step: ComparedFigure | None, details: RunComparison) -> str:
    if step is None or step.before is None or step.after is None or step.change_pct is None:
        return "No step time on one side: nothing can be compared."
    which = (
        f" of steps {details.by_step[0].first:.0f} to {details.by_step[-1].last:.0f}" if details.by_step else ""
    )
    values = f"{duration(step.before)} to {duration(step.after)}"
    said = f"({signed(step.change_pct)} %, noise {percent_text(100 * (step.noise or 0.0) / step.before, 1)})"
    if not step.moved:
        return f"The median step{which} did not move: {values} {said}."
    if step.after < step.before:
        return f"The median step{which} is faster: {values}, a speed-up of {times(step.speedup)} {said}."
    return f"The median step{which} is slower: {values}, {times(step.after / step.before)} as long {said}."


def _regime_texts(regimes: Sequence[RunRegime]) -> list[str]:
    """Return the largest change within each run, in a sentence."""
    found = []
    for which in ("before", "after"):
        own = [one for one in regimes if one.side == which]
        changes = [one for one in own if one.change_pct is not None]
        if not changes:
            continue
        largest = max(changes, key=lambda one: abs(math.log1p((one.change_pct or 0.0) / 100)))
        more = f", the largest of {counted(len(changes), 'change')}" if len(changes) > 1 else ""
        how = "from" if largest.kind == "drift" else "at"
        found.append(
            f"{which.capitalize()}: steps changed by {signed(largest.change_pct or 0.0)} % {how} step "
            f"{largest.first_step}{more}."
        )
    return found


def _notes(sides: tuple[_Side, _Side], common: tuple[int, int] | None) -> tuple[str, ...]:
    found = []
    if common is None and all(side.made for side in sides):
        found.append("The runs have no step number in common; whole runs are compared.")
    for side in sides:
        if not side.series.is_full:
            found.append(f"Run {side.run.id} is kept by the minute: step numbers are exact to a minute.")
        if len(side.made) < 2 * BLOCKS:
            what = "steps" if side.series.is_full else "minutes"
            found.append(f"Run {side.run.id} has under {2 * BLOCKS} {what}: it is not searched for changes.")
    found.append("One run a side: what equal runs differ by is not in the noise. llmtop bench measures it.")
    return tuple(found)
