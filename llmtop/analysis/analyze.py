"""Steps from a capture to a report; each part has a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec import structs

from llmtop.analysis.capture_info import (
    UNKNOWN_COMMAND,
    CaptureInfo,
    command_of_program,
    is_python,
    read_capture_info,
)
from llmtop.analysis.findings import Measurements, findings
from llmtop.analysis.idle import cuda_calls as cuda
from llmtop.analysis.idle.call_places import call_places
from llmtop.analysis.idle.idle_causes import CAUSES, Gaps, attribute_idle_time
from llmtop.analysis.idle.launch_order import with_launch_order
from llmtop.analysis.idle.launches import launch_calls, launches_per_step
from llmtop.analysis.idle.longest_gaps import longest_gaps
from llmtop.analysis.idle.missing_kernels import unrecorded_kernels
from llmtop.analysis.idle.sampled_functions import sampled_functions
from llmtop.analysis.idle.sync_calls import wait_places
from llmtop.analysis.notes import capture_notes
from llmtop.analysis.roofline import roofline_text
from llmtop.analysis.start_up import without_start_up
from llmtop.analysis.steps.device_timeline import DeviceTimeline, device_timelines
from llmtop.analysis.steps.phase_times import phase_times
from llmtop.analysis.steps.step_finder import (
    PhaseSpans,
    ProcessSteps,
    deepest_nesting,
    find_phases,
    find_steps,
    select_steps,
)
from llmtop.analysis.steps.unprofiled_step import UnprofiledStep
from llmtop.analysis.steps.work_by_step import WorkSteps
from llmtop.analysis.timeline.step_timeline import step_timeline
from llmtop.analysis.timeline.whole_timeline import whole_timeline
from llmtop.analysis.verdict import Judgement, judge, loss_shares, missing_evidence, setup_ns
from llmtop.analysis.verdict_text import left_out_text, verdict_sentence
from llmtop.analysis.work.collectives import collective_times, exposed_pct, find_straggler
from llmtop.analysis.work.copies import copy_times
from llmtop.analysis.work.gemms import gemm_times, gpu_roofs
from llmtop.analysis.work.hlo_operations import hlo_times
from llmtop.analysis.work.host_operators import host_operators, host_time_text, operator_free_share
from llmtop.analysis.work.kernels import kernel_times
from llmtop.analysis.work.memory_use import memory_use
from llmtop.analysis.work.operators import operator_calls, operator_times
from llmtop.analysis.work.time_breakdown import time_breakdown
from llmtop.document.timeline import WholeTimeline
from llmtop.order_statistics import spread_pct
from llmtop.report.device_words import in_words_of_device
from llmtop.report.environment import read_environment
from llmtop.report.model import (
    Device,
    Finding,
    GapTime,
    MetricOverTime,
    PhaseMean,
    RangeTime,
    Report,
    StepsJudged,
    Timeline,
)
from llmtop.system.inputs import DEFAULT, Limits
from llmtop.trace import intervals as iv
from llmtop.trace import model
from llmtop.trace.files.file_kind import Examined, examine
from llmtop.trace.files.open import open_traces
from llmtop.trace.groups import distinct_combinations, distinct_values, grouped, is_among
from llmtop.trace.intervals import Spans

_OUTLIER = 1.5


def analyze(
    path: str | Path | Examined,
    steps: int | tuple[int, int] | None = None,
    limits: Limits = DEFAULT,
    read_unprofiled_step: Callable[[], UnprofiledStep] | None = None,
    page: bool = False,
) -> Report:
    """Read a capture and return its report.

    Args:
        path: an nsys SQLite export, a .nsys-rep, a Chrome trace (plain or gzipped), or a folder with one or, from
            several ranks, more of them; one that was examined already is not looked into again.
        steps: take the shares over this many of the first whole steps, or over whole steps a to b (b excluded);
            None for as many as capture.json says were asked for, else for all of them.
        limits: how much of memory and time it may ask for.
        read_unprofiled_step: returns how long the training's steps took before and after the capture; called as
            late as possible. None: capture.json of the capture's folder.
        page: whether to make the timeline of all steps too, which only a page shows.

    Raises:
        UnusableInput: not a capture, so damaged that nothing of it can be used, or beyond a limit.
        NotPossibleHere: a .nsys-rep, and no nsys here that could export it.
    """
    file = path if isinstance(path, Examined) else examine(Path(path))
    report = analyze_files([file], steps, limits, read_unprofiled_step, page)
    return structs.replace(report, environment=read_environment(file.path))


def analyze_files(
    files: Sequence[Examined],
    steps: int | tuple[int, int] | None = None,
    limits: Limits = DEFAULT,
    read_unprofiled_step: Callable[[], UnprofiledStep] | None = None,
    page: bool = False,
) -> Report:
    """Read captures of several ranks and return one report, without its environment.

    Args:
        files: those to read together; of one capture's folder, or the captures of several ranks.
        steps, limits, read_unprofiled_step, page: as in `analyze`; capture.json is that of the files' folder.

    Raises:
        UnusableInput, NotPossibleHere: as `analyze`.
    """
    folders = {file.path.parent for file in files}
    info = read_capture_info(files[0].path) if len(folders) == 1 else CaptureInfo()
    read_step = read_unprofiled_step or (lambda: info.unprofiled_step)
    trace = open_traces(files, limits)
    # nsys knows pids alone; capture.json has the ranks.
    trace.ranks = trace.ranks or [model.TracedRank(pid, rank, 0) for pid, rank in info.ranks.items()]
    # One rule for the screen, the shell and every output: what was asked for at the capture.
    steps = info.steps_wanted if steps is None else steps
    return analyze_trace(trace, steps, info.command, limits, read_step, page=page)


def analyze_trace(
    trace: model.Trace,
    steps: int | tuple[int, int] | None = None,
    command: str = UNKNOWN_COMMAND,
    limits: Limits = DEFAULT,
    read_unprofiled_step: Callable[[], UnprofiledStep] = UnprofiledStep,
    *,
    page: bool = False,
) -> Report:
    """Return the report of a trace in memory.

    Args:
        trace: what was read of a capture.
        steps, page: as in `analyze`.
        command: of the training; it is put into the suggested command lines.
        limits: how many processes and devices, and how deeply nested ranges, may be judged.
        read_unprofiled_step: returns how long the training's steps took before and after the capture.

    Raises:
        UnusableInput: it has more processes or devices, or ranges nested deeper, than the limits allow.
    """
    _check_limits(trace, limits)
    per_process = {pid: select_steps(find_steps(trace, pid), steps) for pid in _processes(trace)}
    phases = {pid: find_phases(trace, found) for pid, found in per_process.items()}
    timelines = device_timelines(trace, per_process)
    measured = _measure(trace, command, timelines, per_process, phases, read_unprofiled_step=read_unprofiled_step)
    drawn = None
    if page:
        drawn = whole_timeline(
            measured.timelines, measured.gaps, phases, measured.ranks, measured.judgement.timeline
        )
    return in_words_of_device(_build_report(trace, measured, per_process, phases, drawn))


def _build_report(
    trace: model.Trace,
    measured: Measurements,
    per_process: dict[int, ProcessSteps],
    phases: dict[int, list[PhaseSpans]],
    drawn: WholeTimeline | None,
) -> Report:
    """Return the report of what was measured; `drawn` is the time line of its page."""
    judgement, timelines, gaps = measured.judgement, measured.timelines, measured.gaps
    return Report(
        source=trace.source,
        engine=trace.engine,
        tool_version=trace.version,
        window_seconds=(trace.window[1] - trace.window[0]) / 1e9,
        devices=_devices(trace, measured),
        phases=tuple(measured.phases),
        kernels=measured.kernels,
        copies=measured.copies,
        api=measured.api,
        gaps=tuple(_gap_rows(timelines, gaps)),
        verdict=judgement.verdict,
        findings=(found := findings(measured)),
        summary=verdict_sentence(
            judgement,
            measured.steps,
            trace,
            measured.missing,
            straggler=_straggler_text(found),
            on_cpu=host_time_text(measured.host_operators, measured.operator_free_pct),
            plain=measured.situation.plain and not measured.situation.python,
            once=measured.runs_once,
        ),
        second=judgement.second,
        at_border=judgement.at_border,
        steps=measured.steps,
        correction=judgement.correction,
        longest_gaps=longest_gaps(timelines, gaps, phases),
        collectives=collective_times(timelines),
        waits=measured.waits,
        ranges=_ranges(trace),
        metrics=_metrics(trace),
        roofline=_roofline(trace, measured),
        operators=measured.operators,
        gemms=measured.gemms,
        roofs=measured.roofs,
        makeup=measured.time_breakdown,
        host_operators=measured.host_operators,
        operator_free_pct=measured.operator_free_pct,
        sampled=sampled_functions(trace, timelines, gaps),
        call_places=measured.call_places,
        memory=measured.memory,
        memory_operators=measured.memory_operators,
        timeline=_timeline(judgement, timelines, gaps, phases),
        whole_timeline=drawn,
        notes=(*capture_notes(trace, timelines, per_process), *_uncorrected_notes(judgement)),
        which_run=trace.which_run or None,
    )


def _straggler_text(found: tuple[Finding, ...]) -> str:
    """Return the sentence on the straggler; "" where there is none."""
    return next((one.summary for one in found if one.id == "straggler"), "")


def _measure(
    trace: model.Trace,
    command: str,
    timelines: list[DeviceTimeline],
    steps: dict[int, ProcessSteps],
    phases: dict[int, list[PhaseSpans]],
    *,
    read_unprofiled_step: Callable[[], UnprofiledStep],
) -> Measurements:
    """Return all figures from which findings are made: of all device timelines, and of the judged process's steps.

    Args:
        trace: what was read of a capture.
        command: of the training.
        timelines: one for each process and GPU.
        steps: its whole steps, by pid.
        phases: their phases, by pid.
        read_unprofiled_step: returns how long the training's steps took before and after the capture.
    """
    operator_calls(trace)  # kept by the trace; first, since it needs much memory for a moment
    timelines, gaps = _judged_part(timelines, phases)
    missing = unrecorded_kernels(trace)
    judgement = judge(timelines, gaps, missing, read_unprofiled_step())
    main = judgement.timeline
    own = steps[main.process] if main is not None else _longest_steps(steps)
    ceilings, made = gpu_roofs(trace), time_breakdown(trace)
    by_step = WorkSteps.from_timelines(timelines, len(trace.ops))
    uses, memory_operators = memory_use(trace, steps)
    on_host = host_operators(trace, steps)
    name = trace.process_names.get(main.process) if main is not None else None
    return Measurements(
        judgement=judgement,
        timelines=timelines,
        gaps=gaps,
        uneven=find_straggler([timeline for timeline in timelines if timeline.process not in missing]),
        phases=_phases(steps, phases, timelines),
        waits=() if main is None else wait_places(main, phases[main.process]),
        kernels=with_launch_order(kernel_times(trace, by_step), timelines),
        copies=copy_times(trace),
        api=cuda.api_times(trace, timelines),
        steps=_judged_steps(own, main, trace),
        command=command_of_program(command, name, plain=made is not None and made.plain_program),
        runs_python=is_python(name),
        ranks={rank.process: rank.rank for rank in trace.ranks},
        missing=missing,
        tool=f"{trace.engine} {trace.version}".strip(),
        operators=operator_times(trace, by_step) or hlo_times(trace, by_step),
        gemms=gemm_times(trace, ceilings),
        roofs=ceilings,
        time_breakdown=made,
        framework=trace.framework,
        host_operators=on_host,
        operator_free_pct=operator_free_share(trace, steps) if on_host else None,
        call_places=call_places(trace),
        memory=uses,
        memory_operators=memory_operators,
    )


def _judged_part(
    timelines: list[DeviceTimeline], phases: dict[int, list[PhaseSpans]]
) -> tuple[list[DeviceTimeline], list[Gaps]]:
    """Return the timelines with their idle time, without what comes once before a part that can be judged."""
    gaps = _gaps(timelines, phases)
    shorter = without_start_up(timelines, gaps)
    if not any(one.begins_after for one in shorter):
        return timelines, gaps
    kept = [
        (after, own) if after.begins_after and not missing_evidence(after, own) else (before, all_of_it)
        for after, own, before, all_of_it in zip(shorter, _gaps(shorter, phases), timelines, gaps, strict=True)
    ]
    return [timeline for timeline, _ in kept], [found for _, found in kept]


def _gaps(timelines: list[DeviceTimeline], phases: dict[int, list[PhaseSpans]]) -> list[Gaps]:
    return [
        attribute_idle_time(timeline, _busy_with_other_processes(timeline, timelines), phases[timeline.process])
        for timeline in timelines
    ]


def _devices(trace: model.Trace, measured: Measurements) -> tuple[Device, ...]:
    pairs = zip(measured.timelines, measured.gaps, strict=True)
    return tuple(_device(timeline, gap, measured.judgement, trace, measured.ranks) for timeline, gap in pairs)


def _roofline(trace: model.Trace, measured: Measurements) -> str:
    if measured.judgement.lacks:
        return ""
    return roofline_text(trace, measured.judgement, measured.kernels, measured.gemms, measured.time_breakdown)


def _check_limits(trace: model.Trace, limits: Limits) -> None:
    """Refuse captures with too many processes or devices, whose analysis would take hours.

    Raises:
        UnusableInput: there are too many of them.
    """
    timelines = distinct_combinations(trace.ops.device, trace.ops.process)
    limits.check_number(trace.source, "devices", len(timelines))
    calling = trace.calls.process
    runs = model.runs_of_values(calling)
    if runs is None:
        callers, which = grouped(calling)
        made = dict(zip((pid for (pid,) in callers), np.bincount(which).tolist(), strict=True))
    else:
        made = {pid: rows.stop - rows.start for pid, rows in runs.items()}
    pairs = sum(made.get(process, 0) for _, process in timelines)
    limits.check_number(trace.source, "device_calls", pairs)
    limits.check_number(trace.source, "processes", len(_processes(trace)))
    limits.check_number(trace.source, "depth", deepest_nesting(trace.ranges))


def _processes(trace: model.Trace) -> list[int]:
    tables = (trace.ops.process, trace.ranges.process, trace.calls.process, trace.host.process)
    return sorted({pid for pids in tables for pid in distinct_values(pids).tolist()})


def _longest_steps(steps: dict[int, ProcessSteps]) -> ProcessSteps | None:
    return max(steps.values(), key=len, default=None)


def _busy_with_other_processes(timeline: DeviceTimeline, timelines: list[DeviceTimeline]) -> Spans:
    """Return when other processes ran something on the same device."""
    own = (timeline.process, timeline.device)
    sets = [
        other.busy
        for other in timelines
        if other.process != timeline.process and timeline.trace.same_gpu(own, (other.process, other.device))
    ]
    return iv.union_of(*sets)


def _phases(
    steps: dict[int, ProcessSteps], phases: dict[int, list[PhaseSpans]], timelines: list[DeviceTimeline]
) -> list[PhaseMean]:
    rows: list[PhaseMean] = []
    for pid, own in steps.items():
        rows += phase_times(own, phases[pid], [timeline for timeline in timelines if timeline.process == pid])
    return rows


def _uses_host_bounds(timeline: DeviceTimeline | None, own: ProcessSteps) -> bool:
    """Return True if the steps on the device had to be cut where the host cut them."""
    edges = np.append(own.starts, own.ends[-1:])
    return timeline is not None and bool(is_among(timeline.bounds, edges).all())


def _judged_steps(own: ProcessSteps | None, timeline: DeviceTimeline | None, trace: model.Trace) -> StepsJudged:
    if own is None:
        return StepsJudged(found_by="the capture has no events of a process")
    on_device = timeline is not None and timeline.counted > 0
    seconds = (np.diff(timeline.bounds) / 1e9).tolist() if timeline is not None and on_device else own.seconds
    if not seconds or (timeline is not None and not on_device):
        return StepsJudged(found_by=own.why_none_on_device, left_out=_left_out_without_steps(timeline))
    median = float(np.median(seconds))
    return StepsJudged(
        found_by=own.found_by,
        inferred=own.inferred,
        clock="device" if on_device and not _uses_host_bounds(timeline, own) else "host",
        count=len(seconds),
        seconds_p50=median,
        seconds_min=min(seconds),
        seconds_max=max(seconds),
        spread_pct=spread_pct(seconds),
        outliers=tuple(i for i, value in enumerate(seconds) if value > _OUTLIER * median),
        left_out=left_out_text(own, timeline, trace),
    )


def _left_out_without_steps(timeline: DeviceTimeline | None) -> str:
    if timeline is not None and timeline.begins_after:
        return timeline.begins_after
    return "nothing: the shares are of the time from first to last device activity"


def _device(
    timeline: DeviceTimeline, gaps: Gaps, judgement: Judgement, trace: model.Trace, ranks: dict[int, int]
) -> Device:
    ops = timeline.ops
    gpu = trace.gpu(timeline.process, timeline.device)
    first, last = int(ops.start[0]), int(ops.end.max())
    kernels = ops.kind == model.KERNEL
    took = (ops.end - ops.start)[kernels]
    has_durations = len(took) > 0 and timeline.kernels_known
    launches = launch_calls(timeline)
    lengths = np.diff(timeline.bounds) / 1e9
    return Device(
        device=timeline.device,
        pid=timeline.process,
        name=gpu.name if gpu else None,
        uuid=gpu.uuid if gpu else None,
        rank=ranks.get(timeline.process),
        busy_pct=100.0 * timeline.busy.total / max(last - first, 1),
        kernel_pct=None if timeline.graphs else timeline.share(timeline.ns_in_steps(timeline.kernels)),
        memcpy_pct=None if timeline.graphs else timeline.share(timeline.ns_in_steps(timeline.copies)),
        nccl_pct=None if timeline.graphs else timeline.share(timeline.ns_in_steps(timeline.nccl)),
        nccl_exposed_pct=None if timeline.graphs else exposed_pct(timeline),
        kernels=int(kernels.sum()),
        kernels_under_10us_pct=100.0 * float(np.mean(took < 10_000)) if has_durations else None,
        idle_pct=timeline.share(timeline.idle.total),
        copy_only_pct=timeline.share(timeline.ns_in_steps(timeline.only_host_copies)),
        one_off_pct=timeline.share(setup_ns(gaps)),
        lost_pct=dict(loss_shares(timeline, gaps).items()),
        steps=timeline.counted,
        window_seconds=timeline.length / 1e9,
        step_seconds=float(np.median(lengths)) if timeline.counted else None,
        spread_pct=spread_pct(lengths.tolist()) if timeline.counted else None,
        kernel_seconds=float(took.sum()) / 1e9,
        kernel_median_us=float(np.median(took)) / 1e3 if has_durations else None,
        launch_api_seconds=float((launches.end - launches.start).sum()) / 1e9,
        launches_per_step=launches_per_step(timeline),
        graphs=timeline.graphs,
        judged=timeline is judgement.timeline,
    )


def _gap_rows(timelines: list[DeviceTimeline], gaps: list[Gaps]) -> list[GapTime]:
    rows = []
    for timeline, found in zip(timelines, gaps, strict=True):
        for cause, meaning in CAUSES.items():
            parts = found.by_cause[cause]
            total = int(parts.sum())
            if total:
                rows.append(
                    GapTime(
                        device=timeline.device,
                        pid=timeline.process,
                        cause=cause,
                        summary=meaning,
                        seconds=total / 1e9,
                        share_pct=timeline.share(total),
                        ms_per_step=timeline.per_step_ms(total),
                        gaps=int((parts > 0).sum()),
                        longest_us=int(parts.max()) / 1e3,
                    )
                )
    return sorted(rows, key=lambda row: (row.device, row.pid, -row.seconds))


def _ranges(trace: model.Trace) -> tuple[RangeTime, ...]:
    """NVTX totals as nsys counts them: a range without an end lasts until the last time of any range."""
    ranges = trace.ranges
    if not len(ranges):
        return ()
    closed = ranges.end[ranges.end != model.OPEN]
    last = max(int(ranges.start.max()), int(closed.max()) if len(closed) else 0)
    took = np.where(ranges.end == model.OPEN, last, ranges.end) - ranges.start
    groups: dict[tuple[int, int, int], tuple[int, int]] = {}
    key = np.stack([ranges.name, ranges.domain, ranges.style.astype(np.int64)], axis=1)
    different, which = np.unique(key, axis=0, return_inverse=True)
    counts = np.bincount(which.reshape(-1))
    sums = np.bincount(which.reshape(-1), weights=took)
    for index, (name, domain, style) in enumerate(different.tolist()):
        groups[(name, domain, style)] = (int(counts[index]), int(sums[index]))
    rows = [
        RangeTime(
            name=trace.names[name],
            domain=trace.names[domain],
            style="push-pop" if style == model.PUSH_POP else "start-end",
            count=number,
            seconds=total / 1e9,
        )
        for (name, domain, style), (number, total) in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _metrics(trace: model.Trace) -> tuple[MetricOverTime, ...]:
    low = trace.window[0]
    rows = []
    for metric in trace.metrics:
        known = metric.values[~np.isnan(metric.values)]
        if len(known):
            rows.append(
                MetricOverTime(
                    device=metric.device,
                    name=metric.name,
                    mean_pct=float(known.mean()),
                    p95_pct=float(np.percentile(known, 95)),
                    start_seconds=(metric.start - low) / 1e9,
                    bucket_seconds=metric.bucket_ns / 1e9,
                    values_pct=tuple(None if np.isnan(v) else round(float(v), 2) for v in metric.values),
                )
            )
    return tuple(rows)


def _timeline(
    judgement: Judgement, timelines: list[DeviceTimeline], gaps: list[Gaps], phases: dict[int, list[PhaseSpans]]
) -> Timeline | None:
    timeline = judgement.timeline
    if timeline is None:
        return None
    return step_timeline(timeline, gaps[timelines.index(timeline)], phases[timeline.process])


def _uncorrected_notes(judgement: Judgement) -> list[str]:
    """Return notes that the shares include the profiler's own cost, and why."""
    reason = judgement.correction.reason
    is_uncorrected = bool(judgement.lost and reason and not judgement.lacks)
    return [f"the shares hold what the profiler itself cost: {reason}"] if is_uncorrected else []
