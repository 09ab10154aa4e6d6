"""One process of a run at any time: its minutes and its last steps as the rank of a snapshot."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from llmtop.model.snapshot import Phase, Rank, RankState, Step, Window
from llmtop.model.stall_thresholds import STALLED_SECONDS, STALLED_STEPS
from llmtop.runs import folder, records
from llmtop.runs.run_file import FileMember, RunFile
from llmtop.runs.store import RUNNING, RankProcess

GONE_SECONDS = 20.0
"""How long a process that has ended is shown."""
TAIL_BYTES = 128 << 10
"""Bytes of the file of a process that are in memory: two hours or more, first the last ones."""
_INSIDE_SECONDS = 2.0
"""Before the begin of a minute: in the one before it, whose end may be off by a second."""
_STEPS_OF_A_MINUTE = 9
"""Mean steps that a snapshot has of a minute: rules look at eight, and a step is whole once the next has begun."""


class MinuteSteps(NamedTuple):
    """Steps of a minute."""

    minute: records.Minute
    series: dict[str, tuple[float, ...]]
    """`records.STATISTICS` in seconds."""
    values: dict[str, float]
    kept: tuple[Step, ...]
    """Steps in full, which took unusually long or hold a checkpoint or an evaluation."""


class ProcessTrack:
    """A process from its start to its end. Its files are read when it is made; members are unpacked as needed."""

    def __init__(
        self, process: RankProcess, job: str, tail_bytes: int = TAIL_BYTES, last_seconds: float = math.inf
    ) -> None:
        """Read the files of a process.

        Args:
            process: one with a file.
            job: name of its run, for the screen.
            tail_bytes: how much of its file is in memory.
            last_seconds: how much of its end is known step by step, at most.
        """
        self.start = process.start or records.Start()
        self._job = job
        self.attached_at = self.start.at or process.name.started_ms / 1000
        self.ended: float | None = None if process.how == RUNNING else process.last_sign
        """Unix time of its end or last record; None while it runs."""
        self.last_sign = process.last_sign
        self.error = process.end.error if process.end is not None else ""
        self.pid = process.name.pid
        self.whole = _whole_window(process.state)
        """All of its steps."""
        self.rank = process.rank
        self._process = process
        self._bytes = tail_bytes
        self._read_file(math.inf)
        self._steps: list[Step] = []
        self._ends: list[float] = []
        self._values: list[tuple[float, dict[str, float]]] = []
        self._signs: list[records.Sign] = []
        self._read_last(process, self.last_sign - last_seconds)

    def _read_file(self, at: float) -> None:
        """Read the file of the process around an instant."""
        path = self._process.folder / (self._process.name.text + folder.RUN)
        try:
            self._file: RunFile | None = RunFile(path, around=at, end_bytes=self._bytes)
        except OSError:
            self._file = None
        self._members: list[FileMember] = [] if self._file is None else self._file.members
        self._known: dict[int, MinuteSteps | None] = {}
        self._names, self._names_place = records.Names(), -1

    @property
    def full_since(self) -> float:
        """Unix time since when each of its steps is known; its end where none is."""
        return self._steps[0].started_at if self._steps else self.last_sign

    def _read_last(self, process: RankProcess, since: float) -> None:
        rows: dict[int, records.StepRow] = {}
        for record in process.last_records(lambda member: member.last >= since):
            if isinstance(record, records.RecentSteps):
                rows |= enumerate(record.steps, record.first)
            elif isinstance(record, records.Values):
                before = self._values[-1][1] if self._values else {}
                self._values.append((record.at, {**before, **record.values}))
            elif isinstance(record, records.Sign):
                self._signs.append(record)
        warmup = self.start.warmup_steps
        self._steps = [_step(row, warmup=number < warmup) for number, row in sorted(rows.items())]
        self._ends = [step.started_at + step.seconds for step in self._steps]

    def minute_at(self, at: float) -> MinuteSteps | None:
        """Return the minute that an instant lies in; None where none was written or no step ended in it.

        Args:
            at: unix time.
        """
        if self._file is not None and not self._file.covers(at):
            self._read_file(at)
        place = bisect_left(self._members, at, key=lambda member: member.last)
        if place >= len(self._members) or self._file is None:
            return None
        if place not in self._known:
            if len(self._known) > 64:
                self._known.clear()
            self._known[place] = self._minute(self._file, place)
        found = self._known[place]
        if found is None or not found.minute.at - found.minute.seconds - 1.0 <= at <= found.minute.at + 1.0:
            return None
        return found

    def _minute(self, file: RunFile, place: int) -> MinuteSteps | None:
        found = list(file.records_of(place))
        minute = next((one for one in found if isinstance(one, records.Minute)), None)
        names = next((one for one in found if isinstance(one, records.Names)), None)
        if names is not None:
            self._names = names
        elif minute is not None and self._names_place != place - 1:
            self._names = self._names_before(file, place)
        self._names_place = place if names is not None or minute is not None else -1
        if minute is None or not minute.steps:
            return None
        numbers = records.values_of(self._names, minute)
        rows = [row for one in found if isinstance(one, records.KeptSteps) for row in one.steps]
        series = records.statistics_of(self._names, minute)
        return MinuteSteps(minute, series, numbers, tuple(_step(row, warmup=False) for row in rows))

    def _names_before(self, file: RunFile, place: int) -> records.Names:
        """Return the names of a minute's rows, from its own member or one of the ten members before."""
        for earlier in range(place - 1, max(-1, place - 64), -1):
            for record in file.records_of(earlier):
                if isinstance(record, records.Names):
                    return record
        return self._names

    def rank_at(self, since: float, at: float) -> Rank | None:
        """Return the process as a monitor would have shown it; None before its start, and some time after its end.

        Args:
            since: unix time of the snapshot before: steps that ended since then are new.
            at: unix time.
        """
        if at < self.attached_at or (self.ended is not None and at > self.ended + GONE_SECONDS):
            return None
        gone = self.ended is not None and at > self.ended
        in_full = at > self.full_since
        found = None if in_full else self.minute_at(at)
        steps = self._full_steps(since, at) if in_full else self._minute_steps(found, since, at)
        last = self._last_step_at(at, found, in_full=in_full)
        fields: dict[str, Any] = {} if found is None else _figures(found)
        usual = found.series.get("interval", (None,))[0] if found else None
        worked = self._worked_at(at)
        state: RankState = "gone" if gone else "running"
        quiet = at - max(last or self.attached_at, worked or 0.0)
        if not gone and last is not None and quiet > max(STALLED_SECONDS, STALLED_STEPS * (usual or 0.0)):
            state = "stalled"
        start = self.start
        return Rank(
            pid=self.pid,
            host=start.host,
            job=self._job,
            launcher=start.launch.launcher or None,
            run_id=start.launch.run_id or None,
            slurm_job_id=start.launch.slurm_job_id or None,
            rank=self.rank,
            local_rank=start.local_rank,
            world_size=start.world_size,
            gpu_uuid=start.gpu_uuid,
            command=start.command or None,
            kind="request" if start.kind == "request" else "step",
            total_steps=start.total_steps,
            warmup_steps=start.warmup_steps,
            state=state,
            step=steps[-1].index if steps else self._last_index(at, found),
            metrics=self._metrics(at, found),
            last_step_at=last,
            last_work_at=worked,
            attached_at=self.attached_at,
            new_steps=tuple(steps),
            note=f"it ended by {self.error}" if gone and self.error else None,
            **fields,
        )

    def steps_in_full(self, since: float, at: float) -> Sequence[Step]:
        """Return the steps that ended within a stretch, as far as each is known; no means."""
        if at > self.full_since:
            return self._full_steps(since, at)
        minutes = [self.minute_at(instant) for instant in (since, at)]
        known = {step.index: step for found in minutes if found is not None for step in found.kept}
        return [step for _, step in sorted(known.items()) if since < step.started_at + step.seconds <= at]

    def _full_steps(self, since: float, at: float) -> Sequence[Step]:
        return self._steps[bisect_right(self._ends, since) : bisect_right(self._ends, at)]

    def _minute_steps(self, found: MinuteSteps | None, since: float, at: float) -> Sequence[Step]:
        """Return the mean steps since a snapshot; where that was in the minute before, also some of its steps."""
        steps = _mean_steps(found, since, at, _STEPS_OF_A_MINUTE)
        missing = _STEPS_OF_A_MINUTE - len(steps)
        begin = 0.0 if found is None else found.minute.at - found.minute.seconds
        if missing > 0 and since < begin:
            return _mean_steps(self.minute_at(begin - _INSIDE_SECONDS), since, begin, missing) + steps
        return steps

    def _last_step_at(self, at: float, found: MinuteSteps | None, *, in_full: bool) -> float | None:
        if in_full:
            place = bisect_right(self._ends, at)
            if place:
                return self._ends[place - 1]
        if found is not None:
            return min(at, found.minute.at)
        for earlier in range(bisect_left(self._members, at, key=lambda member: member.last) - 1, -1, -1):
            minute = None if self._file is None else self._minute(self._file, earlier)
            if minute is not None:
                return min(at, minute.minute.at)
            if at - self._members[earlier].last > 600.0:
                break
        return None

    def _last_index(self, at: float, found: MinuteSteps | None) -> int | None:
        """Return the number of the last finished step, where none is new."""
        place = bisect_right(self._ends, at)
        if place:
            return self._steps[place - 1].index
        return None if found is None else found.minute.first

    def _worked_at(self, at: float) -> float | None:
        place = bisect_right(self._signs, at, key=lambda sign: sign.at)
        seconds = self._signs[place - 1].worked_seconds if place else None
        return None if seconds is None else self._signs[place - 1].at - seconds

    def _metrics(self, at: float, found: MinuteSteps | None) -> dict[str, float | None]:
        if found is not None:
            return dict(found.values)
        place = bisect_right(self._values, at, key=lambda one: one[0])
        return dict(self._values[place - 1][1]) if place else {}


