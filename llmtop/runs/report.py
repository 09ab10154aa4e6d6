"""One run as a report: what a command prints."""

from __future__ import annotations

import signal
from typing import Any

import msgspec

from llmtop.config import current
from llmtop.runs import records
from llmtop.runs.energy import RunCost, RunEnergy, cost_of, energy_of, gpu_minutes
from llmtop.runs.ledger import ledger_of
from llmtop.runs.node_notes import NodeNotes, RunAlert, RunCapture
from llmtop.runs.store import FAILED, KILLED, RUNNING, Attempt, Run


class AttemptReport(msgspec.Struct, kw_only=True, frozen=True):
    """One start of a run."""

    started: float
    """Unix time."""
    ended: float
    """Unix time of the end, or of the last record."""
    how: str
    """"running", "ended", "failed": an exception ended a rank, or "killed": a rank did not write its end."""
    error: str
    """Class of the exception that ended a rank first; empty without one."""
    message: str
    """Its message; empty where the files do not have it."""
    line: str
    """The script's line that raised it: "train.py:88 in load"; empty where the files do not have it."""
    signal: str
    """Signal that ended the rank that failed first: "SIGKILL of rank 1"; empty where no launcher recorded it."""
    ranks: int
    steps: int
    """Steps of its lowest rank."""


class RunGpu(msgspec.Struct, kw_only=True, frozen=True):
    """A GPU over the minutes in which a monitor watched."""

    index: int
    uuid: str
    name: str
    minutes: float
    """How many minutes were watched."""
    signals: dict[str, tuple[float, float, float]]
    """(mean, min, max) by field of `llmtop.model.snapshot.Gpu`; of a mean, each minute counts by its length."""


class RunReport(msgspec.Struct, kw_only=True, frozen=True):
    """One run with all its restarts, as far as the folder of this node has it."""

    id: str
    name: str
    """Name from its launcher or user; empty without one."""
    folder: str
    program: str
    command: str
    """Command line without secrets."""
    host: str
    started: float
    ended: float | None
    """Unix time; None while it runs."""
    how: str
    """How its last start ended, as of `AttemptReport`."""
    bench: bool
    """True for a run of `llmtop bench`, which ends it by SIGINT."""
    ranks: int
    """Ranks in this folder."""
    world_size: int | None
    attempts: list[AttemptReport]
    steps: int
    """Steps of the lowest rank over all starts; a step that was made again counts again."""
    steps_unread: int
    """Steps, among all ranks, that are in no figure: they were over before they could be read."""
    step_seconds_p50: float | None
    """Median from start to start, exact to 1 %."""
    step_seconds_p95: float | None
    tokens: float | None
    """Tokens of all ranks in this folder."""
    tokens_per_second: float | None
    """These over the time of steps of the lowest rank."""
    gpu_hours: float | None
    """Wall time times ranks that use a GPU; None where none does."""
    wall_seconds: float
    ledger_seconds: dict[str, float]
    """Seconds of ranks by class (`llmtop.runs.ledger.CLASSES`); they add up to `wall_seconds` times `ranks`."""
    goodput_pct: float | None
    """Productive time over all."""
    values: dict[str, float]
    """The last logged value of each name, of the lowest rank."""
    records_dropped: int
    """Members that the disk did not take."""
    bytes_damaged: int
    """Bytes of files that cannot be read."""
    alerts: list[RunAlert] | None = None
    """Oldest first. None where they were not read, as in the list of runs; so are the fields after it."""
    captures: list[RunCapture] | None = None
    gpus: list[RunGpu] | None = None
    """GPUs from monitors: empty where none watched."""
    energy: RunEnergy | None = None
    """None also where no monitor recorded power."""
    cost: RunCost | None = None
    """None where the configuration has no price."""
    watched_seconds: float | None = None
    """For how much of `wall_seconds` a monitor watched."""
    recomputed_since: float | None = None
    """Unix time since when alerts are recomputed where no monitor watched; before it, only those that one saw."""


