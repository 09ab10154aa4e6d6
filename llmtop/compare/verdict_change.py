"""True if a step has another bottleneck than before, or two verdicts differ for a reason that is no change."""

from __future__ import annotations

from llmtop.compare.device_pairs import POINTS, DeviceShares
from llmtop.compare.model import Basis
from llmtop.compare.step_times import StepTime, correction_of
from llmtop.model.bottlenecks import BOTTLENECKS
from llmtop.report.model import Report

_NOT_THE_HOST = ("h2d_bound", "communication_bound")
"""Losses while the device works. A profiler that slows the host does not add to them."""
_LEAST_LOST = 0.10
"""Share of a step: with less lost it is the GPU that bounds it (docs/contracts.md)."""


def verdict_change(
    before: Report, after: Report, steps: tuple[StepTime | None, StepTime | None], relative: float, basis: Basis
) -> tuple[bool, str]:
    """Return True if the bottleneck is another one, and a sentence on it.

    Args:
        before: the first report.
        after: the second.
        steps: of both.
        relative: how uncertain they are, as a share of them.
        basis: which of their steps are set against each other.
    """
    one, two = before.verdict, after.verdict
    if one == two:
        if one == "unknown":
            return False, "What bounds the step is unknown on both sides."
        return False, f"The bottleneck is the same: {BOTTLENECKS[one].name}."
    if "unknown" in (one, two):
        known = f"{BOTTLENECKS[one].name} before" if two == "unknown" else f"{BOTTLENECKS[two].name} after"
        return False, f"What bounds the step is known on one side only: {known}."
    why = _same_training_reason(before, after, relative)
    if not why and basis == "bounded":
        why = _profiler_reason(before, after, steps)
    if why:
        names = f"{BOTTLENECKS[one].name} before, {BOTTLENECKS[two].name} after"
        return False, f"The verdicts differ ({names}), but nothing changed: {why}."
    was, now = (f"{BOTTLENECKS[verdict].name} ({BOTTLENECKS[verdict].sentence})" for verdict in (one, two))
    return True, f"The bottleneck changed: {was} to {now}."


def _losses(report: Report) -> dict[str, float]:
    device = next((device for device in report.devices if device.judged), None)
    return {} if device is None else DeviceShares.of(device, correction_of(report)).lost_pct


def _same_training_reason(before: Report, after: Report, relative: float) -> str:
    """Return why the same training may have got both verdicts; "" where it may not."""
    one, two = _losses(before), _losses(after)
    if not one and not two:
        return ""

    def stayed(a: float, b: float) -> bool:
        return abs(a - b) <= max(POINTS, relative * max(a, b))

    if "gpu_bound" in (before.verdict, after.verdict):
        if before.at_border and after.at_border:
            return "both captures are close to the threshold between the two verdicts"
        return "as much is lost as before" if stayed(sum(one.values()), sum(two.values())) else ""
    if before.second == after.verdict and after.second == before.verdict:
        return "both causes are about as large, before and after"
    kinds = (before.verdict, after.verdict)
    return "neither cause has moved" if all(stayed(one.get(k, 0.0), two.get(k, 0.0)) for k in kinds) else ""


def _profiler_reason(before: Report, after: Report, steps: tuple[StepTime | None, StepTime | None]) -> str:
    """Return why two profilers alone may have made the difference; "" where they cannot have."""
    why = "different profilers took part, and each adds idle time of its own"
    verdicts = (before.verdict, after.verdict)
    if "gpu_bound" not in verdicts:
        return why if "launch_bound" in verdicts else ""
    other = 1 if verdicts[0] == "gpu_bound" else 0
    step = steps[other]
    if verdicts[other] in _NOT_THE_HOST or step is None or step.device_seconds is None:
        return ""
    # Even the shortest step that the training can have had without the profiler may leave the device waiting.
    return "" if step.device_seconds < (1 - _LEAST_LOST) * step.bounds[0] else why