def _whole_window(state: records.State | None) -> Window | None:
    if state is None or not state.intervals:
        return None
    p50 = records.histogram_percentile(state.histogram, 0.5)
    p95 = records.histogram_percentile(state.histogram, 0.95)
    mean = state.interval_seconds / state.intervals
    covered = sum(seconds for name, seconds in state.phases.items() if "/" not in name)
    outside = max(0.0, mean - covered / state.steps) if state.phases and state.steps else None
    return Window(
        name="run",
        seconds=state.interval_seconds,
        steps=state.intervals,
        step_seconds=mean,
        step_seconds_p50=mean if p50 is None else p50,
        step_seconds_p95=mean if p95 is None else p95,
        outside_seconds=outside,
        tokens_per_s=_rate(state.tokens, state.steps, mean),
    )


def _figures(found: MinuteSteps) -> dict[str, Any]:
    """Figures of a minute, as fields of `Rank`."""
    minute, interval = found.minute, found.series.get("interval")
    counted = minute.steps if minute.intervals is None else minute.intervals
    tops = {name: row[2] for name, row in found.series.items() if name not in records.FIXED_SERIES}
    phases = tuple(Phase(name=name, host_seconds=seconds) for name, seconds in tops.items())
    fields: dict[str, Any] = {"phases": phases}
    if interval is not None:
        p50, p95, mean = interval[:3]
        covered = sum(seconds for name, seconds in tops.items() if "/" not in name)
        fields |= {
            "step_seconds": mean,
            "step_seconds_mean": mean,
            "step_seconds_p50": p50,
            "step_seconds_p95": p95,
            "window_seconds": mean * counted,
            "window_steps": counted,
            "steps_per_s": 1 / mean if mean > 0 else None,
            "outside_seconds": max(0.0, mean - covered) if phases else None,
            "tokens_per_s": _rate(minute.tokens, minute.steps, mean),
            "samples_per_s": _rate(minute.samples, minute.steps, mean),
        }
    return fields


