"""From measurements to findings: one for each thing lost, and what else a reader of the capture should know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np

from llmtop.analysis.first_samples import first_looks
from llmtop.analysis.idle.idle_causes import Gaps
from llmtop.analysis.idle.launches import launch_calls
from llmtop.analysis.idle.longest_gaps import deepest_during
from llmtop.analysis.idle.missing_kernels import Unrecorded
from llmtop.analysis.idle.nonrecurring_work import longest_setup
from llmtop.analysis.steps.device_timeline import Lane
from llmtop.analysis.verdict import BORDER_PCT, CAUSE_OF, NEAR_PCT, ONE_OFF, Judgement
from llmtop.analysis.verdict_text import GOOD_CAPTURE
from llmtop.analysis.work.collectives import Uneven, slower_phase
from llmtop.format import count, counted, duration, percent, printable, rate, round_significant
from llmtop.model.bottlenecks import BOTTLENECKS, LossId
from llmtop.model.severity import Severity, severity_rank
from llmtop.report.advice.table import FindingId, Situation, advice_for
from llmtop.report.device_time import GemmTime, Makeup, OperatorTime, Roof
from llmtop.report.model import ApiTime, CopyTime, Finding, KernelTime, PhaseMean, StepsJudged, WaitPlace
from llmtop.trace import model

RECORDS_LOST: Final = "records_lost"
TOLD_PCT = 3.0
"""A cause with less of the step than this is not worth a finding."""
CRITICAL_PCT = 40.0
STANDS_OUT_PCT = 20.0
"""What the host was in for less of the idle time than this is not named."""
_MANY_SMALL_PCT = 60.0
_FEWEST_LAUNCHES = 100


@dataclass(frozen=True)
class Measured:
    """All figures of a capture from which findings are made."""

    judgement: Judgement
    lanes: list[Lane]
    gaps: list[Gaps]
    uneven: Uneven | None
    phases: list[PhaseMean]
    waits: tuple[WaitPlace, ...]
    kernels: tuple[KernelTime, ...]
    copies: tuple[CopyTime, ...]
    api: tuple[ApiTime, ...]
    steps: StepsJudged
    command: str
    ranks: dict[int, int] = field(default_factory=dict)
    """Rank by pid, where known."""
    missing: dict[int, Unrecorded] = field(default_factory=dict)
    """By pid, kernels that are not in the capture."""
    tool: str = ""
    """What recorded the capture."""
    operators: tuple[OperatorTime, ...] = ()
    gemms: tuple[GemmTime, ...] = ()
    roofs: tuple[Roof, ...] = ()
    makeup: Makeup | None = None
    framework: model.Framework | None = None
    """Whose program it is; None for PyTorch's own."""

    @property
    def situation(self) -> Situation:
        """What advice must fit."""
        made = self.makeup
        if made is None:
            return Situation(framework=self.framework)
        return Situation(made.vendor, made.workload, made.graph_launches > 0, self.framework)


def findings(measured: Measured) -> tuple[Finding, ...]:
    """All findings, the gravest first; before them what makes the others doubtful.

    A capture that no verdict can rest on gets no advice but how to take a better one.
    """
    if measured.judgement.lacks:
        return (*_records_lost(measured), _no_evidence(measured))
    found = [
        *_lost(measured),
        _one_off(measured),
        _straggler(measured),
        _small_kernels(measured),
        _allocations(measured),
        _pageable(measured),
        _unsteady(measured),
    ]
    found += [
        _advised(
            look.kind,
            look.severity,
            look.share_pct,
            look.summary,
            look.evidence,
            where=measured.situation,
            saves=look.saves_ms,
            **look.fills,
        )
        for look in first_looks(measured)
    ]
    kept = [finding for finding in found if finding is not None]
    kept.sort(key=lambda finding: (-severity_rank(finding.severity), -(finding.share_pct or 0.0)))
    return (*_records_lost(measured), *kept)


def _advised(
    kind: FindingId, severity: Severity, share: float | None, summary: str, evidence: dict[str, Any], **more: Any
) -> Finding:
    """A finding with its advice; `more` fills the templates, `saves` is what it saves at most, ms a step."""
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


