"""A report from a recording of snapshots. It holds less than that of a capture, and states so.

Snapshots hold no kernels and no gaps. What they have is each step's phases by two clocks, the share of the step in
which the training's stream was empty, the GPU's counters, and the alerts that were raised.
"""

from __future__ import annotations

import collections
import statistics
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from llmtop.analysis.verdict import BORDER_PCT, NEAR_PCT
from llmtop.errors import UnusableInput
from llmtop.format import duration, percent_text
from llmtop.model import bottlenecks
from llmtop.model.bottlenecks import BOTTLENECKS, BOUND_IDS, BoundId, Verdict
from llmtop.model.gpu_busy import idle_pct
from llmtop.model.severity import severity_rank
from llmtop.model.signals import SIGNALS
from llmtop.model.snapshot import Alert, Gpu, Rank, Snapshot, Step
from llmtop.naming.own_phases import OUTSIDE
from llmtop.order_statistics import spread_pct
from llmtop.recording.steady import MonotonicTime
from llmtop.report import environment as environments
from llmtop.report.model import Device, Finding, MetricOverTime, PhaseMean, Report, StepsJudged
from llmtop.step_history.whole_steps import WholeStep, WholeStepBuilder
from llmtop.system.inputs import DEFAULT, Limits

_BUCKETS = 120
_METRICS = {signal.report: signal.field for signal in SIGNALS if signal.report}
_MOST_STEPS = 20_000
"""A rank: a recording of days keeps the last ones."""
_MOST_STEPS_OF_ALL = 64 * _MOST_STEPS
_MOST_ALERTS = 1000
"""Different ones; a recording of days has some dozens."""
_LARGEST = 1e15
"""No figure of a GPU is larger; sums of what is not would overflow."""
_LONGEST_STEP = 1e9


@dataclass
class _RankSamples:
    """Values of one rank, collected over the whole recording."""

    rank: Rank
    steps: dict[tuple[int, float], Step] = field(default_factory=dict)
    """Steps by number and start, in order of arrival: a script may count anew in every epoch."""
    idle_sum: float = 0.0
    idle_count: int = 0
    """Number of snapshots with a known idle share of its GPU, from the trusted source; bounds are not counted."""
    bound_sum: float = 0.0
    bounds: int = 0
    """Number of snapshots with only a lower bound of the idle share."""

    def add(self, rank: Rank, most: int) -> None:
        """Add one snapshot; only the newest steps are kept."""
        self.rank = rank
        idle = idle_pct(rank) if rank.state == "running" else None
        if idle is not None and 0.0 <= idle <= 100.0:
            if rank.gpu_busy_bound:
                self.bounds, self.bound_sum = self.bounds + 1, self.bound_sum + idle
            else:
                self.idle_count, self.idle_sum = self.idle_count + 1, self.idle_sum + idle
        for step in rank.new_steps:
            if 0 <= step.seconds < _LONGEST_STEP and 0 <= (step.interval_seconds or 0.0) < _LONGEST_STEP:
                self.steps[step.index, step.started_at] = step
        for step in rank.gpu_updates:
            if (step.index, step.started_at) in self.steps:
                self.steps[step.index, step.started_at] = step
        while len(self.steps) > most:
            del self.steps[next(iter(self.steps))]


@dataclass
class _AlertSpan:
    """An alert and how long it was up."""

    last: Alert
    """The alert as last reported, with its process if that was ever known."""
    seconds: float = 0.0
    at: int = 0
    """The number of the snapshot that had it last."""


