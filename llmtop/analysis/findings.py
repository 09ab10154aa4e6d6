"""Findings from measurements: one for each loss of time, and further notes on the capture."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import numpy as np

from llmtop.analysis.first_samples import work_findings
from llmtop.analysis.idle.idle_causes import CAUSES, Gaps
from llmtop.analysis.idle.launches import launch_calls
from llmtop.analysis.idle.longest_gaps import deepest_during
from llmtop.analysis.idle.missing_kernels import UnrecordedKernels
from llmtop.analysis.idle.nonrecurring_work import longest_setup, sends_weights
from llmtop.analysis.idle.off_cpu import OFF_CPU_FIX
from llmtop.analysis.idle.sampled_functions import most_sampled_during
from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.analysis.verdict import BORDER_PCT, CAUSE_OF, NEAR_PCT, ONE_OFF, Judgement
from llmtop.analysis.verdict_text import good_capture, main_off_cpu_cause
from llmtop.analysis.work.collectives import Straggler, collective_times, slower_phase
from llmtop.analysis.work.time_breakdown import SERVERS_OPERATORS
from llmtop.format import (
    count,
    counted,
    duration,
    percent_text,
    pid_text,
    printable,
    rate,
    round_significant,
)
from llmtop.model.bottlenecks import BOTTLENECKS, LossId
from llmtop.model.severity import Severity, severity_rank
from llmtop.naming.phase_names import role_of
from llmtop.report.advice.communication import ONE_RANK
from llmtop.report.advice.table import (
    NOTHING_RECORDED,
    NOTHING_RECORDED_NEXT,
    RECORDS_LOST,
    FindingId,
    Situation,
    advice_for,
    fp32_fix,
    idle_fix,
    pageable_results_fix,
)
from llmtop.report.device_time import GemmTime, OperatorTime, Roof, TimeBreakdown
from llmtop.report.host_work import CallPlace, HostOperatorTime, MemoryOperator, MemoryUse
from llmtop.report.model import ApiTime, CopyTime, Finding, KernelTime, PhaseMean, StepsJudged, WaitPlace
from llmtop.trace import model
from llmtop.trace.groups import is_among

LEAST_REPORTED_PCT = 3.0
"""A cause with a smaller share of the step makes no finding."""
CRITICAL_PCT = 40.0
STANDS_OUT_PCT = 20.0
"""Host work that takes less of the idle time than this is not named."""
_MANY_SMALL_PCT = 60.0
_FEWEST_LAUNCHES = 100


@dataclass(frozen=True)
class Measurements:
    """Figures of a capture from which findings are made."""

    judgement: Judgement
    timelines: list[DeviceTimeline]
    gaps: list[Gaps]
    uneven: Straggler | None
    phases: list[PhaseMean]
    waits: tuple[WaitPlace, ...]
    kernels: tuple[KernelTime, ...]
    copies: tuple[CopyTime, ...]
    api: tuple[ApiTime, ...]
    steps: StepsJudged
    command: str
    runs_python: bool | None = None
    """True if the judged process runs Python; None where the capture does not name it."""
    ranks: dict[int, int] = field(default_factory=dict)
    """Rank by pid, where known."""
    missing: dict[int, UnrecordedKernels] = field(default_factory=dict)
    """Kernels that are not in the capture, by pid."""
    tool: str = ""
    """Tool that recorded the capture."""
    operators: tuple[OperatorTime, ...] = ()
    gemms: tuple[GemmTime, ...] = ()
    roofs: tuple[Roof, ...] = ()
    time_breakdown: TimeBreakdown | None = None
    framework: model.Framework | None = None
    """Framework of the program; None for PyTorch's own."""
    host_operators: tuple[HostOperatorTime, ...] = ()
    operator_free_pct: float | None = None
    call_places: tuple[CallPlace, ...] = ()
    memory: tuple[MemoryUse, ...] = ()
    memory_operators: tuple[MemoryOperator, ...] = ()

    @property
    def situation(self) -> Situation:
        """Vendor, workload and framework that advice depends on."""
        made = self.time_breakdown
        if made is None:
            vendor = "CPU" if self.host_operators else None  # operators, and no device that ran anything
            return Situation(vendor=vendor, framework=self.framework)
        return Situation(
            vendor=made.vendor,
            workload=made.workload,
            graphs=made.graph_launches > 0,
            framework=self.framework,
            language=made.language_model,
            serves=made.language_model is not False
            and (bool(made.stages) or "cache of keys" in made.told_by or made.told_by == SERVERS_OPERATORS),
            compiled=made.compiled,
            plain=made.plain_program,
            python=self.runs_python is not False,
            wrappers=made.wrappers,
            one_rank=self.is_one_rank,
            pinned=self._is_pinned,
            convolutions=any(row.kind == "convolution" for row in self.kernels),
        )

    @property
    def runs_once(self) -> bool:
        """Return True if a CUDA program launched each of its kernels once: it has no steps."""
        where = self.situation
        return where.plain and not where.python and all(kernel.count == 1 for kernel in self.kernels)

    @property
    def is_one_rank(self) -> bool:
        """Return True if one rank of several is in the capture: it waits for communication, and no other is
        there."""
        waits = self.judgement.lost.get("communication_bound", 0.0) >= LEAST_REPORTED_PCT
        return waits and len(self.timelines) == 1

    @property
    def _is_pinned(self) -> bool:
        between = [row for row in self.copies if row.direction in ("host-to-device", "device-to-host")]
        pinned = sum(row.bytes for row in between if "pinned" in (row.source_memory, row.target_memory))
        return 2 * pinned > sum(row.bytes for row in between)