def _records_lost(measured: Measured) -> list[Finding]:
    """One finding for each process of whose kernels some were not recorded."""
    found = []
    judged = measured.judgement.lane
    for row in measured.missing.values():
        mine = [lane for lane in measured.lanes if lane.process == row.process]
        gpus = ", ".join(f"GPU {lane.device}" for lane in mine) or "its GPU"
        threads = ", ".join(str(thread) for thread in row.threads[:3])
        summary = (
            f"{measured.tool} did not record {count(row.missing)} of the {count(row.launched)} kernels that pid "
            f"{row.process} launched ({percent(row.missing_pct, 1)}): {gpus} looks idle while they ran."
        )
        evidence: dict[str, Any] = {
            "pid": row.process,
            "launched": row.launched,
            "missing": row.missing,
            "launched_by_threads": threads,
        }
        severity: Severity = "critical" if judged is None or judged.process == row.process else "warning"
        found.append(
            _advised(
                RECORDS_LOST, severity, None, summary, evidence, command=measured.command, where=measured.situation
            )
        )
    return found


def _no_evidence(measured: Measured) -> Finding:
    judgement = measured.judgement
    evidence: dict[str, Any] = {"one_off_pct": judgement.one_off_pct or None}
    words = f"No verdict: {judgement.lacks}."
    found = _advised("unknown", "warning", None, words, evidence, where=measured.situation)
    confirm = "the next report has whole steps that take the same time each"
    return msgspec.structs.replace(found, fix=GOOD_CAPTURE[measured.framework], confirm=confirm)


def _one_off(measured: Measured) -> Finding | None:
    """What was left out of the shares because no later step repeats it."""
    lane, share = measured.judgement.lane, measured.judgement.one_off_pct
    if lane is None or share < TOLD_PCT:
        return None
    gaps = measured.gaps[measured.lanes.index(lane)]
    evidence: dict[str, Any] = {"device": lane.device, "pid": lane.process}
    evidence |= {f"{cause}_pct": lane.share(gaps.total(cause)) for cause in ("capture", "compile", "one_off")}
    evidence["longest"] = longest_setup(lane) or None
    words = f"{BOTTLENECKS[ONE_OFF].heading}: {percent(share, 1)} of the capture, left out of the shares."
    return _advised(ONE_OFF, "info", share, words, evidence, where=measured.situation)


def _lost(measured: Measured) -> list[Finding]:
    """One finding for each cause that the judged device loses time to."""
    judgement = measured.judgement
    lane = judgement.lane
    if lane is None:
        return []
    found = []
    for verdict, share in judgement.lost.items():
        if share < TOLD_PCT:
            continue
        severity: Severity = "info"
        named = verdict == judgement.verdict or verdict == next(iter(judgement.lost))
        # At the border nobody is warned: a healthy run lies there as often as not.
        lost = judgement.verdict != "gpu_bound" and judgement.total >= BORDER_PCT + NEAR_PCT
        if lost and (named or share >= BORDER_PCT):
            severity = "critical" if share >= CRITICAL_PCT else "warning"
        step = judgement.step_seconds
        saves = None if step is None else share / 100 * step * 1e3
        evidence = _evidence(measured, lane, verdict, share)
        words = f"{BOTTLENECKS[verdict].heading}: {percent(share, 1)} {_of_what(lane)}"
        if saves is not None:
            words += f", {duration(saves / 1e3)} of {duration(step)}"
        deepest = _deepest(measured, lane, verdict)
        if deepest is not None:
            words += f"; the host was mostly in {printable(deepest[0], 100)} ({percent(deepest[1])} of that time)"
            evidence |= {"host_in": deepest[0], "host_in_pct_of_idle": deepest[1]}
        more = {"device": lane.device, "command": measured.command}
        found.append(
            _advised(
                verdict, severity, share, f"{words}.", evidence, saves=saves, where=measured.situation, **more
            )
        )
    return found


def _deepest(measured: Measured, lane: Lane, verdict: LossId) -> tuple[str, float] | None:
    """The operator or frame that was deepest on the host for much of what a loss took, where one stands out."""
    causes = [cause for cause, counts_for in CAUSE_OF.items() if counts_for == verdict]
    found = deepest_during(lane, measured.gaps[measured.lanes.index(lane)], causes) if causes else None
    return found if found is not None and found[1] >= STANDS_OUT_PCT else None


def _of_what(lane: Lane) -> str:
    """What the shares of a lane are of, in words."""
    return "of the step" if lane.counted else "of the time from first to last device activity"