def report_of(run: Run, notes: NodeNotes | None = None) -> RunReport:
    """Return the report on a run.

    Args:
        run: with all its restarts.
        notes: what monitors have added to it; None: not read.
    """
    leaders = [attempt.leader for attempt in run.attempts]
    states = [leader.state for leader in leaders if leader.state is not None]
    all_states = [process.state for process in run.processes if process.state is not None]
    newest = leaders[-1].start or records.Start()
    ledger = ledger_of(run)
    counts: dict[int, int] = {}
    for state in states:
        for bucket, count in state.histogram:
            counts[bucket] = counts.get(bucket, 0) + count
    histogram = sorted(counts.items())
    tokens = [state.tokens for state in all_states if state.tokens is not None]
    seconds = sum(state.interval_seconds for state in states)
    starts = [process.start for process in run.processes if process.start is not None]
    on_gpu = len({start.rank for start in starts if start.gpu_uuid is not None})
    gpu_hours = ledger.wall_seconds * on_gpu / 3600 if on_gpu else None
    return RunReport(
        id=run.id,
        name=run.name,
        folder=str(run.folder),
        program=newest.program,
        command=newest.command,
        host=newest.host,
        started=run.started,
        ended=None if run.how == RUNNING else run.started + ledger.wall_seconds,
        how=run.how,
        bench=run.is_bench,
        ranks=ledger.ranks,
        world_size=newest.world_size,
        attempts=[_attempt(attempt) for attempt in run.attempts],
        steps=sum(state.steps for state in states),
        steps_unread=sum(state.lost for state in all_states),
        step_seconds_p50=records.histogram_percentile(histogram, 0.5),
        step_seconds_p95=records.histogram_percentile(histogram, 0.95),
        tokens=sum(tokens) if tokens else None,
        tokens_per_second=sum(tokens) / seconds if tokens and seconds > 0 else None,
        gpu_hours=gpu_hours,
        wall_seconds=ledger.wall_seconds,
        ledger_seconds=ledger.seconds,
        goodput_pct=ledger.goodput_pct,
        values=leaders[-1].last_values(),
        records_dropped=sum(state.dropped for state in all_states),
        bytes_damaged=sum(process.damaged_bytes for process in run.processes),
        **({} if notes is None else _watched_fields(notes, run.started, run.started + ledger.wall_seconds)),
        **({} if notes is None else _energy(run, notes, gpu_hours)),
    )


def _energy(run: Run, notes: NodeNotes, gpu_hours: float | None) -> dict[str, Any]:
    energy = energy_of(gpu_minutes(run, notes.gpu_minutes))
    return {"energy": energy, "cost": cost_of(energy, gpu_hours, current().runs)}


def _watched_fields(notes: NodeNotes, begin: float, end: float) -> dict[str, Any]:
    seconds = sum(max(0.0, min(until, end) - max(since, begin)) for since, until in notes.watched)
    return {
        "alerts": notes.alerts,
        "captures": notes.captures,
        "gpus": _gpus(notes.gpu_minutes),
        "watched_seconds": seconds,
        "recomputed_since": notes.recomputed_since,
    }


def _gpus(minutes: list[records.GpuMinute]) -> list[RunGpu]:
    by_uuid: dict[str, list[records.GpuMinute]] = {}
    for minute in minutes:
        by_uuid.setdefault(minute.uuid, []).append(minute)
    found = []
    for uuid, known in by_uuid.items():
        signals = {}
        for field in dict.fromkeys(name for minute in known for name in minute.signals):
            rows = [(minute.seconds, minute.signals[field]) for minute in known if field in minute.signals]
            whole = sum(seconds for seconds, _ in rows)
            if whole > 0:
                mean = sum(seconds * row[0] for seconds, row in rows) / whole
                signals[field] = mean, min(row[1] for _, row in rows), max(row[2] for _, row in rows)
        whole = sum(minute.seconds for minute in known)
        last = known[-1]
        found.append(RunGpu(index=last.index, uuid=uuid, name=last.name, minutes=whole / 60, signals=signals))
    return sorted(found, key=lambda one: (one.index, one.uuid))


def _attempt(attempt: Attempt) -> AttemptReport:
    state = attempt.leader.state
    ends = [process.end for process in attempt.processes if process.end is not None and process.end.error]
    first = min(ends, key=lambda end: end.at, default=None)
    return AttemptReport(
        started=attempt.started,
        ended=attempt.last_sign,
        how=attempt.how,
        error=first.error if first is not None else "",
        message=first.message if first is not None else "",
        line=first.line if first is not None else "",
        signal=_signal(attempt),
        ranks=len(attempt.processes),
        steps=0 if state is None else state.steps,
    )


def _signal(attempt: Attempt) -> str:
    """Return the signal that ended the rank which the launcher names as the root cause; empty for none."""
    if attempt.how not in (FAILED, KILLED):
        return ""
    for process in attempt.processes:
        ended = process.exit
        if ended is not None and ended.is_first and ended.code < 0:
            number = -ended.code
            name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
            return name if process.rank is None else f"{name} of rank {process.rank}"
    return ""
