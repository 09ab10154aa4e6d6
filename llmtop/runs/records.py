"""Records of the files of runs. Loaded in a training: msgspec and the standard library only.

`at` is unix time in seconds, `mono` the process's CLOCK_MONOTONIC in seconds: durations are by `mono`, since the
wall clock may be set meanwhile. Figures are by the host's clock.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from llmtop.naming.own_phases import OUTSIDE
from llmtop.protocol.wire import Launch

RUN_FORMAT = 1
STATISTICS = ("p50", "p95", "mean", "min", "max")
"""Columns of `Minute.statistics`."""
FIXED_SERIES = ("interval", "step")
"""Rows of `Minute.statistics` before those of phases: from start to start, and from start to end."""
OTHER_PHASES = "other"
"""Series of all phases beyond `PHASE_SERIES`."""
PHASE_SERIES = 32
"""Series of phases in a minute, so that a rank needs at most 1.5 MiB a day."""
MAX_VALUES = 32
"""Logged values in a minute."""
STALL_FACTOR = 10.0
STALL_SECONDS = 10.0
BUCKET_RATIO = 1.02
"""Ratio of the upper to the lower bound of a bucket of a `State.histogram`: percentiles are exact to 1 %."""
_FIRST_BUCKET_SECONDS = 1e-6
_LOG_RATIO = math.log(BUCKET_RATIO)
_USUAL_STEPS = 20
"""The usual step is a mean in which a step weighs a part of so many, or of all."""
_NAMES = 1024
"""Most phases whose role is remembered."""

StepRow = tuple[Any, ...]
"""A `wire.StepDone` as it is sent: number, start (unix ns), host ns, interval ns, tokens, samples, phases, ..."""


class Start(msgspec.Struct, tag="start", kw_only=True, omit_defaults=True):
    """Writer of the file; the last such record of a file holds."""

    format: int = RUN_FORMAT
    version: str = ""
    source: str = ""
    run: str = ""
    """These two: `RunKey.source` and `.name`."""
    program: str = ""
    command: str = ""
    """Command line without secrets."""
    folder: str = ""
    """Working directory."""
    host: str = ""
    boot: str = ""
    """Boot id of the machine (`procfs.boot_id`)."""
    namespace: str = ""
    """Namespace of its pid."""
    pid: int = 0
    ticks: int | None = None
    """Start of the process in clock ticks since boot: with `boot` and `pid` it names one process for good."""
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    restart: int | None = None
    """Restart by the launcher's count (torchrun, SLURM); None where it has none."""
    launch: Launch = msgspec.field(default_factory=Launch)
    gpu_uuid: str | None = None
    gpu_model: str | None = None
    """Model as the driver calls it: "NVIDIA H100 80GB HBM3"."""
    kind: str = "step"
    auto: bool = False
    bench: bool = False
    """True for a run of `llmtop bench`."""
    torch: str | None = None
    dtype: str | None = None
    flops_per_token: float | None = None
    total_steps: int | None = None
    warmup_steps: int = 0
    at: float = 0.0
    """When the process attached."""
    mono: float = 0.0
    process_seconds: float | None = None
    """How long the process had run by then: imports, model, data."""


class Names(msgspec.Struct, tag="names"):
    """Names of the rows of the following minutes."""

    phases: list[str] = []
    values: list[str] = []


class Minute(msgspec.Struct, tag="minute", kw_only=True, omit_defaults=True):
    """Steps that ended within a minute."""

    at: float
    mono: float
    """Both: of the end of that minute."""
    seconds: float
    """Its length."""
    steps: int = 0
    intervals: int | None = None
    """Steps with an interval, which the first series is of; None: all."""
    first: int = 0
    last: int = 0
    """Numbers of the first and the last of them, by the script's count."""
    lost: int = 0
    """Steps that were over before they could be read."""
    tokens: float | None = None
    samples: float | None = None
    statistics: bytes = b""
    """32-bit floats, little-endian, in seconds: rows `FIXED_SERIES` and `Names.phases`, columns `STATISTICS`; NaN
    is absent. A phase is 0 in a step that it is not in, so its mean times `steps` is its sum."""
    values: bytes = b""
    """32-bit floats: the last logged value of each of `Names.values`; NaN is absent."""


