"""The past of runs by minutes, for the time line: steps, rates, logged values, phases, GPU signals and alerts."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from llmtop.model.snapshot import Rank
from llmtop.naming import variable_names
from llmtop.naming.own_phases import OUTSIDE
from llmtop.runs import records, store
from llmtop.runs.node_notes import RunAlert, read_notes
from llmtop.runs.running import find_running
from llmtop.runs.store import Run

ALERTS_SECONDS = 120.0
"""How long the process may take that finds the alerts of a run."""
_YIELD_MINUTES = 15
"""Number after which the thread that reads lets others have the interpreter: a millisecond."""
PIECE_SECONDS = 4 * 14400.0
"""A piece ends where the longest buckets of the time line do."""
_STARTS = 4
"""Restarts whose processes get the past of all those before."""

RankKey = tuple[str, int, float]
"""Host, pid and when it attached, as of `tui.state.history.key_of`."""
Bounds = tuple[float, float, float]
"""Mean, lowest, highest."""


class PastMinute(NamedTuple):
    """Steps of a rank in a minute."""

    since: float
    until: float
    """Unix times."""
    step_seconds: Bounds | None
    """Time from start to start."""
    tokens_per_s: float | None
    values: dict[str, float]
    """Logged last."""
    phases: dict[str, float]
    """Mean seconds a step of the top-level ones, and of `OUTSIDE`."""


class RankPast(NamedTuple):
    """Minutes of one rank, oldest first."""

    keys: list[RankKey]
    """Live processes of this rank: each of them is shown with these minutes."""
    minutes: list[PastMinute]


class RunPast(NamedTuple):
    """The past of one run."""

    begin: float
    """Unix time."""
    end: float
    """Unix time until which it goes: of what comes after, each step is known."""
    ranks: list[RankPast]
    gpu_minutes: list[records.GpuMinute]
    alerts: list[RunAlert]


class OpenedRun(NamedTuple):
    """A run that is shown after the fact."""

    begin: float
    until: float
    """Unix times: its past goes from the first to the second, and each step after that is known."""
    read: Callable[[], Iterator[RunPast]]
    """Yields its past part by part, then its alerts; takes some seconds."""


def opened_run(run: Run, until: float) -> OpenedRun:
    """Return a run as a screen takes it that plays it.

    Args:
        run: with its restarts.
        until: unix time from which on each step is known.
    """

    def read() -> Iterator[RunPast]:
        yield from pasts_of(run, until=until)
        yield past_alerts(run)

    return OpenedRun(run.started, until, read)


def pasts_of(run: Run, *, until: float, pids: dict[RankKey, RankKey] | None = None) -> Iterator[RunPast]:
    """Yield the past of a run without its alerts: that of its GPUs, then that of one rank after the other.

    Args:
        run: with its restarts.
        until: unix time; minutes that end later are left out.
        pids: names of processes by what their files call them, where these differ: in a container.
    """
    names = {} if pids is None else pids
    minutes = [one for one in read_notes(run).gpu_minutes if one.at <= until]
    yield RunPast(run.started, until, [], minutes, [])
    by_rank: dict[int | None, list[store.RankProcess]] = {}
    for process in sorted(run.processes, key=lambda one: (one.rank is None, one.rank or 0, one.started)):
        by_rank.setdefault(process.rank, []).append(process)
    for processes in by_rank.values():
        starts = [(process, process.start) for process in processes if process.start is not None]
        keys = [(start.host, process.name.pid, start.at) for process, start in starts][-_STARTS:]
        shown = [names.get(key, key) for key in keys]
        steps = (minute for process, _ in starts for minute in _minutes(process) if minute.since < until)
        for _, piece in itertools.groupby(steps, lambda minute: minute.until // PIECE_SECONDS):
            found = [minute._replace(until=min(minute.until, until)) for minute in piece]
            yield RunPast(run.started, until, [RankPast(shown, found)], [], [])


def _minutes(process: store.RankProcess) -> Iterator[PastMinute]:
    # A process of its own object: it would keep the file in memory.
    fresh = store.RankProcess(process.folder, process.name)
    for number, (names, minute) in enumerate(fresh.minutes()):
        if number % _YIELD_MINUTES == 0:
            time.sleep(0)
        series = records.statistics_of(names, minute)
        interval = series.get("interval")
        tops = {
            name: row[2] for name, row in series.items() if name not in records.FIXED_SERIES and "/" not in name
        }
        mean = None if interval is None else interval[2]
        if tops and mean is not None:
            tops[OUTSIDE] = max(0.0, mean - sum(tops.values()))
        has_rate = mean and minute.tokens is not None and minute.steps
        yield PastMinute(
            since=minute.at - minute.seconds,
            until=minute.at,
            step_seconds=None if interval is None else (interval[2], interval[3], interval[4]),
            tokens_per_s=minute.tokens / minute.steps / mean if has_rate and mean and minute.tokens else None,
            values=records.values_of(names, minute),
            phases=tops,
        )


def running_runs(ranks: Iterable[Rank]) -> Iterator[tuple[Run, dict[RankKey, RankKey]]]:
    """Yield the runs that some trainings of this node are part of, each with names of processes.

    Args:
        ranks: of a live snapshot.

    Yields:
        The run, and the names of `ranks` by what the files call them: in a container they differ.
    """
    folders: dict[Path, dict[RankKey, RankKey]] = {}
    for rank in ranks:
        attached = rank.attached_at or 0.0
        found = find_running(rank.pid, attached, rank.rank)
        if found is not None:
            key = rank.host, rank.pid, attached
            folders.setdefault(found.path, {})[rank.host, found.name.pid, attached] = key
    for path, pids in folders.items():
        for run in store.runs_in(path):
            keys = {(one.start.host, one.name.pid, one.start.at) for one in run.processes if one.start is not None}
            if keys & pids.keys():
                yield run, pids


def running_pasts(ranks: Iterable[Rank], until: float) -> Iterator[RunPast]:
    """Yield the past of the runs that some trainings of this node are part of, then their alerts.

    Args:
        ranks: of a live snapshot.
        until: unix time; what comes later is left out.
    """
    runs = []
    for run, pids in running_runs(ranks):
        runs.append(run)
        yield from pasts_of(run, until=until, pids=pids)
    for run in runs:
        yield past_alerts(run)


def past_alerts(run: Run) -> RunPast:
    """Return the alerts of a run alone, seen or recomputed."""
    return RunPast(run.started, run.last_sign, [], [], alerts_in_own_process(run))


class _Alerts(msgspec.Struct):
    """Fields of a `RunReport` that are read here."""

    alerts: list[RunAlert] = []


def alerts_in_own_process(run: Run) -> list[RunAlert]:
    """Return the alerts of a run, seen or recomputed; none where that fails.

    The rules work in a process of their own, beside the screen: of a long run they take seconds.
    """
    env = {**os.environ, variable_names.RUNS: str(run.folder.parent)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "llmtop", "runs", "show", run.id, "--json"],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=ALERTS_SECONDS,
        )
        return msgspec.json.decode(done.stdout, type=_Alerts).alerts if done.returncode == 0 else []
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError):
        return []
