"""Step time of a report: as captured, without the profiler, and its uncertainty."""

from __future__ import annotations

import math
from dataclasses import dataclass

from llmtop.compare.model import Basis, ComparedFigure
from llmtop.report.model import Correction, Device, Report

NOTCH = 1.57
"""A median of n values is uncertain by about 1.57 IQR / sqrt(n): two medians farther apart than the root of both
squares differ at the 95 % level (McGill, Tukey, Larsen, Variations of Box Plots, 1978)."""
FEW_PCT = 3.0
"""Uncertainty of the median of fewer than four steps, whose spread says little: between two captures of the same
healthy training on an H200 the medians of three steps differed by up to 3 %."""
FEW_STEPS = 4
LEAST_PCT = 0.5
"""Less than that is not worth a word, however certain."""
SHORTEST = 0.4
"""Part of the captured step: a profiler doubles the shortest steps at most, so without it no step is shorter."""
NEXT_TO_NOTHING = 0.01
"""Share of the other value. A change from or to less is described in words."""


@dataclass(frozen=True)
class StepTime:
    """The step of one side."""

    captured: float
    """Seconds, median of the steps in the file."""
    uncertainty: float
    """How much the median may be off, as a share of it."""
    undisturbed: float | None
    """Seconds without a profiler; of a recording the captured one, for no profiler made it."""
    device_seconds: float | None
    """Device time in it."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the bounds of the step without a profiler, in seconds: kernels take as long without it."""
        if self.undisturbed is not None:
            return self.undisturbed, self.undisturbed
        return min(max(self.device_seconds or 0.0, SHORTEST * self.captured), self.captured), self.captured


def correction_of(report: Report) -> Correction | None:
    """Return how the shares of a report were corrected by the undisturbed run; None where they were not."""
    found = report.correction
    return found if found is not None and not found.reason and found.undisturbed_seconds else None


def step_time(report: Report, device: Device | None) -> StepTime | None:
    """Return the step on one device of a report.

    Args:
        report: of a capture or a recording.
        device: one of its devices; None where it has none.
    """
    captured = report.steps.seconds_p50
    spread, count = report.steps.spread_pct, report.steps.count
    if device is not None and not device.judged and device.step_seconds:
        captured, count = device.step_seconds, device.steps
        spread = device.spread_pct if device.spread_pct is not None else spread
    if not captured:
        return None
    uncertainty = uncertainty_of(count, spread)
    corrected = correction_of(report)
    undisturbed = captured if report.engine == "recording" else None
    if corrected is not None:
        undisturbed = corrected.undisturbed_seconds
        uncertainty = math.hypot(uncertainty, (corrected.apart_pct or 0.0) / 200)
    return StepTime(captured, uncertainty, undisturbed, None if device is None else device_seconds(device))


def uncertainty_of(count: int, spread_pct: float | None) -> float:
    """Return the uncertainty of the median step, as a share of it.

    Args:
        count: number of steps.
        spread_pct: interquartile range over the median, in percent; None where not known.
    """
    if count < FEW_STEPS or spread_pct is None:
        return FEW_PCT / 100
    return NOTCH * spread_pct / 100 / math.sqrt(count)


def device_seconds(device: Device) -> float | None:
    """Device time in a step, which no profiler changes; None for a recording, or without whole steps."""
    if not device.steps or device.idle_pct is None or device.kernels is None:
        return None
    return (1 - device.idle_pct / 100) * device.window_seconds / device.steps


def basis_of(before: Report, after: Report, a: StepTime | None, b: StepTime | None) -> Basis:
    """Return which steps of two reports can be compared: captured or unprofiled ones.

    Args:
        before: report of the first capture.
        after: report of the second capture.
        a: step of the first report; None without steps.
        b: step of the second report; None without steps.
    """
    if a is None or b is None:
        return ""
    if a.undisturbed is not None and b.undisturbed is not None:
        return "undisturbed"
    return "captured" if before.engine == after.engine else "bounded"


def step_change(a: StepTime, b: StepTime, basis: Basis) -> tuple[ComparedFigure, tuple[float, float] | None]:
    """Return how the step changed, and between which bounds in percent where only those are known."""
    use = basis != "captured"
    one = a.undisturbed if use and a.undisturbed is not None else a.captured
    two = b.undisturbed if use and b.undisturbed is not None else b.captured
    noise = math.hypot(a.uncertainty * one, b.uncertainty * two)
    change = two - one
    bounds, moved = None, abs(change) > max(noise, LEAST_PCT / 100 * max(one, two))
    if basis == "bounded":
        (a_low, a_high), (b_low, b_high) = a.bounds, b.bounds
        bounds = (100.0 * (b_low / a_high - 1), 100.0 * (b_high / a_low - 1))
        moved = moved and (b_low > a_high + noise or a_low > b_high + noise)
    found = ComparedFigure(
        name="median step",
        unit="s",
        before=one,
        after=two,
        change_pct=100.0 * change / one,
        noise=noise,
        moved=moved,
        speedup=one / two,
    )
    return found, bounds


def time_change(
    name: str, before: float | None, after: float | None, noise: float | None, judged: bool = True
) -> ComparedFigure:
    """Return a time before and after; None on a side that does not have it.

    Args:
        name: of the figure.
        before: seconds.
        after: seconds.
        noise: seconds; None: how much is noise is not known.
        judged: whether a difference beyond the noise is one of the training.
    """
    if before is None or after is None:
        told = "only before" if after is None else "only after"
        return ComparedFigure(name=name, unit="s", before=before, after=after, told=told)
    told = factor_text(before, after)
    return ComparedFigure(
        name=name,
        unit="s",
        before=before,
        after=after,
        change_pct=100.0 * (after - before) / before if before > 0 and not told.startswith("from") else None,
        noise=noise,
        moved=judged and noise is not None and abs(after - before) > noise,
        speedup=before / after if before > 0 and after > 0 else None,
        told=told,
    )


def factor_text(before: float, after: float) -> str:
    """Return a change of which percent say nothing, in words; "" for any other."""
    if before == after:
        return ""
    small, large = min(before, after), max(before, after)
    if small >= NEXT_TO_NOTHING * large:
        return ""
    if before > after:
        return "-100%" if small <= 0 else "nearly -100%"
    return "from 0" if small <= 0 else "from nearly 0"