class State(msgspec.Struct, tag="state", kw_only=True, omit_defaults=True):
    """Sums since the process attached."""

    at: float
    mono: float
    steps: int = 0
    intervals: int = 0
    lost: int = 0
    first_mono: float | None = None
    """When the first step began."""
    first_index: int | None = None
    first_batch_mono: float | None = None
    """When the first batch was asked for, which may be before hooks know a step; None where that is not seen."""
    phases_after: dict[str, float] = {}
    """Seconds by phase after the last step, as far as they are in no step."""
    last_mono: float | None = None
    """When the last step ended."""
    last_index: int | None = None
    interval_seconds: float = 0.0
    """Time of steps from start to start."""
    step_seconds: float = 0.0
    """Time of steps from start to end."""
    tokens: float | None = None
    samples: float | None = None
    phases: dict[str, float] = {}
    """Seconds by phase; a nested one (a/b) is in its parent's as well."""
    histogram: list[tuple[int, int]] = []
    """(bucket, intervals) of `bucket_of`."""
    first_step: StepRow | None = None
    """The first step, which holds the first batch and what is compiled."""
    usual_seconds: float = 0.0
    """A running mean of steps that weighs the last twenty; a long one counts at most twice as much."""
    stalls: dict[str, float] = {}
    """Seconds beyond the usual step of those that took `STALL_FACTOR` times that and `STALL_SECONDS` more, by the
    part that was longest: a phase, or `OUTSIDE`."""
    capture_seconds: float = 0.0
    """Seconds between steps in which captures by llmtop held the process."""
    capture_parts: dict[str, float] = {}
    """Seconds beyond the usual step of those that a capture held or slowed, by phase, and `OUTSIDE`."""
    holds: list[tuple[float, float]] = []
    """From when to when captures did (`mono`), those that reach beyond the last step."""
    held_until: float = 0.0
    """When the last of all of them ended."""
    checkpoint_mono: float | None = None
    """When the last checkpoint was saved, as far as a phase shows it."""
    checkpoint_index: int | None = None
    """Index of the step that held it."""
    dropped: int = 0
    """Members that the disk did not take."""


class KeptSteps(msgspec.Struct, tag="kept_steps", kw_only=True):
    """Steps in full, each with why it is here: "first", "long", "checkpoint", "evaluation"."""

    steps: list[StepRow]
    reasons: list[str]


class RecentSteps(msgspec.Struct, tag="steps", kw_only=True):
    """All steps that ended within a second."""

    first: int
    """How many steps the process had finished before the first of these."""
    steps: list[StepRow]
    mono_offset_ns: int = 0
    """Offset from CLOCK_MONOTONIC to the steps' unix times."""


class Hold(msgspec.Struct, tag="hold", kw_only=True):
    """A capture of llmtop's that held the process between two steps, by `mono`."""

    begun: float
    ended: float
    engine: str = ""


class Values(msgspec.Struct, tag="values", kw_only=True):
    """The logged values, those that have changed since the record before."""

    at: float
    values: dict[str, float]


class Sign(msgspec.Struct, tag="sign", kw_only=True, omit_defaults=True):
    """The process lives and ends no step."""

    at: float
    mono: float
    idle_seconds: float | None = None
    """Since the last step ended; None before the first."""
    phase: str = ""
    """Path of the phase that is open."""
    worked_seconds: float | None = None
    """How long ago work was seen that ends no step: a validation, a checkpoint."""


class End(msgspec.Struct, tag="end", kw_only=True, omit_defaults=True):
    """The interpreter ends."""

    at: float
    mono: float
    error: str = ""
    """Class of the exception that ended the script; empty: there was none."""
    message: str = ""
    """Its message without secrets; empty also where the script's own code makes it."""
    line: str = ""
    """The script's line that raised it: "train.py:88 in load"."""
    frames: list[tuple[str, str, int]] = []
    """(function, file, line) of its traceback, innermost first."""


class Exit(msgspec.Struct, tag="exit", kw_only=True, omit_defaults=True):
    """Exit of a rank as its launcher saw it."""

    at: float
    code: int
    """Exit code; negative: the number of the signal that ended it."""
    is_first: bool = False
    """True if the launcher names it as the root cause."""


class Note(msgspec.Struct, tag="note", kw_only=True):
    """Data that is missing in the file, with the reason."""

    at: float
    text: str


class GpuMinute(msgspec.Struct, tag="gpu", kw_only=True, omit_defaults=True):
    """Signals of one GPU within a minute, by a monitor."""

    at: float
    seconds: float
    uuid: str
    index: int
    name: str = ""
    samples: int = 0
    pids: list[int] = []
    """Trainings on it, as this host numbers them."""
    signals: dict[str, tuple[float, float, float]] = {}
    """(mean, min, max) by field of `llmtop.model.snapshot.Gpu`."""
    energy_joules: float | None = None


class AlertSeen(msgspec.Struct, tag="alert", kw_only=True, omit_defaults=True):
    """An alert that began or ended, by a monitor."""

    at: float
    id: str
    ended: bool = False
    severity: str = ""
    summary: str = ""
    advice: str = ""
    rank: int | None = None
    pid: int | None = None
    gpu: int | None = None
    since: float | None = None
    """Unix time since when the rule held; `at` is when the monitor saw it."""
    points: list[str] = []
    """Points, as in `llmtop.model.snapshot.Alert`."""
    gpu_uuid: str | None = None


