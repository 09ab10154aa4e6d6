"""Sums of a training's steps: of the present minute, and since it attached. For the writer's thread alone."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence

from llmtop.runs import records
from llmtop.runs.records import StepRow

_MOST_SAMPLES = 2048
"""Most samples of a series in a minute, for its percentiles; of more every second is dropped, and so on."""
LONG_FACTOR = 3.0
LONG_SECONDS = 0.5
"""A step is kept in full if it takes so many times the usual one and so much more."""
FIRST_STEPS = 10
"""First steps that are kept in full."""
_MOST_IN_FULL = 30
"""Most rows per minute; further ones are in the sums of the minute alone."""
NAN = float("nan")


def _is_kept(phase: str) -> bool:
    """Return True if steps with this phase are kept in full."""
    return records.is_checkpoint(phase) or records.is_evaluation(phase)


class Series:
    """Durations of one kind within a minute, in ns."""

    __slots__ = ("_samples", "_skip", "_stride", "count", "least", "most", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.least = math.inf
        self.most = 0
        self._samples = array("d")
        self._stride = 1
        self._skip = 0

    def add(self, durations: Sequence[int]) -> None:
        """Add durations in ns, at least one."""
        self.count += len(durations)
        self.total += sum(durations)
        least, most = min(durations), max(durations)
        self.least, self.most = min(self.least, least), max(self.most, most)
        kept = durations[self._skip :: self._stride]
        self._samples.extend(kept)
        self._skip += len(kept) * self._stride - len(durations)
        while len(self._samples) >= _MOST_SAMPLES:
            self._samples = self._samples[::2]
            self._stride *= 2

    def statistics(self, steps: int) -> tuple[float, ...]:
        """Return `records.STATISTICS` over `steps` steps in seconds; those that it is not in count as 0 s."""
        if not self.count or not steps:
            return (NAN,) * len(records.STATISTICS)
        absent = max(0, steps - self.count)
        ordered = sorted(self._samples)

        def at_share(share: float) -> float:
            place = share * (absent + self.count) - absent
            if place < 0 or not ordered:
                return 0.0
            return ordered[min(len(ordered) - 1, int(place / self.count * len(ordered)))]

        least = 0.0 if absent else self.least
        mean = self.total / (absent + self.count)
        return tuple(ns / 1e9 for ns in (at_share(0.5), at_share(0.95), mean, least, self.most))


class Sums:
    """All steps since the process attached, and those of the present minute."""

    def __init__(self, mono: float, at: float) -> None:
        """Begin with nothing.

        Args:
            mono: CLOCK_MONOTONIC in seconds.
            at: the same moment in unix time.
        """
        self.state = records.State(at=at, mono=mono)
        self._phases: dict[str, float] = {}
        self._histogram: dict[int, int] = {}
        self._names = records.Names()
        self._in_full: list[StepRow] = []
        self._reasons: list[str] = []
        self._begin_minute(mono)

    def _begin_minute(self, mono: float) -> None:
        self._begun = mono
        self._steps = self._lost = 0
        self._first = self._last = 0
        self._tokens: float | None = None
        self._samples: float | None = None
        self._interval, self._step = Series(), Series()
        self._series: dict[str, Series] = {}
        self._left_in_full = _MOST_IN_FULL

    @property
    def minute_seconds(self) -> float:
        """How long the present minute lasts by now, when `state.mono` is now."""
        return self.state.mono - self._begun

    def add(self, rows: Sequence[StepRow], mono_offset_ns: int) -> None:
        """Add finished steps, oldest first."""
        if not rows:
            return
        phases = records.add_steps(self.state, self._phases, self._histogram, rows, mono_offset_ns)
        if not self._steps:
            self._first = rows[0][0]
        self._last = rows[-1][0]
        self._steps += len(rows)
        hosts = [row[2] for row in rows]
        self._step.add(hosts)
        intervals = [row[3] for row in rows if row[3] is not None]
        if intervals:
            self._interval.add(intervals)
        self._tokens = records.add_known(self._tokens, [row[4] for row in rows])
        self._samples = records.add_known(self._samples, [row[5] for row in rows])
        for name, column in phases.items():
            series = self._series.get(name)
            if series is None:
                series = self._series[name] = Series()
            series.add(column)
        self._keep(rows, phases, max(hosts) / 1e9)

    def lose(self, steps: int) -> None:
        """Count steps that were over before they could be read."""
        self._lost += steps
        self.state.lost += steps

    def now(self, mono: float, at: float) -> None:
        """Note what time it is: CLOCK_MONOTONIC and unix time, in seconds."""
        self.state.mono, self.state.at = mono, at

    def _keep(self, rows: Sequence[StepRow], phases: Iterable[str], longest: float) -> None:
        """Keep the steps that are worth it in full.

        Args:
            rows: just added.
            phases: of any of them.
            longest: seconds of the longest of them.
        """
        usual = self.state.usual_seconds
        least = max(LONG_FACTOR * usual, usual + LONG_SECONDS)
        before = self.state.steps - len(rows)
        if before >= FIRST_STEPS and longest <= least and not any(map(_is_kept, phases)):
            return
        for number, row in enumerate(rows, before):
            reason = ""
            if number < FIRST_STEPS:
                reason = "first"
            elif row[2] / 1e9 > least:
                reason = "long"
            for name, _, _ in row[6]:
                if records.is_checkpoint(name):
                    reason = "checkpoint"
                elif records.is_evaluation(name):
                    reason = "evaluation"
            if reason and self._left_in_full > 0:
                self._left_in_full -= 1
                self._in_full.append(row)
                self._reasons.append(reason)

    def take_kept(self) -> records.KeptSteps | None:
        """Return the steps to be kept in full since the last call; None without any."""
        if not self._in_full:
            return None
        found = records.KeptSteps(steps=self._in_full, reasons=self._reasons)
        self._in_full, self._reasons = [], []
        return found

    def sums(self) -> records.State:
        """Return the sums so far."""
        self.state.phases = {name: round(seconds, 6) for name, seconds in self._phases.items()}
        self.state.histogram = sorted(self._histogram.items())
        return self.state

    def end_minute(self, values: dict[str, float], *, repeat_names: bool) -> list[records.Record]:
        """Return the records of the minute and begin the next one.

        Args:
            values: the last logged ones.
            repeat_names: write what the rows are of also where it is as before.
        """
        found: list[records.Record] = []
        series = self._few_series()
        names = records.Names(list(series), sorted(values)[: records.MAX_VALUES])
        if self._steps and (repeat_names or names != self._names):
            self._names = names
            found.append(names)
        if self._steps or self._lost:
            rows = [self._interval.statistics(self._interval.count), self._step.statistics(self._steps)]
            rows += [one.statistics(self._steps) for one in series.values()]
            found.append(
                records.Minute(
                    at=round(self.state.at, 3),
                    mono=round(self.state.mono, 3),
                    seconds=round(self.minute_seconds, 3),
                    steps=self._steps,
                    intervals=None if self._interval.count == self._steps else self._interval.count,
                    first=self._first,
                    last=self._last,
                    lost=self._lost,
                    tokens=self._tokens,
                    samples=self._samples,
                    statistics=array("f", [number for row in rows for number in row]).tobytes(),
                    values=array("f", [_float32(values[name]) for name in names.values]).tobytes(),
                )
            )
        self._begin_minute(self.state.mono)
        return found

    def _few_series(self) -> dict[str, Series]:
        """Return the series of the largest phases; all else is one."""
        ordered = sorted(self._series, key=lambda name: self._series[name].total, reverse=True)
        wanted = set(ordered[: records.PHASE_SERIES])
        found = {name: series for name, series in self._series.items() if name in wanted}
        rest = [name for name in ordered[records.PHASE_SERIES :] if "/" not in name]
        if rest:
            found[records.OTHER_PHASES] = other = Series()
            for name in rest:
                other.count = max(other.count, self._series[name].count)
                other.total += self._series[name].total
                other.most = max(other.most, self._series[name].most)
        return found


def _float32(value: float) -> float:
    """Return a value that fits into 32 bits; what is too large is absent."""
    return value if math.isfinite(value) and abs(value) < 3.4e38 else NAN
