"""Corrects the profiler's overhead: shares of the unprofiled step in place of the captured one.

A profiler slows the host at each operator and each CUDA call; kernels take as long as before. So device time per
step is correct, the gaps are too long, and most of the extra time is launching. The training reported its step
times before and after the capture: what a captured step took beyond that is taken from the idle time, from
launching first, then from what else the host was late with.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.compare.step_times import SHORTEST
from llmtop.format import duration, percent_text
from llmtop.model.bottlenecks import LossId
from llmtop.report.model import Correction

VARIES_PCT = 20.0
"""Steps before and after that differ by more are no measure of what a step takes."""
_LONGEST = 1.2
"""Part of the captured step. An unprofiled step beyond this and `SHORTEST` is not the captured step (a range of
the script may mark a part of one)."""
_HOST_PACED: tuple[LossId, ...] = ("launch_bound", "input_bound", "sync_bound", "idle", "unknown")
"""Causes of lost time that grow when the host is slowed down. Launching comes first."""


@dataclass(frozen=True)
class UnprofiledStep:
    """Median seconds per step without the profiler, before and after the capture; None where unknown."""

    before: float | None = None
    after: float | None = None
    stays: bool = False
    """True if the profiler stays in the process once it has been used: steps after it may be longer for that."""


UNKNOWN_REASON = UnprofiledStep()
UNCORRECTED = Correction(reason="there is no verdict to correct")


def correct_shares(
    timeline: DeviceTimeline, lost: dict[LossId, float], one_off_ns: int, steps: UnprofiledStep
) -> Correction:
    """Return the loss shares of a step without the profiler, or the reason why there are none.

    Args:
        timeline: of the judged device.
        lost: percent of its whole steps by cause of loss, as captured.
        one_off_ns: time of the whole steps that is in none of these shares.
        steps: how long a step took before and after the capture.

    Returns:
        Shares in percent of the unprofiled step; `reason` is "" or says in one clause why they cannot be known.
    """
    known = [seconds for seconds in (steps.before, steps.after) if seconds is not None and seconds > 0]
    if steps.stays and len(known) > 1 and known[1] > known[0]:
        del known[1]
    if not known:
        return Correction(reason="the step time without the profiler is unknown")
    if max(known) > (1 + VARIES_PCT / 100) * min(known):
        apart = percent_text(100 * (max(known) / min(known) - 1))
        return Correction(reason=f"the steps before and after the capture differ by {apart}")
    if not timeline.counted:
        return Correction(reason="the capture has no whole step to set against the undisturbed one")
    undisturbed = sum(known) / len(known)
    captured = (timeline.length - one_off_ns) / 1e9 / timeline.counted
    device = timeline.ns_in_steps(timeline.busy) / 1e9 / timeline.counted
    if device > undisturbed or not SHORTEST <= undisturbed / captured <= _LONGEST:
        words = (
            f"a captured step of {duration(captured)} with {duration(device)} of device time is not the step that "
            f"takes {duration(undisturbed)} without the profiler"
        )
        return Correction(reason=words, undisturbed_seconds=undisturbed, captured_seconds=captured)
    seconds = _subtract_overhead(
        {kind: share / 100 * captured for kind, share in lost.items()}, captured - undisturbed
    )
    shares = {kind: 100 * value / undisturbed for kind, value in seconds.items() if value > 0}
    return Correction(
        undisturbed_seconds=undisturbed,
        captured_seconds=captured,
        device_seconds=device,
        busy_pct=100 * device / undisturbed,
        apart_pct=100 * (max(known) / min(known) - 1) if len(known) > 1 else None,
        lost_pct=dict(sorted(shares.items(), key=lambda item: -item[1])),
    )


def _subtract_overhead(lost: dict[LossId, float], added: float) -> dict[LossId, float]:
    """Seconds a step by loss, less what the profiler added to a step."""
    left = dict(lost)
    if added < 0:
        # The unprofiled steps are the longer ones: their extra time is not in the capture.
        left["idle"] = left.get("idle", 0.0) - added
        return left
    launching = min(left.get("launch_bound", 0.0), added)
    if launching:
        left["launch_bound"] -= launching
    added -= launching
    late = [kind for kind in _HOST_PACED if left.get(kind)]
    between: list[LossId] = ["kernel_gaps"] if left.get("kernel_gaps") else []
    for kinds in (late, between, list(left)):
        together = sum(left[kind] for kind in kinds)
        part = min(1.0, added / together) if together > 0 else 0.0
        for kind in kinds:
            left[kind] *= 1 - part
        added -= part * together
    return left