def _rate(total: float | None, steps: int, mean: float) -> float | None:
    return None if total is None or not steps or mean <= 0 else total / steps / mean


def _mean_steps(found: MinuteSteps | None, since: float, at: float, most: int) -> list[Step]:
    """Steps of a minute's means that ended within a stretch of it, for rules; those in full where there are any.

    Args:
        found: the minute.
        since: unix time.
        at: unix time.
        most: number of means, the last of the stretch.
    """
    if found is None:
        return []
    minute, series = found.minute, found.series
    apart = minute.seconds / minute.steps
    begin = minute.at - minute.seconds
    until = min(math.floor((at - begin) / apart + 1e-9), minute.steps)
    first = max(math.floor((since - begin) / apart + 1e-9), until - most, 0)
    seconds = series.get("step", (0.0, 0.0, apart))[2]
    interval = series["interval"][2] if "interval" in series else None
    phases = tuple(
        Phase(name=name, host_seconds=row[2]) for name, row in series.items() if name not in records.FIXED_SERIES
    )
    span = minute.last - minute.first
    kept = {step.index: step for step in found.kept if since < step.started_at + step.seconds <= at}
    for number in range(first, until):
        index = minute.first + (round(span * number / (minute.steps - 1)) if minute.steps > 1 else 0)
        if index not in kept:
            kept[index] = Step(
                index=index,
                started_at=begin + (number + 1) * apart - seconds,
                seconds=seconds,
                interval_seconds=interval,
                tokens=None if minute.tokens is None else minute.tokens / minute.steps,
                samples=None if minute.samples is None else minute.samples / minute.steps,
                phases=phases,
            )
    return [kept[index] for index in sorted(kept)]


def _step(row: records.StepRow, *, warmup: bool) -> Step:
    index, begun, host_ns, interval_ns, tokens, samples, spent = row[:7]
    return Step(
        index=index,
        started_at=begun / 1e9,
        seconds=host_ns / 1e9,
        interval_seconds=None if interval_ns is None else interval_ns / 1e9,
        tokens=tokens,
        samples=samples,
        phases=tuple(Phase(name=name, host_seconds=ns / 1e9) for name, ns, _ in spent),
        warmup=warmup,
    )