def findings(measured: Measurements) -> tuple[Finding, ...]:
    """Return all findings, the most severe first; before them those that make the others doubtful.

    A capture that no verdict can rest on gets advice on a better one, and on what its kernels and copies show.
    """
    if measured.judgement.lacks:
        return (*_records_lost_findings(measured), _unknown_finding(measured), *_findings_without_steps(measured))
    found = [
        *_loss_findings(measured),
        _nonrecurring_finding(measured),
        _straggler_finding(measured),
        _small_kernels_finding(measured),
        _allocations_finding(measured),
        _pageable_copies_finding(measured),
        _unsteady_steps_finding(measured),
    ]
    found += _work_findings(measured)
    kept = [finding for finding in found if finding is not None]
    kept.sort(key=lambda finding: (-severity_rank(finding.severity), -(finding.share_pct or 0.0)))
    return (*_records_lost_findings(measured), *_with_limits_of_one_rank(kept, measured))


def _with_limits_of_one_rank(found: list[Finding], measured: Measurements) -> list[Finding]:
    """Return the findings; the first one says what one rank alone cannot show."""
    if not found or not measured.is_one_rank or found[0].id == "communication_bound":
        return found
    first = msgspec.structs.replace(found[0], summary=f"{found[0].summary} {ONE_RANK}")
    return [first, *found[1:]]


def _work_findings(measured: Measurements) -> list[Finding]:
    """Findings on the device's work, with their advice."""
    found = []
    for look in work_findings(measured):
        one = _finding_with_advice(
            look.kind,
            look.severity,
            look.share_pct,
            look.summary,
            look.evidence,
            where=measured.situation,
            saves=look.saves_ms,
            **look.fills,
        )
        if look.kind == "fp32_matrix":
            one = msgspec.structs.replace(one, fix=fp32_fix(one.fix, has_tf32=bool(look.fills["try_it"])))
        found.append(one)
    return found


_OF_THE_WORK: Final = ("fp32_matrix", "unfused_attention", "elementwise", "copies_casts")


def _findings_without_steps(measured: Measurements) -> list[Finding]:
    """Findings on the device's work that need no steps. None is about idle time, and none is critical."""
    copies = _pageable_copies_finding(measured)
    timeline = measured.judgement.timeline
    busy = 0.0 if timeline is None else timeline.share(timeline.ns_in_steps(timeline.busy)) / 100
    # Their shares are of the device's time: of a GPU that hardly works all of it is little.
    work = [
        finding
        for finding in _work_findings(measured)
        if finding.id in _OF_THE_WORK and (finding.share_pct or 0.0) * busy >= LEAST_REPORTED_PCT
    ]
    # What a program sends while it starts are its weights.
    starts = measured.judgement.one_off_pct >= BORDER_PCT
    losses = [] if starts else _loss_findings(measured)
    exposed = [one for one in losses if one.id == "communication_bound" and (one.share_pct or 0.0) >= BORDER_PCT]
    found = [*exposed, *work, *([copies] if copies is not None else [])]
    return [msgspec.structs.replace(one, severity="info", saves_at_most_ms=None) for one in found]


