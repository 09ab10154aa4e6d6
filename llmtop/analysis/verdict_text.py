"""The verdict and what was left out, in sentences."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from llmtop.analysis.device_timeline import Lane
from llmtop.analysis.missing_kernels import Unrecorded
from llmtop.analysis.step_finder import ProcessSteps
from llmtop.analysis.verdict import BORDER_PCT, Judgement
from llmtop.bottlenecks import BOTTLENECKS
from llmtop.format import counted, duration, percent
from llmtop.report.model import StepsJudged
from llmtop.trace import model


def verdict_sentence(
    judgement: Judgement, steps: StepsJudged, trace: model.Trace, missing: Mapping[int, Unrecorded]
) -> str:
    """The verdict with its numbers; what else is close; whether it lies at the border, or cannot be relied on."""
    lane = judgement.lane
    if lane is None:
        return "unknown: the capture has no device activity, so it cannot say what bounds the step."
    over = counted(lane.counted, "whole step") if lane.counted else "the time from first to last device activity"
    numbers, files = len(np.unique(trace.ops.device)), len({*trace.file_of.values()})
    where = f" of GPU {lane.device}" if numbers > 1 or files > 1 else ""
    if numbers < files:
        where += f" (pid {lane.process})"  # each rank counts its own GPUs
    text = f"{judgement.verdict}: {BOTTLENECKS[judgement.verdict].sentence}. "
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
    if judgement.second:
        text += f" {judgement.second} is close behind."
    if judgement.at_border:
        text += (
            f" This lies at the border of {percent(BORDER_PCT)}: {percent(total, 1)} of {over}, and "
            f"{percent(judgement.whole_lost_pct, 1)} from first to last device activity."
        )
    if lane.counted and steps.seconds_p50:
        text += f" A step takes {duration(lane.length / 1e9 / lane.counted)} on average."
    lacks = missing.get(lane.process)
    if lacks is not None:
        text += (
            f" Do not rely on this: {percent(lacks.missing_pct, 1)} of the kernels launched are not in the "
            "capture, and the time that they took looks idle."
        )
    return text


def left_out(steps: ProcessSteps, lane: Lane | None, trace: model.Trace) -> str:
    """What of the capture lies in no whole step."""
    low, high = trace.window
    if lane is not None and lane.counted:
        first, last = lane.low - lane.slow_first_ns, lane.high
    else:
        first, last = int(steps.starts[0]), int(steps.ends[-1])
    edges = (("first", first - low, steps.cut_before), ("last", high - last, steps.cut_after))
    told = [(f"the {name} {duration(ns / 1e9)}", cut) for name, ns, cut in edges if ns > 0]
    if any(cut for _, cut in told):
        parts = [f"{edge}, which {_holds(cut)}" for edge, cut in told]
    elif told:
        verb = "hold" if len(told) > 1 else "holds"
        parts = [f"{' and '.join(edge for edge, _ in told)}, which {verb} no whole step"]
    else:
        parts = []
    if lane is not None and lane.slow_first:
        parts.append("the first whole step, which the start of the capture slowed down")
    return ", and ".join(parts)


def _holds(cut: int) -> str:
    if not cut:
        return "holds no whole step"
    return f"holds {counted(cut, 'whole step')} that {'was' if cut == 1 else 'were'} not asked for"
