"""The verdict and what was left out, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from llmtop.analysis.idle.idle_causes import CAUSES
from llmtop.analysis.idle.missing_kernels import UnrecordedKernels
from llmtop.analysis.idle.off_cpu import OFF_CPU_CAUSES
from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.analysis.steps.step_finder import ProcessSteps
from llmtop.analysis.verdict import BORDER_PCT, CLOSE_PCT, NEAR_PCT, Judgement
from llmtop.format import counted, duration, percent_text, pid_text
from llmtop.model.bottlenecks import BOTTLENECKS, LossId
from llmtop.report.model import StepsJudged
from llmtop.trace import model
from llmtop.trace.groups import distinct_values

_STEADY: Final = "Capture some whole steps once they take the same time each"
_GOOD_CAPTURE: Final[Mapping[model.Framework | None, str]] = {
    None: f"{_STEADY}: llmtop capture --steps 5 (torch.profiler: schedule(wait=10, warmup=3, active=5); nsys: an "
    "NVTX range around each step).",
    "JAX": f"{_STEADY}: llmtop capture --steps 5 (jax.profiler in a script: StepTraceAnnotation around each step, "
    "start_trace after the first ones, which compile, and block_until_ready before stop_trace).",
    "torch_xla": f"{_STEADY}: llmtop capture --seconds 5 once all is compiled (torch_xla.debug.profiler.StepTrace "
    "around each step names them).",
}
"""Advice for a capture without steady steps, by the framework of the program."""
_GOOD_PLAIN_CAPTURE: Final = (
    f"{_STEADY}: an NVTX range around each repetition (nvtxRangePush, nvtxRangePop), several of them in the "
    "capture."
)
_RUNS_ONCE: Final = "Each kernel ran once, so there is no step to judge; the tables show where the time went."
_WORTH_PCT: Final = 1.0
"""Share of the steps. One-off work below it is not mentioned."""


def good_capture(framework: model.Framework | None, *, plain: bool, once: bool = False) -> str:
    """Return the advice for a capture without steady steps.

    Args:
        framework: whose program it is of; None: PyTorch's, or none.
        plain: whether it is a CUDA program without Python.
        once: whether that program launched each of its kernels once.
    """
    if once:
        return _RUNS_ONCE
    return _GOOD_PLAIN_CAPTURE if plain else _GOOD_CAPTURE[framework]


def verdict_sentence(
    judgement: Judgement,
    steps: StepsJudged,
    trace: model.Trace,
    missing: Mapping[int, UnrecordedKernels],
    *,
    straggler: str = "",
    on_cpu: str = "",
    plain: bool = False,
    once: bool = False,
) -> str:
    """Return the verdict with its numbers, further causes close to it, and whether it is reliable.

    Args:
        judgement: the verdict of the capture.
        steps: steps that the shares are taken over.
        trace: the capture.
        missing: kernels that were launched but not recorded, by pid.
        straggler: the sentence on the rank that the others wait for, which then leads; "" where there is none.
        on_cpu: where the CPU's time goes, in a capture without GPU activity; "" where it is not known.
        plain, once: as in `good_capture`.
    """
    timeline = judgement.timeline
    if timeline is None:
        return f"unknown: no GPU activity recorded: no verdict.{on_cpu and ' '}{on_cpu}"
    if judgement.lacks:
        text = f"unknown: {judgement.lacks}: no verdict. {good_capture(trace.framework, plain=plain, once=once)}"
        return text + _unreliable_text(missing.get(timeline.process))
    over = counted(timeline.counted, "whole step") if timeline.counted else timeline.extent_text
    if not judgement.correction.reason:
        over = "the step without the profiler"
    where = _device_text(timeline, trace)
    bottleneck = BOTTLENECKS[judgement.verdict]
    off_cpu = main_off_cpu_cause(judgement) if judgement.verdict == "idle" else None
    text = (
        f"{bottleneck.name}: {CAUSES[off_cpu] if off_cpu else bottleneck.sentence}. {_unprofiled_text(judgement)}"
    )
    if straggler:
        text = f"straggler: {straggler} Of that rank: {text}"
    total = judgement.total
    if judgement.verdict == "gpu_bound":
        text += (
            f"{percent_text(total, 1)} of {over}{where} is lost to idle time, unoverlapped copies and "
            "exposed communication"
        )
        text += f" (threshold {percent_text(BORDER_PCT)})."
    else:
        parts = [
            f"{percent_text(share, 1)} to {_loss_name(kind, judgement)}"
            for kind, share in judgement.lost.items()
            if share >= 1.0
        ]
        text += f"{percent_text(total, 1)} of {over}{where} is lost: {', '.join(parts)}."
    text += _idle_text(judgement)
    text += _close_text(judgement, over)
    if timeline.counted and steps.seconds_p50 and judgement.correction.reason:
        text += f" {_step_text(judgement, timeline.counted)}"
    return text + _unreliable_text(missing.get(timeline.process))


def _device_text(timeline: DeviceTimeline, trace: model.Trace) -> str:
    """Return " of GPU 1", with the process where each counts its own GPUs; "" in a capture of one GPU."""
    numbers, files = len(distinct_values(trace.ops.device)), len({*trace.file_of.values()})
    where = f" of GPU {timeline.device}" if numbers > 1 or files > 1 else ""
    return f"{where} (pid {pid_text(timeline.process)})" if numbers < files else where


def _step_text(judgement: Judgement, steps: int) -> str:
    """Return how long a step takes that the shares are of: a mean without what no later step repeats."""
    text = f"A step takes {duration(judgement.step_seconds)} on average"
    if steps == 1:
        text = f"The step takes {duration(judgement.step_seconds)}"
    return f"{text} without one-off work." if judgement.one_off_pct >= _WORTH_PCT else f"{text}."


def _close_text(judgement: Judgement, over: str) -> str:
    """Return the rest of the evidence: a second cause, the distance to the threshold, and excluded work."""
    text = ""
    if judgement.second:
        first, second = next(iter(judgement.lost)), judgement.second
        name = _loss_name(first, judgement)
        text += (
            f" {name[:1].upper()}{name[1:]} and {_loss_name(second, judgement)} are within {CLOSE_PCT:.0f} "
            f"percentage points ({percent_text(judgement.lost[first], 1)} and "
            f"{percent_text(judgement.lost[second], 1)}): check both causes."
        )
    if judgement.one_off_pct >= _WORTH_PCT:
        text += f" One-off work ({percent_text(judgement.one_off_pct, 1)}) is not counted."
    own_pct, whole_pct = judgement.total, judgement.whole_lost_pct
    if judgement.at_border and min(abs(own_pct - BORDER_PCT), abs(whole_pct - BORDER_PCT)) > 2 * NEAR_PCT:
        text += (
            f" From first to last device activity {percent_text(whole_pct, 1)} is lost: what lies outside of "
            f"{over} is not judged."
        )
    elif judgement.at_border:
        text += f" This is close to the threshold of {percent_text(BORDER_PCT)}"
        own, whole = percent_text(judgement.total, 1), percent_text(judgement.whole_lost_pct, 1)
        if judgement.correction.reason and own != whole:
            text += f": {own} of {over}, and {whole} from first to last device activity"
        text += "."
    return text


def _unreliable_text(lacks: UnrecordedKernels | None) -> str:
    """Return a note if kernels are missing; else ""."""
    if lacks is None:
        return ""
    share = percent_text(lacks.missing_pct, 1)
    return (
        f" Do not rely on this verdict: {share} of the launched kernels are not in the capture, and the time "
        "that they took is counted as idle."
    )


def _unprofiled_text(judgement: Judgement) -> str:
    """Device time over the step that no profiler slows down, and what the profiler added to it."""
    found = judgement.correction
    if found.reason or found.undisturbed_seconds is None or found.captured_seconds is None:
        return ""
    words = (
        f"A step takes {duration(found.undisturbed_seconds)} without the profiler, and the GPU works for "
        f"{duration(found.device_seconds)} of it ({percent_text(found.busy_pct, 1)}); "
    )
    added = found.captured_seconds - found.undisturbed_seconds
    if added < 0.01 * found.undisturbed_seconds:
        return f"{words}the profiler added no measurable time. "
    share = percent_text(100 * added / found.undisturbed_seconds, 1)
    return f"{words}the profiler added {duration(added)} ({share}), which is not counted. "


def _loss_name(kind: LossId, judgement: Judgement) -> str:
    """Name of a loss, usable at the start of a sentence or after "and"."""
    is_off_cpu = kind == "idle" and main_off_cpu_cause(judgement) is not None
    return "a launching thread off the CPU" if is_off_cpu else BOTTLENECKS[kind].title


def main_off_cpu_cause(judgement: Judgement) -> str | None:
    """Return why the launching threads were off the CPU, where that is most of the idle time without a verdict."""
    shares = judgement.idle_by_cause
    off = {cause: share for cause, share in shares.items() if cause in OFF_CPU_CAUSES}
    return max(off, key=lambda cause: off[cause]) if 2 * sum(off.values()) > sum(shares.values()) else None


def _idle_text(judgement: Judgement) -> str:
    """Text on the part of the idle time that has no verdict of its own."""
    known = {cause: share for cause, share in judgement.idle_by_cause.items() if share >= 1.0}
    if judgement.verdict != "idle" or not known:
        return ""
    whole = percent_text(judgement.lost["idle"], 1)
    if len(known) == 1:
        return f" In these {whole} {CAUSES[next(iter(known))]}."
    parts = "; ".join(f"{percent_text(share, 1)} {CAUSES[cause]}" for cause, share in known.items())
    return f" Parts of these {whole}: {parts}."


def left_out_text(steps: ProcessSteps, timeline: DeviceTimeline | None, trace: model.Trace) -> str:
    """Return which part of the capture lies in no whole step."""
    low, high = trace.window
    if timeline is not None and timeline.counted:
        first, last = timeline.begin_ns - timeline.slow_first_ns, timeline.end_ns
    else:
        first, last = int(steps.starts[0]), int(steps.ends[-1])
    edges = (("first", first - low, steps.cut_before), ("last", high - last, steps.cut_after))
    edges_found = [(f"the {name} {duration(ns / 1e9)}", cut) for name, ns, cut in edges if ns > 0]
    if any(cut for _, cut in edges_found):
        parts = [f"{edge}{_contents_text(cut)}" for edge, cut in edges_found]
    elif edges_found:
        parts = [f"{' and '.join(edge for edge, _ in edges_found)} (no whole step)"]
    else:
        parts = []
    if timeline is not None and timeline.slow_first:
        parts.append("the first whole step (slowed down by the start of the capture)")
    return ", and ".join(parts)


def _contents_text(cut: int) -> str:
    if not cut:
        return " (no whole step)"
    return f" ({counted(cut, 'extra step')})"