def _finding_with_advice(
    kind: FindingId, severity: Severity, share: float | None, summary: str, evidence: dict[str, Any], **more: Any
) -> Finding:
    """Return a finding with its advice; `more` fills the templates, `saves` is what it saves at most, ms a
    step."""
    advice = advice_for(kind, more.pop("where", None) or Situation())
    saves = more.pop("saves", None)
    return Finding(
        id=kind,
        severity=severity,
        share_pct=None if share is None else round_significant(share),
        summary=summary,
        evidence={
            key: round_significant(value) if isinstance(value, float) else value
            for key, value in evidence.items()
            if value is not None
        },
        fix=advice.fix,
        next=advice.next.format(**more) if more else advice.next,
        confirm=advice.confirm,
        saves_at_most_ms=None if saves is None else round_significant(saves),
    )


def _records_lost_findings(measured: Measurements) -> list[Finding]:
    """Return one finding for each process of whose kernels some were not recorded."""
    found = []
    judged = measured.judgement.timeline
    for row in measured.missing.values():
        mine = [timeline for timeline in measured.timelines if timeline.process == row.process]
        gpus = ", ".join(f"GPU {timeline.device}" for timeline in mine)
        threads = ", ".join(str(thread) for thread in row.threads[:3])
        summary = (
            f"{measured.tool} did not record {count(row.missing)} of the {count(row.launched)} kernels that pid "
            f"{pid_text(row.process)} launched ({percent_text(row.missing_pct, 1)}): {gpus} looks idle while "
            "they ran."
        )
        if not mine:
            summary = (
                f"{measured.tool} recorded nothing of the GPU, although pid {pid_text(row.process)} launched "
                f"{count(row.launched)} kernels."
            )
        evidence: dict[str, Any] = {
            "pid": row.process,
            "launched": row.launched,
            "missing": row.missing,
            "launched_by_threads": threads,
        }
        severity: Severity = "critical" if judged is None or judged.process == row.process else "warning"
        lost = _finding_with_advice(
            RECORDS_LOST, severity, None, summary, evidence, command=measured.command, where=measured.situation
        )
        if not mine:
            lost = msgspec.structs.replace(lost, fix=NOTHING_RECORDED, next=NOTHING_RECORDED_NEXT)
        found.append(lost)
    return found


def _unknown_finding(measured: Measurements) -> Finding:
    judgement = measured.judgement
    evidence: dict[str, Any] = {"one_off_pct": judgement.one_off_pct or None}
    words = f"No verdict: {judgement.lacks}."
    found = _finding_with_advice(
        "unknown", "warning", None, words, evidence, where=measured.situation, command=measured.command
    )
    confirm = "the next report has whole steps that take the same time each"
    where = measured.situation
    fix = good_capture(measured.framework, plain=where.plain and not where.python)
    if measured.runs_once:
        return msgspec.structs.replace(found, fix="", next="", confirm="")
    return msgspec.structs.replace(found, fix=fix, confirm=confirm)


def _nonrecurring_finding(measured: Measurements) -> Finding | None:
    """Finding on the work that is left out of the shares because no later step repeats it."""
    timeline, share = measured.judgement.timeline, measured.judgement.one_off_pct
    if timeline is None or share < LEAST_REPORTED_PCT:
        return None
    gaps = measured.gaps[measured.timelines.index(timeline)]
    evidence: dict[str, Any] = {"device": timeline.device, "pid": timeline.process}
    setup = [cause for cause, kind in CAUSE_OF.items() if kind == ONE_OFF]
    evidence |= {f"{cause}_pct": timeline.share(gaps.total(cause)) for cause in setup}
    evidence["longest"] = longest_setup(timeline) or None
    words = f"{BOTTLENECKS[ONE_OFF].heading}: {percent_text(share, 1)} of the capture, not counted in the shares."
    return _finding_with_advice(
        ONE_OFF, "info", share, words, evidence, where=measured.situation, command=measured.command
    )