@dataclass
class _RecordingTotals:
    """Everything that was seen, gathered in one pass."""

    clock: MonotonicTime = field(default_factory=MonotonicTime)
    first: float = 0.0
    last: float = 0.0
    snapshots: int = 0
    ranks: dict[int, _RankSamples] = field(default_factory=dict)
    gpus: dict[str, Gpu] = field(default_factory=dict)
    samples: dict[tuple[str, str], array[float]] = field(default_factory=dict)
    """Samples by GPU and metric: times and values in turn."""
    alerts: list[_AlertSpan] = field(default_factory=list)
    more_alerts: int = 0
    """Times that an alert was up which is not among `alerts`, for there were too many."""
    _by_names: dict[tuple[str, str | None, int | None], _AlertSpan] = field(default_factory=dict)

    def add(self, snapshot: Snapshot) -> None:
        """Count in one more snapshot."""
        now = self.clock.time_of(snapshot)
        passed = max(0.0, min(now - self.last, 10.0)) if self.snapshots else 0.0
        self.first = self.first if self.snapshots else now
        self.last = now
        self.snapshots += 1
        for gpu in snapshot.gpus:
            self.gpus[gpu.uuid] = gpu
            for name, attribute in _METRICS.items():
                value = getattr(gpu, attribute)
                if value is not None and abs(value) < _LARGEST:
                    self.samples.setdefault((gpu.uuid, name), array("d")).extend((now, value))
        for rank in snapshot.ranks:
            own = self.ranks.setdefault(rank.pid, _RankSamples(rank))
            own.add(rank, most=min(_MOST_STEPS, max(_MOST_STEPS_OF_ALL // len(self.ranks), 100)))
        for alert in snapshot.alerts:
            held = self._find_span(alert)
            if held is None:
                if len(self.alerts) >= _MOST_ALERTS:
                    self.more_alerts += 1
                    continue
                held = _AlertSpan(alert)
                self.alerts.append(held)
            # Up at both ends of the interval; a series of snapshots does not say more.
            held.seconds += passed if held.at == self.snapshots - 1 else 0.0
            held.at = self.snapshots
            if alert.pid is not None or held.last.pid is None:
                held.last = alert
            self._by_names[held.last.id, held.last.gpu, held.last.pid] = held

    def _find_span(self, alert: Alert) -> _AlertSpan | None:
        """Return the stored span of this alert. An alert without a training continues the span that just ended."""
        names = (alert.id, alert.gpu, alert.pid)
        exact = self._by_names.get(names)
        if exact is not None and (exact.last.id, exact.last.gpu, exact.last.pid) == names:
            return exact
        if len(self.alerts) >= _MOST_ALERTS:
            return None
        lately = (
            held for held in self.alerts if held.at >= self.snapshots - 1 and alert.is_continuation_of(held.last)
        )
        return next(lately, None)


def analyze_recording(path: str | Path, limits: Limits = DEFAULT) -> Report:
    """Read a recording and say what it shows.

    Raises:
        UnusableInput: not a recording, nothing of it can be read, or it is beyond a limit.
    """
    from llmtop.recording.reader_writer import Reader

    reader = Reader(path, limits)
    try:
        notes: list[str] = []
        report = analyze_snapshots((snapshot for _, snapshot in reader.snapshots()), str(path), notes, limits)
        if reader.damage:
            notes.append(reader.damage)
        told = environments.parse_environment(reader.header.environment)
        return with_notes(msgspec.structs.replace(report, environment=told), notes)
    finally:
        reader.close()


def with_notes(report: Report, notes: list[str]) -> Report:
    """Return the report with more notes."""
    return msgspec.structs.replace(report, notes=(*report.notes, *notes))


def analyze_snapshots(
    snapshots: Iterable[Snapshot], source: str, notes: list[str] | None = None, limits: Limits = DEFAULT
) -> Report:
    """Return a report on a whole stream of snapshots.

    Args:
        snapshots: in order of time; read once.
        source: path or name that the report gives as its origin.
        notes: sentences to put into the report besides its own.
        limits: how many GPUs and processes may be analysed.

    Raises:
        UnusableInput: there is no snapshot, or more GPUs or processes than the limits allow.
    """
    seen = _RecordingTotals()
    for snapshot in snapshots:
        seen.add(snapshot)
        limits.check_number(source, "devices", len(seen.gpus))
        limits.check_number(source, "processes", len(seen.ranks))
    if seen.more_alerts and notes is not None:
        notes.append(f"more than {_MOST_ALERTS} different alerts were raised: later alerts are ignored")
    if not seen.snapshots:
        raise UnusableInput(f"{source} contains no readable snapshot")
    steps = {pid: _counted_steps(own) for pid, own in seen.ranks.items()}
    main = max(steps, key=lambda pid: len(steps[pid]), default=None)
    idle = {pid: _idle_pct(own) for pid, own in seen.ranks.items()}
    verdict, worst = _verdict(seen, idle)
    return Report(
        source=source,
        engine="recording",
        window_seconds=seen.last - seen.first,
        devices=tuple(_devices(seen, steps, idle, worst)),
        phases=tuple(row for pid in steps for row in _phases(pid, steps[pid])),
        verdict=verdict,
        findings=_findings(seen),
        summary=_summary(verdict, worst, idle, seen),
        at_border=worst is not None and abs((idle[worst] or 0.0) - BORDER_PCT) <= NEAR_PCT,
        steps=_step_times(steps[main] if main is not None else []),
        metrics=tuple(_metrics(seen)),
        notes=(
            "a recording holds snapshots, not kernels: gaps, kernels, copies and CUDA calls need a capture "
            "(llmtop capture)",
        ),
    )


def _counted_steps(own: _RankSamples) -> list[WholeStep]:
    """Return the steps that count: whole ones after warm-up, in order; requests as they are."""
    following, found = WholeStepBuilder(), []
    for step in own.steps.values():
        whole = WholeStep(step, step.seconds) if step.kind == "request" else following.add(step)
        if whole is not None and not whole.step.warmup:
            found.append(whole)
    return found


def _idle_pct(own: _RankSamples) -> float | None:
    """Return how idle its GPU was; None when not measured.

    Where the recording does not say, as the shipped demo: the share of the steps in which the training's stream
    was empty, by CUDA events.
    """
    if own.idle_count > own.bounds:
        return own.idle_sum / own.idle_count
    if own.bounds:
        return (own.idle_sum + own.bound_sum) / (own.idle_count + own.bounds)
    rank, steps = own.rank, (step for step in own.steps.values() if not step.warmup)
    measured = [step for step in steps if step.gpu_idle_seconds is not None and step.seconds > 0]
    if measured:
        return (
            100.0 * sum(step.gpu_idle_seconds or 0.0 for step in measured) / sum(step.seconds for step in measured)
        )
    return rank.gpu_idle_pct


def _verdict(seen: _RecordingTotals, idle: dict[int, float | None]) -> tuple[Verdict, int | None]:
    """Return the verdict by the GPU's idle share, and by the alert that was up longest; unknown without either."""
    total = max(seen.last - seen.first, 1e-9)
    up = ((kind, held.seconds) for kind in BOUND_IDS for held in seen.alerts if held.last.id == kind)
    longest: dict[BoundId, float] = {}
    for kind, seconds in up:
        longest[kind] = max(longest.get(kind, 0.0), seconds)
    known = {pid: share for pid, share in idle.items() if share is not None}
    worst = max(known, key=lambda pid: known[pid], default=None)
    named = max(longest, key=lambda kind: longest[kind], default=None)
    if named is not None and longest[named] >= 0.5 * total:
        return named, worst
    if worst is None:
        return "unknown", None
    if known[worst] < BORDER_PCT and not _has_idle_lower_bound(seen.ranks[worst]):
        return "gpu_bound", worst
    return named or "unknown", worst


def _has_idle_lower_bound(own: _RankSamples) -> bool:
    """Return True if its GPU was idle for at least so long as is known: then it may have been idle for longer."""
    return own.bounds > 0 and own.bounds >= own.idle_count


def _devices(
    seen: _RecordingTotals, steps: dict[int, list[WholeStep]], idle: dict[int, float | None], worst: int | None
) -> Iterable[Device]:
    """Yield a row for each rank, with its GPU's name."""
    for pid, own in seen.ranks.items():
        gpu = seen.gpus.get(own.rank.gpu_uuid or "")
        lengths = [whole.seconds for whole in steps[pid]]
        yield Device(
            device=gpu.index if gpu else own.rank.local_rank or 0,
            pid=pid,
            name=gpu.name if gpu else None,
            uuid=own.rank.gpu_uuid,
            rank=own.rank.rank,
            kernels=None,
            kernel_seconds=None,
            launch_api_seconds=None,
            idle_pct=idle[pid],
            steps=len(lengths),
            window_seconds=sum(lengths),
            step_seconds=statistics.median(lengths) if lengths else None,
            judged=pid == worst,
        )


def _phases(pid: int, wholes: list[WholeStep]) -> list[PhaseMean]:
    """Means a step, in the order in which phases come, and last what is in none of them."""
    steps = [whole.step for whole in wholes]
    host: dict[str, float] = {}
    gpu: dict[str, float] = {}
    times = collections.Counter(phase.name for step in steps for phase in step.phases)
    # GPU times are thinned out: their mean is over the steps that have any, for every phase the same ones.
    measured = sum(any(phase.gpu_seconds is not None for phase in step.phases) for step in steps)
    for step in steps:
        for phase in step.phases:
            host[phase.name] = host.get(phase.name, 0.0) + phase.host_seconds
            if phase.gpu_seconds is not None:
                gpu[phase.name] = gpu.get(phase.name, 0.0) + phase.gpu_seconds
    if host:
        host[OUTSIDE] = sum(whole.outside for whole in wholes)
    total = sum(whole.seconds for whole in wholes) or 1e-9
    return [
        PhaseMean(
            name=name,
            pid=pid,
            host_seconds=seconds / len(steps),
            gpu_seconds=gpu[name] / measured if name in gpu else None,
            share_pct=100.0 * seconds / total,
            count_per_step=1.0 if name == OUTSIDE else times[name] / len(steps),
        )
        for name, seconds in host.items()
    ]


def _step_times(steps: list[WholeStep]) -> StepsJudged:
    lengths = [whole.seconds for whole in steps]
    if not lengths:
        return StepsJudged(found_by="no attached training told its steps")
    median = statistics.median(lengths)
    return StepsJudged(
        found_by="as the training told them, after warm-up",
        count=len(lengths),
        seconds_p50=median,
        seconds_min=min(lengths),
        seconds_max=max(lengths),
        spread_pct=spread_pct(lengths),
        outliers=tuple(i for i, value in enumerate(lengths) if value > 1.5 * median)[:100],
    )


def _findings(seen: _RecordingTotals) -> tuple[Finding, ...]:
    """Return a finding for each alert that was raised, the longest first."""
    total = max(seen.last - seen.first, 1e-9)
    found = []
    for held in sorted(seen.alerts, key=lambda held: (-severity_rank(held.last.severity), -held.seconds)):
        alert = held.last
        evidence: dict[str, Any] = dict(alert.evidence)
        evidence |= {
            "up_seconds": round(held.seconds, 1),
            "up_pct_of_recording": round(100 * held.seconds / total, 1),
        }
        if alert.pid is not None:
            evidence["pid"] = alert.pid
        found.append(
            Finding(
                id=alert.id,
                severity=alert.severity,
                summary=f"{alert.summary} (up for {duration(held.seconds)} of {duration(total)})",
                evidence=evidence,
                next=alert.next,
            )
        )
    return tuple(found)


def _metrics(seen: _RecordingTotals) -> Iterable[MetricOverTime]:
    width = max((seen.last - seen.first) / _BUCKETS, 1e-6)
    for (uuid, name), samples in seen.samples.items():
        buckets: list[list[float]] = [[] for _ in range(_BUCKETS)]
        for when, value in zip(samples[::2], samples[1::2], strict=True):
            buckets[min(max(int((when - seen.first) / width), 0), _BUCKETS - 1)].append(value)
        values = sorted(samples[1::2])
        yield MetricOverTime(
            device=seen.gpus[uuid].index,
            name=name,
            mean_pct=statistics.fmean(values),
            p95_pct=values[min(int(0.95 * len(values)), len(values) - 1)],
            start_seconds=0.0,
            bucket_seconds=width,
            values_pct=tuple(round(statistics.fmean(bucket), 2) if bucket else None for bucket in buckets),
        )


def _summary(verdict: Verdict, worst: int | None, idle: dict[int, float | None], seen: _RecordingTotals) -> str:
    share = idle.get(worst) if worst is not None else None
    text = f"{BOTTLENECKS[verdict].name}, by a recording of {duration(seen.last - seen.first)}: "
    if share is not None:
        own = seen.ranks.get(worst or 0)
        if own is not None and (own.idle_count or own.bounds):
            least = "at least " if _has_idle_lower_bound(own) else ""
            if least and share < 0.05:
                return text + f"the idle share of the GPU is unknown (pid {worst})." + _alerts_text(seen)
            text += f"the GPU was idle {least}{percent_text(share, 1)} of the time (pid {worst})."
        else:
            text += f"the training's stream was empty for {percent_text(share, 1)} of its steps (pid {worst})."
    elif seen.ranks:
        text += "GPU time was not measured; the verdict is by the alerts alone."
    else:
        text += "no attached training, only GPU counters."
    return text + _alerts_text(seen)


def _alerts_text(seen: _RecordingTotals) -> str:
    raised = sorted({bottlenecks.name_of(held.last.id) for held in seen.alerts})
    return f" Alerts: {', '.join(raised)}." if raised else " No alert was raised."