class Watched(msgspec.Struct, tag="watched", kw_only=True, omit_defaults=True):
    """A monitor watches this run: it has its turn from the first of these records to the last."""

    at: float
    monitor: str = ""
    """"screen", "record", "export", ...: which command."""
    pid: int = 0
    lost: int = 0
    """Snapshots that are in no figure since the record before: the disk was too slow, or full."""


class CaptureSeen(msgspec.Struct, tag="capture", kw_only=True, omit_defaults=True):
    """A capture that was taken, by a monitor."""

    at: float
    path: str
    engine: str = ""
    verdict: str = ""
    pids: list[int] = []


class StackOfThread(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Stack of one thread."""

    name: str = ""
    frames: list[tuple[str, str, int]] = []
    """(function, file, line), innermost first."""


class Stacks(msgspec.Struct, tag="stacks", kw_only=True):
    """Stacks of all threads while a step took more than three times the median."""

    at: float
    mono: float
    finished: int
    """How many steps the process had finished: the running one is the next."""
    seconds: float
    """Since the last of these ended."""
    threads: list[StackOfThread]
    """The main thread first."""


Record = (
    Start
    | Names
    | Minute
    | State
    | KeptSteps
    | RecentSteps
    | Hold
    | Values
    | Sign
    | End
    | Exit
    | Note
    | GpuMinute
    | AlertSeen
    | Watched
    | CaptureSeen
    | Stacks
)

encoder = msgspec.json.Encoder()


def lines_of(records: list[Record]) -> bytes:
    """Return records as lines of JSON."""
    return b"".join(encoder.encode(record) + b"\n" for record in records)


def statistics_of(names: Names, minute: Minute) -> dict[str, tuple[float, ...]]:
    """Return `STATISTICS` of a minute in seconds, by `FIXED_SERIES` and phase; without series that are absent."""
    numbers = struct.unpack(f"<{len(minute.statistics) // 4}f", minute.statistics)
    width = len(STATISTICS)
    rows = [numbers[place : place + width] for place in range(0, len(numbers), width)]
    series = zip((*FIXED_SERIES, *names.phases), rows, strict=False)
    return {name: row for name, row in series if not math.isnan(row[2])}


def values_of(names: Names, minute: Minute) -> dict[str, float]:
    """Return the last logged values of a minute by name; without those that are absent."""
    numbers = struct.unpack(f"<{len(minute.values) // 4}f", minute.values)
    return {name: value for name, value in zip(names.values, numbers, strict=False) if not math.isnan(value)}


@functools.lru_cache(_NAMES)
def is_checkpoint(phase: str) -> bool:
    """Return True if a phase saves a checkpoint, by its name."""
    name = phase.lower()
    return "checkpoint" in name or "ckpt" in name or "save" in name


@functools.lru_cache(_NAMES)
def is_evaluation(phase: str) -> bool:
    """Return True if a phase is an evaluation, by its name."""
    name = phase.lower()
    return "eval" in name or "validat" in name


def bucket_of(seconds: float) -> int:
    """Return the bucket of a histogram that a duration falls into."""
    if seconds <= _FIRST_BUCKET_SECONDS:
        return 0
    return int(math.log(seconds / _FIRST_BUCKET_SECONDS) / _LOG_RATIO)


def add_steps(
    state: State,
    phases: dict[str, float],
    histogram: dict[int, int],
    rows: Sequence[StepRow],
    mono_offset_ns: int,
) -> dict[str, list[int]]:
    """Add steps to sums. A training holds Python's lock meanwhile: what can be is done once for all of them.

    Args:
        state: whose own fields are raised; not the two that follow.
        phases: seconds by phase.
        histogram: intervals by bucket.
        rows: as in `RecentSteps`, oldest first.
        mono_offset_ns: what was added to CLOCK_MONOTONIC for the rows' unix time.

    Returns:
        The ns of each phase in the steps that it is in, in their order.
    """
    if not rows:
        return {}
    if state.first_mono is None:
        state.first_step = rows[0]
        state.first_mono, state.first_index = (rows[0][1] - mono_offset_ns) / 1e9, rows[0][0]
    _add_stalls(state, rows, mono_offset_ns)
    last_ns = max([row[1] + row[2] for row in rows])
    state.last_index = rows[-1][0]
    state.at, state.mono = max(state.at, last_ns / 1e9), max(state.mono, (last_ns - mono_offset_ns) / 1e9)
    state.step_seconds += sum([row[2] for row in rows]) / 1e9
    intervals = [row[3] for row in rows if row[3] is not None]
    state.intervals += len(intervals)
    state.interval_seconds += sum(intervals) / 1e9
    for interval_ns in intervals:
        bucket = bucket_of(interval_ns / 1e9)
        histogram[bucket] = histogram.get(bucket, 0) + 1
    state.tokens = add_known(state.tokens, [row[4] for row in rows])
    state.samples = add_known(state.samples, [row[5] for row in rows])
    found = _phase_columns(rows)
    for name, column in found.items():
        phases[name] = phases.get(name, 0.0) + sum(column) / 1e9
    if any(map(is_checkpoint, found)):
        _add_checkpoints(state, rows, mono_offset_ns)
    return found


def add_known(total: float | None, numbers: Iterable[float | None]) -> float | None:
    """Return a sum with the numbers that are known; None if none is."""
    known = [number for number in numbers if number is not None]
    return (total or 0.0) + sum(known) if known else total


def _phase_columns(rows: Iterable[StepRow]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in rows:
        for name, ns, _ in row[6]:
            if name in found:
                found[name].append(ns)
            else:
                found[name] = [ns]
    return found


def _add_checkpoints(state: State, rows: Iterable[StepRow], mono_offset_ns: int) -> None:
    for row in rows:
        begun_ns = row[1] - mono_offset_ns
        for place, (name, ns, _) in enumerate(row[6]):
            if is_checkpoint(name):
                state.checkpoint_mono = (begun_ns + (row[2] if place else ns)) / 1e9
                state.checkpoint_index = row[0]


def add_hold(state: State, hold: Hold) -> None:
    """Add a stretch that a capture took to sums, before the steps that it lies in; unless they have it already."""
    if hold.ended > state.held_until:
        state.held_until = hold.ended
        state.holds = [*state.holds, (hold.begun, hold.ended)]


def held_seconds(state: State, begun: float, ended: float) -> float:
    """Return for how much of a stretch (`mono`) captures held the process, of `State.holds`."""
    return sum(max(0.0, min(until, ended) - max(since, begun)) for since, until in state.holds)


def _add_stalls(state: State, rows: Iterable[StepRow], mono_offset_ns: int) -> None:
    """Count steps, and compare each, with the time since the one before, with the usual one."""
    steps, usual, last_mono, holds = state.steps, state.usual_seconds, state.last_mono, state.holds
    for row in rows:
        begun_ns = row[1] - mono_offset_ns
        first = begun_ns / 1e9
        between = 0.0 if last_mono is None or first < last_mono else first - last_mono
        whole = row[2] / 1e9 + between
        if holds:
            whole -= _take_capture(state, row, first, between, usual)
            holds = state.holds
        if usual and whole > STALL_FACTOR * usual and whole > usual + STALL_SECONDS:
            parts = _parts(row)
            parts[OUTSIDE] += between
            part = max(parts, key=lambda name: parts[name])
            state.stalls[part] = state.stalls.get(part, 0.0) + whole - usual
        if steps:  # the first one is not usual
            weight = 1 / steps if steps < _USUAL_STEPS else 1 / _USUAL_STEPS
            usual += ((whole if whole < 2 * usual or not usual else 2 * usual) - usual) * weight
        steps += 1
        last_mono = (begun_ns + row[2]) / 1e9
    state.steps, state.usual_seconds, state.last_mono = steps, usual, last_mono


def _take_capture(state: State, row: StepRow, first: float, between: float, usual: float) -> float:
    """Return how much of a step beyond the usual one captures took, once that is in the sums."""
    host: float = row[2] / 1e9
    ended = first + host
    before = held_seconds(state, first - between, first)
    within = min(held_seconds(state, first, ended), max(0.0, host - usual))
    state.holds = [one for one in state.holds if one[1] > ended]
    state.capture_seconds += before
    if not usual or within <= 0:
        return before
    for part, seconds in _parts(row).items():
        state.capture_parts[part] = state.capture_parts.get(part, 0.0) + seconds * within / host
    return before + within


def _parts(row: StepRow) -> dict[str, float]:
    """Return the seconds of a step by phase, and `OUTSIDE`."""
    parts = {name: ns / 1e9 for name, ns, _ in row[6] if "/" not in name}
    parts[OUTSIDE] = max(0.0, row[2] / 1e9 - sum(parts.values()))
    return parts


def histogram_percentile(histogram: list[tuple[int, int]], share: float) -> float | None:
    """Return a percentile of a histogram.

    Args:
        histogram: (bucket, count), in any order.
        share: 0.5 for the median.

    Returns:
        Seconds, exact to 1 %; None where the histogram is empty.
    """
    rest = share * sum(count for _, count in histogram)
    for bucket, count in sorted(histogram):
        rest -= count
        if rest <= 0:
            return float(_FIRST_BUCKET_SECONDS * BUCKET_RATIO ** (bucket + 0.5))
    return None