def _loss_findings(measured: Measurements) -> list[Finding]:
    """Return one finding for each cause that the judged device loses time to."""
    judgement = measured.judgement
    timeline = judgement.timeline
    if timeline is None:
        return []
    found = []
    for verdict, share in judgement.lost.items():
        if share < LEAST_REPORTED_PCT:
            continue
        severity: Severity = "info"
        named = verdict == judgement.verdict or verdict == next(iter(judgement.lost))
        # At the threshold there is no warning: a healthy run is there as often as not.
        lost = judgement.verdict != "gpu_bound" and judgement.total >= BORDER_PCT + NEAR_PCT
        if lost and (named or share >= BORDER_PCT):
            severity = "critical" if share >= CRITICAL_PCT else "warning"
        step = judgement.step_seconds
        saves = None if step is None else share / 100 * step * 1e3
        evidence = _evidence(measured, timeline, verdict, share)
        off_cpu = main_off_cpu_cause(judgement) if verdict == "idle" else None
        heading = CAUSES[off_cpu][0].upper() + CAUSES[off_cpu][1:] if off_cpu else BOTTLENECKS[verdict].heading
        words = f"{heading}: {percent_text(share, 1)} {_share_basis(timeline)}"
        if saves is not None:
            words += f", {duration(saves / 1e3)} of {duration(step)}"
        if evidence.get("most_in"):
            words += f", most of it {evidence['most_in']}"
        deepest = _host_during_loss(measured, timeline, verdict)
        if deepest is not None:
            words += f"; the host was in {printable(deepest[0], 100)} for {percent_text(deepest[1])} of that time"
            evidence |= {"host_in": deepest[0], "host_in_pct_of_idle": deepest[1]}
        more = {"device": timeline.device, "command": measured.command}
        where = measured.situation
        if str(evidence.get("most_in")).startswith(("AllToAll", "SendRecv")):
            where = replace(where, wrappers=())  # what DDP and FSDP send is something else
        one = _finding_with_advice(
            verdict, severity, share, f"{words}.", evidence, saves=saves, where=where, **more
        )
        fix = OFF_CPU_FIX[off_cpu] if off_cpu else _fix_of_loss(verdict, one.fix, evidence)
        found.append(msgspec.structs.replace(one, fix=fix))
    return found


_FEW_KERNELS = 10
"""Kernels a step: replaying so few by one call saves some 100 µs at 10 µs a launch, not the step."""


def _fix_of_loss(verdict: LossId, fix: str, evidence: dict[str, Any]) -> str:
    """Return the advice on a loss without what the capture's own figures rule out."""
    if verdict == "idle":
        waited = evidence.get("idle_dependency_pct", 0.0)
        return idle_fix(fix, waited, evidence["share_pct"] - waited, str(evidence.get("host_in", "")))
    kernels = evidence.get("kernels_per_step") or evidence.get("kernels")
    if verdict == "launch_bound" and kernels is not None and kernels < _FEW_KERNELS:
        return (
            f"Launching {counted(kernels, 'kernel')} takes little: look at what the host does between them, and "
            "give each launch more work (a larger batch)."
        )
    return fix


def _host_during_loss(
    measured: Measurements, timeline: DeviceTimeline, verdict: LossId
) -> tuple[str, float] | None:
    """Return the operator or frame that was deepest on the host for much of what a loss took, where one stands
    out."""
    if verdict == "kernel_gaps":
        return None  # the host had launched in time
    causes = [cause for cause, counts_for in CAUSE_OF.items() if counts_for == verdict]
    gaps = measured.gaps[measured.timelines.index(timeline)]
    found = deepest_during(timeline, gaps, causes) if causes else None
    if causes and (found is None or found[1] < STANDS_OUT_PCT):
        found = most_sampled_during(timeline, gaps, causes)
    return found if found is not None and found[1] >= STANDS_OUT_PCT else None


