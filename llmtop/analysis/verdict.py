"""Verdict on what bounds the step: one word by the contract's rule, and how close the decision was.

Per device the idle time by cause, the time in which only copies between host and device ran, and exposed NCCL,
each as a share of whole steps; together under 10 % is gpu_bound, else the largest share names it. With several
devices the rank that waits least in NCCL is judged: the others wait for it. A device that lacks kernels which were
launched is judged only where there is no other.

Gaps between kernels that were launched in time are counted apart: the host is not late there. They count as lost,
and where they are the largest share the verdict is launch_bound: the cure (fewer, longer kernels) is the same.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from llmtop.analysis.idle.idle_causes import Gaps
from llmtop.analysis.idle.nonrecurring_work import longest_setup
from llmtop.analysis.idle.off_cpu import OFF_CPU_CAUSES
from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.analysis.steps.unprofiled_step import UNCORRECTED, UNKNOWN_REASON, UnprofiledStep, correct_shares
from llmtop.analysis.work.collectives import exposed_pct
from llmtop.format import counted, duration, percent_text
from llmtop.model.bottlenecks import LossId, Verdict
from llmtop.report.model import Correction
from llmtop.trace import intervals as iv
from llmtop.trace import model
from llmtop.trace.groups import distinct_values

BORDER_PCT = 10.0
"""docs/contracts.md, "Report"."""
NEAR_PCT = 2.0
"""A verdict this close to the border is called close."""
CLOSE_PCT = 5.0
"""A cause at most so many points behind the first is named beside it: on the next run it may be the first."""
FEWEST_KERNELS = 10
LEAST_COVERED_SHARE = 0.1
"""Share of the capture's time. Without repeated steps, fewer kernels or a smaller share show no step."""
_FEWEST_STEPS = 2

KERNEL_GAPS: Final = "kernel_gaps"
ONE_OFF: Final = "one_off"

CAUSE_OF: dict[str, LossId] = {
    "launch": "launch_bound",
    "queued": KERNEL_GAPS,
    "dependency": "idle",
    "capture": ONE_OFF,
    "compile": ONE_OFF,
    "one_off": ONE_OFF,
    "start_up": ONE_OFF,
    "allocation": "launch_bound",
    "input": "input_bound",
    "sync": "sync_bound",
    "copy": "h2d_bound",
    "host": "idle",
    "os_wait": "idle",
    **dict.fromkeys(OFF_CPU_CAUSES, "idle"),
    "other_process": "idle",
    "unknown": "unknown",
}
"""Which verdict a cause of idle time counts for; `KERNEL_GAPS` is separate."""


_VERDICTS: Final[dict[LossId, Verdict]] = {
    "launch_bound": "launch_bound",
    "kernel_gaps": "launch_bound",
    "input_bound": "input_bound",
    "sync_bound": "sync_bound",
    "h2d_bound": "h2d_bound",
    "communication_bound": "communication_bound",
    "idle": "idle",
    "unknown": "unknown",
}
"""Verdict for each largest loss of time. One-off work is in no share."""


@dataclass(frozen=True)
class Judgement:
    """Verdict on a capture, with the timeline that it was found on and the time lost there."""

    verdict: Verdict
    timeline: DeviceTimeline | None
    lost: dict[LossId, float]
    """Losses of the judged device: percent of whole steps by verdict, the largest first."""
    second: LossId | None = None
    at_border: bool = False
    whole_lost_pct: float = 0.0
    """The same sum over first to last device activity instead of whole steps."""
    one_off_pct: float = 0.0
    """Idle time that went into work which no later step repeats, in percent of whole steps; in no other share."""
    idle_by_cause: dict[str, float] = field(default_factory=dict)
    """Parts of `idle` by cause, in percent of whole steps, the largest first."""
    lacks: str = ""
    """Why the verdict is unknown, as the end of a sentence; "" where it is not for lack of evidence."""
    correction: Correction = UNCORRECTED
    """Correction of `loss_shares` by the unprofiled step."""

    @property
    def step_seconds(self) -> float | None:
        """Seconds of the step that `lost` is a percentage of: unprofiled where known; None without steps."""
        if self.timeline is None or not self.timeline.counted:
            return None
        captured = self.timeline.length / 1e9 / self.timeline.counted
        known = None if self.correction.reason else self.correction.undisturbed_seconds
        return captured * (1 - self.one_off_pct / 100) if known is None else known

    @property
    def total(self) -> float:
        """Total loss on the judged device, in percent of whole steps."""
        return sum(self.lost.values())