def _evidence(measured: Measured, lane: Lane, verdict: LossId, share: float) -> dict[str, Any]:
    """The numbers that show the loss which the verdict is named after."""
    gaps = measured.gaps[measured.lanes.index(lane)]
    evidence: dict[str, Any] = {"device": lane.device, "pid": lane.process, "share_pct": share}
    for cause, counts_for in CAUSE_OF.items():
        if counts_for == verdict and gaps.total(cause):
            evidence[f"idle_{cause}_pct"] = lane.share(gaps.total(cause))
    if verdict == "launch_bound":
        evidence |= launch_evidence(lane)
    elif verdict == "sync_bound":
        evidence["waiting_calls_per_step"] = sum(place.calls_per_step for place in measured.waits)
        evidence["where"] = "; ".join(_place(place) for place in measured.waits[:3]) or None
        worst = _most_idle(lane, measured.phases)
        evidence["most_idle_phase"] = worst.name if worst is not None else None
    elif verdict == "h2d_bound":
        ops = lane.ops
        mine = (ops.kind == model.MEMCPY) & np.isin(ops.direction, (model.HOST_TO_DEVICE, model.DEVICE_TO_HOST))
        mine &= (ops.start >= lane.low) & (ops.start < lane.high)
        evidence["only_copies_pct"] = lane.share(lane.within(lane.only_host_copies))
        evidence["copied_bytes_per_step"] = float(ops.bytes[mine].sum()) / lane.counted if lane.counted else None
        between = [row for row in measured.copies if row.direction in ("host-to-device", "device-to-host")]
        big = max(between, key=lambda row: row.seconds, default=None)
        if big is not None:
            evidence |= {"direction": big.direction, "from": big.source_memory, "gb_per_s": big.gb_per_s}
    elif verdict == "communication_bound":
        evidence["nccl_pct"] = lane.share(lane.within(lane.nccl))
        evidence["exposed_pct"] = share
        exposed, whole = lane.within(lane.exposed_nccl), lane.within(lane.nccl)
        evidence["overlapped_pct_of_nccl"] = 100.0 * (1 - exposed / max(whole, 1))
    elif verdict == "input_bound":
        worst = _most_idle(lane, measured.phases)
        if worst is not None:
            evidence |= {"phase": worst.name, "phase_host_ms": worst.host_seconds * 1e3}
            evidence["gpu_idle_in_phase_ms"] = (worst.gpu_idle_seconds or 0.0) * 1e3
    return evidence


def launch_evidence(lane: Lane) -> dict[str, Any]:
    """How launching compares with the work launched."""
    kernels = lane.ops.where(lane.ops.kind == model.KERNEL)
    took = kernels.end - kernels.start
    launches = launch_calls(lane)
    inside = (lane.ops.kind == model.KERNEL) & (lane.ops.start >= lane.low) & (lane.ops.start < lane.high)
    launching = {"launch_api_ms": float((launches.end - launches.start).sum()) / 1e6}
    if not lane.kernels_known:
        return launching
    return launching | {
        "kernel_ms": float(took.sum()) / 1e6,
        "kernels": len(kernels),
        "kernels_under_10us_pct": 100.0 * float(np.mean(took < 10_000)) if len(took) else None,
        "kernel_median_us": float(np.median(took)) / 1e3 if len(took) else None,
        "kernels_per_step": float(inside.sum()) / lane.counted if lane.counted else None,
    }


def _place(place: WaitPlace) -> str:
    """Where calls wait, in words: 120 x cudaStreamSynchronize in optimizer by aten::item."""
    words = f"{count(place.calls_per_step)} {place.call}"
    words += f" in {place.phase}" if place.phase else ""
    return words + (f" by {place.operator}" if place.operator else "")


def _most_idle(lane: Lane, phases: list[PhaseMean]) -> PhaseMean | None:
    """The phase in which the GPU was idle longest; of a phase and the one around it, the inner one."""
    own = (lane.process, lane.device)
    idle = [row for row in phases if (row.pid, row.device) == own and row.gpu_idle_seconds]
    return max(idle, key=lambda row: (row.gpu_idle_seconds or 0.0, row.name.count("/")), default=None)