def _share_basis(timeline: DeviceTimeline) -> str:
    """Return what the shares of a device are of, in words."""
    return "of the step" if timeline.counted else f"of {timeline.extent_text}"


def _evidence(measured: Measurements, timeline: DeviceTimeline, verdict: LossId, share: float) -> dict[str, Any]:
    """Return the numbers that show the loss which the verdict is named after."""
    gaps = measured.gaps[measured.timelines.index(timeline)]
    evidence: dict[str, Any] = {"device": timeline.device, "pid": timeline.process, "share_pct": share}
    for cause, counts_for in CAUSE_OF.items():
        if counts_for == verdict and gaps.total(cause):
            evidence[f"idle_{cause}_pct"] = timeline.share(gaps.total(cause))
    if verdict == "launch_bound":
        evidence |= launch_evidence(timeline)
    elif verdict == "sync_bound":
        if timeline.counted:
            evidence["waiting_calls_per_step"] = sum(place.calls_per_step for place in measured.waits)
        evidence["where"] = "; ".join(_wait_place_text(place) for place in measured.waits[:3]) or None
        worst = _most_idle_phase(timeline, measured.phases)
        evidence["most_idle_phase"] = worst.name if worst is not None else None
        evidence["place"] = _place_of_waits(measured)
    elif verdict == "h2d_bound":
        ops = timeline.ops
        mine = (ops.kind == model.MEMCPY) & is_among(ops.direction, (model.HOST_TO_DEVICE, model.DEVICE_TO_HOST))
        mine &= (ops.start >= timeline.begin_ns) & (ops.start < timeline.end_ns)
        evidence["only_copies_pct"] = timeline.share(timeline.ns_in_steps(timeline.only_host_copies))
        evidence["copied_bytes_per_step"] = (
            float(ops.bytes[mine].sum()) / timeline.counted if timeline.counted else None
        )
        between = [row for row in measured.copies if row.direction in ("host-to-device", "device-to-host")]
        big = max(between, key=lambda row: row.seconds, default=None)
        if big is not None:
            evidence |= {"direction": big.direction, "from": big.source_memory, "gb_per_s": big.gb_per_s}
    elif verdict == "communication_bound":
        most = max(collective_times([timeline]), key=lambda one: one.exposed_pct, default=None)
        evidence["most_in"] = most.name if most is not None and 2 * most.exposed_pct > share else None
        exposed, whole = timeline.ns_in_steps(timeline.exposed_nccl), timeline.ns_in_steps(timeline.nccl)
        # Of the same time as the share: without one-off work.
        evidence |= {"nccl_pct": share * whole / max(exposed, 1), "exposed_pct": share}
        evidence["overlapped_pct_of_nccl"] = 100.0 * (1 - exposed / max(whole, 1))
    elif verdict == "input_bound":
        worst = _most_idle_phase(timeline, [row for row in measured.phases if role_of(row.name) == "input"])
        if worst is not None:
            evidence |= {"phase": worst.name, "phase_host_ms": worst.host_seconds * 1e3}
            evidence["gpu_idle_in_phase_ms"] = (worst.gpu_idle_seconds or 0.0) * 1e3
    return evidence


def launch_evidence(timeline: DeviceTimeline) -> dict[str, Any]:
    """Return how the time of launch calls compares with the time of the kernels."""
    kernels = timeline.ops.select(timeline.ops.kind == model.KERNEL)
    took = kernels.end - kernels.start
    launches = launch_calls(timeline)
    inside = (
        (timeline.ops.kind == model.KERNEL)
        & (timeline.ops.start >= timeline.begin_ns)
        & (timeline.ops.start < timeline.end_ns)
    )
    launching = {"launch_api_ms": float((launches.end - launches.start).sum()) / 1e6}
    if not timeline.kernels_known:
        return launching
    return launching | {
        "kernel_ms": float(took.sum()) / 1e6,
        "kernels": len(kernels),
        "kernels_under_10us_pct": 100.0 * float(np.mean(took < 10_000)) if len(took) else None,
        "kernel_median_us": float(np.median(took)) / 1e3 if len(took) else None,
        "kernels_per_step": float(inside.sum()) / timeline.counted if timeline.counted else None,
    }


