"""The verdict and what was left out, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from llmtop.analysis.idle.idle_causes import CAUSES
from llmtop.analysis.idle.missing_kernels import UnrecordedKernels
from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.analysis.steps.step_finder import ProcessSteps
from llmtop.analysis.verdict import BORDER_PCT, CLOSE_PCT, Judgement
from llmtop.format import counted, duration, percent
from llmtop.model.bottlenecks import BOTTLENECKS, LossId
from llmtop.report.model import StepsJudged
from llmtop.trace import model

_STEADY: Final = "Capture some whole steps once they take the same time each"
GOOD_CAPTURE: Final[Mapping[model.Framework | None, str]] = {
    None: f"{_STEADY}: llmtop capture --steps 5 (torch.profiler: schedule(wait=10, warmup=3, active=5); nsys: an "
    "NVTX range around each step).",
    "JAX": f"{_STEADY}: llmtop capture --steps 5 (jax.profiler in a script: StepTraceAnnotation around each step, "
    "start_trace after the first ones, which compile, and block_until_ready before stop_trace).",
    "torch_xla": f"{_STEADY}: llmtop capture --seconds 5 once all is compiled (torch_xla.debug.profiler.StepTrace "
    "around each step names them).",
}
"""What to do when a capture shows no steady steps, by whose program it is of."""


def verdict_sentence(
    judgement: Judgement, steps: StepsJudged, trace: model.Trace, missing: Mapping[int, UnrecordedKernels]
) -> str:
    """Return the verdict with its numbers, further causes close to it, and whether it is reliable.

    Args:
        judgement: the verdict of the capture.
        steps: steps that the shares are taken over.
        trace: the capture.
        missing: kernels that were launched but not recorded, by pid.
    """
    timeline = judgement.timeline
    if timeline is None:
        return "unknown: the capture has no device activity, so it cannot say what bounds the step."
    if judgement.lacks:
        text = f"unknown: {judgement.lacks}, so no verdict can rest on it. {GOOD_CAPTURE[trace.framework]}"
        return text + _unreliable_text(missing.get(timeline.process))
    over = (
        counted(timeline.counted, "whole step")
        if timeline.counted
        else "the time from first to last device activity"
    )
    if not judgement.correction.reason:
        over = "the undisturbed step"
    numbers, files = len(np.unique(trace.ops.device)), len({*trace.file_of.values()})
    where = f" of GPU {timeline.device}" if numbers > 1 or files > 1 else ""
    if numbers < files:
        where += f" (pid {timeline.process})"  # each rank counts its own GPUs
    text = f"{judgement.verdict}: {BOTTLENECKS[judgement.verdict].sentence}. {_unprofiled_text(judgement)}"
    total = judgement.total
    if judgement.verdict == "gpu_bound":
        text += f"{percent(total, 1)} of {over}{where} is lost to idle time, lone copies and exposed NCCL"
        text += f" (border {percent(BORDER_PCT)})."
    else:
        parts = [
            f"{percent(share, 1)} to {BOTTLENECKS[kind].title}"
            for kind, share in judgement.lost.items()
            if share >= 1.0
        ]
        text += f"{percent(total, 1)} of {over}{where} is lost: {', '.join(parts)}."
    text += _idle_text(judgement)
    text += _close_text(judgement, over)
    if timeline.counted and steps.seconds_p50 and judgement.correction.reason:
        text += f" A step takes {duration(judgement.step_seconds)} on average."
    return text + _unreliable_text(missing.get(timeline.process))


def _close_text(judgement: Judgement, over: str) -> str:
    """What else is near: another cause, the border, and what was left out."""
    text = ""
    if judgement.second:
        first, second = next(iter(judgement.lost)), judgement.second
        text += (
            f" {_loss_name(first)} and {_loss_name(second)} lie within {CLOSE_PCT:.0f} points of each other "
            f"({percent(judgement.lost[first], 1)} and {percent(judgement.lost[second], 1)}): look at both."
        )
    if judgement.one_off_pct >= 1.0:
        text += f" One-off work ({percent(judgement.one_off_pct, 1)}) is left out."
    if judgement.at_border:
        text += f" This lies at the border of {percent(BORDER_PCT)}"
        if judgement.correction.reason:
            text += f": {percent(judgement.total, 1)} of {over}, and {percent(judgement.whole_lost_pct, 1)} from"
            text += " first to last device activity"
        text += "."
    return text


def _unreliable_text(lacks: UnrecordedKernels | None) -> str:
    """That kernels are missing, where they are."""
    if lacks is None:
        return ""
    share = percent(lacks.missing_pct, 1)
    return (
        f" Do not rely on this: {share} of the kernels launched are not in the capture, and the time that they "
        "took looks idle."
    )


def _unprofiled_text(judgement: Judgement) -> str:
    """Device time over the step that no profiler slows down, and what the profiler added to it."""
    found = judgement.correction
    if found.reason or found.undisturbed_seconds is None or found.captured_seconds is None:
        return ""
    words = (
        f"A step takes {duration(found.undisturbed_seconds)} without the profiler, and the GPU works for "
        f"{duration(found.device_seconds)} of it ({percent(found.busy_pct, 1)}); "
    )
    added = found.captured_seconds - found.undisturbed_seconds
    if added < 0.01 * found.undisturbed_seconds:
        return f"{words}the profiler added nothing that can be told. "
    share = percent(100 * added / found.undisturbed_seconds, 1)
    return f"{words}the profiler added {duration(added)} ({share}), which is left out. "


def _loss_name(kind: LossId) -> str:
    """What time is lost to, as the beginning of a sentence or after an "and"."""
    return BOTTLENECKS[kind].title


def _idle_text(judgement: Judgement) -> str:
    """What of the idle time without a verdict of its own is known."""
    known = [
        f"{percent(share, 1)} {CAUSES[cause]}" for cause, share in judgement.idle_by_cause.items() if share >= 1.0
    ]
    return f" Of that idle time: {'; '.join(known)}." if judgement.verdict == "idle" and known else ""


def left_out_text(steps: ProcessSteps, timeline: DeviceTimeline | None, trace: model.Trace) -> str:
    """Return which part of the capture lies in no whole step."""
    low, high = trace.window
    if timeline is not None and timeline.counted:
        first, last = timeline.begin_ns - timeline.slow_first_ns, timeline.end_ns
    else:
        first, last = int(steps.starts[0]), int(steps.ends[-1])
    edges = (("first", first - low, steps.cut_before), ("last", high - last, steps.cut_after))
    told = [(f"the {name} {duration(ns / 1e9)}", cut) for name, ns, cut in edges if ns > 0]
    if any(cut for _, cut in told):
        parts = [f"{edge}, which {_contents_text(cut)}" for edge, cut in told]
    elif told:
        verb = "hold" if len(told) > 1 else "holds"
        parts = [f"{' and '.join(edge for edge, _ in told)}, which {verb} no whole step"]
    else:
        parts = []
    if timeline is not None and timeline.slow_first:
        parts.append("the first whole step, which the start of the capture slowed down")
    return ", and ".join(parts)


def _contents_text(cut: int) -> str:
    if not cut:
        return "holds no whole step"
    return f"holds {counted(cut, 'whole step')} that {'was' if cut == 1 else 'were'} not asked for"