def loss_shares(timeline: DeviceTimeline, gaps: Gaps) -> dict[LossId, float]:
    """Percent of whole steps by what they were lost to, the largest first; no entry for nothing.

    One-off work is in none of them, nor in the time that they are percent of.
    """
    sums: dict[LossId, float] = {}
    for cause, verdict in CAUSE_OF.items():
        if verdict != ONE_OFF:
            sums[verdict] = sums.get(verdict, 0.0) + gaps.total(cause)
    sums["h2d_bound"] += timeline.ns_in_steps(timeline.only_host_copies)
    sums["communication_bound"] = float(timeline.ns_in_steps(timeline.exposed_nccl))
    length = max(timeline.length - setup_ns(gaps), 1)
    return _sorted_shares({verdict: 100.0 * nanoseconds / length for verdict, nanoseconds in sums.items()})


def setup_ns(gaps: Gaps) -> int:
    """Return the idle time, in ns, spent on work that no later step repeats."""
    return sum(gaps.total(cause) for cause, verdict in CAUSE_OF.items() if verdict == ONE_OFF)


def judge(
    timelines: list[DeviceTimeline],
    gaps: list[Gaps],
    incomplete: Collection[int] = (),
    unprofiled: UnprofiledStep = UNKNOWN_REASON,
) -> Judgement:
    """Return the verdict over all devices.

    Args:
        timelines: one for each process and GPU.
        gaps: idle time of each, in the same order.
        incomplete: pids of processes whose kernels are not all in the capture; they are not judged if others are
            there.
        unprofiled: how long the training's steps took before and after the capture.

    Returns:
        "unknown" with the missing evidence in `lacks`, where the capture cannot decide.
    """
    if not timelines:
        return Judgement("unknown", None, {})
    index = _judged_timeline(timelines, gaps, incomplete)
    timeline, shares = timelines[index], loss_shares(timelines[index], gaps[index])
    total, whole = sum(shares.values()), _loss_of_whole_capture(timeline, gaps[index])
    setup = timeline.share(setup_ns(gaps[index]))
    lacks = missing_evidence(timeline, gaps[index])
    if lacks:
        return Judgement("unknown", timeline, shares, whole_lost_pct=whole, one_off_pct=setup, lacks=lacks)
    correction = correct_shares(timeline, shares, setup_ns(gaps[index]), unprofiled)
    if not correction.reason:
        shares = _sorted_shares({kind: correction.lost_pct.get(kind, 0.0) for kind in _VERDICTS})
        total = whole = sum(shares.values())
    verdict: Verdict = "gpu_bound"
    second = None
    ordered = list(shares.items())
    if total >= BORDER_PCT:
        verdict = _VERDICTS[ordered[0][0]]
        if len(ordered) > 1 and ordered[0][1] - ordered[1][1] <= CLOSE_PCT:
            second = ordered[1][0]
    near = abs(total - BORDER_PCT) <= NEAR_PCT
    # A capture of few steps: the steps say one thing, all that was recorded another (or nearly so).
    apart = (total < BORDER_PCT) != (whole < BORDER_PCT) or (total < BORDER_PCT and BORDER_PCT - whole <= NEAR_PCT)
    idle = _idle_shares(gaps[index], shares.get("idle", 0.0))
    return Judgement(verdict, timeline, shares, second, near or apart, whole, setup, idle, correction=correction)


def _sorted_shares(shares: dict[LossId, float]) -> dict[LossId, float]:
    """Return the shares without the empty ones, the largest first."""
    return dict(sorted(((kind, share) for kind, share in shares.items() if share > 0), key=lambda item: -item[1]))