def _wait_place_text(place: WaitPlace) -> str:
    """Return where calls wait, in words: 120 x cudaStreamSynchronize in optimizer by aten::item."""
    words = f"{count(place.calls_per_step)} {place.call}"
    words += f" in {place.phase}" if place.phase else ""
    return words + (f" by {place.operator}" if place.operator else "")


def _place_of_waits(measured: Measurements) -> str | None:
    """Return the place of the program whose calls wait longest, by recorded stacks."""
    waits = [one for one in measured.call_places if one.kind == "sync"]
    return f"{waits[0].place} ({waits[0].call})" if waits else None


def _most_idle_phase(timeline: DeviceTimeline, phases: list[PhaseMean]) -> PhaseMean | None:
    """Return the phase in which the GPU was idle longest; of a phase and the one around it, the inner one."""
    own = (timeline.process, timeline.device)
    idle = [row for row in phases if (row.pid, row.device) == own and row.gpu_idle_seconds]
    return max(idle, key=lambda row: (row.gpu_idle_seconds or 0.0, row.name.count("/")), default=None)


def _straggler_finding(measured: Measurements) -> Finding | None:
    found = measured.uneven
    if found is None:
        return None
    culprit, waiting = found.culprit, found.waiting
    rank = measured.ranks.get(culprit.process)
    apart = found.waiting_pct - found.culprit_pct
    summary = (
        f"{_rank_label(measured, culprit)} holds the others up: it waits for communication for "
        f"{percent_text(found.culprit_pct, 1)} {_share_basis(culprit)}, {_rank_label(measured, waiting)} "
        f"for {percent_text(found.waiting_pct, 1)}."
    )
    evidence: dict[str, Any] = {
        "culprit_device": culprit.device,
        "culprit_pid": culprit.process,
        "culprit_rank": rank,
        "culprit_exposed_pct": found.culprit_pct,
        "waiting_device": waiting.device,
        "waiting_exposed_pct": found.waiting_pct,
    }
    saves = apart / 100 * waiting.length / 1e6 / waiting.counted if waiting.counted else None
    if saves is not None:
        evidence["slower_phase"] = slower_phase(measured.phases, culprit, waiting, saves / 1e3)
    severity: Severity = "critical" if apart >= 20.0 else "warning"  # docs/measurements.md, Thresholds
    more = {"device": culprit.device, "saves": saves}
    return _finding_with_advice("straggler", severity, apart, summary, evidence, where=measured.situation, **more)


def _rank_label(measured: Measurements, timeline: DeviceTimeline) -> str:
    """Return the label of a device timeline, by its rank where known."""
    rank = measured.ranks.get(timeline.process)
    return (
        f"GPU {timeline.device} (pid {pid_text(timeline.process)})"
        if rank is None
        else f"rank {rank} (GPU {timeline.device})"
    )


def _small_kernels_finding(measured: Measurements) -> Finding | None:
    timeline = measured.judgement.timeline
    if timeline is None:
        return None
    evidence = launch_evidence(timeline)
    small = evidence.get("kernels_under_10us_pct")
    a_step = evidence.get("kernels_per_step")
    if small is None or small < _MANY_SMALL_PCT or (a_step or evidence["kernels"]) < _FEWEST_LAUNCHES:
        return None
    summary = (
        f"{percent_text(small, 1)} of {counted(evidence['kernels'], 'kernel')} are shorter than 10 µs "
        f"(median {duration(evidence['kernel_median_us'] / 1e6)})"
    )
    summary += f", {count(a_step)} per step." if a_step is not None else "."
    return _finding_with_advice(
        "small_kernels", "info", None, summary, evidence, command=measured.command, where=measured.situation
    )