def _straggler(measured: Measured) -> Finding | None:
    found = measured.uneven
    if found is None:
        return None
    culprit, waiting = found.culprit, found.waiting
    rank = measured.ranks.get(culprit.process)
    apart = found.waiting_pct - found.culprit_pct
    summary = (
        f"{_rank(measured, culprit)} holds the others up: it waits in NCCL for {percent(found.culprit_pct, 1)} "
        f"{_of_what(culprit)}, {_rank(measured, waiting)} for {percent(found.waiting_pct, 1)}."
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
    return _advised("straggler", severity, apart, summary, evidence, where=measured.situation, **more)


def _rank(measured: Measured, lane: Lane) -> str:
    """A lane in words, by its rank where that is known."""
    rank = measured.ranks.get(lane.process)
    return f"GPU {lane.device} (pid {lane.process})" if rank is None else f"rank {rank} (GPU {lane.device})"


def _small_kernels(measured: Measured) -> Finding | None:
    lane = measured.judgement.lane
    if lane is None:
        return None
    evidence = launch_evidence(lane)
    small = evidence.get("kernels_under_10us_pct")
    a_step = evidence.get("kernels_per_step")
    if small is None or small < _MANY_SMALL_PCT or (a_step or evidence["kernels"]) < _FEWEST_LAUNCHES:
        return None
    summary = (
        f"{percent(small, 1)} of {counted(evidence['kernels'], 'kernel')} are shorter than 10 µs "
        f"(median {duration(evidence['kernel_median_us'] / 1e6)})"
    )
    summary += f", {count(a_step)} a step." if a_step is not None else "."
    return _advised(
        "small_kernels", "info", None, summary, evidence, command=measured.command, where=measured.situation
    )


def _allocations(measured: Measured) -> Finding | None:
    rows = [row for row in measured.api if row.kind == "allocation" and (row.calls_per_step or 0.0) >= 1.0]
    lane = measured.judgement.lane
    if not rows or lane is None or not lane.counted:
        return None
    a_step = sum(row.calls_per_step or 0.0 for row in rows)
    gaps = measured.gaps[measured.lanes.index(lane)]
    share = lane.share(gaps.total("allocation"))
    most = max(rows, key=lambda row: row.calls_per_step or 0.0)
    summary = f"{counted(a_step, 'call')} a step allocate or free device memory, mostly {most.name}."
    evidence = {"calls_per_step": a_step, "host_ms": sum(row.seconds for row in rows) * 1e3, "idle_pct": share}
    severity: Severity = "warning" if share >= TOLD_PCT else "info"
    # No share of its own: the idle time counts as launch_bound already.
    return _advised("allocations", severity, None, summary, evidence, where=measured.situation)


def _pageable(measured: Measured) -> Finding | None:
    rows = [row for row in measured.copies if "pageable" in (row.source_memory, row.target_memory)]
    lane = measured.judgement.lane
    if not rows or lane is None:
        return None
    row = max(rows, key=lambda row: row.bytes)
    share = lane.share(lane.within(lane.pageable_copies))
    if row.largest_bytes < 1 << 20 or share < 1.0:
        return None
    summary = (
        f"{count(row.count)} {'copy' if row.count == 1 else 'copies'} {row.direction} from or to pageable memory"
    )
    summary += f", {rate(row.gb_per_s * 1e9)}." if row.gb_per_s is not None else "."
    evidence = {"count": row.count, "bytes": row.bytes, "gb_per_s": row.gb_per_s, "copies_pct": share}
    # No share of its own: what of these copies nothing else hides counts as h2d_bound already.
    return _advised("pageable_copies", "info", None, summary, evidence, where=measured.situation)


def _unsteady(measured: Measured) -> Finding | None:
    steps = measured.steps
    if not steps.outliers or steps.count < 5 or steps.seconds_p50 is None or steps.seconds_max is None:
        return None
    summary = (
        f"{len(steps.outliers)} of {steps.count} steps took more than 1.5 times the median of "
        f"{duration(steps.seconds_p50)}, the slowest {duration(steps.seconds_max)}."
    )
    evidence = {"median_ms": steps.seconds_p50 * 1e3, "slowest_ms": steps.seconds_max * 1e3}
    evidence |= {"spread_pct": steps.spread_pct or 0.0}
    return _advised("unsteady_steps", "info", None, summary, evidence, where=measured.situation)
