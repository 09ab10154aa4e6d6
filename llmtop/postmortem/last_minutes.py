"""Last two minutes of each rank of a run, from its files: steps, the slowest one, stacks."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.format import encode_json
from llmtop.postmortem.evidence import CodeLine
from llmtop.postmortem.stack_meaning import without_own
from llmtop.runs import folder, records, store

TAIL_SCHEMA = 1
_NS = 1e-9


class StackSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Stack of the main thread at one moment of a slow step."""

    into_seconds: float
    """Time after the step before it had ended."""
    frames: tuple[CodeLine, ...]
    """Innermost first."""


class StepSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the last minutes."""

    number: int
    """Number by the script's count."""
    at: float
    """Unix time at which it began."""
    seconds: float
    """Time from its start to the next one's; for the newest step to its end."""
    phases: dict[str, float] = {}
    """Host seconds by phase."""
    stacks: tuple[StackSeen, ...] = ()


class RankTail(msgspec.Struct, frozen=True, kw_only=True):
    """The last minutes of one rank."""

    rank: int | None
    host: str
    pid: int
    how: str
    """"running", "ended", "failed", "killed": without its end being written."""
    error: str = ""
    """Class of the exception that ended it."""
    message: str = ""
    """Its message; empty where the files do not have it."""
    line: str = ""
    """The script's line that raised it: "train.py:88 in load"."""
    last_sign: float
    """Unix time of the last record."""
    steps: int
    """Steps in the last minutes."""
    last_step: int | None = None
    """Last step; from the sums where it is older than the last minutes."""
    median_seconds: float | None = None
    idle_seconds: float | None = None
    """Time from the end of the last step to the last record."""
    phase: str = ""
    """Open at the last record."""
    slowest: StepSeen | None = None
    running: tuple[StackSeen, ...] = ()
    """Stacks of the step that did not end."""


class TailReport(msgspec.Struct, frozen=True, kw_only=True):
    """The last minutes of a run."""

    schema: int = TAIL_SCHEMA
    kind: str = "tail"
    run: str
    folder: str
    ranks: tuple[RankTail, ...]


_encoder = msgspec.json.Encoder()


def tail_json(report: TailReport) -> bytes:
    """Return the report as one line of JSON."""
    return encode_json(report, _encoder.encode)


def find_run(name: str | None) -> store.Run:
    """Return a run by its id or its folder; without a name the newest.

    Raises:
        UnusableInput: no run has that name.
        NotPossibleHere: there is no run.
    """
    kept = folder.runs_folder().path
    if name is not None and Path(name).is_dir():
        found = store.runs_in(Path(name)) or store.list_runs(Path(name))
        if not found:
            raise UnusableInput(f"{name} holds no files of a run. Pass a folder below {kept}, or an id")
        return found[-1]
    runs = store.list_runs(kept)
    if name is not None:
        runs = [run for run in runs if name in (run.id, run.folder.name)]
        if not runs:
            raise UnusableInput(f"no run is called {name} in {kept}. llmtop runs lists them")
    if not runs:
        raise NotPossibleHere(f"{kept} holds no run. Start a training with llmtop run, or set LLMTOP_RUNS")
    return runs[-1] if name is not None else store.newest_training(runs)


def read_tail(run: store.Run) -> TailReport:
    """Return the last minutes of each rank of a run's last start."""
    ranks = [rank_tail(process) for process in run.attempts[-1].processes]
    ranks.sort(key=lambda one: (one.rank is None, one.rank or 0, one.pid))
    return TailReport(run=run.id, folder=str(run.folder), ranks=tuple(ranks))


def rank_tail(process: store.RankProcess) -> RankTail:
    """Return the last minutes of one process."""
    found = list(process.last_records())
    rows = process.last_steps()
    # By time: the newest ones are written again at the beginning of a new file.
    stacks = list({one.mono: one for one in found if isinstance(one, records.Stacks)}.values())
    signs = [one for one in found if isinstance(one, records.Sign)]
    start, end = process.start, process.end
    seconds = _lengths(rows)
    place = max(range(len(rows)), key=lambda place: seconds[place], default=None)
    slowest = _step(rows[place], seconds[place], stacks) if place is not None else None
    before = _step_before(rows[0], stacks) if rows else None
    if slowest is not None and before is not None and before.seconds > slowest.seconds:
        slowest = before
    last = rows[-1][1] if rows else None
    ended = (last[1] + last[2]) * _NS if last is not None else None
    finished = rows[-1][0] + 1 if rows else 0
    idle = signs[-1].idle_seconds if signs else None
    known = process.state
    return RankTail(
        rank=process.rank,
        host=start.host if start is not None else "",
        pid=process.name.pid if start is None else start.pid,
        how=process.how,
        error=end.error if end is not None else "",
        message=end.message if end is not None else "",
        line=end.line if end is not None else "",
        last_sign=process.last_sign,
        steps=len(rows),
        last_step=last[0] if last is not None else known.last_index if known is not None else None,
        median_seconds=statistics.median(seconds) if seconds else None,
        idle_seconds=max(0.0, process.last_sign - ended) if ended is not None else idle,
        phase=signs[-1].phase if signs else "",
        slowest=slowest,
        running=tuple(_stacks(one for one in stacks if one.finished >= finished)),
    )


def _lengths(rows: Sequence[tuple[int, records.StepRow]]) -> list[float]:
    """Seconds of each step from its start to the next one's; of the last one, and before a gap, to its end."""
    found = []
    for place, (number, row) in enumerate(rows):
        following = rows[place + 1] if place + 1 < len(rows) else None
        is_next = following is not None and following[0] == number + 1
        whole = following[1][1] - row[1] if following is not None and is_next else row[2]
        found.append(max(whole, row[2]) * _NS)
    return found


def _step(numbered: tuple[int, records.StepRow], seconds: float, stacks: Sequence[records.Stacks]) -> StepSeen:
    finished, row = numbered
    at = row[1] * _NS

    # Also after the step's own end: until the next one starts, its time is this step's.
    after = [
        msgspec.structs.replace(one, seconds=one.at - at)
        for one in stacks
        if one.finished == finished + 1 and one.at < at + seconds
    ]
    return StepSeen(
        number=row[0],
        at=at,
        seconds=seconds,
        phases={name: ns * _NS for name, ns, _ in row[6]},
        stacks=tuple(_stacks([*(one for one in stacks if one.finished == finished), *after])),
    )


def _step_before(numbered: tuple[int, records.StepRow], stacks: Sequence[records.Stacks]) -> StepSeen | None:
    """Return the step before the oldest that is known, by the time since its start; its phases are unknown."""
    finished, row = numbered
    if row[3] is None:
        return None
    seconds = row[3] * _NS
    seen = tuple(_stacks(one for one in stacks if one.finished == finished))
    return StepSeen(number=row[0] - 1, at=row[1] * _NS - seconds, seconds=seconds, stacks=seen)


def _stacks(found: Iterable[records.Stacks]) -> Iterable[StackSeen]:
    for one in found:
        if one.threads:
            frames = (CodeLine(function, file, line) for function, file, line in one.threads[0].frames)
            yield StackSeen(into_seconds=one.seconds, frames=without_own(frames))