def _allocations_finding(measured: Measurements) -> Finding | None:
    timeline = measured.judgement.timeline
    if timeline is None:
        return None
    if not timeline.counted:
        return _allocations_by_kernel(measured, timeline)
    rows = [row for row in _stopping_allocations(measured) if (row.calls_per_step or 0.0) >= 1.0]
    if not rows:
        return None
    a_step = sum(row.calls_per_step or 0.0 for row in rows)
    gaps = measured.gaps[measured.timelines.index(timeline)]
    share = timeline.share(gaps.total("allocation"))
    most = max(rows, key=lambda row: row.calls_per_step or 0.0)
    summary = f"{counted(a_step, 'call')} per step allocate or free device memory, mostly {most.name}."
    evidence = {"calls_per_step": a_step, "host_ms": sum(row.seconds for row in rows) * 1e3, "idle_pct": share}
    severity: Severity = "warning" if share >= LEAST_REPORTED_PCT else "info"
    # No share of its own: the idle time counts as launch_bound already.
    return _finding_with_advice("allocations", severity, None, summary, evidence, where=measured.situation)


def _stopping_allocations(measured: Measurements) -> list[ApiTime]:
    """Calls that allocate or free device memory; those in the order of a stream do not stop the GPU."""
    rows = [row for row in measured.api if row.kind == "allocation" and not row.name.endswith("Async")]
    return [row for row in rows if "Host" not in row.name]


def _allocations_by_kernel(measured: Measurements, timeline: DeviceTimeline) -> Finding | None:
    """Allocations of a program without steps that come with the kernels, as those of a loop do."""
    rows = _stopping_allocations(measured)
    calls, kernels = sum(row.count for row in rows), int((timeline.ops.kind == model.KERNEL).sum())
    if kernels < _FEWEST_LAUNCHES or calls < kernels or len(measured.timelines) > 1:
        return None
    most = max(rows, key=lambda row: row.seconds)
    summary = (
        f"{counted(calls, 'call')} allocate or free device memory, {calls / kernels:.1f} for each kernel; "
        f"{most.name} takes longest, {duration(most.mean_us / 1e6)} on average."
    )
    share = timeline.share(measured.gaps[measured.timelines.index(timeline)].total("allocation"))
    evidence = {"calls_per_kernel": calls / kernels, "host_ms": sum(row.seconds for row in rows) * 1e3}
    evidence["idle_pct"] = share
    return _finding_with_advice("allocations", "warning", None, summary, evidence, where=measured.situation)


def _pageable_copies_finding(measured: Measurements) -> Finding | None:
    rows = [row for row in measured.copies if "pageable" in (row.source_memory, row.target_memory)]
    timeline = measured.judgement.timeline
    if not rows or timeline is None:
        return None
    row = max(rows, key=lambda row: row.bytes)
    share = timeline.share(timeline.ns_in_steps(timeline.pageable_copies))
    if row.largest_bytes < 1 << 20 or share < 1.0 or (not timeline.counted and sends_weights(timeline)):
        return None
    way = {"host-to-device": "from", "device-to-host": "to"}.get(row.direction, "from or to")
    summary = f"{count(row.count)} {'copy' if row.count == 1 else 'copies'} {row.direction} {way} pageable memory"
    summary += f", {rate(row.gb_per_s * 1e9)}." if row.gb_per_s is not None else "."
    evidence = {"count": row.count, "bytes": row.bytes, "gb_per_s": row.gb_per_s, "copies_pct": share}
    # No share of its own: what of these copies nothing else hides counts as h2d_bound already.
    found = _finding_with_advice("pageable_copies", "info", None, summary, evidence, where=measured.situation)
    if row.direction != "device-to-host":
        return found
    return msgspec.structs.replace(found, fix=pageable_results_fix(plain=measured.situation.plain))


def _unsteady_steps_finding(measured: Measurements) -> Finding | None:
    steps = measured.steps
    if not steps.outliers or steps.count < 5 or steps.seconds_p50 is None or steps.seconds_max is None:
        return None
    summary = (
        f"{len(steps.outliers)} of {steps.count} steps took more than 1.5 times the median of "
        f"{duration(steps.seconds_p50)}, the slowest {duration(steps.seconds_max)}."
    )
    evidence = {"median_ms": steps.seconds_p50 * 1e3, "slowest_ms": steps.seconds_max * 1e3}
    evidence |= {"spread_pct": steps.spread_pct or 0.0}
    return _finding_with_advice("unsteady_steps", "info", None, summary, evidence, where=measured.situation)