def _idle_shares(gaps: Gaps, share_pct: float) -> dict[str, float]:
    """Return the share of idle time that has no verdict of its own, divided among its causes, the largest
    first."""
    totals = {cause: gaps.total(cause) for cause, verdict in CAUSE_OF.items() if verdict == "idle"}
    everything = max(sum(totals.values()), 1)
    shares = {cause: share_pct * total / everything for cause, total in totals.items() if total}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def missing_evidence(timeline: DeviceTimeline, gaps: Gaps) -> str:
    """Return why no verdict can rest on what a device did in a capture, as the end of a sentence; "" if one
    can."""
    # A graph that was traced as a whole is a step's worth of kernels.
    kernels = int((timeline.ops.kind == model.KERNEL).sum()) + FEWEST_KERNELS * timeline.graphs
    low, high = timeline.trace.window
    setup, idle = setup_ns(gaps), timeline.idle.total
    over = counted(timeline.counted, "whole step") if timeline.counted else timeline.extent_text
    # A benchmark of copies has no kernels: whole steps that copies fill are judged by them.
    copies = timeline.share(timeline.ns_in_steps(timeline.only_host_copies))
    if not kernels and (timeline.counted < _FEWEST_STEPS or copies < BORDER_PCT):
        return "no kernel ran in the capture, only copies or memsets"
    if 2 * setup > idle and timeline.share(setup) >= BORDER_PCT:
        return (
            f"{percent_text(timeline.share(setup), 1)} of {over} is one-off work ({_setup_text(timeline, gaps)})"
        )
    if timeline.counted >= _FEWEST_STEPS:
        return ""
    busy = f"the GPU worked for {duration(timeline.busy.total / 1e9)}"
    few = f"{busy}, in {counted(kernels, 'kernel')}: too little to see a step in"
    if kernels < FEWEST_KERNELS and 2 * timeline.ns_in_steps(timeline.busy) < timeline.length:
        return few
    if not timeline.counted and timeline.length < LEAST_COVERED_SHARE * (high - low):
        covered = duration(timeline.length / 1e9)
        return f"{busy}, within {covered} of the {duration((high - low) / 1e9)} of the capture"
    names = timeline.ops.full_name[timeline.ops.kind == model.KERNEL]
    comes_again = len(distinct_values(names)) < len(names)
    return few if kernels < FEWEST_KERNELS and not timeline.counted and not comes_again else ""


def _setup_text(timeline: DeviceTimeline, gaps: Gaps) -> str:
    words = {
        "capture": "capturing CUDA graphs",
        "compile": "compiling kernels",
        "one_off": "calls that set up once",
        "start_up": "the program's start",
    }
    parts = sorted(
        ((timeline.share(gaps.total(cause)), text, cause) for cause, text in words.items()), reverse=True
    )
    said = [f"{text} {percent_text(share, 1)}" for share, text, _ in parts if share >= 1.0]
    longest = longest_setup(timeline)
    return ", ".join(said) + (f", the longest {longest}" if longest and gaps.total("one_off") else "")


def _judged_timeline(timelines: list[DeviceTimeline], gaps: list[Gaps], incomplete: Collection[int]) -> int:
    """Return the index of the device timeline that the verdict is about.

    A process may touch a device in passing (every rank of torchrun can leave a context on GPU 0): timelines with
    less than a hundredth of the busiest one's work are not judged. Without NCCL no rank waits for another, and the
    one that loses most is judged.
    """
    work = [timeline.busy.total for timeline in timelines]
    real = [i for i in range(len(timelines)) if work[i] * 100 >= max(work)]
    real = [i for i in real if timelines[i].process not in incomplete] or real
    with_nccl = [i for i in real if len(timelines[i].nccl)]
    if with_nccl:
        return min(with_nccl, key=lambda i: exposed_pct(timelines[i]))
    return max(real, key=lambda i: sum(loss_shares(timelines[i], gaps[i]).values()))


def _loss_of_whole_capture(timeline: DeviceTimeline, gaps: Gaps) -> float:
    # A step by the host's clock may begin before the device's first work, and end after its last.
    first, last = (
        min(int(timeline.ops.start[0]), timeline.begin_ns),
        max(int(timeline.ops.end.max()), timeline.end_ns),
    )
    if last <= first:
        return 0.0
    setup = setup_ns(gaps)
    gone = (
        iv.complement(timeline.busy, first, last).total
        + timeline.only_host_copies.total
        + timeline.exposed_nccl.total
        - setup
    )
    return 100.0 * max(gone, 0) / max(last - first - setup, 1)
