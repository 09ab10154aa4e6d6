"""Runs on disk with chosen step times, by the sums of the writer in trainings: no process takes that long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from llmtop.instrument.run_log.sums import Sums
from llmtop.recording.members import pack
from llmtop.runs import folder, records

LAST_SECONDS = 240.0
"""What is kept in full, at most."""


def write_run(
    runs: Path,
    name: str,
    step_seconds: Sequence[float],
    *,
    started: float = 1.7e9,
    first_step: int = 0,
    phases: dict[str, float] | None = None,
    values: Callable[[int], dict[str, float]] = lambda step: {"loss": 3.0 / (1 + step)},
    tokens: float | None = 4096.0,
    error: str = "",
    gpu_minutes: Sequence[records.GpuMinute] = (),
    **start: object,
) -> Path:
    """Write a run of one rank; return its folder.

    Args:
        runs: folder of all runs.
        name: of the run.
        step_seconds: from start to start of each step.
        started: unix time.
        first_step: number of the first one.
        phases: share of each phase in a step.
        values: logged values by the number of a step.
        tokens: of a step.
        error: class of the exception that ended it.
        gpu_minutes: what a monitor has written.
        start: further fields of `records.Start`.
    """
    found = runs / folder.RunKey("id", name, "train.py").folder_name
    found.mkdir(parents=True, exist_ok=True)
    begin = records.Start(
        program="train.py", host="host", at=started, mono=0.0,
        **{"source": "id", "run": name, "command": "python train.py", "folder": "/work", **start},
    )  # fmt: skip
    rows = _rows(step_seconds, started, first_step, phases or {"forward": 0.4, "backward": 0.5}, tokens)
    whole = sum(step_seconds)
    stem = folder.FileName(None, int(started * 1000), 100, f"{len(step_seconds):08x}").text
    sums, members, minute = Sums(0.0, started), _member([begin], started), 1
    for row in rows:
        while row[1] / 1e9 - started >= 60.0 * minute:
            sums.now(60.0 * minute, started + 60.0 * minute)
            members += _minute(sums, values, minute)
            minute += 1
        sums.add([row], int(started * 1e9))
    sums.now(whole, started + whole)
    members += _minute(sums, values, minute)
    end = records.End(at=started + whole, mono=whole, error=error)
    members += _member([sums.sums(), end], started + whole)
    (found / (stem + folder.RUN)).write_bytes(members)
    last = [row for row in rows if row[1] / 1e9 - started >= whole - LAST_SECONDS]
    data = _member([begin], started)
    for place, row in enumerate(last, len(rows) - len(last)):
        step = records.RecentSteps(first=place, steps=[row], mono_offset_ns=int(started * 1e9))
        data += _member([step, records.Values(at=row[1] / 1e9, values=values(row[0]))], row[1] / 1e9)
    (found / (stem + folder.LAST[0])).write_bytes(data + _member([end], started + whole))
    if gpu_minutes:
        (found / (stem + folder.NODE)).write_bytes(_member(list(gpu_minutes), started))
    return found


def _rows(
    lengths: Sequence[float], started: float, first: int, phases: dict[str, float], tokens: float | None
) -> list[records.StepRow]:
    rows, at, before = [], started, None
    for number, length in enumerate(lengths, first):
        spent = [(name, int(share * length * 1e9), 1) for name, share in phases.items()]
        rows.append((number, int(at * 1e9), int(0.99 * length * 1e9), before, tokens, None, spent))
        at, before = at + length, int(length * 1e9)
    return rows


def _minute(sums: Sums, values: Callable[[int], dict[str, float]], minute: int) -> bytes:
    found = sums.end_minute(values(sums.state.last_index or 0), repeat_names=False)
    if minute % 10 == 0:
        found.append(sums.sums())
    return _member(found, sums.state.at) if found else b""


def _member(found: list[records.Record], at: float) -> bytes:
    return pack(records.lines_of(found), at, at, len(found))
